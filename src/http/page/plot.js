// Draws the events and users of a series, or of all series, per minute or per window of a rollup, as two bar charts, and those
// of a series as a table. The bar of an open minute or window is hollow, because its counts may grow.

import { brief, clock, count, day, html, many, show, svg, table } from "./dom.js";

const MARGIN = { left: 46, right: 8, top: 14, bottom: 22 };
const STEPS = [1, 2, 5, 10, 15, 30, 60];
const DAY = 1440;
export const PLOTS = [
  { key: "events", count: "cumulative", unit: "event", title: "Events", stacked: "Events of all series" },
  { key: "users", count: "unique", unit: "user", title: "Distinct users", stacked: "Distinct users, added over all series," },
];
/// What counts are shown for, unless a rollup is selected. `length` is in minutes.
export const MINUTES = { rollup: "", word: "minute", per: "minute", length: 1, zone: "UTC" };

const state = (minute) => [
  minute.open ? "open, may grow" : "closed",
  minute.error > 0 && `users are an estimate ± ${minute.error * 100}%`,
  minute.complete === false && "incomplete, because Redis lost data",
].filter(Boolean).join("; ");

/// Returns the name of a minute or window in a table, and its label on the axis.
const named = (at, { length, zone }) => (length === 1 ? clock(at) : length < DAY ? `${day(at, zone)} ${clock(at)}` : day(at, zone));
const label = (at, { length, zone }) => (length >= DAY || (length > 1 && at % 86400000 === 0) ? day(at, zone) : clock(at));

/// Returns the highest label of an axis and the distance between labels, as round numbers.
function scale(highest) {
  const rough = Math.max(highest, 4) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return { step, most: Math.max(step, Math.ceil(highest / step) * step) };
}

/// Returns a description of the plot for screen readers.
function summary(quantity, series, minutes, period) {
  const closed = minutes.filter((minute) => !minute.open);
  const highest = closed.reduce((a, b) => (b[quantity.key] > a[quantity.key] ? b : a), closed[0]);
  const name = (minute) => (minute ? named(minute.at, period) : "–");
  return `${quantity.title} per ${period.per} for ${series} from ${name(minutes[0])} to ${name(minutes.at(-1))}. `
    + `Highest: ${count(highest?.[quantity.key])} at ${name(highest)}. Last closed: ${count(closed.at(-1)?.[quantity.key])}. `
    + `${many(minutes.length - closed.length, `${period.word} is`, `${period.word}s are`)} open.`;
}

/// Returns a bar chart of these minutes. `bars` returns the bars of a minute for the left edge and the width of its band and
/// a function from a value to its vertical position. `words` returns the tooltip of a minute.
function chart(minutes, period, width, highest, about, bars, words) {
  const { left, right, top, bottom } = MARGIN;
  const height = Math.min(Math.max(Math.round(width * 0.34), 170), 300);
  const { step, most } = scale(highest);
  const band = (width - left - right) / minutes.length;
  const down = height - bottom;
  const y = (value) => down - (value / most) * (down - top);
  const parts = [];
  for (let value = 0; value <= most; value += step) {
    parts.push(svg("line", { class: value === 0 ? "axis" : "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  const apart = STEPS.find((distance) => distance * band >= 58) ?? 60;
  minutes.forEach((minute, place) => {
    const x = left + place * band;
    if (Math.floor(minute.at / 60000 / period.length) % apart === 0) {
      const middle = x + band / 2;
      parts.push(svg("line", { class: "axis", x1: middle, x2: middle, y1: down, y2: down + 4 }));
      parts.push(svg("text", { x: middle, y: height - 4, "text-anchor": "middle" }, label(minute.at, period)));
    }
    parts.push(...bars(minute, x, band, y));
    parts.push(svg("rect", { class: "hit", x, y: top, width: band, height: down - top }, svg("title", {}, words(minute))));
  });
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about }, ...parts);
}

/// Returns a bar from one value to another. It has at least 1.5 units of height, so that small counts are visible.
function bar(kind, x, band, [low, high], line = 0) {
  const height = Math.max(low - high, 1.5);
  return svg("rect", {
    class: kind, x: x + band * 0.1 + line / 2, y: low - height + line / 2,
    width: Math.max(band * 0.8 - line, 1), height: height - line,
  });
}

function drawing(quantity, series, minutes, period, width) {
  const bars = (minute, x, band, y) => {
    const value = minute[quantity.key];
    const [kind, line] = minute.open ? ["open", 1.5] : ["closed", 0];
    return value > 0 ? [bar(kind, x, band, [y(0), y(value)], line)] : [];
  };
  const words = (minute) => `${named(minute.at, period)}: ${many(minute[quantity.key], quantity.unit)} (${state(minute)})`;
  const highest = Math.max(...minutes.map((minute) => minute[quantity.key]));
  return chart(minutes, period, width, highest, summary(quantity, series, minutes, period), bars, words);
}

/// Returns the width in which a plot may be drawn.
const widthOf = (place) => Math.floor(parseFloat(getComputedStyle(place).gridTemplateColumns.split(" ")[0])) || 320;

/// Draws all series together, [{ at, all, parts }], in chronological order: the sums of each minute or window, stacked by the
/// series in `names`, which have `parts`, and all others.
export function stack(place, quantity, { names, minutes }, period, button) {
  const width = widthOf(place.parentElement);
  const layers = (minute) => [...minute.parts, minute.all - minute.parts.reduce((sum, part) => sum + part, 0)];
  const titles = [...names, "all others"];
  const bars = (minute, x, band, y) => {
    let low = 0;
    return layers(minute).map((value, at) => {
      low += value;
      const kind = at < names.length ? `layer${at}` : "others";
      return value > 0 ? bar(kind, x, band, [y(low - value), y(low)]) : undefined;
    }).filter(Boolean);
  };
  const words = (minute) => [`${named(minute.at, period)}: ${many(minute.all, quantity.unit)}`,
    ...layers(minute).map((value, at) => `${titles[at]}: ${count(value)}`)].join("\n");
  const top = minutes.reduce((a, b) => (b.all > a.all ? b : a), { at: undefined, all: 0 });
  const about = `${quantity.title} per ${period.per} of all series, stacked. `
    + (top.all > 0 ? `Highest: ${count(top.all)} at ${named(top.at, period)}. Last: ${count(minutes.at(-1).all)}.` : "No events.");
  show(place, [names, minutes, period, width], () => [
    html("figure", { class: `of-${quantity.key}` },
      html("figcaption", {}, `${quantity.stacked} per ${period.per}`), chart(minutes, period, width, top.all, about, bars, words)),
    html("ul", { class: "legend" }, ...names.map((name, at) => html("li", {}, html("i", { class: `key layer${at}` }), " ", button(name))),
      html("li", {}, html("i", { class: "key others" }), " all others")),
  ]);
}

/// Draws the minutes or windows of a series, [{ at, events, users, open }], which must be in chronological order.
export function plot(place, numbers, series, minutes, period) {
  const width = widthOf(place);
  show(place, [series, minutes, period, width], () => PLOTS.map((quantity) =>
    html("figure", { class: `of-${quantity.key}` },
      html("figcaption", {}, `${quantity.title} per ${period.per}`), drawing(quantity, series, minutes, period, width))));
  show(numbers, [series, minutes, period], () => table(`Events and distinct users per ${period.per} for ${series}`, [
    [period.rollup ? "Window" : "Minute", (minute) => named(minute.at, period)],
    ["Events", (minute) => count(minute.events), "number"],
    ["Users", (minute) => count(minute.users), "number"],
    ["State", state],
  ], [...minutes].reverse()));
}

/// Returns a line through these numbers, oldest first, with the highest and the last of them as text.
export function spark(numbers, format) {
  if (numbers.length === 0) return "–";
  const most = Math.max(...numbers, 1);
  const points = numbers.map((number, at) => `${(60 - numbers.length + at + 0.5) * 2},${22 - (number / most) * 20}`);
  return html("div", { class: "spark" },
    svg("svg", { viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("polyline", { points: points.join(" ") })),
    html("span", {}, `now ${format(numbers.at(-1))}, highest ${format(Math.max(...numbers))}`));
}

/// Returns the minutes of a window that ends now, combined from the API's sealed counts, which are final, and its live
/// counts, which may grow.
export function minutesOf(series, now, window, sealed, live) {
  const minute = 60000;
  const byTime = (counts) =>
    new Map(counts.filter((entry) => entry.series === series).map((entry) => [Date.parse(entry.minute), entry]));
  const [final, open] = [byTime(sealed), byTime(live)];
  const last = Math.floor(now / minute) * minute;
  const minutes = [];
  for (let at = last - window * minute; at <= last; at += minute) {
    const found = final.get(at) ?? open.get(at);
    const isOpen = !final.has(at) && (open.has(at) || at === last);
    minutes.push({ at, events: found?.cumulative ?? 0, users: found?.unique ?? 0, open: isOpen });
  }
  return minutes;
}

/// Returns the windows of a rollup in the API's response.
export function windowsOf(series, now, { windows, counts }) {
  const found = new Map(counts.filter((entry) => entry.series === series).map((entry) => [entry.start, entry]));
  return windows.map(({ start, end }) => {
    const { cumulative = 0, unique = 0, provisional = now < Date.parse(end), error, complete } = found.get(start) ?? {};
    return { at: Date.parse(start), events: cumulative, users: unique, open: provisional, error, complete };
  });
}
