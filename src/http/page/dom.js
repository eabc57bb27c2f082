// Functions that create elements and format numbers. All data is inserted as text, never as markup.

const builder = (make) => (name, attributes = {}, ...children) => {
  const element = make(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
};

export const byId = (id) => document.getElementById(id);
export const html = builder((name) => document.createElement(name));
export const svg = builder((name) => document.createElementNS("http://www.w3.org/2000/svg", name));

/// Sets the text of an element if it differs from the current text, so that screen readers announce only changes.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// Returns the name of a series as one element per tag, so that it wraps between tags.
export const seriesName = (series) => series.split(/(?<=,)/).map((tag) => html("span", {}, tag));

const shown = new WeakMap();

/// Replaces the content of `place` with `make(data)` if the data has changed. The focus stays on the element with the same
/// `data-key`.
export function show(place, data, make) {
  const now = JSON.stringify(data);
  if (shown.get(place) === now) return;
  shown.set(place, now);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...[make(data)].flat());
  if (focused === undefined) return;
  [...place.querySelectorAll("[data-key]")].find((element) => element.dataset.key === focused)?.focus({ preventScroll: true });
}

/// Returns a table. Each column is [title, function from a row to the content of its cell, class of the cell]; the first
/// column contains the row headings.
export function table(caption, columns, rows) {
  const kind = ([, , kind], row) => (typeof kind === "function" ? kind(row) : kind);
  const head = columns.map((column) =>
    html("th", { scope: "col", role: "columnheader", class: /number/.test(kind(column, {})) && "number" }, column[0]));
  // On a narrow screen, a wide table is drawn as cards; the roles keep it a table for screen readers.
  const cells = (row) => columns.map((column, place) => (place === 0
    ? html("th", { scope: "row", role: "rowheader" }, column[1](row))
    : html("td", { role: "cell", class: kind(column, row), "data-label": column[0] }, column[1](row))));
  return html("table", { class: columns.length > 4 && "cards", role: "table" },
    html("caption", { class: "unseen" }, caption),
    html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...head)),
    html("tbody", { role: "rowgroup" }, ...rows.map((row) => html("tr", { role: "row" }, ...cells(row)))));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
/// Wraps a format so that it shows unknown values as a dash.
const known = (format) => (value) => (isNumber(value) ? format(value) : "–");
export const count = known((value) => whole.format(value));
export const brief = (value) => compact.format(value);
export const rate = known((value) => `${value >= 100 ? whole.format(value) : short.format(value)}/s`);
export const percent = known((value) => `${(Math.floor(value * 1000) / 10).toFixed(1)}%`);
export const many = (number, singular, plural = `${singular}s`) => `${count(number)} ${number === 1 ? singular : plural}`;

const scaled = (units) => known((value) => {
  const [unit, size] = units.find(([, , from]) => value >= from) ?? units.at(-1);
  return `${short.format(value / size)} ${unit}`;
});
/// Formats a duration in seconds, for example as 4.2 s, 3 min, 5 h or 2 d.
export const span = scaled([["d", 86400, 172800], ["h", 3600, 7200], ["min", 60, 120], ["s", 1]]);
export const bytes = scaled([["GiB", 2 ** 30, 2 ** 30], ["MiB", 2 ** 20, 2 ** 20], ["KiB", 1024, 1024], ["B", 1]]);

/// Formats a time as the day in a time zone, such as 26 Nov. A zone that the browser does not know is shown as UTC.
export function day(ms, zone) {
  try {
    return new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: zone }).format(ms);
  } catch {
    return day(ms, "UTC");
  }
}

/// `clock` formats milliseconds since the epoch as 14:05, and `clockSeconds` as 14:05:09.
export const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
export const clockSeconds = (ms) => new Date(ms).toISOString().slice(11, 19);
