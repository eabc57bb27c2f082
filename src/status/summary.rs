//! [`Observer`]: surveys the store and computes the status, at most once per second.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::answer::{
    Answer, CauseStatus, Expected, Lost, OldMinutes, OldestUnsent, OutputStatus, PartitionsStatus,
    RedisStatus, RollupStatus, States, Status, WindowStatus,
};
use super::findings;
use super::losses::merged;
use super::process_findings::rejects_much;
use super::report::{NodeReport, RelayReport, Report};
use super::reporter::Latest;
use crate::diagnosis::{LossCause, Severity};
use crate::event::{Minute, Partition, Rollup};
use crate::store::{
    Backlog, Bucket, Coverage, Loss, OutputBacklog, OutputName, QUARANTINE_MAX, Reported,
    StoreError, Survey, Surveyed,
};
use crate::text::beginning;

const SURVEYED_WITHIN: Duration = Duration::from_secs(6);
const CURRENT_FOR: Duration = Duration::from_secs(1);
/// A minute counts as old if it is still not sealed this long after it should have closed.
const OLD_AFTER: Duration = Duration::from_secs(300);
/// Number of minutes over which coverage is computed. The latest minute is excluded, because its events are still arriving.
const MINUTES: i64 = 5;
const MINUTES_LEFT_OUT: i64 = 1;
/// Minimum number of events for which coverage is reported. With fewer events, a node's share is not meaningful.
const COVERED_MIN: u64 = 100;
/// Bytes of Redis memory per event in an open minute, including its user (`docs/limits.md`).
const EVENT_BYTES: f64 = 180.0;
/// Bytes of Redis memory per sealed count of a series with a 40-byte name.
const COUNT_BYTES: f64 = 120.0;
/// Bytes of Redis memory per event if events are stored in logs (`store.layout`).
const LOGGED_BYTES: f64 = 20.0;

#[derive(Debug)]
pub(crate) struct Observer {
    store: Arc<dyn Survey>,
    expected: Expected,
    own: Option<Latest>,
    current: Mutex<Option<(Instant, Arc<Status>)>>,
}

impl Observer {
    pub(crate) fn new(store: Arc<dyn Survey>, expected: Expected, own: Option<Latest>) -> Self {
        Self { store, expected, own, current: Mutex::new(None) }
    }

    pub(crate) async fn status(&self) -> Arc<Status> {
        let mut current = self.current.lock().await;
        if let Some((at, status)) = &*current
            && at.elapsed() < CURRENT_FOR
        {
            return Arc::clone(status);
        }
        let status = Arc::new(self.observe().await);
        *current = Some((Instant::now(), Arc::clone(&status)));
        status
    }

    async fn observe(&self) -> Status {
        let now = Utc::now();
        let last = now.timestamp().div_euclid(60) - MINUTES_LEFT_OUT;
        // One extra minute before and one after show which processes ran throughout the minutes between them.
        let minutes: Vec<_> =
            (last - MINUTES - 1..=last).filter_map(Minute::from_epoch_minutes).collect();
        let old_after = (self.expected.grace.max(self.expected.max_hold) + OLD_AFTER).as_nanos();
        let now_nanos = now.timestamp_nanos_opt().unwrap_or(i64::MAX);
        let old_before = now_nanos.saturating_sub(i64::try_from(old_after).unwrap_or(i64::MAX));
        let survey = self.store.survey(&minutes, Minute::of_nanos(old_before));
        let seen = timeout(SURVEYED_WITHIN, survey).await.unwrap_or_else(|_elapsed| {
            let why = StoreError::unavailable("no response in time");
            Surveyed::nothing(self.store.describe(), &why)
        });
        let own = self.own.as_ref().and_then(|latest| latest.borrow().clone());
        let own = own.map(|(at, own)| Report::new(own.process, own.details, at.elapsed()));
        summarize(Utc::now(), own, &self.expected, seen)
    }
}

pub(super) fn summarize(
    at: DateTime<Utc>,
    own: Option<NodeReport>,
    expected: &Expected,
    seen: Surveyed,
) -> Status {
    let unrecorded = own.as_ref().map(|own| own.details.unrecorded.clone()).unwrap_or_default();
    let mut nodes = processes(own, seen.reports.as_deref().unwrap_or_default());
    let relays = processes(None, seen.relays.as_deref().unwrap_or_default());
    let mut found = seen.servers.iter().filter_map(|server| server.found.as_ref());
    let ahead_ms = found.next().map_or(0, |server| server.clock_offset_ms);
    let now_ms = at.timestamp_millis() + ahead_ms;
    for node in &mut nodes {
        node.details.unstamped = None;
        if let Ok(seen) = &seen.seen
            && !node.seen.silent
        {
            node.seen.coverage = coverage(node, seen, now_ms);
        }
    }
    let backlogs = seen.backlogs.as_deref().ok();
    let outputs = outputs(expected, &nodes, backlogs);
    let count = expected.partitions;
    let partitions = match backlogs {
        Some(backlogs) => partitions(count, &nodes, backlogs, &outputs, now_ms),
        None => PartitionsStatus { count, ..PartitionsStatus::default() },
    };
    let rollups = rollups(expected, &nodes, &seen, now_ms);
    let formula = seen.reports.is_ok().then(|| memory_by_formula(expected, &nodes, &seen));
    let is_recorded = seen.losses.is_ok();
    let is_known = seen.reports.is_ok() && is_recorded;
    let mut record = merged(seen.losses.unwrap_or_default(), &unrecorded);
    record.sort();
    let losses = by_cause(&record);
    let mut status = Status {
        at: at.to_rfc3339_opts(SecondsFormat::Secs, true),
        is_anything_lost: is_anything_lost(&nodes, &relays, &losses, is_known),
        losses: (is_recorded || !losses.is_empty()).then_some(losses),
        record,
        nodes,
        relays,
        partitions,
        outputs,
        rollups,
        redis: (!seen.servers.is_empty())
            .then_some(RedisStatus { servers: seen.servers, memory_by_formula: formula }),
        expected: expected.clone(),
        difference: seen.difference,
        ..Status::default()
    };
    status.findings = findings::find(&status);
    let mut severities = status.findings.iter().map(|finding| finding.cause.severity());
    status.healthy = severities.all(|severity| severity == Severity::Note);
    status
}

/// Returns the reports of all processes, sorted by name. This process's own report replaces its older report in the store.
fn processes<R: Default + Serialize + DeserializeOwned>(
    own: Option<Report<R>>,
    reported: &[Reported],
) -> Vec<Report<R>> {
    let mut processes: Vec<_> = own.into_iter().collect();
    let own_name = processes.first().map(|own| own.process.name.clone());
    let others = reported.iter().filter(|report| Some(&report.name) != own_name.as_ref());
    processes.extend(others.map(|reported| {
        let mut report = Report::read(&reported.text, reported.ago);
        report.process.name = beginning(&reported.name, 64);
        report.process.instance = beginning(&reported.identity, 100);
        report.process.version = beginning(&reported.version, 40);
        report
    }));
    processes.sort_by(|a, b| a.process.name.cmp(&b.process.name));
    processes
}

/// Returns the share of events that a node saw, relative to the node that saw the most events in each minute, or `None` if
/// there were too few events. A minute is only included if one of the node's processes ran throughout, as shown by the
/// minutes before and after it, so that a node that was down is not reported as losing events.
fn coverage(node: &NodeReport, seen: &BTreeMap<Minute, Coverage>, now_ms: i64) -> Option<f64> {
    let name = node.process.name.as_str();
    let up_ms = i64::try_from(node.process.uptime_seconds).unwrap_or(i64::MAX);
    let started_ms = now_ms.saturating_sub(up_ms.saturating_mul(1000));
    let (mut own, mut most) = (0_u64, 0_u64);
    for (minute, coverage) in seen {
        let neighbors = [-1, 1].map(|distance| {
            seen.get(&Minute::from_epoch_minutes(minute.epoch_minutes() + distance)?)
        });
        let [Some(before), Some(after)] = neighbors else {
            continue;
        };
        let ran_throughout = |process: &String| {
            let saw = |minute: &Coverage| minute.get(process).is_some_and(|events| *events > 0);
            // A minute without any events does not show which processes ran.
            let saw_neighbors =
                [before, after].iter().all(|minute| minute.is_empty() || saw(minute));
            node_name(process) == name && saw(coverage) && saw_neighbors
        };
        let was_started = started_ms < minute.end_millis() - 60_000;
        if was_started || coverage.keys().any(ran_throughout) {
            let mut by_node: BTreeMap<&str, u64> = BTreeMap::new();
            for (process, events) in coverage {
                let sum = by_node.entry(node_name(process)).or_default();
                *sum = sum.saturating_add(*events);
            }
            own = own.saturating_add(by_node.get(name).copied().unwrap_or(0));
            most = most.saturating_add(by_node.into_values().max().unwrap_or(0));
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits")]
    let share = own as f64 / most.max(1) as f64;
    (most >= COVERED_MIN).then_some(share)
}

fn node_name(process: &str) -> &str {
    process.split('#').next().unwrap_or_default()
}

fn outputs(
    expected: &Expected,
    nodes: &[NodeReport],
    backlogs: Option<&[Backlog]>,
) -> Vec<OutputStatus> {
    let mut backlog_of: BTreeMap<&str, OutputBacklog> = BTreeMap::new();
    for (name, backlog) in backlogs.into_iter().flatten().flat_map(|backlog| &backlog.outputs) {
        *backlog_of.entry(name.as_str()).or_default() += *backlog;
    }
    let live = nodes.iter().filter(|node| !node.seen.silent);
    let reports: Vec<_> = live.flat_map(|node| &node.details.outputs).collect();
    let mut urls: BTreeMap<&str, &str> = backlog_of.keys().map(|name| (*name, "")).collect();
    urls.extend(reports.iter().map(|report| (report.name.as_str(), report.url.as_str())));
    urls.extend(expected.outputs.iter().map(|(name, url)| (name.as_str(), url.as_str())));
    let output = |(name, url): (&str, &str)| {
        let named = reports.iter().filter(|report| report.name == name);
        let report = named.min_by_key(|report| report.up);
        let backlog = backlogs.map(|_| backlog_of.get(name).copied().unwrap_or_default());
        OutputStatus {
            name: name.to_owned(),
            url: url.to_owned(),
            up: report.map(|report| report.up),
            last_error: report.and_then(|report| report.last_error.clone()),
            remedy: report.and_then(|report| report.remedy.clone()),
            unsent: backlog.map(|backlog| backlog.unsent),
            quarantined: backlog.map(|backlog| backlog.quarantined),
            quarantined_max: (QUARANTINE_MAX * expected.partitions.max(1)) as u64,
        }
    };
    urls.into_iter().map(output).collect()
}

fn partitions(
    count: usize,
    nodes: &[NodeReport],
    backlogs: &[Backlog],
    outputs: &[OutputStatus],
    now_ms: i64,
) -> PartitionsStatus {
    let of_outputs = || backlogs.iter().flat_map(|backlog| &backlog.outputs);
    let oldest = of_outputs().filter_map(|(name, backlog)| Some((backlog.oldest?, name))).min();
    let oldest_unsent = oldest.map(|(minute, name)| {
        let age_ms = now_ms.saturating_sub(minute.end_millis()).max(0);
        let output = outputs.iter().find(|output| output.name == name.as_str());
        let error = output.and_then(|output| output.last_error.as_deref());
        let is_gone = output.is_some_and(|output| output.url.is_empty());
        let reason = if is_gone { "no node has this output" } else { "it will be sent next" };
        OldestUnsent {
            minute: minute.shown(),
            age_seconds: age_ms.unsigned_abs() / 1000,
            output: name.to_string(),
            why: error.unwrap_or(reason).to_owned(),
        }
    });
    let sum = |number: fn(&Backlog) -> u64| backlogs.iter().map(number).sum::<u64>();
    let old = sum(|backlog| backlog.old);
    let states = States {
        open: sum(|backlog| backlog.waiting),
        claimed: sum(|backlog| backlog.claimed),
        unsent: of_outputs().map(|(_, backlog)| backlog.unsent).sum(),
    };
    let old = (old > 0).then(|| old_minutes(old, nodes));
    PartitionsStatus { count, by_state: Some(states), oldest_unsent, old }
}

fn rollups(
    expected: &Expected,
    nodes: &[NodeReport],
    seen: &Surveyed,
    now_ms: i64,
) -> Vec<RollupStatus> {
    let backlogs = seen.backlogs.as_deref().unwrap_or_default();
    let of_series = &backlogs[..expected.partitions.min(backlogs.len())];
    let time = |ms: i64| {
        let time = DateTime::from_timestamp_millis(ms).unwrap_or_default();
        time.to_rfc3339_opts(SecondsFormat::Secs, true)
    };
    let status = |(partition, rollup): &(Partition, Rollup)| {
        let window = |(Bucket { minute, .. }, bytes): &(Bucket, u64)| {
            let [first, last] = rollup.every.window(*minute);
            WindowStatus {
                start: time(first.end_millis() - 60_000),
                end: time(last.end_millis()),
                bytes: *bytes,
                waits_for: waits_for(last, of_series, nodes, now_ms),
            }
        };
        let open = seen.windows.as_ref().ok().map(|windows| {
            let own = windows.iter().filter(|(bucket, _)| bucket.partition == *partition);
            own.map(window).collect()
        });
        RollupStatus {
            name: rollup.name.clone(),
            every: rollup.every.to_string(),
            minutes: rollup.every.minutes(),
            time_zone: rollup.every.zone().to_string(),
            suffix: rollup.suffix.to_string(),
            open,
        }
    };
    expected.rollups.iter().map(status).collect()
}

/// Returns what must happen before the window with this last minute is sealed.
fn waits_for(last: Minute, of_series: &[Backlog], nodes: &[NodeReport], now_ms: i64) -> String {
    if now_ms < last.end_millis() {
        return "its end".to_owned();
    }
    let oldest = |minute: &dyn Fn(&Backlog) -> Option<Minute>| {
        let minutes = of_series.iter().filter_map(minute).filter(|minute| *minute <= last);
        minutes.min().map(Minute::shown)
    };
    if let Some(minute) = oldest(&|backlog| backlog.oldest) {
        return format!("minute {minute} to be sealed");
    }
    if let Some(minute) = oldest(&|backlog| backlog.outputs.get(&OutputName::rollup())?.oldest) {
        return format!("minute {minute} to be added to windows");
    }
    let lagging = nodes.iter().filter(|node| !node.seen.silent && node.details.lag_seconds > 0);
    let lagging: Vec<_> = lagging.map(|node| node.process.name.as_str()).collect();
    if lagging.is_empty() {
        return "further minutes during the grace period".to_owned();
    }
    format!("lagging nodes: {}", lagging.join(", "))
}

fn old_minutes(waiting: u64, nodes: &[NodeReport]) -> OldMinutes {
    let live = nodes.iter().filter(|node| !node.seen.silent);
    let rate: f64 = live.map(|node| node.details.old_minutes_per_second).sum();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate of something positive"
    )]
    let done_in_seconds = (rate > 0.0).then(|| (waiting as f64 / rate).ceil() as u64);
    OldMinutes { waiting, done_in_seconds }
}

/// Returns the bytes that Redis needs for the input of the last few minutes, according to the formula in `docs/limits.md`.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate between 0 and 2^64"
)]
fn memory_by_formula(expected: &Expected, nodes: &[NodeReport], seen: &Surveyed) -> u64 {
    let (mut events, mut series) = (0.0, 0.0);
    for node in nodes.iter().filter(|node| !node.seen.silent) {
        let seconds = node.process.recent_seconds.max(60) as f64;
        let per_minute = |count: u64| count as f64 * 60.0 / seconds;
        let recent = &node.details.recent;
        let repeated = if seen.in_logs { 0 } else { recent.repeated };
        events += per_minute(recent.recorded.saturating_sub(repeated));
        series += per_minute(recent.sealed);
    }
    let open = 1.0 + (expected.grace + expected.linger).as_secs_f64() / 60.0;
    let kept = (series * expected.retention.as_secs_f64() / 60.0).min(seen.counts_max as f64);
    let event_bytes = if seen.in_logs { LOGGED_BYTES } else { EVENT_BYTES };
    (events * open * event_bytes + kept * COUNT_BYTES) as u64
}

/// Returns the unacknowledged losses by cause, in the order of [`LossCause::ALL`]. `record` must be sorted by minute.
fn by_cause(record: &[Loss]) -> Vec<CauseStatus> {
    let mut causes: BTreeMap<_, CauseStatus> = BTreeMap::new();
    for loss in record.iter().filter(|loss| loss.left() > 0) {
        // Causes that only other versions know come last.
        let known = LossCause::labelled(&loss.cause);
        let status = causes.entry((known.is_none(), known, &loss.cause)).or_default();
        status.cause.clone_from(&loss.cause);
        status.amount = status.amount.saturating_add(loss.left());
        let minute = loss.minute.map(|minute| minute.to_string());
        status.first = status.first.take().or_else(|| minute.clone());
        status.last = minute.or_else(|| status.last.take());
        let node = loss.node().to_owned();
        if let Err(place) = status.nodes.binary_search(&node)
            && !node.is_empty()
        {
            status.nodes.insert(place, node);
        }
    }
    causes.into_values().collect()
}

fn amounts<'a>(losses: impl Iterator<Item = &'a CauseStatus>) -> String {
    let words = |loss: &CauseStatus| {
        let description = LossCause::labelled(&loss.cause).map_or("events lost", LossCause::what);
        format!("{} {description} ({})", loss.amount, loss.cause)
    };
    losses.map(words).collect::<Vec<_>>().join(", ")
}

fn is_certain(loss: &CauseStatus) -> bool {
    LossCause::labelled(&loss.cause).is_none_or(LossCause::is_certain)
}

fn is_anything_lost(
    nodes: &[NodeReport],
    relays: &[RelayReport],
    losses: &[CauseStatus],
    is_known: bool,
) -> Lost {
    let silent = nodes.iter().map(|node| (&node.process, &node.seen));
    let silent = silent.chain(relays.iter().map(|relay| (&relay.process, &relay.seen)));
    let silent: Vec<_> =
        silent.filter(|(_, seen)| seen.silent).map(|(process, _)| process.name.as_str()).collect();
    let certain = amounts(losses.iter().filter(|loss| is_certain(loss)));
    let (answer, sentence) = if !certain.is_empty() {
        let copy = if nodes.len() > 1 { ", unless another node received them" } else { "" };
        let sentence =
            format!("Yes: {certain}{copy}; eds loss lists them until they are acknowledged.");
        (Answer::Yes, sentence)
    } else if !is_known {
        let sentence = "Unknown: the store, which holds the node reports, is not responding. The nodes queue events.";
        (Answer::Unknown, sentence.to_owned())
    } else if nodes.is_empty() {
        let sentence = "Unknown: no node has reported in the last five minutes.";
        (Answer::Unknown, sentence.to_owned())
    } else if !silent.is_empty() {
        (Answer::Unknown, format!("Unknown: no recent report from {}.", silent.join(", ")))
    } else if let Some(sentence) = rejected(nodes) {
        (Answer::Attention, sentence)
    } else if !losses.is_empty() {
        let amounts = amounts(losses.iter());
        let sentence = format!(
            "Attention: {amounts}, which are not in any point; some may be duplicates of published events."
        );
        (Answer::Attention, sentence)
    } else {
        let sentence = "No: every received event has been recorded, queued or rejected.";
        (Answer::No, sentence.to_owned())
    };
    Lost { answer, sentence }
}

fn rejected(nodes: &[NodeReport]) -> Option<String> {
    let rejecting: Vec<_> = nodes.iter().filter(|node| rejects_much(node)).collect();
    let reasons = rejecting.iter().flat_map(|node| &node.details.rejected);
    let reason = &reasons.max_by_key(|rejected| rejected.lines)?.reason;
    let recent = || rejecting.iter().map(|node| &node.details.recent);
    let rejected = recent().map(|totals| totals.rejected).fold(0, u64::saturating_add);
    let received = recent().map(|totals| totals.received).fold(0, u64::saturating_add);
    let names: Vec<_> = rejecting.iter().map(|node| node.process.name.as_str()).collect();
    let names = names.join(", ");
    Some(format!(
        "Attention: {names} rejected {rejected} of {received} lines in the last few minutes; the most frequent reason is {reason}. Rejected lines are not counted."
    ))
}
