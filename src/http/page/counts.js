// Shows the counts: the plot of the selected series, the list of series, and the top lists. Each part is requested
// separately: if a request fails, its error is shown in that part, and the other parts are not affected.

import { ask, Gone, poll } from "./ask.js";
import { byId, clockSeconds, count, html, say, seriesName, show, table } from "./dom.js";
import { minutesOf, plot } from "./plot.js";

const EVERY = 5000;
// Only one query runs at a time, and other clients have to wait for it. The page therefore uses at most a tenth of the time.
const RESTS = 9;
const WITHIN = 20000;
const SERIES_SHOWN_MAX = 500;
const TOP = 8;
// The API's limits for the tags in a query.
const TAGS_MAX = 8;
const TAGS_BYTES_MAX = 400;

// Maps each series to its tags.
let known = new Map();
let chosen = new URLSearchParams(location.hash.slice(1)).get("series");
// Redraws the plot at the current width.
let redraw = () => {};
// Returns the node's time, in milliseconds since the epoch.
let now = () => Date.now();
let askNow = () => {};

const bytes = (text) => new TextEncoder().encode(text).length;

/// Returns query parameters that select a series by as many of its tags as the limits allow.
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
  return [...known.keys()].filter((series) => series.toLowerCase().includes(words));
}

/// Fills the list of series with those that match the search.
function offer() {
  const found = search();
  const offered = found.slice(0, SERIES_SHOWN_MAX);
  if (chosen !== null && !offered.includes(chosen)) offered.unshift(chosen);
  const more = found.length - SERIES_SHOWN_MAX;
  show(byId("series"), [offered, more], () => [
    ...offered.map((series) => html("option", { value: series }, series)),
    ...(more > 0 ? [html("option", { disabled: true }, `and ${count(more)} more: refine your search`)] : []),
  ]);
  if (chosen !== null) byId("series").value = chosen;
}

/// Requests a path and passes the response to `then`. Returns the node's error message, if any. Rethrows `Gone`, because the
/// status already shows that the node is not responding.
async function attempt(path, then) {
  try {
    then(await ask(path, WITHIN));
    return undefined;
  } catch (error) {
    if (error instanceof Gone) throw error;
    return error.message;
  }
}

/// Shows the error or, if there is none, `words`. Returns whether there was no error.
function report(place, trouble, words = "") {
  byId(place).className = trouble === undefined ? "state" : "state trouble";
  say(byId(place), trouble === undefined ? words : `No update at ${clockSeconds(now())} UTC: ${trouble}. Retrying.`);
  return trouble === undefined;
}

async function top(place, by, window, caption, column) {
  const button = (item) => {
    const attributes = { class: "series", type: "button", "data-key": item.series, "aria-pressed": `${item.series === chosen}` };
    return html("button", attributes, ...seriesName(item.series));
  };
  const trouble = await attempt(`/api/v1/top?by=${by}&window=${window}m&n=${TOP}`, ({ items }) => {
    chosen ??= items[0]?.series ?? null;
    for (const item of items) known.set(item.series, item.tags);
    show(byId(place), [items, window], () => (items.length === 0
      ? html("p", { class: "soft" }, "No minute in this window has closed yet.")
      : table(`${caption} in ${window} minutes`, [["Series", button], column], items)));
  });
  return report(`${place}-state`, trouble);
}

/// Requests and draws the minutes of the selected series. Returns the error message, if any.
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
  // The sealed minutes are requested last, so that they include minutes that have been sealed since the first request.
  return attempt(`/api/v1/minutes?${query}`, (answer) => draw(answer.counts, live));
}

async function all() {
  const window = Number(byId("window").value);
  try {
    let trouble = await attempt(`/api/v1/series?window=${window}m`, (answer) => {
      known = new Map(answer.series.map((item) => [item.series, item.tags]));
    });
    const users = await top("top-users", "unique", window, "The series with the most users",
      ["Most in a minute", (item) => count(item.unique_minute_max), "number"]);
    const events = await top("top-events", "cumulative", window, "The series with the most events",
      ["Events", (item) => count(item.cumulative), "number"]);
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

/// Starts showing the counts and updating them regularly. `time` returns the node's time. Returns a function that updates
/// the counts immediately.
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
