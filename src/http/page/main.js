// The page of a node: requests the status of the cluster and shows its age. If the node does not respond, the last numbers
// stay, marked as old, until it does.

import { ask, Gone, poll } from "./ask.js";
import { counts } from "./counts.js";
import { byId, clockSeconds, say, span } from "./dom.js";
import { showStatus, verdict } from "./status.js";

const EVERY = 2000;
// A node waits for its store for six seconds at most.
const WITHIN = 8000;

// The node's time in the last status, and the time of this browser's steady clock at its arrival.
let last;
// Why the numbers are old, and whether the node does not respond at all.
let trouble;
let edition;

/// The time of the node, in milliseconds since the epoch.
const now = () => (last ? last.at + performance.now() - last.came : Date.now());

/// Screen readers speak this when it changes.
const speak = (words) => say(byId("spoken"), words);

async function status() {
  try {
    const answer = await ask("/api/v1/status", WITHIN);
    last = { at: Date.parse(answer.at), came: performance.now() };
    document.body.className = "";
    showStatus(answer, speak);
    if (trouble?.gone) {
      reloadIfNew();
      countsNow();
    }
    trouble = undefined;
  } catch (error) {
    trouble = { gone: error instanceof Gone, why: error.message };
    document.body.className = "old";
    speak(trouble.gone ? "This node does not respond. All numbers are old." : "This node cannot report its status. The numbers are old.");
  }
  tick();
  return trouble === undefined;
}

/// Shows the age of the numbers, once a second.
function tick() {
  const since = last && `${clockSeconds(last.at)} UTC`;
  if (trouble === undefined) {
    if (last) say(byId("connection"), `Live, as of ${since}`);
    return;
  }
  const ago = last && span(Math.round((performance.now() - last.came) / 1000));
  const what = trouble.gone ? "No answer" : "No status";
  say(byId("connection"), last ? `${what} since ${since}, ${ago} ago. All numbers are old.` : `${what} from this node.`);
  const subject = trouble.gone ? "This node does not respond" : "This node cannot report its status";
  const before = last ? ` The numbers below are of ${since}.` : "";
  const others = trouble.gone ? " Other nodes may run; their pages show it." : "";
  verdict({ answer: "unknown", sentence: `${subject}: ${trouble.why}.${before}${others} Trying again.` });
}

/// Reloads the page if the node has another version of it.
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
