// The status of the whole as /api/v1/status reports it: what is lost, what to do, the pipeline and its ledger, nodes, outputs
// and the store.

import { byId, bytes, count, html, isNumber, many, percent, rate, say, show, span, table } from "./dom.js";

const ANSWERS = { no: "No", yes: "Yes", attention: "Attention" };

// Of nothing nothing is known.
const sum = (parts, of) => {
  const known = parts.map(of).filter(isNumber);
  return known.length > 0 ? known.reduce((all, number) => all + number, 0) : undefined;
};

/// The first line, and the findings if it is known what there are; `speak` gets what changed in them.
export function verdict(lost, findings, speak = () => {}) {
  const answer = ANSWERS[lost.answer] ?? "Unknown";
  byId("verdict").className = lost.answer;
  say(byId("answer"), answer);
  // What stands before the colon stands in the answer already.
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

/// What goes on in a row, what leaves it below; and whether every event is somewhere.
export function pipeline(status) {
  const totals = {};
  for (const node of status.nodes) {
    for (const [name, number] of Object.entries(node.totals)) totals[name] = (totals[name] ?? 0) + number;
  }
  const quarantined = sum(status.outputs, (it) => it.quarantined);
  const stages = [
    ["Received", totals.received, "events", sum(status.nodes, (it) => it.received_per_second), [
      ["rejected", totals.rejected, status.is_anything_lost.answer === "attention"], ["dropped", totals.dropped, true], ["in the queue", totals.queued],
      ["dropped by the kernel", totals.kernel_drops, true]]],
    ["Recorded", totals.recorded, "events", sum(status.nodes, (it) => it.recorded_per_second), [
      ["copies among them", totals.repeated], ["too late", totals.late, true], ["forgotten by Redis", totals.forgotten, true]]],
    ["Sealed", totals.sealed, "counts", undefined, [
      ["open, by minute and partition", status.partitions.by_state?.open], ["being sealed", status.partitions.by_state?.claimed]]],
    ["Sent", totals.sent, "points", undefined, [
      ["not sent, by minute and partition", status.partitions.by_state?.unsent], ["quarantined", quarantined, true],
      ["discarded", totals.discarded, true]]],
  ];
  show(byId("pipeline"), stages, () => stages.map(([name, number, unit, speed, branches]) => html("li", {},
    html("h3", {}, name),
    html("p", { class: "figure" }, count(number)),
    html("p", { class: "unit" }, isNumber(speed) ? `${unit}, ${rate(speed)} now` : unit),
    html("ul", {}, ...branches.map(([title, left, isBad]) => html("li", { class: isBad && left > 0 && "lossy" },
      html("span", {}, title), html("span", {}, count(left))))))));
  const losses = [["events dropped", totals.dropped], ["datagrams dropped by kernels", totals.kernel_drops],
    ["events forgotten by Redis", totals.forgotten], ["points discarded", totals.discarded]];
  say(byId("losses"), status.nodes.length === 0 ? ""
    : `Of ${count(totals.received)} events: ${losses.map(([what, number]) => `${count(number)} ${what}`).join(", ")}.`);
  show(byId("ledger"), [totals, status.nodes.length], () => {
    if (status.nodes.length === 0) return status.partitions.by_state ? "No node reports." : "Not known while Redis does not answer.";
    const rest = totals.received - totals.recorded - totals.rejected - totals.dropped - totals.queued;
    const words = `${count(totals.received)} received = ${count(totals.recorded)} recorded + ${count(totals.rejected)} rejected`
      + ` + ${count(totals.dropped)} dropped + ${count(totals.queued)} in the queue. `;
    const holds = rest === 0
      ? html("span", { class: "holds" }, "The sum holds.")
      : html("span", { class: "broken" }, `The sum is off by ${count(rest)}.`);
    const note = ` Over ${many(status.nodes.length, "node")}, each since its start; what several nodes receive counts for each.`;
    return [words, holds, html("span", { class: "soft" }, note)];
  });
}

const clockOff = (it) => (isNumber(it.clock_offset_ms) ? `${count(it.clock_offset_ms)} ms` : "–");
const whenAny = (of, kind) => (it) => (of(it) > 0 ? `number ${kind}` : "number");

const NODES = [
  ["Node", (it) => it.name],
  ["Version", (it) => it.version],
  ["Up for", (it) => span(it.uptime_seconds), "number"],
  ["Received", (it) => rate(it.received_per_second), "number"],
  ["Recorded", (it) => rate(it.recorded_per_second), "number"],
  ["Rejected", (it) => count(it.totals.rejected), "number"],
  ["Dropped", (it) => count(it.totals.dropped), whenAny((it) => it.totals?.dropped, "bad")],
  ["By its kernel", (it) => count(it.totals.kernel_drops), whenAny((it) => it.totals?.kernel_drops, "bad")],
  ["Late", (it) => count(it.totals.late), whenAny((it) => it.totals?.late, "warning")],
  ["Queue", (it) => count(it.totals.queued), "number"],
  ["Lag", (it) => span(it.lag_seconds), whenAny((it) => it.lag_seconds, "warning")],
  ["Saw", (it) => percent(it.coverage), (it) => (it.coverage < 0.99 ? "number warning" : "number")],
  ["Clock off", clockOff, "number"],
  ["Last seen", (it) => `${span(it.last_seen_seconds)} ago`, (it) => (it.silent ? "number bad" : "number")],
];

export function nodes(status) {
  show(byId("nodes"), status.nodes, () => table("Every node, with its numbers since its start", NODES, status.nodes));
}

const RELAYS = [
  ["Relay", (it) => it.name],
  ["Version", (it) => it.version],
  ["Up for", (it) => span(it.uptime_seconds), "number"],
  ["Received", (it) => rate(it.received_per_second), "number"],
  ["Events", (it) => rate(it.events_per_second), "number"],
  ["To no node", (it) => count(it.totals.nowhere), whenAny((it) => it.totals?.nowhere, "bad")],
  ["By its kernel", (it) => count(it.totals.kernel_drops), whenAny((it) => it.totals?.kernel_drops, "bad")],
  ["Rejected", (it) => count(it.totals.rejected), whenAny((it) => it.recent?.rejected, "warning")],
  ["Discarded", (it) => count(it.totals.rest_discarded), whenAny((it) => it.recent?.rest_discarded, "warning")],
  ["Came back", (it) => count(it.totals.looped), whenAny((it) => it.totals?.looped, "bad")],
  ["Rest sent", (it) => count(it.rest.sent), "number"],
  ["Rest dropped", (it) => count(it.rest.dropped), whenAny((it) => it.rest?.dropped, "bad")],
  ["Nodes", (it) => it.to.map((to) => `${to.to} ${to.up ? "up" : "down"}, ${count(to.dropped)} dropped`).join("; "),
    (it) => (it.to?.every((to) => to.up) ? "text" : "text warning")],
  ["Last seen", (it) => `${span(it.last_seen_seconds)} ago`, (it) => (it.silent ? "number bad" : "number")],
];

export function relays(status) {
  byId("relays-section").hidden = status.relays.length === 0;
  show(byId("relays"), status.relays, () => table("Every relay, with its numbers since its start", RELAYS, status.relays));
}

const STATES = new Map([[true, () => "takes points"], [false, (it) => `down: ${it.last_error ?? "why is not known"}`]]);

const OUTPUTS = [
  ["Output", (it) => it.name],
  ["Where", (it) => it.url || "at no node any more", "text"],
  ["State", (it) => STATES.get(it.up)?.(it) ?? "not known", (it) => ({ true: "text good", false: "text bad" })[it.up] ?? "text"],
  ["Unsent", (it) => count(it.unsent), "number"],
  ["Quarantined", (it) => count(it.quarantined), whenAny((it) => it.quarantined, "bad")],
];

export function outputs(status) {
  show(byId("outputs"), status.outputs, () => table("Every output", OUTPUTS, status.outputs));
  const oldest = status.partitions.oldest_unsent;
  say(byId("partitions"), oldest
    ? `The oldest minute that is not sent is ${oldest.minute}, which ended ${span(oldest.age_seconds)} ago, to ${oldest.output}: ${oldest.why}.`
    : "");
}

const SERVERS = [
  ["Server", (it) => it.address],
  ["Version", (it) => it.version],
  ["Role", (it) => it.role],
  ["Memory", (it) => (it.maxmemory > 0 ? `${bytes(it.used_memory)} of ${bytes(it.maxmemory)}` : bytes(it.used_memory)), "number"],
  ["On disk", (it) => (it.persistence.aof ? "each change" : "not each change"), (it) => (it.persistence?.aof ? "" : "warning")],
  ["Clock off", clockOff, "number"],
];

export function store(status) {
  const servers = status.redis?.servers ?? [];
  show(byId("store"), servers, () => {
    if (servers.length === 0) {
      return html("p", { class: "soft" }, "In the memory of this node, which knows only itself; minutes that are open end with it.");
    }
    const away = servers.filter((it) => it.error).map((it) => html("p", { class: "trouble" }, `${it.address}: ${it.error}`));
    const there = servers.filter((it) => !it.error);
    return [...away, ...(there.length > 0 ? [table("Every server of Redis", SERVERS, there)] : [])];
  });
  const needed = status.redis?.memory_by_formula;
  say(byId("memory"), needed > 0 ? `What comes in now should take about ${bytes(needed)}.` : "");
}
