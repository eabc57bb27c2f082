// Elements and words. All that comes from data becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

export const byId = (id) => document.getElementById(id);
export const html = (name, attributes = {}, ...children) =>
  filled(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) =>
  filled(document.createElementNS(SVG, name), attributes, children);

/// Sets a text, and leaves the page alone where it is there already.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/// The name of a series, whose tags stay whole where there is room.
export const seriesName = (series) => series.split(/(?<=,)/).map((tag) => html("span", {}, tag));

const shown = new WeakMap();

/// Has `place` show what `make` makes of `data`, unless it does already. What had the focus has it afterwards.
export function show(place, data, make) {
  const now = JSON.stringify(data);
  if (shown.get(place) === now) return;
  shown.set(place, now);
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...[make(data)].flat());
  if (focused === undefined) return;
  const again = [...place.querySelectorAll("[data-key]")].find((it) => it.dataset.key === focused);
  if (again) again.focus({ preventScroll: true });
}

/// A table. A column is [title, cell of a row, class of the cell]; the first one names the row.
export function table(caption, columns, rows) {
  const kind = (column, row) => (typeof column[2] === "function" ? column[2](row) : column[2]);
  const head = columns.map((column) =>
    html("th", { scope: "col", role: "columnheader", class: /number/.test(kind(column, {}) ?? "") && "number" }, column[0]));
  // On a narrow screen a wide table is drawn as cards; the roles keep it a table for screen readers.
  const line = (row) => columns.map((column, place) => {
    const name = place === 0 ? "th" : "td";
    const attributes = place === 0
      ? { scope: "row", role: "rowheader" }
      : { role: "cell", class: kind(column, row), "data-label": column[0] };
    return html(name, attributes, column[1](row));
  });
  return html("table", { class: columns.length > 4 && "cards", role: "table" },
    html("caption", { class: "unseen" }, caption),
    html("thead", { role: "rowgroup" }, html("tr", { role: "row" }, ...head)),
    html("tbody", { role: "rowgroup" }, ...rows.map((row) => html("tr", { role: "row" }, ...line(row)))));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
/// 1,234; a dash for what is not known.
export const count = (value) => (isNumber(value) ? whole.format(value) : "–");
/// 1.2K
export const brief = (value) => compact.format(value);
export const rate = (value) => (isNumber(value) ? `${value >= 100 ? whole.format(value) : short.format(value)}/s` : "–");
export const percent = (value) => (isNumber(value) ? `${(Math.floor(value * 1000) / 10).toFixed(1)} %` : "–");
/// One, or many: 1 node, 2 nodes.
export const many = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

/// 4.2 s, 3 min, 5 h, 2 d
export function span(seconds) {
  if (!isNumber(seconds)) return "–";
  const size = Math.abs(seconds);
  if (size < 10) return `${short.format(Math.round(seconds * 10) / 10)} s`;
  if (size < 120) return `${Math.round(seconds)} s`;
  if (size < 7200) return `${Math.round(seconds / 60)} min`;
  return size < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} d`;
}

export function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  for (; value >= 1024 && place < units.length - 1; place += 1) value /= 1024;
  return `${short.format(value)} ${units[place]}`;
}

/// 14:05 and 14:05:09 of milliseconds since the epoch.
export const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
export const clockSeconds = (ms) => new Date(ms).toISOString().slice(11, 19);
