// Elements and formats. All data becomes text, never markup.

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

/// Sets a text if it differs, so that screen readers hear changes only.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// The name of a series, which wraps between its tags.
export const seriesName = (series) => series.split(/(?<=,)/).map((tag) => html("span", {}, tag));

const shown = new WeakMap();

/// Replaces the content of `place` by `make(data)` if the data changed. The focus stays on the element with the same key.
export function show(place, data, make) {
  const now = JSON.stringify(data);
  if (shown.get(place) === now) return;
  shown.set(place, now);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...[make(data)].flat());
  if (focused === undefined) return;
  [...place.querySelectorAll("[data-key]")].find((it) => it.dataset.key === focused)?.focus({ preventScroll: true });
}

/// A table. A column is [title, cell of a row, class of the cell]; the first one names the row.
export function table(caption, columns, rows) {
  const kind = ([, , kind], row) => (typeof kind === "function" ? kind(row) : kind);
  const head = columns.map((column) =>
    html("th", { scope: "col", role: "columnheader", class: /number/.test(kind(column, {})) && "number" }, column[0]));
  // On a narrow screen a wide table is drawn as cards; the roles keep it a table for screen readers.
  const row = (it) => columns.map((column, place) => (place === 0
    ? html("th", { scope: "row", role: "rowheader" }, column[1](it))
    : html("td", { role: "cell", class: kind(column, it), "data-label": column[0] }, column[1](it))));
  return html("table", { class: columns.length > 4 && "cards", role: "table" },
    html("caption", { class: "unseen" }, caption),
    html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...head)),
    html("tbody", { role: "rowgroup" }, ...rows.map((it) => html("tr", { role: "row" }, ...row(it)))));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
/// A format that shows unknown values as a dash.
const known = (format) => (value) => (isNumber(value) ? format(value) : "–");
export const count = known((value) => whole.format(value));
export const brief = (value) => compact.format(value);
export const rate = known((value) => `${value >= 100 ? whole.format(value) : short.format(value)}/s`);
export const percent = known((value) => `${(Math.floor(value * 1000) / 10).toFixed(1)} %`);
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

const scaled = (units) => known((value) => {
  const [unit, size] = units.find(([, , from]) => value >= from) ?? units.at(-1);
  return `${short.format(value / size)} ${unit}`;
});
/// 4.2 s, 3 min, 5 h, 2 d
export const span = scaled([["d", 86400, 172800], ["h", 3600, 7200], ["min", 60, 120], ["s", 1]]);
export const bytes = scaled([["GiB", 2 ** 30, 2 ** 30], ["MiB", 2 ** 20, 2 ** 20], ["KiB", 1024, 1024], ["B", 1]]);

/// 14:05 and 14:05:09 of milliseconds since the epoch.
export const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
export const clockSeconds = (ms) => new Date(ms).toISOString().slice(11, 19);
