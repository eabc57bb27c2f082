//! Findings about nodes and relays. Pure.

use std::time::Duration;

use super::answer::{NodeStatus, ProcessStatus, RelayStatus, Scene, percent};
use super::redis_findings;
use super::report::ProcessReport;
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Rejection;
use crate::node::{COINCIDING_MIN, ROUNDED_MIN};

/// The share of the events of another node below which a node loses events on the way.
const COVERAGE_MIN: f64 = 0.99;
/// The percentage of rejected lines from which a node rejects many.
const REJECTED_PERCENT_MIN: u64 = 1;
/// A lag up to this age is no finding.
const LAG_SECONDS_MAX: u64 = 10;

/// The words and causes of the findings that nodes and relays share.
struct Kind {
    name: &'static str,
    silent: Cause,
    stalled: Cause,
    socket_fails: Cause,
    name_taken: Cause,
    unreadable: Cause,
}

const NODE: Kind = Kind {
    name: "node",
    silent: Cause::NodeSilent,
    stalled: Cause::NodeStalled,
    socket_fails: Cause::SocketFails,
    name_taken: Cause::NameTaken,
    unreadable: Cause::ReportUnreadable,
};

const RELAY: Kind = Kind {
    name: "relay",
    silent: Cause::RelaySilent,
    stalled: Cause::RelayFails,
    socket_fails: Cause::RelayFails,
    name_taken: Cause::RelayNameTaken,
    unreadable: Cause::RelayReportUnreadable,
};

pub(super) fn find(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let live = || scene.status.nodes.iter().filter(|node| !node.silent);
    let count = |version: &str| live().filter(|node| node.process.version == version).count();
    // Of equally frequent versions, the later.
    let versions = live().map(|node| node.process.version.as_str());
    let usual = versions.max_by_key(|version| (count(version), *version));
    let mut found = Vec::new();
    for node in &scene.status.nodes {
        found.extend(find_in_process(&NODE, node, || {
            let mut found = find_in_work(scene, node);
            found.extend(find_in_input(node));
            let version = &node.process.version;
            if let Some(usual) = usual.filter(|usual| usual != version) {
                let why = format!("other nodes run {usual}");
                let what = format!("runs version {version}");
                found.push(Diagnosis::new(Cause::Version, why).what(what));
            }
            found
        }));
    }
    for relay in &scene.status.relays {
        found.extend(find_in_process(&RELAY, relay, || find_in_relay(relay)));
    }
    found
}

/// Returns the shared findings and `details`, unless the process is silent.
fn find_in_process<R>(
    kind: &Kind,
    process: &ProcessStatus<R>,
    details: impl FnOnce() -> Vec<Diagnosis>,
) -> Vec<Diagnosis> {
    let ProcessReport { name, stalled, sockets_failing, name_taken, .. } = &process.process;
    let mut found = Vec::new();
    if process.silent {
        let why = "it sleeps, hangs, died, or is cut off from Redis";
        let what = format!("has been silent for {} s", process.last_seen_seconds);
        found.push(Diagnosis::new(kind.silent, why).what(what));
    } else {
        found = details();
        if *sockets_failing > 0 {
            let what = format!("{sockets_failing} of its threads cannot read their socket");
            let why = "its log says which and why";
            found.push(Diagnosis::new(kind.socket_fails, why).what(what));
        }
        if !stalled.is_empty() {
            let stalled = Diagnosis::new(kind.stalled, stalled.join(", "));
            found.push(stalled.what("makes no progress"));
        }
        if *name_taken {
            let why = "what they report overwrites each other";
            found.push(Diagnosis::new(kind.name_taken, why));
        }
        if !process.readable {
            let why = format!("it is of another version, or no {} wrote it", kind.name);
            found.push(Diagnosis::new(kind.unreadable, why));
        }
    }
    let place = format!("{} {name}", kind.name);
    found.into_iter().map(|finding| finding.at(&place)).collect()
}

/// Returns whether a node rejects so many lines that an operator should look at it.
pub(super) fn rejects_much(node: &NodeStatus) -> bool {
    let recent = &node.details.recent;
    recent.rejected > 0 && percent(recent.rejected, recent.received) >= REJECTED_PERCENT_MIN
}

/// Returns the obstacles to recording, closing minutes and sending.
fn find_in_work(scene: &Scene<'_>, node: &NodeStatus) -> Vec<Diagnosis> {
    let (report, mut found) = (&node.details, Vec::new());
    // A Redis that is unfit for all nodes is a finding of its own.
    let store_error = report.store_error.as_ref().filter(|_| redis_findings::are_well(scene));
    for (cause, why) in [
        (Cause::NodeCannotRecord, store_error),
        (Cause::NodeSettings, report.settings_error.as_ref()),
        (Cause::Leftovers, report.leftovers.as_ref()),
    ] {
        found.extend(why.map(|why| Diagnosis::new(cause, why)));
    }
    let (spool, queue) = (&report.spool, &report.queue);
    let fill = percent(spool.bytes, spool.bytes_max);
    if spool.bytes_max > 0 && fill >= 80 {
        let why = format!("{} events wait on its disk", spool.events);
        let what = format!("its spool is {fill} % full");
        found.push(Diagnosis::new(Cause::SpoolFills, why).what(what));
    }
    let fill = percent(queue.events, queue.events_max).max(percent(queue.bytes, queue.bytes_max));
    if fill >= 50 {
        let why = format!("{} events wait to be recorded", queue.events);
        let what = format!("its queue is {fill} % full");
        found.push(Diagnosis::new(Cause::QueueFills, why).what(what));
    }
    if report.lag_seconds > LAG_SECONDS_MAX {
        let why = format!(
            "events of {} partitions wait, {} on disk; no minute of these closes",
            report.partitions_lagging, spool.events
        );
        let what = format!("{}, for {} s", Cause::NodeLags.what(), report.lag_seconds);
        found.push(Diagnosis::new(Cause::NodeLags, why).what(what));
    }
    // The coverage has only recorded events.
    let lags = report.lag_seconds > 0 || report.store_error.is_some();
    if let Some(share) = node.coverage.filter(|share| *share < COVERAGE_MIN && !lags) {
        let why = "the path to it loses events, or it gets none, or it slept";
        let what = format!(
            "saw {:.1} % of the events that another node saw in the last minutes",
            share * 100.0
        );
        found.push(Diagnosis::new(Cause::NodeLoses, why).what(what));
    }
    let offset_ms = report.clock_offset_ms.unwrap_or(0);
    if scene.is_far_off(offset_ms) {
        let side = if offset_ms > 0 { "behind" } else { "ahead of" };
        let seconds = Duration::from_millis(offset_ms.unsigned_abs()).as_secs_f64();
        let what = format!("its clock is {seconds:.1} s {side} that of the store");
        let why = "its stamps, and what it takes for too old, are off as much";
        found.push(Diagnosis::new(Cause::Clock, why).what(what));
    }
    found
}

/// Returns the findings about the lines that a node receives.
fn find_in_input(node: &NodeStatus) -> Vec<Diagnosis> {
    let (report, recent, mut found) = (&node.details, &node.details.recent, Vec::new());
    let seconds = node.process.recent_seconds;
    if recent.rejected > 0 {
        found.push(rejection(node));
    }
    if let Some(other) = &report.unstamped_copies_at {
        let what =
            format!("lines without a timestamp come to it and to node {other} within a second");
        let why = "each node gives them the time of their arrival, so a copy is another event and counts again";
        found.push(Diagnosis::new(Cause::UnstampedCopies, why).what(what));
    }
    let coarse = report.coarse_stamps.clone();
    let coarse = coarse.unwrap_or_else(|| "their sender's clock is too coarse".to_owned());
    if recent.coinciding >= COINCIDING_MIN {
        let what = format!(
            "{} events in the last {seconds} s had the series, user and timestamp of those before them, and count as one with them",
            recent.coinciding
        );
        found.push(Diagnosis::new(Cause::StampsCoincide, coarse).what(what));
    } else if recent.rounded >= ROUNDED_MIN {
        let what = format!(
            "{} events in the last {seconds} s had whole milliseconds or seconds with zeros behind: those of a user in one series with the same one count as one",
            recent.rounded
        );
        found.push(Diagnosis::new(Cause::StampsRounded, coarse).what(what));
    }
    if recent.overflowed > 0 {
        let what = format!(
            "{} events counted under an overflow series in the last {seconds} s",
            recent.overflowed
        );
        let why = "there are more series than input.max_series_per_minute";
        found.push(Diagnosis::new(Cause::Overflow, why).what(what));
    }
    found
}

/// Returns the most frequent reason of rejection, with an example and its remedy.
fn rejection(node: &NodeStatus) -> Diagnosis {
    let (recent, seconds) = (&node.details.recent, node.process.recent_seconds);
    let share = percent(recent.rejected, recent.received);
    let cause = if rejects_much(node) { Cause::RejectsLines } else { Cause::RejectsFew };
    let what = format!(
        "rejects {} of {} lines ({share} %) in the last {seconds} s; they are not counted",
        recent.rejected, recent.received
    );
    let Some(most) = node.details.rejected.first() else {
        return Diagnosis::new(cause, "its log says why").what(what);
    };
    let known = Rejection::labelled(&most.reason);
    let words = known.map_or_else(String::new, |reason| format!(", {reason}"));
    let why = format!(
        "{} of them: {}{words}; the last one begins: {}",
        most.lines, most.reason, most.example
    );
    let found = Diagnosis::new(cause, why).what(what);
    match known {
        Some(reason) => found.remedy(reason.remedy()),
        None => found,
    }
}

/// Returns what a relay sends nowhere, and the destinations that it cannot reach.
fn find_in_relay(relay: &RelayStatus) -> Vec<Diagnosis> {
    let (report, mut found) = (&relay.details, Vec::new());
    let example = |matches: fn(&str) -> bool| {
        let Some(unsent) = report.unsent.iter().find(|unsent| matches(&unsent.reason)) else {
            return "its log shows one of them".to_owned();
        };
        let source = unsent.source.as_ref().map_or(String::new(), |from| format!(" from {from}"));
        format!("{}: {:?}{source}", unsent.reason, unsent.line)
    };
    let looped = example(|reason| reason == "looped");
    let rejected = example(|reason| !["discarded", "looped"].contains(&reason));
    let discarded = example(|reason| reason == "discarded");
    for (cause, lines, what, why) in [
        (
            Cause::RelayLoop,
            report.recent.looped,
            "lines came back by other relays",
            format!("relays send to each other in a circle; {looped}"),
        ),
        (Cause::RelayRejects, report.recent.rejected, "lines rejected", rejected),
        (
            Cause::RelayDiscards,
            report.recent.rest_discarded,
            "lines discarded",
            format!("they are no events, and rest.url is none:; {discarded}"),
        ),
    ] {
        if lines > 0 {
            let seconds = relay.process.recent_seconds;
            let what = format!("{lines} {what} in the last {seconds} s");
            found.push(Diagnosis::new(cause, why).what(what));
        }
    }
    let to = &report.rest.to;
    if report.rest.is_loop {
        let what = format!("lines of the rest that it sends to {to} come back; it drops them");
        let why = "relays send the rest to each other in a circle";
        found.push(Diagnosis::new(Cause::RelayRestLoop, why).what(what));
    }
    let down = report.to.iter().filter(|target| !target.up);
    let down: Vec<_> = down.map(|target| &*target.to).collect();
    if !down.is_empty() {
        let why =
            "it has no address, refuses, or cannot be reached; the other nodes get every event";
        let what = format!("cannot send to {}", down.join(", "));
        found.push(Diagnosis::new(Cause::RelayNodeDown, why).what(what));
    }
    if !report.rest.up {
        let why = format!("{} lines wait for it, up to rest.queue_bytes", report.rest.queued);
        let what = format!("{} to {to}", Cause::RelayRestDown.what());
        found.push(Diagnosis::new(Cause::RelayRestDown, why).what(what));
    }
    found
}

#[cfg(test)]
mod tests {
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
            rest: target("none:"),
            ..RelayDetails::default()
        };
        RelayReport { process, details }
    }

    fn find(report: RelayReport) -> Vec<Diagnosis> {
        findings::find_in_relays(&relay_status(String::new(), report))
    }

    /// Asserts that a changed report has exactly this finding, with these words.
    #[track_caller]
    fn check(change: impl FnOnce(&mut RelayReport), id: &str, severity: Severity, words: &[&str]) {
        let mut changed = report();
        change(&mut changed);
        let found = find(changed);
        let ids: Vec<_> = found.iter().map(|it| (it.cause.id(), it.cause.severity())).collect();
        assert_eq!(ids, [(id, severity)]);
        let text = format!("{} {} {}", found[0].r#where, found[0].what, found[0].why);
        for word in ["relay east"].iter().chain(words) {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    }

    type Count = fn(&mut RelayTotals) -> &mut u64;

    fn unsent(reason: &str) -> Vec<UnsentReport> {
        let other = UnsentReport { reason: "other".to_owned(), ..UnsentReport::default() };
        let meant = UnsentReport {
            reason: reason.to_owned(),
            source: Some("10.0.0.9:4242".to_owned()),
            line: "gorets:1|c".to_owned(),
        };
        vec![meant, other]
    }

    #[test]
    fn relay_that_is_well_has_no_finding() {
        assert_eq!(find(report()), []);
    }

    #[test]
    fn lines_that_a_relay_sends_nowhere_are_found_with_an_example() {
        for (id, severity, reason, count) in [
            ("relay-loop", Critical, "looped", (|totals| &mut totals.looped) as Count),
            ("relay-rejects", Warning, "quote_unclosed", |totals| &mut totals.rejected),
            ("relay-discards", Warning, "discarded", |totals| &mut totals.rest_discarded),
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
    fn losses_of_a_relay_are_found() {
        for (id, words, count) in [
            ("relay-nowhere", "7 events", (|totals| &mut totals.nowhere) as Count),
            ("relay-rest-drops", "7 lines of the rest", |totals| &mut totals.rest_dropped),
            ("relay-kernel-drops", "7 datagrams", |totals| &mut totals.kernel_drops),
        ] {
            check(|report| *count(&mut report.details.recent) = 7, id, Critical, &[words]);
        }
    }

    #[test]
    fn troubles_of_a_relay_are_found() {
        for (id, severity, words, change) in [
            (
                "relay-fails",
                Critical,
                "1 of its threads",
                (|report| report.process.sockets_failing = 1) as fn(&mut RelayReport),
            ),
            ("relay-fails", Critical, "reader 0", |report| {
                report.process.stalled = vec!["reader 0".to_owned()];
            }),
            ("relay-node-down", Warning, "node-1:8094", |report| report.details.to[0].up = false),
            ("relay-rest-down", Warning, "none:", |report| report.details.rest.up = false),
            ("relay-name-taken", Warning, "", |report| report.process.name_taken = true),
        ] {
            check(change, id, severity, &[words]);
        }
    }
}
