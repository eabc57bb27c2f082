// Shows the cluster's status from /api/v1/status: losses, findings, the pipeline, nodes, relays, outputs and the store.

import { byId, bytes, count, html, isNumber, many, percent, rate, say, show, span, table } from "./dom.js";
import { spark } from "./plot.js";

const ANSWERS = { no: "No", yes: "Yes", attention: "Attention" };

/// Returns the sum of the known values, or undefined if there are none.
const sum = (parts, value) => {
  const known = parts.map(value).filter(isNumber);
  return known.length > 0 ? known.reduce((all, number) => all + number, 0) : undefined;
};

/// Shows whether anything has been lost, and the findings if they are known. Calls `speak` with both as text.
export function verdict(lost, findings, speak) {
  const answer = ANSWERS[lost.answer] ?? "Unknown";
  byId("verdict").className = lost.answer;
  say(byId("answer"), answer);
  // The answer is shown separately, so the sentence must not repeat it.
  const words = lost.sentence.replace(/^(No|Yes|Attention|Unknown): /, "");
  say(byId("sentence"), words.charAt(0).toUpperCase() + words.slice(1));
  if (findings === undefined) return;
  show(byId("findings"), findings, () => findings.map((finding) => html("li", {},
    html("p", { class: `severity ${finding.severity}` }, finding.severity),
    html("p", {}, html("b", {}, `${finding.where}: `), finding.what),
    html("p", { class: "why" }, finding.why),
    html("p", { class: "remedy" }, finding.remedy))));
  const sentences = findings.map((finding) => `${finding.severity}: ${finding.where} ${finding.what}.`);
  speak([`Has anything been lost? ${answer}.`, ...sentences].join(" "));
}

/// Shows each step from events to points with its losses, and whether every received event is accounted for.
function pipeline({ nodes, outputs, partitions, is_anything_lost: lost }) {
  const total = (name) => sum(nodes, (node) => node.totals[name]);
  const states = partitions.by_state ?? {};
  const stages = [
    ["Received", total("received"), "events", sum(nodes, (node) => node.received_per_second), [
      ["rejected", total("rejected"), lost.answer === "attention"], ["dropped", total("dropped"), true],
      ["queued", total("queued")], ["dropped by the kernel", total("kernel_drops"), true]]],
    ["Recorded", total("recorded"), "events", sum(nodes, (node) => node.recorded_per_second), [
      ["duplicates", total("repeated")], ["late", total("late"), true], ["lost by Redis", total("forgotten"), true]]],
    ["Sealed", total("sealed"), "counts", undefined, [
      ["open, per minute and partition", states.open], ["being sealed", states.claimed]]],
    ["Sent", total("sent"), "points", undefined, [
      ["unsent, per minute and partition", states.unsent], ["quarantined", sum(outputs, (output) => output.quarantined), true],
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
    if (nodes.length === 0) return partitions.by_state ? "No node is reporting." : "Unknown while Redis is not responding.";
    const [received, ...others] = parts;
    const [recorded, rejected, dropped, queued] = others.map(count);
    const rest = others.reduce((left, part) => left - part, received);
    return [
      `${count(received)} received = ${recorded} recorded + ${rejected} rejected + ${dropped} dropped + ${queued} queued. `,
      html("span", { class: rest === 0 ? "holds" : "broken" }, rest === 0 ? "The totals add up." : `The totals are off by ${count(rest)}.`),
      html("span", { class: "soft" }, ` Across ${many(nodes.length, "node")}, each since startup; an event received by several nodes counts once per node.`),
    ];
  });
}

const clockOff = (row) => (isNumber(row.clock_offset_ms) ? `${count(row.clock_offset_ms)} ms` : "–");
/// Returns a column of numbers. A cell is highlighted if `mark`, by default `value`, returns a number above 0.
const marked = (title, value, kind, show = count, mark = value) =>
  [title, (row) => show(value(row)), (row) => (mark(row) > 0 ? `number ${kind}` : "number")];
const total = (title, name, kind) => marked(title, (process) => process.totals?.[name], kind);
const recent = (title, name) => marked(title, (process) => process.totals?.[name], "warning", count, (process) => process.recent?.[name]);

const requests = ({ requests }) => requests
  ? `${count(requests.recorded)} recorded, ${count(requests.deferred)} to be repeated, ${count(requests.rejected)} rejected` : "–";

const FIRST = [
  ["Version", (process) => process.version],
  ["Uptime", (process) => span(process.uptime_seconds), "number"],
  ["Received", (process) => rate(process.received_per_second), "number"],
];
const REQUESTS = ["Requests", requests, "text"];
const LAST_SEEN = ["Last seen", (process) => `${span(process.last_seen_seconds)} ago`, (process) => (process.silent ? "number bad" : "number")];

const NODES = [
  ["Node", (node) => node.name],
  ...FIRST,
  ["Recorded", (node) => rate(node.recorded_per_second), "number"],
  ["Rejected", (node) => count(node.totals.rejected), "number"],
  total("Dropped", "dropped", "bad"),
  total("Kernel drops", "kernel_drops", "bad"),
  total("Late", "late", "warning"),
  ["Queue", (node) => count(node.totals.queued), "number"],
  marked("Lag", (node) => node.lag_seconds, "warning", span),
  ["Coverage", (node) => percent(node.coverage), (node) => (node.coverage < 0.99 ? "number warning" : "number")],
  ["Clock offset", clockOff, "number"],
  REQUESTS,
  LAST_SEEN,
];

const RELAYS = [
  ["Relay", (relay) => relay.name],
  ...FIRST,
  ["Events", (relay) => rate(relay.events_per_second), "number"],
  total("Not sent", "nowhere", "bad"),
  total("Kernel drops", "kernel_drops", "bad"),
  recent("Rejected", "rejected"),
  recent("Discarded", "passthrough_discarded"),
  total("Looped", "looped", "bad"),
  ["Passthrough sent", (relay) => count(relay.passthrough.sent), "number"],
  marked("Passthrough dropped", (relay) => relay.passthrough?.dropped, "bad"),
  ["Nodes", (relay) => relay.to.map((node) => `${node.to} ${node.up ? "up" : "down"}, ${count(node.dropped)} dropped`).join("; "),
    (relay) => (relay.to?.every((node) => node.up) ? "text" : "text warning")],
  REQUESTS,
  LAST_SEEN,
];

const STATES = { true: () => "accepting points", false: (output) => `down: ${output.last_error ?? "unknown reason"}` };

const OUTPUTS = [
  ["Output", (output) => output.name],
  ["Address", (output) => output.url || "not on any node", "text"],
  ["State", (output) => STATES[output.up]?.(output) ?? "unknown", (output) => ({ true: "text good", false: "text bad" })[output.up] ?? "text"],
  ["Unsent", (output) => count(output.unsent), "number"],
  marked("Quarantined", (output) => output.quarantined, "bad"),
];

const ROLLUPS = [
  ["Rollup", (rollup) => rollup.name],
  ["Window", (rollup) => rollup.every],
  ["Suffix of measurements", (rollup) => rollup.suffix],
  ["Open windows", (rollup) => count(rollup.open?.length), "number"],
  ["Memory", (rollup) => bytes(rollup.open && rollup.open.reduce((all, window) => all + window.bytes, 0)), "number"],
  ["The oldest waits for", (rollup) => rollup.open?.at(-1)?.waits_for ?? "–", "text"],
];

const REJECTED = [
  ["Node", (row) => row.node],
  ["Reason", (row) => row.reason],
  ["Lines", (row) => count(row.lines), "number"],
  ["Example", (row) => html("code", {}, row.example || "–"), "text"],
];

// How much of each limit was used in the last minutes, oldest first, by resource.
const usage = new Map();
const USAGE_MS = 300000;

/// Returns the time until a resource is full if its use grows as in the last minutes, in seconds; undefined if it does not grow,
/// and null if it has not been observed for a minute.
function fullIn({ what, where, used, limit }, at) {
  const key = JSON.stringify([what, where]);
  const points = (usage.get(key) ?? []).filter((point) => at - point.at < USAGE_MS);
  points.push({ at, used });
  usage.set(key, points);
  const observed = at - points[0].at;
  if (observed < 60000) return null;
  const growth = (used - points[0].used) / observed;
  return growth > 0 ? Math.max(0, limit - used) / growth / 1000 : undefined;
}

/// Returns everything with a limit: the queue and the spool of each node, the memory of each Redis server, and the series and users of
/// the last minutes.
function limits({ nodes, redis }) {
  const ofNode = ({ name: where, queue, spool }) => [
    { what: "Queued events", where, used: queue?.events, limit: queue?.events_max, format: count },
    { what: "Memory of queued events", where, used: queue?.bytes, limit: queue?.bytes_max, format: bytes },
    { what: "Spool", where, used: spool?.bytes, limit: spool?.bytes_max, format: bytes },
  ];
  const ofServer = (server) => ({ what: "Memory of Redis", where: server.address, used: server.used_memory, limit: server.maxmemory, format: bytes });
  const ofMinutes = (what, peaks, max) => ({
    what, where: "any node", used: Math.max(...nodes.flatMap((node) => node.hour?.[peaks]?.slice(-3) ?? [])),
    limit: Math.min(...nodes.map((node) => node.limits?.[max] || Infinity)), format: count, isPeak: true,
  });
  const all = [...nodes.flatMap(ofNode), ...(redis?.servers ?? []).map(ofServer),
    ofMinutes("Series of a partition in a minute", "series", "series_max"), ofMinutes("Users of a series in a minute", "users", "users_max")];
  return all.filter(({ used, limit }) => isNumber(used) && limit > 0 && limit < Infinity);
}

const HOUR = [
  ["Process", (row) => row.name],
  ["Received", (row) => spark(row.hour.received_per_second, rate)],
  ["Highest queue", (row) => spark(row.hour.queued, count)],
  ["Longest lag", (row) => spark(row.hour.lag_seconds, span)],
  ["Sealed after", (row) => spark(row.hour.seal_seconds ?? [], span)],
];

const HEADROOM = [
  ["Limit", (row) => row.what],
  ["Of", (row) => row.where],
  ["Used", (row) => `${row.format(row.used)} of ${row.format(row.limit)}`, "number"],
  ["Free", (row) => percent(1 - row.used / row.limit), (row) => (row.used > 0.8 * row.limit ? "number warning" : "number")],
  ["Full in", (row) => (isNumber(row.full) ? span(Math.round(row.full)) : row.full === null ? "known in a minute" : "not growing"), "number"],
];

function headroom(status) {
  const at = Date.parse(status.at);
  const rows = limits(status).map((row) => ({ ...row, full: row.isPeak ? undefined : fullIn(row, at) }));
  show(byId("headroom"), rows, () => (rows.length > 0 ? table("Limits of all nodes and servers", HEADROOM, rows)
    : html("p", { class: "soft" }, "No limit is known.")));
}

const SERVERS = [
  ["Server", (server) => server.address],
  ["Version", (server) => server.version],
  ["Role", (server) => server.role],
  ["Memory", (server) => (server.maxmemory > 0 ? `${bytes(server.used_memory)} of ${bytes(server.maxmemory)}` : bytes(server.used_memory)), "number"],
  ["Append-only file", (server) => (server.persistence.aof ? "on" : "off"), (server) => (server.persistence?.aof ? "" : "warning")],
  ["Clock offset", clockOff, "number"],
];

function store(redis) {
  const servers = redis?.servers ?? [];
  show(byId("store"), servers, () => {
    if (servers.length === 0) {
      return html("p", { class: "soft" }, "Counts are in this node's memory and not shared with other nodes; open minutes are lost when the node exits.");
    }
    const [down, up] = [servers.filter((server) => server.error), servers.filter((server) => !server.error)];
    const errors = down.map((server) => html("p", { class: "trouble" }, `${server.address}: ${server.error}`));
    return up.length > 0 ? [...errors, table("All Redis servers", SERVERS, up)] : errors;
  });
  const needed = redis?.memory_by_formula;
  say(byId("memory"), needed > 0 ? `The current input needs about ${bytes(needed)} of memory.` : "");
}

export function showStatus(status, speak) {
  verdict(status.is_anything_lost, status.findings, speak);
  pipeline(status);
  const rejected = status.nodes.flatMap((node) => (node.rejected ?? []).map((row) => ({ node: node.name, ...row })));
  byId("rejected-section").hidden = rejected.length === 0;
  show(byId("rejected"), rejected, (rows) => table("Lines rejected in the last few minutes", REJECTED, rows));
  headroom(status);
  const processes = [...status.nodes, ...status.relays].filter((row) => row.hour?.received_per_second);
  show(byId("hour"), processes.map(({ name, hour }) => ({ name, hour })), (rows) => table("The last hour of all nodes and relays", HOUR, rows));
  const rollups = status.rollups ?? [];
  byId("relays-section").hidden = status.relays.length === 0;
  byId("rollups-section").hidden = rollups.length === 0;
  show(byId("rollups"), rollups, (rows) => table("All rollups", ROLLUPS, rows));
  for (const [place, caption, columns] of [
    ["nodes", "All nodes, with totals since startup", NODES],
    ["relays", "All relays, with totals since startup", RELAYS],
    ["outputs", "All outputs", OUTPUTS],
  ]) {
    show(byId(place), status[place], (rows) => {
      const shown = columns.filter((column) => column !== REQUESTS || rows.some((row) => row.requests));
      return table(caption, shown, rows);
    });
  }
  const oldest = status.partitions.oldest_unsent;
  say(byId("partitions"), oldest
    ? `The oldest unsent minute for output ${oldest.output} is ${oldest.minute}, which ended ${span(oldest.age_seconds)} ago: ${oldest.why}.`
    : "");
  store(status.redis);
}
