// Sends requests to the node: less often while requests fail, and not at all while the page is hidden.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;

/// The node did not respond.
export class Gone extends Error {}

/// Requests a path, and returns the JSON in the response. Throws `Gone` if there is no response within `within`
/// milliseconds, or an error with the node's message if the request fails.
export async function ask(path, within) {
  let response;
  let body;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(within) });
    body = await response.text();
  } catch (error) {
    throw new Gone(error.name === "TimeoutError" ? "the request timed out" : "it cannot be reached");
  }
  const json = (() => { try { return JSON.parse(body); } catch { return {}; } })();
  if (!response.ok) throw new Error(json.detail ?? `the node responded with status ${response.status}`);
  return json;
}

/// Calls `work` every `every` milliseconds, with a pause of at least `rests` times the duration of the last call. Returns a
/// function that calls `work` immediately.
export function poll(every, rests, work) {
  let timer;
  let busy = false;
  let again = false;
  let failures = 0;
  async function turn() {
    clearTimeout(timer);
    if (busy) again = true;
    if (busy || document.hidden) return;
    busy = true;
    again = false;
    const began = performance.now();
    failures = (await work()) ? 0 : failures + 1;
    busy = false;
    const took = performance.now() - began;
    const pause = failures === 0 ? Math.max(every, rests * took) : Math.min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE);
    if (!document.hidden) timer = setTimeout(turn, again ? 0 : pause);
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()));
  turn();
  return turn;
}
