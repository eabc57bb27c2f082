// Asks the node again and again: less often while it fails, never while nobody looks.

const FIRST_PAUSE = 1000;
const LONGEST_PAUSE = 10000;

/// The node did not answer at all.
export class Gone extends Error {}

/// The answer of the node as JSON. Throws `Gone`, or an error with what the node says is wrong.
export async function ask(path, within) {
  let answer;
  let body;
  try {
    answer = await fetch(path, { signal: AbortSignal.timeout(within) });
    body = await answer.text();
  } catch (error) {
    throw new Gone(error.name === "TimeoutError" ? "it takes connections and does not answer" : "it cannot be reached");
  }
  let read;
  try {
    read = JSON.parse(body);
  } catch {
    read = {};
  }
  if (!answer.ok) throw new Error(read.detail ?? `the node answers with ${answer.status}`);
  return read;
}

/// Does `work` every so many milliseconds, and rests for so many times as long as it took. Answers what does it now.
export function poll(every, rests, work) {
  let timer;
  let busy = false;
  let onceMore = false;
  let failures = 0;
  async function turn() {
    clearTimeout(timer);
    if (busy) onceMore = true;
    if (busy || document.hidden) return;
    busy = true;
    onceMore = false;
    const began = performance.now();
    const worked = await work();
    busy = false;
    failures = worked ? 0 : failures + 1;
    const took = performance.now() - began;
    const pause = worked ? Math.max(every, rests * took) : Math.min(FIRST_PAUSE * 2 ** (failures - 1), LONGEST_PAUSE);
    if (!document.hidden) timer = setTimeout(turn, onceMore ? 0 : pause);
  }
  document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : turn()));
  turn();
  return turn;
}
