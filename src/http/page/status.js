// The status of the cluster from /api/v1/status: losses, findings, the pipeline, nodes, relays, outputs and the store.

import { byId, bytes, count, html, isNumber, many, percent, rate, say, show, span, table } from "./dom.js";

const ANSWERS = { no: "No", yes: "Yes", attention: "Attention" };

/// The sum of the known values; undefined if there is none.
const sum = (parts, of) => {
  const known = parts.map(of).filter(isNumber);
  return known.length > 0 ? known.reduce((all, number) => all + number, 0) : undefined;
};

/// Shows the first line, and the findings if they are known; `speak` gets the changes.
export function verdict(lost, findings, speak) {
  const answer = ANSWERS[lost.answer] ?? "Unknown";
  byId("verdict").className = lost.answer;
  say(byId("answer"), answer);
  // The answer already has the words before the colon.
  const words = lost.sentence.replace(/^(No|Yes|Attention|Not known): /, "");
  say(byId("sentence"), words.charAt(0).toUpperCase() + words.slice(1));
  if (findings === undefined) return;
  show(byId("findings"), findings, () => findings.map((it) => html("li", {},
    html("p", { class: `severity ${it.severity}` }, it.severity),
    html("p", {}, html("b", {}, `${it.where}: `), it.what),
    html("p", { class: "why" }, it.why),
    html("p", { class: "remedy" }, it.remedy))));
  const heard = findings.map((it) => `${it.severity}: ${it.where} ${it.what}.`);
  speak([`Is anything lost? ${answer}.`, ...heard].join(" "));
}

/// Shows each step with its losses, and whether every received event is accounted for.
function pipeline({ nodes, outputs, partitions, is_anything_lost: lost }) {
  const total = (name) => sum(nodes, (it) => it.totals[name]);
  const states = partitions.by_state ?? {};
  const stages = [
    ["Received", total("received"), "events", sum(nodes, (it) => it.received_per_second), [
      ["rejected", total("rejected"), lost.answer === "attention"], ["dropped", total("dropped"), true],
      ["in the queue", total("queued")], ["dropped by the kernel", total("kernel_drops"), true]]],
    ["Recorded", total("recorded"), "events", sum(nodes, (it) => it.recorded_per_second), [
      ["copies", total("repeated")], ["late", total("late"), true], ["lost by Redis", total("forgotten"), true]]],
    ["Sealed", total("sealed"), "counts", undefined, [
      ["open, by minute and partition", states.open], ["being sealed", states.claimed]]],
    ["Sent", total("sent"), "points", undefined, [
      ["unsent, by minute and partition", states.unsent], ["quarantined", sum(outputs, (it) => it.quarantined), true],
      ["discarded", total("discarded"), true]]],
  ];
  show(byId("pipeline"), stages, () => stages.map(([name, number, unit, speed, branches]) => html("li", {},
    html("h3", {}, name),
    html("p", { class: "figure" }, count(number)),
    html("p", { class: "unit" }, isNumber(speed) ? `${unit}, ${rate(speed)} now` : unit),
    html("ul", {}, ...branches.map(([title, left, isBad]) => html("li", { class: isBad && left > 0 && "lossy" },
      html("span", {}, title), html("span", {}, count(left))))))));
  const parts = ["received", "recorded", "rejected", "dropped", "queued"].map(total);
  show(byId("ledger"), [parts, nodes.length], () => {
    if (nodes.length === 0) return partitions.by_state ? "No node reports." : "Unknown while Redis does not respond.";
    const [received, ...others] = parts;
    const [recorded, rejected, dropped, queued] = others.map(count);
    const rest = others.reduce((left, part) => left - part, received);
    return [
      `${count(received)} received = ${recorded} recorded + ${rejected} rejected + ${dropped} dropped + ${queued} in the queue. `,
      html("span", { class: rest === 0 ? "holds" : "broken" }, rest === 0 ? "The sum holds." : `The sum is off by ${count(rest)}.`),
      html("span", { class: "soft" }, ` Over ${many(nodes.length, "node")}, each since its start; an event that several nodes receive counts for each.`),
    ];
  });
}

const clockOff = (it) => (isNumber(it.clock_offset_ms) ? `${count(it.clock_offset_ms)} ms` : "–");
/// A column of numbers that is marked where it is above 0.
const marked = (title, of, kind, show = count, mark = of) =>
  [title, (it) => show(of(it)), (it) => (mark(it) > 0 ? `number ${kind}` : "number")];
const total = (title, name, kind) => marked(title, (it) => it.totals?.[name], kind);
const recent = (title, name) => marked(title, (it) => it.totals?.[name], "warning", count, (it) => it.recent?.[name]);

const FIRST = [
  ["Version", (it) => it.version],
  ["Up for", (it) => span(it.uptime_seconds), "number"],
  ["Received", (it) => rate(it.received_per_second), "number"],
];
const LAST_SEEN = ["Last seen", (it) => `${span(it.last_seen_seconds)} ago`, (it) => (it.silent ? "number bad" : "number")];

const NODES = [
  ["Node", (it) => it.name],
  ...FIRST,
  ["Recorded", (it) => rate(it.recorded_per_second), "number"],
  ["Rejected", (it) => count(it.totals.rejected), "number"],
  total("Dropped", "dropped", "bad"),
  total("By its kernel", "kernel_drops", "bad"),
  total("Late", "late", "warning"),
  ["Queue", (it) => count(it.totals.queued), "number"],
  marked("Lag", (it) => it.lag_seconds, "warning", span),
  ["Saw", (it) => percent(it.coverage), (it) => (it.coverage < 0.99 ? "number warning" : "number")],
  ["Clock off", clockOff, "number"],
  LAST_SEEN,
];

const RELAYS = [
  ["Relay", (it) => it.name],
  ...FIRST,
  ["Events", (it) => rate(it.events_per_second), "number"],
  total("To no node", "nowhere", "bad"),
  total("By its kernel", "kernel_drops", "bad"),
  recent("Rejected", "rejected"),
  recent("Discarded", "passthrough_discarded"),
  total("Looped", "looped", "bad"),
  ["Passthrough sent", (it) => count(it.passthrough.sent), "number"],
  marked("Passthrough dropped", (it) => it.passthrough?.dropped, "bad"),
  ["Nodes", (it) => it.to.map((to) => `${to.to} ${to.up ? "up" : "down"}, ${count(to.dropped)} dropped`).join("; "),
    (it) => (it.to?.every((to) => to.up) ? "text" : "text warning")],
  LAST_SEEN,
];

const STATES = { true: () => "accepts points", false: (it) => `down: ${it.last_error ?? "unknown reason"}` };

const OUTPUTS = [
  ["Output", (it) => it.name],
  ["Address", (it) => it.url || "on no node", "text"],
  ["State", (it) => STATES[it.up]?.(it) ?? "unknown", (it) => ({ true: "text good", false: "text bad" })[it.up] ?? "text"],
  ["Unsent", (it) => count(it.unsent), "number"],
  marked("Quarantined", (it) => it.quarantined, "bad"),
];

const SERVERS = [
  ["Server", (it) => it.address],
  ["Version", (it) => it.version],
  ["Role", (it) => it.role],
  ["Memory", (it) => (it.maxmemory > 0 ? `${bytes(it.used_memory)} of ${bytes(it.maxmemory)}` : bytes(it.used_memory)), "number"],
  ["On disk", (it) => (it.persistence.aof ? "each change" : "not each change"), (it) => (it.persistence?.aof ? "" : "warning")],
  ["Clock off", clockOff, "number"],
];

function store(redis) {
  const servers = redis?.servers ?? [];
  show(byId("store"), servers, () => {
    if (servers.length === 0) {
      return html("p", { class: "soft" }, "In the memory of this node, for this node only; its open minutes are lost at its end.");
    }
    const [down, up] = [servers.filter((it) => it.error), servers.filter((it) => !it.error)];
    const errors = down.map((it) => html("p", { class: "trouble" }, `${it.address}: ${it.error}`));
    return up.length > 0 ? [...errors, table("Every server of Redis", SERVERS, up)] : errors;
  });
  const needed = redis?.memory_by_formula;
  say(byId("memory"), needed > 0 ? `The present input needs about ${bytes(needed)}.` : "");
}

export function showStatus(status, speak) {
  verdict(status.is_anything_lost, status.findings, speak);
  pipeline(status);
  byId("relays-section").hidden = status.relays.length === 0;
  for (const [place, caption, columns] of [
    ["nodes", "Every node, with its numbers since its start", NODES],
    ["relays", "Every relay, with its numbers since its start", RELAYS],
    ["outputs", "Every output", OUTPUTS],
  ]) {
    show(byId(place), status[place], (rows) => table(caption, columns, rows));
  }
  const oldest = status.partitions.oldest_unsent;
  say(byId("partitions"), oldest
    ? `The oldest unsent minute is ${oldest.minute}, which ended ${span(oldest.age_seconds)} ago, for ${oldest.output}: ${oldest.why}.`
    : "");
  store(status.redis);
}
