//! The answer for people: what is wrong comes first, each with what to do.

use super::answer::{NodeStatus, OutputStatus, RelayStatus, Status};
use crate::diagnosis::Diagnosis;
use crate::store::ServerSeen;

/// A text over lines of so many characters, with this before the first and that before each further one.
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

/// The answer in lines of at most so many characters, as far as no word is longer.
#[must_use]
pub fn lines(status: &Status, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let health = if status.healthy { "healthy" } else { "not healthy" };
    lines.push(format!("{health}, at {}", status.at));
    let lost = &status.is_anything_lost.sentence;
    lines.extend(wrapped("Is anything lost? ", lost, "  ", width));
    lines.extend(findings(&status.findings, width));
    lines.push(String::new());
    let is_known = status.partitions.by_state.is_some();
    lines.extend(if is_known || !status.nodes.is_empty() {
        nodes(&status.nodes)
    } else {
        vec!["nodes    not known while Redis does not answer".to_owned()]
    });
    lines.push(String::new());
    if !status.relays.is_empty() {
        lines.extend(relays(&status.relays, width));
        lines.push(String::new());
    }
    lines.extend(partitions(status, width));
    for output in &status.outputs {
        lines.extend(self::output(output, width));
    }
    match &status.redis {
        None => lines.push("store    the memory of the node".to_owned()),
        Some(redis) => {
            let servers = redis.servers.iter();
            lines.extend(
                servers.flat_map(|it| wrapped("redis    ", &server(it), "         ", width)),
            );
            if let Some(formula) = redis.memory_by_formula.filter(|bytes| *bytes > 0) {
                let formula = bytes(formula);
                lines.push(format!("         by the formula it needs about {formula}"));
            }
        }
    }
    lines
}

/// Each with an empty line before it.
pub(super) fn findings(findings: &[Diagnosis], width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for finding in findings {
        lines.push(String::new());
        let severity = finding.cause.severity().word().to_uppercase();
        let head = format!("{}: {} ({})", finding.r#where, finding.what, finding.cause.id());
        lines.extend(wrapped(&format!("{severity} "), &head, "  ", width));
        lines.extend(wrapped("  why: ", &finding.why, "       ", width));
        lines.extend(wrapped("  do:  ", &finding.remedy, "       ", width));
    }
    lines
}

/// The relays, each with what it sends to below it.
pub(super) fn relays(relays: &[RelayStatus], width: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "{:14} {:>8} {:>9} {:>9} {:>7} {:>8} {:>9} {:>7}",
        "relay", "up", "in/s", "event/s", "lost", "rejected", "discarded", "looped"
    )];
    for relay in relays {
        let report = &relay.report;
        let name: String = report.name.chars().take(14).collect();
        if relay.silent {
            lines.push(format!("{name:14} silent for {} s", relay.last_seen_seconds));
            continue;
        }
        let totals = &report.totals;
        lines.push(format!(
            "{name:14} {:>8} {:>9.0} {:>9.0} {:>7} {:>8} {:>9} {:>7}",
            span(report.uptime_seconds),
            report.received_per_second,
            report.events_per_second,
            totals.lost(),
            totals.rejected,
            totals.rest_discarded,
            totals.looped,
        ));
        let text = format!("{}  listens at {}", report.version, report.listen.join(", "));
        lines.extend(wrapped("  ", &text, "  ", width));
        for (kind, target) in report.to.iter().map(|to| ("to", to)).chain([("rest", &report.rest)])
        {
            let state = if target.up { "up" } else { "DOWN" };
            let (sent, dropped, queued) = (target.sent, target.dropped, target.queued);
            let text = format!(
                "{}: {state}, {sent} lines sent, {dropped} dropped, {queued} queued",
                target.to
            );
            lines.extend(wrapped(&format!("  {kind:5}"), &text, "       ", width));
        }
    }
    lines
}

fn nodes(nodes: &[NodeStatus]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:14} {:>8} {:>9} {:>9} {:>7} {:>6} {:>6} {:>5} {:>7}",
        "node", "up", "in/s", "record/s", "lost", "late", "lag", "cover", "clock"
    )];
    for node in nodes {
        let report = &node.report;
        let name: String = report.name.chars().take(14).collect();
        if node.silent {
            lines.push(format!("{name:14} silent for {} s", node.last_seen_seconds));
            continue;
        }
        let cover = node.coverage.map_or("-".to_owned(), |it| format!("{:.0}%", it * 100.0));
        lines.push(format!(
            "{name:14} {:>8} {:>9.0} {:>9.0} {:>7} {:>6} {:>6} {cover:>5} {:>7}",
            span(report.uptime_seconds),
            report.received_per_second,
            report.recorded_per_second,
            report.totals.lost(),
            report.totals.late,
            span(report.lag_seconds),
            (report.clock_offset_ms).map_or("-".to_owned(), |ms| format!("{ms}ms")),
        ));
        let (queue, spool) = (&report.queue, &report.spool);
        lines.push(format!(
            "  {}  queue {} of {}  spool {} of {}  rejected {}",
            report.version,
            queue.events,
            queue.events_max,
            bytes(spool.bytes),
            bytes(spool.bytes_max),
            report.totals.rejected,
        ));
    }
    lines
}

fn partitions(status: &Status, width: usize) -> Vec<String> {
    let Some(by) = &status.partitions.by_state else {
        return vec!["backlog  not known while Redis does not answer".to_owned()];
    };
    let (open, claimed, unsent) = (by.open, by.claimed, by.unsent);
    let count = status.partitions.count;
    let text = format!(
        "{open} open, {claimed} being sealed, {unsent} unsent: minutes, each of which counts in up to {count} partitions"
    );
    let mut lines = wrapped("backlog  ", &text, "         ", width);
    if let Some(old) = &status.partitions.old {
        let done = match old.done_in_seconds {
            Some(seconds) => format!("sealed in about {} at the present rate", span(seconds)),
            None => "none of them is being sealed yet".to_owned(),
        };
        let text = format!("{} of the open ones are old: {done}", old.waiting);
        lines.extend(wrapped("         ", &text, "         ", width));
    }
    if let Some(oldest) = &status.partitions.oldest_unsent {
        let text = format!(
            "oldest unsent: {} for {}, {} old: {}",
            oldest.minute,
            oldest.output,
            span(oldest.age_seconds),
            oldest.why
        );
        lines.extend(wrapped("         ", &text, "         ", width));
    }
    lines
}

fn output(output: &OutputStatus, width: usize) -> Vec<String> {
    let state = match output.up {
        Some(false) => "DOWN",
        Some(true) => "up",
        None => "not known whether up",
    };
    let place = if output.url.is_empty() { "of no node any more" } else { &output.url };
    let waits = match (output.unsent, output.quarantined) {
        (Some(unsent), Some(quarantined)) => format!("{unsent} unsent, {quarantined} quarantined"),
        _ => "not known how much is unsent or quarantined".to_owned(),
    };
    let text = format!("{}: {state}, {waits}; {place}", output.name);
    wrapped("output   ", &text, "         ", width)
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
    format!(
        "{address}: {}, {}, {} of {most}, {aof}",
        server.version,
        server.role,
        bytes(server.used_memory)
    )
}

/// `3d4h`, `5m10s`.
fn span(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m{}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h{}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d{}h", seconds / 86400, seconds / 3600 % 24),
    }
}

fn bytes(bytes: u64) -> String {
    bytesize::ByteSize(bytes).display().iec().to_string()
}
