// Events and users of a series by minute: two plots of bars, and the same numbers as a table.
// An open minute is drawn hollow, because it may grow.

import { brief, clock, count, html, many, show, svg, table } from "./dom.js";

const MARGIN = { left: 46, right: 8, top: 14, bottom: 22 };
const STEPS = [1, 2, 5, 10, 15, 30, 60];
const PLOTS = [
  { key: "events", one: "event", title: "Events per minute" },
  { key: "users", one: "user", title: "Different users per minute" },
];

const state = (minute) => (minute.open ? "open, may grow" : "closed");

/// Returns the highest label of an axis, and the distance of its labels, as round numbers.
function scale(highest) {
  const rough = Math.max(highest, 4) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((it) => it * power).find((it) => it >= rough);
  return { step, most: Math.max(step, Math.ceil(highest / step) * step) };
}

/// Describes the plot in words.
function summary(what, series, minutes) {
  const closed = minutes.filter((it) => !it.open);
  const highest = closed.reduce((a, b) => (b[what.key] > a[what.key] ? b : a), closed[0]);
  return `${what.title} of ${series} from ${clock(minutes[0].at)} to ${clock(minutes.at(-1).at)}. `
    + `Highest: ${count(highest?.[what.key])} at ${highest ? clock(highest.at) : "–"}. Last closed: ${count(closed.at(-1)?.[what.key])}. `
    + `${many(minutes.length - closed.length, "minute is", "minutes are")} open.`;
}

function drawing(what, series, minutes, width) {
  const { left, right, top, bottom } = MARGIN;
  const height = Math.min(Math.max(Math.round(width * 0.34), 170), 300);
  const { step, most } = scale(Math.max(...minutes.map((it) => it[what.key])));
  const band = (width - left - right) / minutes.length;
  const down = height - bottom;
  const y = (value) => down - (value / most) * (down - top);
  const parts = [];
  for (let value = 0; value <= most; value += step) {
    parts.push(svg("line", { class: value === 0 ? "axis" : "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    parts.push(svg("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end" }, brief(value)));
  }
  const apart = STEPS.find((it) => it * band >= 58) ?? 60;
  minutes.forEach((minute, place) => {
    const value = minute[what.key];
    const x = left + place * band;
    if ((minute.at / 60000) % apart === 0) {
      const middle = x + band / 2;
      parts.push(svg("line", { class: "axis", x1: middle, x2: middle, y1: down, y2: down + 4 }));
      parts.push(svg("text", { x: middle, y: height - 4, "text-anchor": "middle" }, clock(minute.at)));
    }
    if (value > 0) {
      const [kind, line] = minute.open ? ["open", 1.5] : ["closed", 0];
      parts.push(svg("rect", {
        class: kind, x: x + band * 0.1 + line / 2, y: Math.min(y(value), down - 1.5) + line / 2,
        width: Math.max(band * 0.8 - line, 1), height: Math.max(down - y(value), 1.5) - line,
      }));
    }
    const words = `${clock(minute.at)}: ${many(value, what.one)} (${state(minute)})`;
    parts.push(svg("rect", { class: "hit", x, y: top, width: band, height: down - top }, svg("title", {}, words)));
  });
  const box = { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary(what, series, minutes) };
  return svg("svg", box, ...parts);
}

/// Draws the minutes of a series: [{ at, events, users, open }], by time.
export function plot(place, numbers, series, minutes) {
  const [column] = getComputedStyle(place).gridTemplateColumns.split(" ").map(parseFloat);
  const width = Math.floor(column) || 320;
  show(place, [series, minutes, width], () => PLOTS.map((what) =>
    html("figure", { class: `of-${what.key}` },
      html("figcaption", {}, what.title), drawing(what, series, minutes, width))));
  show(numbers, [series, minutes], () => table(`Events and different users of ${series} by minute`, [
    ["Minute", (it) => clock(it.at)],
    ["Events", (it) => count(it.events), "number"],
    ["Users", (it) => count(it.users), "number"],
    ["State", state],
  ], [...minutes].reverse()));
}

/// Returns the minutes of a window until now from the answers of the API: sealed counts are final, live counts are not.
export function minutesOf(series, now, window, sealed, live) {
  const minute = 60000;
  const of = (counts) => new Map(counts.filter((it) => it.series === series).map((it) => [Date.parse(it.minute), it]));
  const [final, open] = [of(sealed), of(live)];
  const last = Math.floor(now / minute) * minute;
  const minutes = [];
  for (let at = last - window * minute; at <= last; at += minute) {
    const found = final.get(at) ?? open.get(at);
    const isOpen = !final.has(at) && (open.has(at) || at === last);
    minutes.push({ at, events: found?.cumulative ?? 0, users: found?.unique ?? 0, open: isOpen });
  }
  return minutes;
}
