//! Formats the status as text, with the findings and their remedies first, and the status page of a relay.

use super::answer::{CauseStatus, OutputStatus, RollupStatus, Status};
use super::findings::find_in_relays;
use super::report::{NodeReport, RelayReport, Report};
use crate::diagnosis::Diagnosis;
use crate::store::ServerSeen;

const PAGE_WIDTH: usize = 100;

fn wrapped(first: &str, text: &str, further: &str, width: usize) -> Vec<String> {
    let (mut lines, mut line, mut is_empty) = (Vec::new(), first.to_owned(), true);
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::replace(&mut line, further.to_owned()));
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    lines.push(line);
    lines
}

fn indented(first: &str, text: &str, width: usize) -> Vec<String> {
    wrapped(first, text, &" ".repeat(first.len()), width)
}

/// Returns the status as lines of at most `width` characters, unless a single word is longer.
pub(crate) fn lines(status: &Status, width: usize) -> Vec<String> {
    let health = if status.healthy { "healthy" } else { "not healthy" };
    let mut lines = vec![format!("{health}, at {}", status.at)];
    let lost = &status.is_anything_lost.sentence;
    lines.extend(wrapped("Has anything been lost? ", lost, "  ", width));
    lines.extend(findings(&status.findings, width));
    lines.push(String::new());
    if status.partitions.by_state.is_some() || !status.nodes.is_empty() {
        lines.extend(nodes(&status.nodes));
    } else {
        lines.push("nodes    unknown while Redis is not responding".to_owned());
    }
    lines.push(String::new());
    if !status.relays.is_empty() {
        lines.extend(relays(&status.relays, width));
        lines.push(String::new());
    }
    lines.extend(partitions(status, width));
    for output in &status.outputs {
        lines.extend(indented("output   ", &self::output(output), width));
    }
    for rollup in &status.rollups {
        lines.extend(indented("rollup   ", &self::rollup(rollup), width));
    }
    let Some(redis) = &status.redis else {
        lines.push("store    this node's memory".to_owned());
        return lines;
    };
    for server in &redis.servers {
        lines.extend(indented("redis    ", &self::server(server), width));
    }
    if let Some(formula) = redis.memory_by_formula.filter(|bytes| *bytes > 0) {
        lines.push(format!("         the current input needs about {}", bytes(formula)));
    }
    lines
}

pub(crate) fn relay_page(at: String, report: RelayReport) -> String {
    let status = relay_status(at, report);
    let found = find_in_relays(&status);
    let health = match found.len() {
        0 => "no findings".to_owned(),
        1 => "1 finding".to_owned(),
        count => format!("{count} findings"),
    };
    let mut lines = vec![format!("eds relay: {health}, at {}", status.at)];
    lines.extend(findings(&found, PAGE_WIDTH));
    lines.push(String::new());
    lines.extend(relays(&status.relays, PAGE_WIDTH));
    lines.push(String::new());
    lines.push("For programs: /healthz, /readyz and /metrics".to_owned());
    lines.join("\n") + "\n"
}

pub(super) fn relay_status(at: String, report: RelayReport) -> Status {
    let lost = report.details.recent.losses().into_iter();
    let losses = lost.filter(|(_, amount)| *amount > 0).map(|(cause, amount)| CauseStatus {
        cause: cause.label().to_owned(),
        amount,
        nodes: vec![report.process.name.clone()],
        ..CauseStatus::default()
    });
    let losses = Some(losses.collect());
    Status { at, relays: vec![report], losses, ..Status::default() }
}

fn findings(findings: &[Diagnosis], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for Diagnosis { cause, r#where, why, remedy } in findings {
        lines.push(String::new());
        let severity = cause.severity().word().to_uppercase();
        let head = format!("{}: {} ({})", r#where, cause.what(), cause.id());
        lines.extend(wrapped(&format!("{severity} "), &head, "  ", width));
        lines.extend(indented("  why: ", why, width));
        lines.extend(indented("  do:  ", remedy, width));
    }
    lines
}

/// Returns a table of processes. `cells` returns the cells specific to nodes or relays, and the lines below a row.
fn processes<R>(
    headings: [&str; 2],
    processes: &[Report<R>],
    cells: impl Fn(&Report<R>) -> (String, Vec<String>),
) -> Vec<String> {
    let [kind, headings] = headings;
    let mut lines = vec![format!("{kind:14} {:>8} {:>9} {headings}", "up", "in/s")];
    for report in processes {
        let process = &report.process;
        let name: String = process.name.chars().take(14).collect();
        if report.seen.silent {
            lines.push(format!("{name:14} silent for {} s", report.seen.last_seen_seconds));
            continue;
        }
        let (cells, below) = cells(report);
        let (up, received) = (span(process.uptime_seconds), process.received_per_second);
        lines.push(format!("{name:14} {up:>8} {received:>9.0} {cells}"));
        lines.extend(below);
        if let Some(requests) = process.requests {
            lines.push(format!(
                "  requests: {} recorded, {} to be repeated, {} rejected",
                requests.recorded, requests.deferred, requests.rejected
            ));
        }
    }
    lines
}

fn relays(relays: &[RelayReport], width: usize) -> Vec<String> {
    let headings = ["relay", "  event/s    lost rejected discarded  looped"];
    processes(headings, relays, |relay| {
        let (report, totals) = (&relay.details, &relay.details.totals);
        let cells = format!(
            "{:>9.0} {:>7} {:>8} {:>9} {:>7}",
            report.events_per_second,
            totals.lost(),
            totals.rejected,
            totals.passthrough_discarded,
            totals.looped,
        );
        let text = format!("{}  listening on {}", relay.process.version, report.listen.join(", "));
        let mut below = wrapped("  ", &text, "  ", width);
        let nodes = report.to.iter().map(|target| ("  to ", target));
        for (kind, target) in nodes.chain([("  passthrough ", &report.passthrough)]) {
            let state = if target.up { "up" } else { "DOWN" };
            let text = format!(
                "{}: {state}, {} lines sent, {} dropped, {} queued",
                target.to, target.sent, target.dropped, target.queued
            );
            below.extend(indented(kind, &text, width));
        }
        (cells, below)
    })
}

fn nodes(nodes: &[NodeReport]) -> Vec<String> {
    let headings = ["node", " record/s    lost   late    lag cover   clock"];
    processes(headings, nodes, |node| {
        let (report, totals) = (&node.details, &node.details.totals);
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let cells = format!(
            "{:>9.0} {:>7} {:>6} {:>6} {:>5} {:>7}",
            report.recorded_per_second,
            totals.lost(),
            totals.late,
            span(report.lag_seconds),
            or_dash(node.seen.coverage.map(|share| format!("{:.0}%", share * 100.0))),
            or_dash(report.clock_offset_ms.map(|ms| format!("{ms}ms"))),
        );
        let below = format!(
            "  {}  queue {} of {}  spool {} of {}  rejected {}",
            node.process.version,
            report.queue.events,
            report.queue.events_max,
            bytes(report.spool.bytes),
            bytes(report.spool.bytes_max),
            totals.rejected,
        );
        (cells, vec![below])
    })
}

fn partitions(status: &Status, width: usize) -> Vec<String> {
    let Some(minutes) = &status.partitions.by_state else {
        return vec!["backlog  unknown while Redis is not responding".to_owned()];
    };
    let mut texts = vec![format!(
        "{} open, {} being sealed, {} unsent (a minute counts once for each of up to {} partitions)",
        minutes.open, minutes.claimed, minutes.unsent, status.partitions.count
    )];
    if let Some(old) = &status.partitions.old {
        let done = match old.done_in_seconds {
            Some(seconds) => {
                format!("all will be sealed in about {} at the current rate", span(seconds))
            }
            None => "none are being sealed yet".to_owned(),
        };
        texts.push(format!("{} of the open minutes are old: {done}", old.waiting));
    }
    if let Some(oldest) = &status.partitions.oldest_unsent {
        let age = span(oldest.age_seconds);
        texts.push(format!(
            "oldest unsent: {} for {}, which ended {age} ago: {}",
            oldest.minute, oldest.output, oldest.why
        ));
    }
    let heads = ["backlog  ", "         ", "         "];
    heads.iter().zip(&texts).flat_map(|(head, text)| indented(head, text, width)).collect()
}

fn output(output: &OutputStatus) -> String {
    let state = match output.up {
        Some(false) => "DOWN",
        Some(true) => "up",
        None => "state unknown",
    };
    let url = if output.url.is_empty() { "not on any node" } else { &output.url };
    let backlog = match (output.unsent, output.quarantined) {
        (Some(unsent), Some(quarantined)) => format!("{unsent} unsent, {quarantined} quarantined"),
        _ => "unsent and quarantined counts unknown".to_owned(),
    };
    format!("{}: {state}, {backlog}; {url}", output.name)
}

fn rollup(rollup: &RollupStatus) -> String {
    let RollupStatus { name, every, open, .. } = rollup;
    let Some(open) = open else {
        return format!("{name} ({every}): open windows unknown");
    };
    let size = bytes(open.iter().map(|window| window.bytes).sum());
    let windows = if open.len() == 1 { "window" } else { "windows" };
    let oldest = open.last().map_or_else(String::new, |oldest| {
        format!(
            "; the window from {} to {} waits for {}",
            oldest.start, oldest.end, oldest.waits_for
        )
    });
    format!("{name} ({every}): {} open {windows}, {size}{oldest}", open.len())
}

fn server(server: &ServerSeen) -> String {
    let address = &server.address;
    let Some(server) = &server.found else {
        let error = server.error.as_ref().map_or("", |error| &error.why);
        return format!("{address}: {error}");
    };
    let most = match server.maxmemory {
        0 => "no limit".to_owned(),
        most => bytes(most),
    };
    let aof = if server.persistence.aof { "append-only file" } else { "NO append-only file" };
    let (version, role, used) = (&server.version, &server.role, bytes(server.used_memory));
    format!("{address}: {version}, {role}, {used} of {most}, {aof}")
}

fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86400, seconds / 3600 % 24),
    }
}

/// Formats a number of bytes, such as `1.5 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}
