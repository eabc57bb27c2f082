//! [`Reporter`]: the task that writes into the store, every two seconds, how this node is. Nothing waits for it. It owns what
//! the node said last, and takes it back when the node stops; a node that dies is seen as silent.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::history::{Earlier, History, RECENT};
use super::losses::{LossReporter, node_losses};
use super::report::{NodeReport, OutputReport, Queue, RejectedReport, Report, Room, Totals};
use crate::diagnosis::{Cause, Diagnosis, LossCause};
use crate::event::Rejection;
use crate::node::{LedgerTotals, Node, Sample, Throttle, WINDOW_MS};
use crate::store::{NodeStore, Reported, StoreError};
use crate::telemetry::Metrics;
use crate::text::beginning;

/// How often it reports.
const INTERVAL: Duration = Duration::from_secs(2);
/// How long the store may take to answer.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// How often it is read what is not acknowledged.
const LOSSES_INTERVAL: Duration = Duration::from_secs(10);
/// A worker that has not beaten for so long is reported.
const STALLED_AFTER: Duration = Duration::from_secs(15);
/// How far into a window the samples of the one before are compared: every node has reported it by then.
const COMPARED_AFTER_MS: i64 = 2500;
/// How often it is logged that another node gets copies of lines without a timestamp.
const COPIES_LOG_INTERVAL: Duration = Duration::from_secs(600);
/// How often it is logged that another process has the name.
const TAKEN_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The most reasons of rejection of a report.
const REJECTED_MAX: usize = 5;

/// What a node said last.
#[derive(Debug, Default)]
pub struct Latest(Mutex<Option<(Instant, NodeReport)>>);

impl Latest {
    fn set(&self, report: NodeReport) {
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some((Instant::now(), report));
    }

    /// The report, and how old it is.
    pub(super) fn get(&self) -> Option<(Duration, NodeReport)> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, report) = latest.as_ref()?;
        Some((at.elapsed(), report.clone()))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Reporter {
    /// Where it reports.
    pub store: Arc<dyn NodeStore>,
    /// What is known of the node.
    pub node: Arc<Node>,
    /// What it has counted.
    pub metrics: Arc<Metrics>,
    /// Names and places of the outputs.
    pub outputs: Vec<(String, String)>,
    /// The most that may wait in memory: events and bytes.
    pub queue_max: [u64; 2],
    /// The most that may wait on disk, in bytes.
    pub spool_max: u64,
    /// What it said last.
    pub latest: Arc<Latest>,
    /// What brings losses into their record.
    pub losses: Arc<LossReporter>,
    /// When cancelled, it takes back what it said, and stops.
    pub stop: CancellationToken,
}

/// What had been counted at some time.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    totals: Totals,
    rejected: [u64; Rejection::ALL.len()],
}

/// What the reporter remembers from one report to the next.
struct Memory {
    began: Instant,
    started: DateTime<Utc>,
    history: History<Past>,
    lags_since: Option<Instant>,
    /// The window whose sample of unstamped lines was compared last.
    compared: i64,
    /// When another node was found to get copies of these lines, and which.
    copies_at: Option<(Instant, String)>,
    copies_throttle: Throttle,
}

impl Reporter {
    /// Reports until it is stopped.
    pub async fn run(self) {
        let began = Instant::now();
        let mut memory = Memory {
            began,
            started: DateTime::from_timestamp_nanos(self.node.clock.now_nanos()),
            history: History::new(began),
            lags_since: None,
            compared: 0,
            copies_at: None,
            copies_throttle: Throttle::new(COPIES_LOG_INTERVAL),
        };
        let mut taken_throttle = Throttle::new(TAKEN_LOG_INTERVAL);
        let mut ticks = tokio::time::interval(INTERVAL);
        self.losses.inherit();
        let mut losses_due = Throttle::new(LOSSES_INTERVAL);
        while self.stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let totals = self.node.ledger.totals();
            let lost = node_losses(&totals, &self.metrics);
            self.losses.count(self.node.clock.now_nanos(), lost);
            self.node.log_losses();
            let looked = async { (self.store.difference().await, self.store.check().await) };
            let looked = timeout(ANSWERS_WITHIN, looked).await;
            let report = self.report(&mut memory, looked.unwrap_or((Ok(None), Ok(()))));
            let json = report.to_json();
            let unstamped = report.unstamped.clone();
            self.latest.set(report);
            let answer = timeout(ANSWERS_WITHIN, self.store.report(&json)).await;
            self.losses.deliver().await;
            if losses_due.is_due() {
                self.losses.look().await;
            }
            if let Ok(Ok(taken)) = answer {
                self.node.name_taken.store(taken, Ordering::Relaxed);
                if taken && taken_throttle.is_due() {
                    tracing::warn!("{}", Cause::NameTaken);
                }
            }
            if let Some(own) = unstamped {
                self.compare(&mut memory, &own).await;
            }
        }
        // A store that does not answer forgets it by itself.
        let _ = timeout(ANSWERS_WITHIN, self.store.withdraw()).await;
    }

    /// Looks whether another node gets the lines without a timestamp that this one gets: once for each window, when all nodes have
    /// reported it.
    async fn compare(&self, memory: &mut Memory, own: &Sample) {
        let into_ms = self.node.clock.store_now_ms().rem_euclid(WINDOW_MS);
        if memory.compared == own.window || into_ms < COMPARED_AFTER_MS {
            return;
        }
        let Ok(Ok(reports)) = timeout(ANSWERS_WITHIN, self.store.reports()).await else {
            return;
        };
        memory.compared = own.window;
        let identity = self.store.identity();
        let others = reports.iter().filter(|it| it.identity != identity);
        let common = |other: &Reported| {
            let theirs = NodeReport::read(&other.text).0.unstamped?.fit();
            Some((own.common(&theirs)?, beginning(&other.name, 64)))
        };
        let Some((lines, other)) = others.filter_map(common).max() else {
            return;
        };
        if memory.copies_throttle.is_due() {
            tracing::warn!(
                %other,
                lines,
                "{}",
                Cause::UnstampedCopies
            );
        }
        memory.copies_at = Some((Instant::now(), other));
    }

    /// The reasons for which most lines were rejected since then.
    fn rejected(&self, now: &LedgerTotals, then: &Earlier<Past>) -> Vec<RejectedReport> {
        let each = Rejection::ALL.iter().map(|reason| {
            let index = reason.index();
            (now.rejected[index] - then.totals.rejected[index], reason.label())
        });
        let mut each: Vec<_> = each.filter(|(lines, _)| *lines > 0).collect();
        each.sort_by_key(|(lines, _)| Reverse(*lines));
        each.truncate(REJECTED_MAX);
        let examples = self.node.notices.examples();
        let report = |(lines, reason): (u64, &str)| RejectedReport {
            reason: reason.to_owned(),
            lines,
            example: examples.get(reason).map_or_else(String::new, |it| it.line.clone()),
        };
        each.into_iter().map(report).collect()
    }

    fn totals(&self, ledger: &LedgerTotals) -> Totals {
        let names = self.outputs.iter().map(|(name, _)| name.as_str());
        let sums = self.metrics.sums(names);
        let dropped = |reason: LossCause| ledger.dropped[reason as usize];
        Totals {
            received: ledger.received,
            recorded: ledger.recorded,
            repeated: sums.events_repeated,
            overflowed: ledger.overflowed,
            rejected: ledger.rejected.iter().sum(),
            dropped: ledger.dropped.iter().sum(),
            dropped_queue_full: dropped(LossCause::QueueFull),
            dropped_spool_full: dropped(LossCause::SpoolFull),
            dropped_spool_failed: dropped(LossCause::SpoolFailed),
            queued: ledger.queued,
            kernel_drops: sums.kernel_drops,
            forgotten: sums.events_forgotten,
            unconfirmed: sums.minutes_unconfirmed,
            late: sums.events_late,
            rounded: sums.events_rounded,
            coinciding: sums.events_coinciding,
            sealed: sums.series_sealed,
            old_minutes_sealed: sums.old_minutes_sealed,
            sent: sums.points_sent,
            quarantined: sums.points_quarantined,
            discarded: sums.points_discarded,
        }
    }

    fn report(
        &self,
        memory: &mut Memory,
        (difference, checked): (Result<Option<Diagnosis>, StoreError>, Result<(), StoreError>),
    ) -> NodeReport {
        let now = Instant::now();
        let ledger = self.node.ledger.totals();
        let totals = self.totals(&ledger);
        let rated = memory.history.rated(now);
        let recent = memory.history.recent(now);
        let lags = self.node.lag.partitions() as u64;
        let is_lagging = lags > 0 || ledger.spooled > 0;
        memory.lags_since = is_lagging.then(|| memory.lags_since.unwrap_or(now));
        let rejected = ledger.rejected;
        memory.history.add(now, Past { totals, rejected });
        let copies_at = memory.copies_at.as_ref();
        let copies_at = copies_at.filter(|(at, _)| now - *at < RECENT);
        let sums = self.metrics.sums(std::iter::empty());
        let down = self.node.outputs_down.all();
        let output = |(name, url): &(String, String)| {
            let trouble = down.get(name);
            OutputReport {
                name: name.clone(),
                url: url.clone(),
                up: trouble.is_none(),
                last_error: trouble.map(|it| it.why.clone()),
                remedy: trouble.map(|it| it.remedy.clone().into_owned()),
            }
        };
        let identity = self.store.identity().to_owned();
        let settings_error = difference.ok().flatten().map(|found| found.reason());
        NodeReport {
            name: identity.split('#').next().unwrap_or_default().to_owned(),
            instance: identity,
            version: crate::VERSION.to_owned(),
            started: memory.started.to_rfc3339_opts(SecondsFormat::Secs, true),
            uptime_seconds: (now - memory.began).as_secs(),
            store: self.store.place(),
            store_error: checked
                .err()
                .filter(|_| settings_error.is_none())
                .map(|error| error.to_string()),
            settings_error,
            received_per_second: rated.rate(totals.received, rated.totals.totals.received),
            recorded_per_second: rated.rate(totals.recorded, rated.totals.totals.recorded),
            old_minutes_per_second: rated
                .rate(totals.old_minutes_sealed, rated.totals.totals.old_minutes_sealed),
            recent: totals.since(&recent.totals.totals),
            recent_seconds: recent.ago.as_secs(),
            rejected: self.rejected(&ledger, &recent),
            unrecorded: self.losses.unrecorded(),
            totals,
            lag_seconds: memory.lags_since.map_or(0, |since| (now - since).as_secs()),
            partitions_lagging: lags,
            queue: Queue {
                events: ledger.in_memory(),
                events_max: self.queue_max[0],
                bytes: ledger.queued_bytes,
                bytes_max: self.queue_max[1],
            },
            spool: Room {
                events: ledger.spooled,
                bytes: sums.spool_bytes,
                bytes_max: self.spool_max,
            },
            clock_offset_ms: self.node.clock.store_ahead_ms(),
            sockets_failing: self.node.listeners_failing.load(Ordering::Relaxed) as u64,
            stalled: self.node.progress.stalled(STALLED_AFTER),
            name_taken: self.node.name_taken.load(Ordering::Relaxed),
            coarse_stamps: self.node.rounded.example(),
            leftovers: {
                let mut warnings = self.store.warnings().into_iter();
                let left = warnings.find(|it| it.cause == Cause::Leftovers);
                left.map(|it| it.why)
            },
            unstamped: self.node.unstamped.sample(self.node.clock.store_now_ms()),
            unstamped_copies_at: copies_at.map(|(_, other)| other.clone()),
            outputs: self.outputs.iter().map(output).collect(),
        }
    }
}
