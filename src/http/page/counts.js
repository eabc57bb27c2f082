// Shows the counts: the plots of all series and of the selected one, the list of series, and the top lists. Each part is requested
// separately: if a request fails, its error is shown in that part, and the other parts are not affected.

import { ask, Gone, poll } from "./ask.js";
import { byId, clockSeconds, count, html, say, seriesName, show, table } from "./dom.js";
import { MINUTES, minutesOf, plot, PLOTS, stack, windowsOf } from "./plot.js";

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
const hash = new URLSearchParams(location.hash.slice(1));
let chosen = hash.get("series");
// The name of the selected rollup; empty for minutes. Its period is unknown until the first status.
let rollup = hash.get("rollup") ?? "";
let periods = [MINUTES];
// Redraws the plot at the current width.
let redraw = () => {};
// Redraws the plots of all series, by quantity.
const restack = {};
// Returns the node's time, in milliseconds since the epoch.
let now = () => Date.now();
let askNow = () => {};

/// Returns whether these are still the minutes or windows to show, after a request.
const isSelected = (period) => period.rollup === rollup;
const bytes = (text) => new TextEncoder().encode(text).length;

/// Writes the selection to the address, so that the page can be bookmarked.
const remember = () => history.replaceState(null, "", `#${new URLSearchParams({ ...(chosen !== null && { series: chosen }), ...(rollup && { rollup }) })}`);

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
  remember();
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

/// Returns the query parameters for the last minutes or windows.
function lasting(window, { rollup, length }) {
  return new URLSearchParams({ window: `${window * length}m`, ...(rollup && { rollup }) });
}

function button(series) {
  const attributes = { class: "series", type: "button", "data-key": series, "aria-pressed": `${series === chosen}` };
  return html("button", attributes, ...seriesName(series));
}

/// Draws all series together from a list of the first ones.
function drawAll(quantity, items, moments, period) {
  const names = items.slice(0, moments[0]?.items.length ?? 0).map((item) => item.series);
  const minutes = moments.map((moment) => (
    { at: Date.parse(moment.start), all: moment[quantity.count], parts: moment.items.map((item) => item[quantity.count]) }));
  restack[quantity.key] = () => stack(byId(`all-${quantity.key}`), quantity, { names, minutes }, period, button);
  restack[quantity.key]();
}

async function top(place, by, window, period, caption, column) {
  const trouble = await attempt(`/api/v1/top?by=${by}&n=${TOP}&${lasting(window, period)}`, ({ items, by_time: moments }) => {
    if (!isSelected(period)) return;
    chosen ??= items[0]?.series ?? null;
    drawAll(PLOTS.find((quantity) => quantity.count === by), items, moments, period);
    for (const item of items) known.set(item.series, item.tags);
    show(byId(place), [items, window, period], () => (items.length === 0
      ? html("p", { class: "soft" }, `No ${period.word} has closed yet among the last ${window}.`)
      : table(`${caption} in ${window} ${period.word}s`, [["Series", (item) => button(item.series)], column], items)));
  });
  report(`${place}-state`, trouble);
  return trouble;
}

/// Requests and draws the minutes or windows of the selected series. Returns the error message, if any.
async function minutes(window, period, isListed) {
  const [series, tags] = [chosen, known.get(chosen)];
  const drawThem = (minutes) => {
    redraw = () => plot(byId("plot"), byId("numbers-table"), series, minutes, period);
    if (series === chosen && isSelected(period)) redraw();
  };
  const draw = (sealed, live) => drawThem(minutesOf(series, now(), window, sealed, live));
  const query = filter(tags ?? {});
  if (period.rollup) {
    query.set("rollup", period.rollup);
    query.set("from", Math.floor(now() / 1000) - window * period.length * 60);
    return attempt(`/api/v1/windows?${query}`, (answer) => drawThem(windowsOf(series, now(), answer)));
  }
  if (tags === undefined) {
    // A series that is not listed has no counts in this window.
    if (isListed) draw([], []);
    return undefined;
  }
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
  const period = periods.find(isSelected);
  if (period === undefined) return true;
  try {
    let trouble = await attempt(`/api/v1/series?${lasting(window, period)}`, (answer) => {
      if (isSelected(period)) known = new Map(answer.series.map((item) => [item.series, item.tags]));
    });
    const usersTrouble = await top("top-users", "unique", window, period, "The series with the most users",
      [`Most in a ${period.word}`, (item) => count(item.unique_minute_max ?? item.unique_window_max), "number"]);
    const eventsTrouble = await top("top-events", "cumulative", window, period, "The series with the most events",
      ["Events", (item) => count(item.cumulative), "number"]);
    const ranked = report("all-state", usersTrouble ?? eventsTrouble);
    chosen ??= known.keys().next().value ?? null;
    offer();
    if (chosen !== null) trouble = (await minutes(window, period, trouble === undefined)) ?? trouble;
    const words = chosen === null ? "No series had events in this window." : "";
    return report("counts-state", trouble, words) && ranked;
  } catch (error) {
    if (!(error instanceof Gone)) console.error(error);
    return false;
  }
}

/// Offers minutes and the rollups in the status. Falls back to minutes if the selected rollup is not among them.
export function offerRollups(rollups = []) {
  periods = [MINUTES, ...rollups.map(({ name, every, minutes, time_zone }) =>
    ({ rollup: name, word: "window", per: `window of ${every} (${name})`, length: minutes, zone: time_zone }))];
  byId("rollup-label").hidden = rollups.length === 0;
  const names = ["minute", ...rollups.map(({ name, every }) => `${name} (${every})`)];
  show(byId("rollup"), names, () => names.map((name, place) => html("option", { value: periods[place].rollup }, name)));
  const name = periods.some(isSelected) ? rollup : "";
  if (name !== rollup || byId("rollup").value !== rollup) selectRollup(name);
}

/// Shows minutes, or the windows of a rollup. Their series differ, so the first one is selected if there is a change.
function selectRollup(name) {
  if (name !== rollup) [chosen, known] = [null, new Map()];
  rollup = name;
  byId("rollup").value = name;
  const word = name ? "window" : "minute";
  say(byId("all-title"), `All series, ${word} by ${word}`);
  say(byId("plot-title"), `One series, ${word} by ${word}`);
  for (const option of byId("window").options) say(option, `${option.value} ${word}s`);
  remember();
  askNow();
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
  byId("rollup").addEventListener("change", (event) => selectRollup(event.target.value));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.series");
    if (button) choose(button.dataset.key);
  });
  new ResizeObserver(() => [redraw, ...Object.values(restack)].forEach((draw) => draw())).observe(byId("plot"));
  askNow = poll(EVERY, RESTS, all);
  return askNow;
}
