// The page of a node: asks for the status of the whole, and says how old it is. When the node goes away the last numbers
// stay, marked as old, until it is back.

import { ask, Gone, poll } from "./ask.js";
import { counts } from "./counts.js";
import { byId, clockSeconds, say, span } from "./dom.js";
import { nodes, outputs, pipeline, relays, store, verdict } from "./status.js";

const EVERY = 2000;
// A node looks at its store for six seconds at most before it says that this does not answer.
const WITHIN = 8000;

// The last status, the node's time in it and when it came by this browser's steady clock.
let last;
// Why the numbers are old, if they are, and whether the node is away altogether.
let trouble;
let edition;

/// The time of the node, in milliseconds since the epoch.
const now = () => (last ? last.at + performance.now() - last.came : Date.now());

/// Screen readers speak this when it changes, and only then.
const speak = (words) => say(byId("spoken"), words);

async function status() {
  try {
    const answer = await ask("/api/v1/status", WITHIN);
    last = { at: Date.parse(answer.at), came: performance.now() };
    document.body.className = "";
    verdict(answer.is_anything_lost, answer.findings, speak);
    pipeline(answer);
    nodes(answer);
    relays(answer);
    outputs(answer);
    store(answer);
    if (trouble?.away) {
      reloadIfNew();
      countsNow();
    }
    trouble = undefined;
    tick();
    return true;
  } catch (error) {
    trouble = { away: error instanceof Gone, why: error.message };
    document.body.className = "old";
    speak(trouble.away ? "This node does not answer. All numbers are old." : "This node cannot report its status. The numbers are old.");
    tick();
    return false;
  }
}

/// Once a second: how old the numbers are.
function tick() {
  const since = last && `${clockSeconds(last.at)} UTC`;
  if (trouble === undefined) {
    if (last) say(byId("connection"), `Live, as of ${since}`);
    return;
  }
  const ago = last && span(Math.round((performance.now() - last.came) / 1000));
  const what = trouble.away ? "No answer" : "No status";
  say(byId("connection"), last ? `${what} since ${since}, ${ago} ago. All numbers are old.` : `${what} from this node.`);
  const before = last ? ` What is below is of ${since}.` : "";
  const words = trouble.away
    ? `This node does not answer: ${trouble.why}.${before} Other nodes may go on; their pages show it.`
    : `This node cannot report its status: ${trouble.why}.${before}`;
  verdict({ answer: "unknown", sentence: `${words} Trying again.` });
}

/// A node of another version may have another page.
async function reloadIfNew() {
  const head = await fetch("/", { method: "HEAD" }).catch(() => undefined);
  const is = head?.headers.get("etag");
  if (edition !== undefined && is && is !== edition) location.reload();
  edition ??= is;
}

say(byId("host"), location.host);
document.title = `eds · ${location.host}`;
document.body.className = "asking";
reloadIfNew();
poll(EVERY, 0, status);
const countsNow = counts(now);
setInterval(() => !document.hidden && tick(), 1000);
