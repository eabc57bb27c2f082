//! What is wrong with nodes. Pure.

use super::answer::NodeStatus;
use super::redis_findings;
use super::report::NodeReport;
use super::scene::{Scene, percent};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Rejection;
use crate::node::{COINCIDING_MIN, ROUNDED_MIN};

/// A node that saw a smaller share than this of what another saw loses events on the way.
const COVERAGE_MIN: f64 = 0.99;
/// A node that rejects a smaller share of its lines, in percent, is well.
const REJECTED_PERCENT_MIN: u64 = 1;
/// A node may have events that it cannot record for so long before it is said.
const LAG_SECONDS_MAX: u64 = 10;

pub(super) fn of(scene: &Scene<'_>) -> Vec<Diagnosis> {
    let live = || scene.status.nodes.iter().filter(|node| !node.silent);
    let count = |version: &str| live().filter(|it| it.report.version == version).count();
    // What most run; of as many, the later.
    let versions = live().map(|it| it.report.version.as_str());
    let most = versions.max_by_key(|version| (count(version), *version));
    let of_node = |node: &NodeStatus| {
        let found = if node.silent {
            vec![silent(Cause::NodeSilent, node.last_seen_seconds)]
        } else {
            let (mut found, report) = (of_work(scene, node), &node.report);
            found.extend(of_input(report));
            if let Some(most) = most.filter(|most| *most != report.version) {
                let what = format!("runs version {}", report.version);
                let why = format!("other nodes run {most}");
                found.push(Diagnosis::new(Cause::Version, why).what(what));
            }
            if report.name_taken {
                let why = "what they report overwrites each other";
                found.push(Diagnosis::new(Cause::NameTaken, why));
            }
            if !node.readable {
                let why = "it is of another version, or no node wrote it";
                found.push(Diagnosis::new(Cause::ReportUnreadable, why));
            }
            found
        };
        let place = format!("node {}", node.report.name);
        found.into_iter().map(move |it| it.at(&place))
    };
    scene.status.nodes.iter().flat_map(of_node).collect()
}

/// A process that has not reported for so long.
pub(super) fn silent(cause: Cause, seconds: u64) -> Diagnosis {
    let why = "it sleeps, hangs, died, or is cut off from Redis";
    Diagnosis::new(cause, why).what(format!("has been silent for {seconds} s"))
}

/// Whether a node rejects so much that somebody should look at it.
pub(super) fn rejects_much(node: &NodeStatus) -> bool {
    let recent = &node.report.recent;
    recent.rejected > 0 && percent(recent.rejected, recent.received) >= REJECTED_PERCENT_MIN
}

/// What keeps a node from recording, closing minutes and sending.
fn of_work(scene: &Scene<'_>, node: &NodeStatus) -> Vec<Diagnosis> {
    let (report, mut found) = (&node.report, Vec::new());
    if !report.stalled.is_empty() {
        found.push(Diagnosis::new(Cause::NodeStalled, report.stalled.join(", ")));
    }
    // What is wrong with Redis for all is said there.
    if let Some(why) = &report.store_error
        && redis_findings::are_well(scene)
    {
        found.push(Diagnosis::new(Cause::NodeCannotRecord, why));
    }
    if let Some(why) = &report.settings_error {
        found.push(Diagnosis::new(Cause::NodeSettings, why));
    }
    if let Some(why) = &report.leftovers {
        found.push(Diagnosis::new(Cause::Leftovers, why));
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
    // What it has not recorded yet it may have seen.
    let waits = report.lag_seconds > 0 || report.store_error.is_some();
    if let Some(share) = node.coverage.filter(|it| *it < COVERAGE_MIN && !waits) {
        let why = "the path to it loses events, or it gets none, or it slept";
        let what = format!(
            "saw {:.1} % of the events that another node saw in the last minutes",
            share * 100.0
        );
        found.push(Diagnosis::new(Cause::NodeLoses, why).what(what));
    }
    let offset_ms = report.clock_offset_ms.unwrap_or(0);
    let off = offset_ms.unsigned_abs();
    if u128::from(off) > (scene.expected.grace.as_millis() / 2).max(1) {
        let side = if offset_ms > 0 { "behind" } else { "ahead of" };
        let seconds = std::time::Duration::from_millis(off).as_secs_f64();
        let what = format!("its clock is {seconds:.1} s {side} that of the store");
        let why = "its stamps, and what it takes for too old, are off as much";
        found.push(Diagnosis::new(Cause::Clock, why).what(what));
    }
    found
}

/// What is wrong with the lines that a node gets.
fn of_input(report: &NodeReport) -> Vec<Diagnosis> {
    let (recent, seconds) = (&report.recent, report.recent_seconds);
    let mut found = Vec::new();
    if report.sockets_failing > 0 {
        let what = format!("{} of its threads cannot read their socket", report.sockets_failing);
        found.push(Diagnosis::new(Cause::SocketFails, "its log says which and why").what(what));
    }
    if recent.rejected > 0 {
        found.push(rejection(report));
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

/// The most frequent reason of rejection, with an example and its remedy.
fn rejection(report: &NodeReport) -> Diagnosis {
    let recent = &report.recent;
    let share = percent(recent.rejected, recent.received);
    let cause = if share >= REJECTED_PERCENT_MIN { Cause::RejectsLines } else { Cause::RejectsFew };
    let what = format!(
        "rejects {} of {} lines ({share} %) in the last {} s; they are not counted",
        recent.rejected, recent.received, report.recent_seconds
    );
    let Some(most) = report.rejected.first() else {
        return Diagnosis::new(cause, "its log says why").what(what);
    };
    let known = Rejection::labelled(&most.reason);
    let words = known.map_or_else(String::new, |it| format!(", {it}"));
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
