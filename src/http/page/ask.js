// Requests to the node: less often while they fail, and none while the page is hidden.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;

/// The node did not respond.
export class Gone extends Error {}

/// Returns the JSON of a response. Throws `Gone`, or an error with the node's message.
export async function ask(path, within) {
  let response;
  let body;
  try {
    response = await fetch(path, { signal: AbortSignal.timeout(within) });
    body = await response.text();
  } catch (error) {
    throw new Gone(error.name === "TimeoutError" ? "it accepts connections and does not respond" : "it cannot be reached");
  }
  const json = (() => { try { return JSON.parse(body); } catch { return {}; } })();
  if (!response.ok) throw new Error(json.detail ?? `the node responds with ${response.status}`);
  return json;
}

/// Calls `work` every `every` milliseconds, with pauses of `rests` times its duration at least. Returns a function that calls it now.
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
