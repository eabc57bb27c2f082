//! From what was seen to the answer. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};

use super::answer::{
    Answer, CauseStatus, Lost, NodeStatus, OldMinutes, OldestUnsent, OutputStatus,
    PartitionsStatus, Process, RedisStatus, RelayStatus, States, Status,
};
use super::findings;
use super::losses::merged;
use super::node_findings::rejects_much;
use super::report::{NodeReport, Report, Totals};
use super::scene::{Expected, Scene};
use crate::diagnosis::{Diagnosis, LossCause, Severity};
use crate::event::Minute;
use crate::store::{
    Backlog, Coverage, Loss, OutputBacklog, OutputName, QUARANTINE_MAX, Reported, StoreError,
    Surveyed,
};
use crate::text::beginning;

/// Fewer events say nothing of the share that a node sees.
const COVERED_MIN: u64 = 100;
/// Bytes of an event of an open minute with its user, and of a count that is kept with a name of 40 bytes (`docs/limits.md`).
const EVENT_BYTES: f64 = 180.0;
/// Bytes of an event in the log of a node.
const LOGGED_BYTES: f64 = 20.0;
const COUNT_BYTES: f64 = 120.0;

/// All that was seen.
#[derive(Debug, Clone)]
pub(super) struct Looked<'a> {
    pub(super) at: DateTime<Utc>,
    /// What the node that asks says of itself, and how old that is.
    pub(super) own: Option<(Duration, NodeReport)>,
    pub(super) expected: &'a Expected,
    pub(super) seen: Surveyed,
}

/// The answer.
pub(super) fn summarize(looked: &Looked<'_>) -> Status {
    let Looked { at, expected, seen, .. } = looked;
    let mut nodes = nodes(looked);
    let relays = relays(&seen.relays);
    let ahead_ms =
        seen.servers.iter().find_map(|server| Some(server.found.as_ref()?.clock_offset_ms));
    let now_ms = at.timestamp_millis() + ahead_ms.unwrap_or(0);
    if let Ok(seen) = &seen.seen {
        cover(&mut nodes, seen, now_ms);
    }
    let backlogs = seen.backlogs.as_deref().ok();
    let outputs = outputs(expected, &nodes, backlogs);
    let (partitions, oldest) = partitions(expected, backlogs, &outputs, now_ms);
    let old = old_minutes(backlogs.unwrap_or_default(), &nodes);
    let redis = (!seen.servers.is_empty()).then(|| RedisStatus {
        servers: seen.servers.clone(),
        memory_by_formula: (seen.reports.is_ok())
            .then(|| memory_by_formula(expected, &nodes, seen)),
    });
    let unrecorded = looked.own.iter().flat_map(|(_, own)| &own.unrecorded);
    let unrecorded: Vec<_> = unrecorded.cloned().collect();
    let is_recorded = seen.losses.is_ok();
    let mut record = merged(seen.losses.clone().unwrap_or_default(), &unrecorded);
    record.sort();
    let losses = by_cause(&record);
    let mut status = Status {
        at: at.to_rfc3339_opts(SecondsFormat::Secs, true),
        healthy: true,
        is_anything_lost: is_anything_lost(
            &nodes,
            &relays,
            &losses,
            seen.reports.is_ok() && is_recorded,
        ),
        losses: (is_recorded || !losses.is_empty()).then_some(losses),
        record,
        findings: Vec::new(),
        nodes,
        relays,
        partitions: PartitionsStatus { oldest_unsent: oldest, old, ..partitions },
        outputs,
        redis,
    };
    status.findings =
        findings::of(&Scene { status: &status, expected, difference: seen.difference.as_ref() });
    let is_note = |it: &Diagnosis| it.cause.severity() == Severity::Note;
    status.healthy = status.findings.iter().all(is_note);
    status
}

fn nodes(looked: &Looked<'_>) -> Vec<NodeStatus> {
    let reported = looked.seen.reports.as_deref().unwrap_or_default();
    let own = looked.own.iter();
    let own = own.map(|(age, report)| Process::new(report.clone(), *age, true));
    let mut nodes: Vec<_> = own.collect();
    let name = nodes.first().map(|own| own.report.name.clone());
    let others = reported.iter().filter(|it| Some(&it.name) != name.as_ref());
    nodes.extend(others.map(read));
    for node in &mut nodes {
        node.report.unstamped = None;
    }
    nodes.sort_by(|a, b| a.report.name.cmp(&b.report.name));
    nodes
}

fn relays(reported: &Result<Vec<Reported>, StoreError>) -> Vec<RelayStatus> {
    let reported = reported.as_deref().unwrap_or_default();
    let mut relays: Vec<RelayStatus> = reported.iter().map(read).collect();
    relays.sort_by(|a, b| a.report.name.cmp(&b.report.name));
    relays
}

/// Reads what another process said, under the name by which the store knows it.
fn read<R: Report>(reported: &Reported) -> Process<R> {
    let (mut report, readable) = R::read(&reported.text);
    let [name, instance, version] = report.identity();
    *name = beginning(&reported.name, 64);
    *instance = beginning(&reported.identity, 100);
    *version = beginning(&reported.version, 40);
    Process::new(report, reported.ago, readable)
}

/// Says of each node which share it saw of the minutes but the first and the last, held against the node that saw most of each. Only
/// minutes count for the whole of which a process of the node was there: the present one, or one that saw something of the minutes
/// beside it, too. So a node that was down for a while is not taken for one to which the way loses events.
fn cover(nodes: &mut [NodeStatus], seen: &BTreeMap<Minute, Coverage>, now_ms: i64) {
    for node in nodes.iter_mut().filter(|node| !node.silent) {
        let name = node.report.name.as_str();
        let up_ms = i64::try_from(node.report.uptime_seconds).unwrap_or(i64::MAX);
        let started_ms = now_ms.saturating_sub(up_ms.saturating_mul(1000));
        let (mut own, mut most) = (0_u64, 0_u64);
        for (minute, coverage) in seen {
            let beside = [-1, 1].map(|by| {
                let minute = Minute::from_epoch_minutes(minute.epoch_minutes() + by)?;
                seen.get(&minute)
            });
            let [Some(before), Some(after)] = beside else {
                continue;
            };
            let was_there = started_ms < minute.end_millis() - 60_000;
            let saw = |process: &String, of: &Coverage| of.get(process).is_some_and(|it| *it > 0);
            let outlived = |process: &String| {
                let is_of_it = process.split('#').next() == Some(name);
                // A minute without any event says nothing.
                let saw_beside = [before, after].iter().all(|it| it.is_empty() || saw(process, it));
                is_of_it && saw(process, coverage) && saw_beside
            };
            if was_there || coverage.keys().any(outlived) {
                let mut by_node: BTreeMap<&str, u64> = BTreeMap::new();
                for (process, events) in coverage {
                    let name = process.split('#').next().unwrap_or_default();
                    let sum = by_node.entry(name).or_default();
                    *sum = sum.saturating_add(*events);
                }
                own = own.saturating_add(by_node.get(name).copied().unwrap_or(0));
                most = most.saturating_add(by_node.into_values().max().unwrap_or(0));
            }
        }
        #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
        let share = own as f64 / most.max(1) as f64;
        node.coverage = (most >= COVERED_MIN).then_some(share);
    }
}

fn outputs(
    expected: &Expected,
    nodes: &[NodeStatus],
    backlogs: Option<&[Backlog]>,
) -> Vec<OutputStatus> {
    let mut lacks: BTreeMap<&str, OutputBacklog> = BTreeMap::new();
    for (name, of) in (backlogs.iter().copied().flatten()).flat_map(|backlog| &backlog.outputs) {
        *lacks.entry(OutputName::as_str(name)).or_default() += *of;
    }
    let live = || nodes.iter().filter(|node| !node.silent);
    let reported = || live().flat_map(|node| &node.report.outputs);
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    places.extend(lacks.keys().map(|name| (*name, "")));
    places.extend(reported().map(|it| (it.name.as_str(), it.url.as_str())));
    places.extend(expected.outputs.iter().map(|(name, url)| (name.as_str(), url.as_str())));
    let of = |(name, url): (&str, &str)| {
        let mut told = reported().filter(|it| it.name == name);
        let told = told.clone().find(|it| !it.up).or_else(|| told.next());
        let lacks = backlogs.map(|_| lacks.get(name).copied().unwrap_or_default());
        OutputStatus {
            name: name.to_owned(),
            url: url.to_owned(),
            up: told.map(|it| it.up),
            last_error: told.and_then(|it| it.last_error.clone()),
            remedy: told.and_then(|it| it.remedy.clone()),
            unsent: lacks.map(|it| it.unsent),
            quarantined: lacks.map(|it| it.quarantined),
            quarantined_max: (QUARANTINE_MAX * expected.partitions.max(1)) as u64,
        }
    };
    places.into_iter().map(of).collect()
}

fn partitions(
    expected: &Expected,
    backlogs: Option<&[Backlog]>,
    outputs: &[OutputStatus],
    now_ms: i64,
) -> (PartitionsStatus, Option<OldestUnsent>) {
    let is_known = backlogs.is_some();
    let backlogs = backlogs.unwrap_or_default();
    let lacking = backlogs.iter().flat_map(|backlog| &backlog.outputs);
    let unsent = lacking.clone().map(|(_, it)| it.unsent).sum();
    let oldest = lacking.filter_map(|(name, it)| Some((it.oldest?, name)));
    let oldest = oldest.min().map(|(minute, name)| {
        let age_ms = now_ms.saturating_sub(minute.end_millis()).max(0);
        let age_seconds = age_ms.unsigned_abs() / 1000;
        let output = outputs.iter().find(|it| it.name == name.as_str());
        let error = output.and_then(|it| it.last_error.clone());
        let is_gone = output.is_some_and(|it| it.url.is_empty());
        let why = match error {
            Some(error) => error,
            None if is_gone => "no node has this output any more".to_owned(),
            None => "it is about to be sent".to_owned(),
        };
        OldestUnsent { minute: minute.shown(), age_seconds, output: name.to_string(), why }
    });
    let partitions = PartitionsStatus {
        count: expected.partitions,
        by_state: is_known.then(|| States {
            open: backlogs.iter().map(|it| it.waiting).sum(),
            claimed: backlogs.iter().map(|it| it.claimed).sum(),
            unsent,
        }),
        oldest_unsent: None,
        old: None,
    };
    (partitions, oldest)
}

fn old_minutes(backlogs: &[Backlog], nodes: &[NodeStatus]) -> Option<OldMinutes> {
    let waiting: u64 = backlogs.iter().map(|it| it.old).sum();
    let live = nodes.iter().filter(|node| !node.silent);
    let rate: f64 = live.map(|node| node.report.old_minutes_per_second).sum();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of something positive"
    )]
    let done_in_seconds = (rate > 0.0).then(|| (waiting as f64 / rate).ceil() as u64);
    (waiting > 0).then_some(OldMinutes { waiting, done_in_seconds })
}

/// What Redis needs for what came in the last minutes, by the formula of `docs/limits.md`.
fn memory_by_formula(expected: &Expected, nodes: &[NodeStatus], seen: &Surveyed) -> u64 {
    let (mut events, mut series) = (0.0, 0.0);
    for report in nodes.iter().filter(|node| !node.silent).map(|node| &node.report) {
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let a_minute = |count: u64| count as f64 * 60.0 / report.recent_seconds.max(60) as f64;
        let recent = &report.recent;
        events += if seen.in_logs {
            a_minute(recent.recorded)
        } else {
            a_minute(recent.recorded.saturating_sub(recent.repeated))
        };
        series += a_minute(recent.sealed);
    }
    let open = 1.0 + (expected.grace + expected.linger).as_secs_f64() / 60.0;
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    let kept = (series * expected.retention.as_secs_f64() / 60.0).min(seen.counts_max as f64);
    let event_bytes = if seen.in_logs { LOGGED_BYTES } else { EVENT_BYTES };
    let bytes = events * open * event_bytes + kept * COUNT_BYTES;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "none is below 0, and none reaches 2^64"
    )]
    let bytes = bytes as u64;
    bytes
}

/// What is said of lines that nodes reject, if these are many.
fn rejected(nodes: &[NodeStatus]) -> Option<String> {
    let much: Vec<_> = nodes.iter().filter(|node| rejects_much(node)).collect();
    let sum = |part: fn(&Totals) -> u64| {
        let parts = much.iter().map(|node| part(&node.report.recent));
        parts.fold(0, u64::saturating_add)
    };
    let reasons = much.iter().flat_map(|node| &node.report.rejected);
    let first = reasons.max_by_key(|it| it.lines)?;
    let (rejected, received) = (sum(|it| it.rejected), sum(|it| it.received));
    let names: Vec<&str> = much.iter().map(|node| node.report.name.as_str()).collect();
    Some(format!(
        "Attention: {rejected} of {received} lines that {} received in the last minutes were refused, mostly as {}; they are \
         counted nowhere. What was accepted is recorded or waits.",
        names.join(", "),
        first.reason
    ))
}

/// What is not acknowledged of the record, by cause in the order of the metrics.
fn by_cause(record: &[Loss]) -> Vec<CauseStatus> {
    let mut all: BTreeMap<&str, (CauseStatus, BTreeSet<Minute>, BTreeSet<&str>)> = BTreeMap::new();
    for loss in record.iter().filter(|loss| loss.left() > 0) {
        let (cause, minutes, nodes) = all.entry(&loss.cause).or_default();
        cause.amount = cause.amount.saturating_add(loss.left());
        minutes.extend(loss.minute);
        nodes.extend(Some(loss.node()).filter(|node| !node.is_empty()));
    }
    let each = all.into_iter().map(|(label, (cause, minutes, nodes))| {
        let cause = CauseStatus {
            cause: label.to_owned(),
            first: minutes.first().map(ToString::to_string),
            last: minutes.last().map(ToString::to_string),
            nodes: nodes.into_iter().map(str::to_owned).collect(),
            ..cause
        };
        (LossCause::labelled(label), cause)
    });
    let mut each: Vec<_> = each.collect();
    each.sort_by_key(|(known, _)| known.map_or((true, None), |known| (false, Some(known))));
    each.into_iter().map(|(_, cause)| cause).collect()
}

/// How much was lost for what, in words.
fn amounts<'a>(losses: impl Iterator<Item = &'a CauseStatus>) -> String {
    let words = |loss: &CauseStatus| {
        let what = LossCause::labelled(&loss.cause).map_or("events lost", LossCause::what);
        format!("{} {what} ({})", loss.amount, loss.cause)
    };
    losses.map(words).collect::<Vec<_>>().join(", ")
}

/// Whether events that are lost for this cause are missing from points for certain.
fn is_certain(loss: &CauseStatus) -> bool {
    LossCause::labelled(&loss.cause).is_none_or(LossCause::is_certain)
}

fn is_anything_lost(
    nodes: &[NodeStatus],
    relays: &[RelayStatus],
    losses: &[CauseStatus],
    is_known: bool,
) -> Lost {
    let silent_nodes = nodes.iter().filter(|node| node.silent);
    let silent_relays = relays.iter().filter(|relay| relay.silent);
    let silent: Vec<&str> = silent_nodes
        .map(|node| node.report.name.as_str())
        .chain(silent_relays.map(|relay| relay.report.name.as_str()))
        .collect();
    let names: BTreeSet<_> = nodes.iter().map(|node| &node.report.name).collect();
    let is_lost = losses.iter().any(is_certain);
    let (answer, sentence) = if is_lost {
        let copy = if names.len() > 1 { ", as far as no other node had a copy" } else { "" };
        let amounts = amounts(losses.iter().filter(|loss| is_certain(loss)));
        let sentence =
            format!("Yes: {amounts}{copy}; eds loss lists them until they are acknowledged.");
        (Answer::Yes, sentence)
    } else if !is_known {
        let sentence = "Not known: the store does not answer, so the nodes cannot be asked. Events wait in them meanwhile.";
        (Answer::Unknown, sentence.to_owned())
    } else if nodes.is_empty() {
        let sentence = "Not known: no node has reported in the last five minutes.";
        (Answer::Unknown, sentence.to_owned())
    } else if !silent.is_empty() {
        let sentence = format!("Not known: {} does not report.", silent.join(", "));
        (Answer::Unknown, sentence)
    } else if let Some(sentence) = rejected(nodes) {
        (Answer::Attention, sentence)
    } else if !losses.is_empty() {
        let sentence = format!(
            "Attention: {}; they are in no point, but copies of events that are may be among them.",
            amounts(losses.iter())
        );
        (Answer::Attention, sentence)
    } else {
        let sentence = "No: everything that the nodes received is recorded, waits, or was rejected as no event.";
        (Answer::No, sentence.to_owned())
    };
    Lost { answer, sentence }
}
