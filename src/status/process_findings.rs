//! Derives the findings about nodes and relays from a status. The functions are pure.

use std::time::Duration;

use super::answer::{Status, percent};
use super::report::{NodeReport, ProcessReport, RelayReport, Report};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Rejection;
use crate::node::{COINCIDING_MIN, ROUNDED_MIN};

/// A node that saw less than this share of the events that another node saw is considered to be losing events.
const COVERAGE_MIN: f64 = 0.99;
/// The percentage of rejected lines at which a node is reported with a warning rather than a note.
const REJECTED_PERCENT_MIN: u64 = 1;
const LAG_SECONDS_MAX: u64 = 10;

/// Returns the findings about all nodes and relays. Leaves out the nodes' store errors unless the Redis servers are healthy.
pub(super) fn find(status: &Status, servers_well: bool) -> Vec<Diagnosis> {
    let live = || status.nodes.iter().filter(|node| !node.seen.silent);
    let count = |version: &str| live().filter(|node| node.process.version == version).count();
    // The version that most nodes run or, if several versions are equally common, the latest of these.
    let versions = live().map(|node| node.process.version.as_str());
    let usual = versions.max_by_key(|version| (count(version), *version));
    let mut found = Vec::new();
    for node in &status.nodes {
        found.extend(find_in_process("node", Cause::NodeSilent, node, || {
            let mut found = find_in_work(status, node, servers_well);
            found.extend(find_in_input(node));
            let version = &node.process.version;
            if let Some(usual) = usual.filter(|usual| usual != version) {
                let why = format!("it runs {version}; most nodes run {usual}");
                found.push(Diagnosis::new(Cause::Version, why));
            }
            found
        }));
    }
    for relay in &status.relays {
        let details = || find_in_relay(relay);
        found.extend(find_in_process("relay", Cause::RelaySilent, relay, details));
    }
    found
}

fn find_in_process<R>(
    kind: &str,
    silent: Cause,
    report: &Report<R>,
    details: impl FnOnce() -> Vec<Diagnosis>,
) -> Vec<Diagnosis> {
    let ProcessReport { name, stalled, sockets_failing, name_taken, .. } = &report.process;
    let mut found = if report.seen.silent { Vec::new() } else { details() };
    let mut add = |cause, why: String| found.push(Diagnosis::new(cause, why));
    if report.seen.silent {
        let seconds = report.seen.last_seen_seconds;
        let why = format!("for {seconds} s; it is suspended, hung or dead, or cannot reach Redis");
        add(silent, why);
    } else {
        if *sockets_failing > 0 {
            add(
                Cause::SocketFails,
                format!("affects {sockets_failing} of its threads; see its log"),
            );
        }
        if !stalled.is_empty() {
            add(Cause::Stalled, stalled.join(", "));
        }
        if *name_taken {
            add(Cause::NameTaken, "their reports overwrite each other".to_owned());
        }
        if !report.seen.readable {
            let why =
                format!("the report was written by a different version of eds, or not by a {kind}");
            add(Cause::ReportUnreadable, why);
        }
    }
    let place = format!("{kind} {name}");
    found.into_iter().map(|finding| finding.at(&place)).collect()
}

pub(super) fn rejects_much(node: &NodeReport) -> bool {
    let recent = &node.details.recent;
    recent.rejected > 0 && percent(recent.rejected, recent.received) >= REJECTED_PERCENT_MIN
}

fn find_in_work(status: &Status, node: &NodeReport, servers_well: bool) -> Vec<Diagnosis> {
    let (report, mut found) = (&node.details, Vec::new());
    let mut add = |cause, why: String| found.push(Diagnosis::new(cause, why));
    // A problem with Redis itself affects all nodes and is a separate finding.
    let store_error = report.store_error.as_ref().filter(|_| servers_well);
    for (cause, why) in [
        (Cause::NodeCannotRecord, store_error),
        (Cause::NodeSettings, report.settings_error.as_ref()),
        (Cause::Leftovers, report.leftovers.as_ref()),
    ] {
        if let Some(why) = why {
            add(cause, why.clone());
        }
    }
    let (spool, queue) = (&report.spool, &report.queue);
    let fill = percent(spool.bytes, spool.bytes_max);
    if spool.bytes_max > 0 && fill >= 80 {
        add(Cause::SpoolFills, format!("{} events, {fill}% of input.spool_max", spool.events));
    }
    let fill = percent(queue.events, queue.events_max).max(percent(queue.bytes, queue.bytes_max));
    if fill >= 50 {
        add(Cause::QueueFills, format!("{} events, {fill}% of the limit", queue.events));
    }
    if report.lag_seconds > LAG_SECONDS_MAX {
        let (partitions, seconds) = (report.partitions_lagging, report.lag_seconds);
        let why = format!(
            "for {seconds} s; events in {partitions} partitions are queued ({} of them on disk), and minutes in these partitions stay open",
            spool.events
        );
        add(Cause::NodeLags, why);
    }
    // A lagging node is not reported for low coverage, because coverage includes only recorded events.
    let lags = report.lag_seconds > 0 || report.store_error.is_some();
    if let Some(share) = node.seen.coverage.filter(|share| *share < COVERAGE_MIN && !lags) {
        let why = format!(
            "{:.1}% in the last few minutes; events are being lost on the way to this node, none are being sent to it, or it was suspended",
            share * 100.0
        );
        add(Cause::NodeLoses, why);
    }
    let offset_ms = report.clock_offset_ms.unwrap_or(0);
    if status.is_far_off(offset_ms) {
        let side = if offset_ms > 0 { "behind" } else { "ahead of" };
        let seconds = Duration::from_millis(offset_ms.unsigned_abs()).as_secs_f64();
        let why = format!(
            "it is {seconds:.1} s {side} the store's clock; timestamps and age checks on this node are off by the same amount"
        );
        add(Cause::Clock, why);
    }
    found
}

fn find_in_input(node: &NodeReport) -> Vec<Diagnosis> {
    let (report, recent, mut found) = (&node.details, &node.details.recent, Vec::new());
    let seconds = node.process.recent_seconds;
    if recent.rejected > 0 {
        found.push(rejection(node));
    }
    let mut add = |cause, why: String| found.push(Diagnosis::new(cause, why));
    if let Some(other) = &report.unstamped_copies_at {
        let why = format!(
            "this node and node {other} received the same lines within a second, and each adds its own arrival time"
        );
        add(Cause::UnstampedCopies, why);
    }
    let coarse = report.coarse_stamps.as_deref().unwrap_or("the sender's clock is too coarse");
    let (coinciding, rounded) = (recent.coinciding, recent.rounded);
    if coinciding >= COINCIDING_MIN {
        add(
            Cause::StampsCoincide,
            format!("{coinciding} events in the last {seconds} s; {coarse}"),
        );
    } else if rounded >= ROUNDED_MIN {
        add(Cause::StampsRounded, format!("{rounded} events in the last {seconds} s; {coarse}"));
    }
    if recent.overflowed > 0 {
        let why = format!(
            "{} events in the last {seconds} s; there were more series in a minute than input.max_series_per_minute",
            recent.overflowed
        );
        add(Cause::Overflow, why);
    }
    found
}

fn rejection(node: &NodeReport) -> Diagnosis {
    let (recent, seconds) = (&node.details.recent, node.process.recent_seconds);
    let share = percent(recent.rejected, recent.received);
    let cause = if rejects_much(node) { Cause::RejectsLines } else { Cause::RejectsFew };
    let counts = format!(
        "{} of {} lines ({share}%) in the last {seconds} s",
        recent.rejected, recent.received
    );
    let Some(most) = node.details.rejected.first() else {
        return Diagnosis::new(cause, format!("{counts}; see its log for the reason"));
    };
    let known = Rejection::labelled(&most.reason);
    let words = known.map_or_else(String::new, |reason| format!(", {reason}"));
    let (lines, reason, example) = (most.lines, &most.reason, &most.example);
    let why = format!("{counts}; {lines} for {reason}{words}; the last one begins with: {example}");
    let found = Diagnosis::new(cause, why);
    match known {
        Some(reason) => found.remedy(reason.remedy()),
        None => found,
    }
}

fn find_in_relay(relay: &RelayReport) -> Vec<Diagnosis> {
    let (report, mut found) = (&relay.details, Vec::new());
    let mut add = |cause, why: String| found.push(Diagnosis::new(cause, why));
    for (cause, lines, matches) in [
        (Cause::RelayLoop, report.recent.looped, (|reason| reason == "looped") as fn(&str) -> bool),
        (Cause::RelayRejects, report.recent.rejected, |reason| {
            !["discarded", "looped"].contains(&reason)
        }),
        (Cause::RelayDiscards, report.recent.passthrough_discarded, |reason| reason == "discarded"),
    ] {
        if lines == 0 {
            continue;
        }
        let example = match report.unsent.iter().find(|unsent| matches(&unsent.reason)) {
            Some(unsent) => {
                let from = unsent
                    .source
                    .as_ref()
                    .map_or(String::new(), |source| format!(" from {source}"));
                format!("{}: {:?}{from}", unsent.reason, unsent.line)
            }
            None => "see its log for an example".to_owned(),
        };
        let seconds = relay.process.recent_seconds;
        add(cause, format!("{lines} lines in the last {seconds} s; {example}"));
    }
    let to = &report.passthrough.to;
    if report.passthrough.is_loop {
        add(Cause::RelayPassthroughLoop, format!("the lines come back after being sent to {to}"));
    }
    let down = report.to.iter().filter(|target| !target.up);
    let down: Vec<_> = down.map(|target| &*target.to).collect();
    if !down.is_empty() {
        let why = format!(
            "{}: the name cannot be resolved, no process is listening, or the host is unreachable; the other nodes still receive every event",
            down.join(", ")
        );
        add(Cause::RelayNodeDown, why);
    }
    if !report.passthrough.up {
        let queued = report.passthrough.queued;
        add(Cause::RelayPassthroughDown, format!("to {to}; {queued} lines are queued"));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::diagnosis::Diagnosis;
    use crate::diagnosis::Severity::{self, Critical, Warning};
    use crate::status::table::relay_status;
    use crate::status::{
        ProcessReport, RelayDetails, RelayReport, RelayTotals, TargetReport, UnsentReport, findings,
    };

    fn report() -> RelayReport {
        let target =
            |to: &str| TargetReport { to: to.to_owned(), up: true, ..TargetReport::default() };
        let process = ProcessReport {
            name: "east".to_owned(),
            recent_seconds: 300,
            ..ProcessReport::default()
        };
        let details = RelayDetails {
            to: vec![target("node-1:8094")],
            passthrough: target("none:"),
            ..RelayDetails::default()
        };
        RelayReport::new(process, details, Duration::ZERO)
    }

    fn find(report: RelayReport) -> Vec<Diagnosis> {
        findings::find_in_relays(&relay_status(String::new(), report))
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut RelayReport), id: &str, severity: Severity, words: &[&str]) {
        let mut changed = report();
        change(&mut changed);
        let found = find(changed);
        let ids: Vec<_> =
            found.iter().map(|finding| (finding.cause.id(), finding.cause.severity())).collect();
        assert_eq!(ids, [(id, severity)]);
        let text = format!("{} {} {}", found[0].r#where, found[0].cause.what(), found[0].why);
        for word in ["relay east"].iter().chain(words) {
            assert!(text.contains(word), "{word:?} is missing from: {text}");
        }
    }

    type Count = fn(&mut RelayTotals) -> &mut u64;

    fn unsent(reason: &str) -> Vec<UnsentReport> {
        let other = UnsentReport { reason: "other".to_owned(), ..UnsentReport::default() };
        let matching = UnsentReport {
            reason: reason.to_owned(),
            source: Some("10.0.0.9:4242".to_owned()),
            line: "gorets:1|c".to_owned(),
        };
        vec![matching, other]
    }

    #[test]
    fn healthy_relay_has_no_finding() {
        assert_eq!(find(report()), []);
    }

    #[test]
    fn lines_sent_to_no_node_are_a_finding_with_an_example() {
        for (id, severity, reason, count) in [
            ("relay-loop", Critical, "looped", (|totals| &mut totals.looped) as Count),
            ("relay-rejects", Warning, "quote_unclosed", |totals| &mut totals.rejected),
            ("relay-discards", Warning, "discarded", |totals| &mut totals.passthrough_discarded),
        ] {
            let change = |report: &mut RelayReport| {
                *count(&mut report.details.recent) = 7;
                report.details.unsent = unsent(reason);
            };
            let example = ["7 lines", "in the last 300 s", "gorets:1|c", "10.0.0.9:4242"];
            check(change, id, severity, &example);
        }
    }

    #[test]
    fn losses_of_a_relay_are_findings() {
        for (id, words, count) in [
            ("relay-nowhere", "7 events", (|totals| &mut totals.nowhere) as Count),
            ("relay-passthrough-drops", "7 passthrough lines", |totals| {
                &mut totals.passthrough_dropped
            }),
            ("kernel-drops", "7 datagrams", |totals| &mut totals.kernel_drops),
        ] {
            check(|report| *count(&mut report.details.recent) = 7, id, Critical, &[words]);
        }
    }

    #[test]
    fn problems_of_a_relay_are_findings() {
        for (id, severity, words, change) in [
            (
                "socket-fails",
                Critical,
                "1 of its threads",
                (|report| report.process.sockets_failing = 1) as fn(&mut RelayReport),
            ),
            ("stalled", Critical, "reader 0", |report| {
                report.process.stalled = vec!["reader 0".to_owned()];
            }),
            ("relay-node-down", Warning, "node-1:8094", |report| report.details.to[0].up = false),
            ("relay-passthrough-down", Warning, "none:", |report| {
                report.details.passthrough.up = false;
            }),
            ("name-taken", Warning, "", |report| report.process.name_taken = true),
        ] {
            check(change, id, severity, &[words]);
        }
    }
}
