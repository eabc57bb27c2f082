// The status page of a node: requests the cluster's status, and shows it with its age. While the node is not responding, the
// page keeps the last numbers and marks them as stale.

import { ask, Gone, poll } from "./ask.js";
import { counts, offerRollups } from "./counts.js";
import { byId, clockSeconds, say, span } from "./dom.js";
import { showStatus, verdict } from "./status.js";

const EVERY = 2000;
// Longer than the six seconds for which a node waits for its store.
const WITHIN = 8000;

// The node's time in the last status, and the browser's monotonic time when that status arrived.
let last;
// Why the numbers are stale, and whether the node is not responding at all.
let trouble;
let edition;

/// Returns the node's time, in milliseconds since the epoch.
const now = () => (last ? last.at + performance.now() - last.came : Date.now());

/// Makes screen readers announce these words if they differ from the last ones.
const speak = (words) => say(byId("spoken"), words);

async function status() {
  try {
    const answer = await ask("/api/v1/status", WITHIN);
    last = { at: Date.parse(answer.at), came: performance.now() };
    document.body.className = "";
    showStatus(answer, speak);
    offerRollups(answer.rollups);
    if (trouble?.gone) {
      reloadIfNew();
      countsNow();
    }
    trouble = undefined;
  } catch (error) {
    trouble = { gone: error instanceof Gone, why: error.message };
    document.body.className = "old";
    speak(trouble.gone ? "This node is not responding. All numbers are stale." : "This node cannot report its status. The numbers are stale.");
  }
  tick();
  return trouble === undefined;
}

/// Shows the age of the numbers. Called once per second.
function tick() {
  const since = last && `${clockSeconds(last.at)} UTC`;
  if (trouble === undefined) {
    if (last) say(byId("connection"), `Live, as of ${since}`);
    return;
  }
  const ago = last && span(Math.round((performance.now() - last.came) / 1000));
  const state = trouble.gone ? "No response" : "No status";
  say(byId("connection"), last ? `${state} since ${since}, ${ago} ago. All numbers are stale.` : `${state} from this node.`);
  const subject = trouble.gone ? "This node is not responding" : "This node cannot report its status";
  const before = last ? ` The numbers below are from ${since}.` : "";
  const others = trouble.gone ? " Other nodes may still be running; check their pages." : "";
  verdict({ answer: "unknown", sentence: `${subject}: ${trouble.why}.${before}${others} Retrying.` });
}

/// Reloads the page if the node serves a different version of it.
async function reloadIfNew() {
  const head = await fetch("/", { method: "HEAD" }).catch(() => undefined);
  const current = head?.headers.get("etag");
  if (edition !== undefined && current && current !== edition) location.reload();
  edition ??= current;
}

say(byId("host"), location.host);
document.title = `eds · ${location.host}`;
document.body.className = "asking";
reloadIfNew();
poll(EVERY, 0, status);
const countsNow = counts(now);
setInterval(() => !document.hidden && tick(), 1000);
