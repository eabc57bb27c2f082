// The counts: the plot of the chosen series, the list of series, and the top lists. Each is requested separately; an error is
// shown in its place, and the others continue.

import { ask, Gone, poll } from "./ask.js";
import { byId, clockSeconds, count, html, say, seriesName, show, table } from "./dom.js";
import { minutesOf, plot } from "./plot.js";

const EVERY = 5000;
// Queries wait for those of other clients, so the page uses a tenth of the time at most.
const RESTS = 9;
const WITHIN = 20000;
const SERIES_SHOWN_MAX = 500;
const TOP = 8;
// The limits of the API for the tags of a query.
const TAGS_MAX = 8;
const TAGS_BYTES_MAX = 400;

// Series → their tags.
let known = new Map();
let chosen = new URLSearchParams(location.hash.slice(1)).get("series");
// Draws the plot again, in the present width.
let redraw = () => {};
// The time of the node, in milliseconds since the epoch.
let now = () => Date.now();
let askNow = () => {};

const bytes = (text) => new TextEncoder().encode(text).length;

/// The parameters of a query for a series by its tags, within the limits.
function filter(tags) {
  const query = new URLSearchParams();
  let room = TAGS_BYTES_MAX;
  for (const [key, value] of Object.entries(tags).slice(0, TAGS_MAX)) {
    room -= bytes(key) + bytes(value);
    if (room >= 0) query.set(`tag.${key}`, value);
  }
  return query;
}

function choose(series) {
  chosen = series;
  history.replaceState(null, "", `#${new URLSearchParams({ series })}`);
  offer();
  for (const button of document.querySelectorAll("button.series")) {
    button.setAttribute("aria-pressed", button.dataset.key === chosen);
  }
  askNow();
}

function search() {
  const words = byId("search").value.toLowerCase();
  return [...known.keys()].filter((it) => it.toLowerCase().includes(words));
}

/// Fills the list of series with those that match the search.
function offer() {
  const found = search();
  const offered = found.slice(0, SERIES_SHOWN_MAX);
  if (chosen !== null && !offered.includes(chosen)) offered.unshift(chosen);
  const more = found.length - SERIES_SHOWN_MAX;
  show(byId("series"), [offered, more], () => [
    ...offered.map((it) => html("option", { value: it }, it)),
    ...(more > 0 ? [html("option", { disabled: true }, `and ${count(more)} more: search for them`)] : []),
  ]);
  if (chosen !== null) byId("series").value = chosen;
}

/// Passes the answer to `then`, or returns the message of the node. The status shows `Gone`.
async function attempt(path, then) {
  try {
    then(await ask(path, WITHIN));
    return undefined;
  } catch (error) {
    if (error instanceof Gone) throw error;
    return error.message;
  }
}

/// Shows the trouble, or these words. Returns whether there is none.
function report(place, trouble, words = "") {
  byId(place).className = trouble === undefined ? "state" : "state trouble";
  say(byId(place), trouble === undefined ? words : `Nothing newer at ${clockSeconds(now())} UTC: ${trouble}. Trying again.`);
  return trouble === undefined;
}

async function top(place, by, window, caption, column) {
  const button = (it) => {
    const attributes = { class: "series", type: "button", "data-key": it.series, "aria-pressed": `${it.series === chosen}` };
    return html("button", attributes, ...seriesName(it.series));
  };
  const trouble = await attempt(`/api/v1/top?by=${by}&window=${window}m&n=${TOP}`, ({ items }) => {
    chosen ??= items[0]?.series ?? null;
    for (const item of items) known.set(item.series, item.tags);
    show(byId(place), [items, window], () => (items.length === 0
      ? html("p", { class: "soft" }, "No minute of this window is closed yet.")
      : table(`${caption} in ${window} minutes`, [["Series", button], column], items)));
  });
  return report(`${place}-state`, trouble);
}

/// Shows the minutes of the chosen series. Returns the trouble, if any.
async function minutes(window, isListed) {
  const [series, tags] = [chosen, known.get(chosen)];
  const draw = (sealed, live) => {
    const minutes = minutesOf(series, now(), window, sealed, live);
    redraw = () => plot(byId("plot"), byId("numbers-table"), series, minutes);
    if (series === chosen) redraw();
  };
  if (tags === undefined) {
    // A series that is not listed has no counts in this window.
    if (isListed) draw([], []);
    return undefined;
  }
  const query = filter(tags);
  let live;
  const trouble = await attempt(`/api/v1/live?${query}`, (answer) => {
    live = answer.counts;
  });
  if (trouble !== undefined) return trouble;
  const to = Math.floor(now() / 60000) * 60;
  query.set("from", to - window * 60);
  query.set("to", to);
  // The second request, so it includes minutes that were sealed since the first.
  return attempt(`/api/v1/minutes?${query}`, (answer) => draw(answer.counts, live));
}

async function all() {
  const window = Number(byId("window").value);
  try {
    let trouble = await attempt(`/api/v1/series?window=${window}m`, (answer) => {
      known = new Map(answer.series.map((it) => [it.series, it.tags]));
    });
    const users = await top("top-users", "unique", window, "The series with the most users",
      ["Most in a minute", (it) => count(it.unique_minute_max), "number"]);
    const events = await top("top-events", "cumulative", window, "The series with the most events",
      ["Events", (it) => count(it.cumulative), "number"]);
    chosen ??= known.keys().next().value ?? null;
    offer();
    if (chosen !== null) trouble = (await minutes(window, trouble === undefined)) ?? trouble;
    const words = chosen === null ? "No series had events in this window." : "";
    return report("counts-state", trouble, words) && users && events;
  } catch (error) {
    if (!(error instanceof Gone)) console.error(error);
    return false;
  }
}

/// Shows the counts repeatedly; `time` is the time of the node. Returns a function that requests them now.
export function counts(time) {
  now = time;
  byId("series").addEventListener("change", (event) => choose(event.target.value));
  byId("search").addEventListener("input", offer);
  byId("choice").addEventListener("submit", (event) => {
    event.preventDefault();
    const [first] = search();
    if (first !== undefined) choose(first);
  });
  byId("window").addEventListener("change", () => askNow());
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.series");
    if (button) choose(button.dataset.key);
  });
  new ResizeObserver(() => redraw()).observe(byId("plot"));
  askNow = poll(EVERY, RESTS, all);
  return askNow;
}
