//! [`NodeReporter`]: the task that writes a node's report to the store, and [`History`]: the past totals from which rates
//! are computed. The task withdraws the report when the node shuts down. If the node dies instead, it is shown as silent.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, Utc};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::losses::LossReporter;
use super::report::{
    Hour, MinuteLimits, NodeDetails, NodeReport, OutputReport, ProcessReport, Queue,
    RejectedReport, RequestsReport, Spooled, Totals,
};
use crate::diagnosis::Cause;
use crate::event::{Partition, Rejection};
use crate::node::{LedgerTotals, Node, Sample, Throttle, WINDOW_MS, lock};
use crate::store::{NodeStore, Reported};
use crate::telemetry::Metrics;
use crate::text::beginning;

pub(crate) const REPORT_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const REPORTED_WITHIN: Duration = Duration::from_secs(1);
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(15);
const TAKEN_LOG_INTERVAL: Duration = Duration::from_secs(60);
const LOSSES_INTERVAL: Duration = Duration::from_secs(10);
/// How long after the start of a window samples are compared, in milliseconds. By then, every node has reported its sample.
const COMPARED_AFTER_MS: i64 = 2500;
const COPIES_LOG_INTERVAL: Duration = Duration::from_secs(600);
const REJECTED_MAX: usize = 5;

const RECENT: Duration = Duration::from_secs(300);
const RATED: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct History<T> {
    began: Instant,
    started: DateTime<Utc>,
    /// The totals, oldest first, and when each was added.
    totals: VecDeque<(Instant, T)>,
    hour: Hour,
    /// When the current minute of `hour` began, and how many events or lines had been received by then.
    minute: (Instant, u64),
    /// The highest levels in the current minute, and how many events or lines have been received.
    highest: [u64; 5],
    received: u64,
}

impl<T: Copy + Default> History<T> {
    /// Creates the history of a process that starts now, at `started` by its clock, with all totals at zero.
    pub(crate) fn new(started: DateTime<Utc>) -> Self {
        let began = Instant::now();
        let totals = [(began, T::default())].into();
        let (hour, minute) = (Hour::default(), (began, 0));
        Self { began, started, totals, hour, minute, highest: [0; 5], received: 0 }
    }

    /// Adds the current totals. Of these, `received` is the number of events or lines received. `levels` are the number of
    /// queued ones, the lag in seconds and the [`Peaks`](crate::node::Peaks).
    pub(crate) fn add(&mut self, totals: T, received: u64, levels: [u64; 5]) {
        let now = Instant::now();
        for (highest, level) in self.highest.iter_mut().zip(levels) {
            *highest = level.max(*highest);
        }
        self.received = received;
        if now - self.minute.0 >= Duration::from_secs(60) {
            self.hour = self.hour();
            (self.minute, self.highest) = ((now, received), [0; 5]);
        }
        while (self.totals.get(1)).is_some_and(|(at, _)| now - *at >= RECENT) {
            self.totals.pop_front();
        }
        self.totals.push_back((now, totals));
    }

    /// Returns the last hour, including the current minute so far.
    fn hour(&self) -> Hour {
        let (began, before) = self.minute;
        let [queued, lag, series, users, sealed] = self.highest;
        let rate = self.received.saturating_sub(before) / began.elapsed().as_secs().max(1);
        let mut hour = self.hour.clone();
        hour.push([rate, queued, lag, series, users, sealed]);
        hour
    }

    /// Returns the totals at the start of the recent period, and the seconds elapsed since then.
    pub(crate) fn recent(&self) -> (T, u64) {
        let (elapsed, totals) = self.before(RECENT);
        (totals, elapsed.as_secs())
    }

    /// Returns the recent growth of a count per second, rounded to a tenth. `totals` contains its current value.
    pub(crate) fn rate(&self, totals: &T, count: impl Fn(&T) -> u64) -> f64 {
        let (elapsed, before) = self.before(RATED);
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let growth = count(totals).saturating_sub(count(&before)) as f64;
        (growth / elapsed.as_secs_f64().max(0.001) * 10.0).round() / 10.0
    }

    fn before(&self, period: Duration) -> (Duration, T) {
        let mut newest_first = self.totals.iter().rev();
        let earlier = newest_first.find(|(at, _)| at.elapsed() >= period).or(self.totals.front());
        earlier.map_or_else(Default::default, |(at, totals)| (at.elapsed(), *totals))
    }

    /// Returns a report without counts for the process with this identity, which has the form `name#number`.
    pub(crate) fn process(&self, identity: &str) -> ProcessReport {
        ProcessReport {
            name: identity.split('#').next().unwrap_or_default().to_owned(),
            instance: identity.to_owned(),
            version: crate::VERSION.to_owned(),
            started: self.started.to_rfc3339_opts(SecondsFormat::Secs, true),
            uptime_seconds: self.began.elapsed().as_secs(),
            hour: self.hour(),
            ..ProcessReport::default()
        }
    }
}

pub(crate) type Latest = Arc<watch::Sender<Option<(Instant, NodeReport)>>>;

#[derive(Debug)]
pub(crate) struct NodeReporter {
    pub(crate) store: Arc<dyn NodeStore>,
    pub(crate) node: Arc<Node>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) outputs: Vec<(String, String)>,
    pub(crate) rollups: Vec<(Partition, String)>,
    pub(crate) queue_max: [u64; 2],
    pub(crate) limits: MinuteLimits,
    pub(crate) spool_max: u64,
    pub(crate) latest: Latest,
    pub(crate) losses: Arc<LossReporter>,
    pub(crate) stop: CancellationToken,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    totals: Totals,
    rejected: [u64; Rejection::ALL.len()],
}

struct Memory {
    history: History<Counts>,
    lags_since: Option<Instant>,
    /// The last window whose sample of lines without a timestamp was compared with those of other nodes.
    compared: i64,
    /// When a different node was last found to receive the same lines as this node, and the name of that node.
    copies_at: Option<(Instant, String)>,
    copies_log_due: Throttle,
}

impl NodeReporter {
    pub(crate) async fn run(self) {
        let mut memory = Memory {
            history: History::new(DateTime::from_timestamp_nanos(self.node.clock.now_nanos())),
            lags_since: None,
            compared: 0,
            copies_at: None,
            copies_log_due: Throttle::new(COPIES_LOG_INTERVAL),
        };
        let mut taken_log_due = Throttle::new(TAKEN_LOG_INTERVAL);
        let mut losses_due = Throttle::new(LOSSES_INTERVAL);
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        let registry = self.store.registry();
        self.losses.inherit();
        while self.stop.run_until_cancelled(ticks.tick()).await.is_some() {
            self.losses.count_node(&self.node, self.metrics.dropped(&self.node.ledger.totals()));
            let report = self.report(&mut memory);
            let json = report.to_json();
            let unstamped = report.details.unstamped.clone();
            self.latest.send_replace(Some((Instant::now(), report)));
            let answer = timeout(REPORTED_WITHIN, registry.report(&json)).await;
            self.losses.deliver().await;
            if losses_due.is_due() {
                self.losses.read_unacknowledged().await;
                self.measure_windows().await;
            }
            if let Ok(Ok(is_taken)) = answer {
                self.node.name_taken.store(is_taken, Ordering::Relaxed);
                if is_taken && taken_log_due.is_due() {
                    tracing::warn!("{}", Cause::NameTaken);
                }
            }
            if let Some(sample) = unstamped {
                self.compare(&mut memory, &sample).await;
            }
        }
        // If the store is not responding, the report expires after a few minutes instead.
        let _ = timeout(REPORTED_WITHIN, registry.withdraw()).await;
    }

    /// Checks whether another node is receiving the same unstamped lines. If so, logs a warning and remembers that node.
    /// Runs once per window, after all nodes have reported their samples.
    async fn compare(&self, memory: &mut Memory, own: &Sample) {
        let into_ms = self.node.clock.store_now_ms().rem_euclid(WINDOW_MS);
        if memory.compared == own.window || into_ms < COMPARED_AFTER_MS {
            return;
        }
        let registry = self.store.registry();
        let Ok(Ok(reports)) = timeout(REPORTED_WITHIN, registry.reports()).await else {
            return;
        };
        memory.compared = own.window;
        let identity = registry.identity();
        let others = reports.iter().filter(|report| report.identity != identity);
        let common = |report: &Reported| {
            let sample = NodeReport::read(&report.text, report.ago).details.unstamped?.fit();
            Some((own.common(&sample)?, beginning(&report.name, 64)))
        };
        let Some((lines, other)) = others.filter_map(common).max() else {
            return;
        };
        if memory.copies_log_due.is_due() {
            tracing::warn!(%other, lines, "{}", Cause::UnstampedCopies);
        }
        memory.copies_at = Some((Instant::now(), other));
    }

    async fn measure_windows(&self) {
        let [open, bytes] = [&self.metrics.windows_open, &self.metrics.windows_bytes];
        let Ok(Ok(windows)) = timeout(REPORTED_WITHIN, self.store.open_windows()).await else {
            open.clear();
            bytes.clear();
            return;
        };
        for (partition, name) in &self.rollups {
            let label = [("rollup", name.clone())];
            let own = || windows.iter().filter(|(bucket, _)| bucket.partition == *partition);
            let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            open.get_or_create(&label).set(gauge(own().count() as u64));
            bytes.get_or_create(&label).set(gauge(own().map(|(_, bytes)| bytes).sum()));
        }
    }

    fn rejected(&self, now: &LedgerTotals, before: &Counts) -> Vec<RejectedReport> {
        let examples = self.node.notices.examples();
        let counts = now.rejected.iter().zip(before.rejected);
        let mut all: Vec<_> = std::iter::zip(Rejection::ALL, counts)
            .map(|(reason, (now, before))| (now - before, reason.label()))
            .filter(|(lines, _)| *lines > 0)
            .collect();
        all.sort_by_key(|(lines, _)| Reverse(*lines));
        all.truncate(REJECTED_MAX);
        let report = |(lines, reason): (u64, &str)| RejectedReport {
            reason: reason.to_owned(),
            lines,
            example: examples.get(reason).map_or_else(String::new, |found| found.line.clone()),
        };
        all.into_iter().map(report).collect()
    }

    fn outputs(&self) -> Vec<OutputReport> {
        let down = lock(&self.node.outputs_down).clone();
        let report = |(name, url): &(String, String)| {
            let trouble = down.get(name);
            OutputReport {
                name: name.clone(),
                url: url.clone(),
                up: trouble.is_none(),
                last_error: trouble.map(|found| found.why.clone()),
                remedy: trouble.map(|found| found.remedy.clone().into_owned()),
            }
        };
        self.outputs.iter().map(report).collect()
    }

    fn report(&self, memory: &mut Memory) -> NodeReport {
        let errors = lock(&self.node.store_errors).clone();
        let (node, now) = (&self.node, Instant::now());
        let ledger = node.ledger.totals();
        let names = self.outputs.iter().map(|(name, _)| name.as_str());
        let totals = Totals::of(&self.metrics, &ledger, names);
        let counts = Counts { totals, rejected: ledger.rejected };
        let (before, recent_seconds) = memory.history.recent();
        let rate = |count: fn(&Totals) -> u64| {
            memory.history.rate(&counts, |counts| count(&counts.totals))
        };
        let [received_per_second, recorded_per_second, old_minutes_per_second] = [
            rate(|totals| totals.received),
            rate(|totals| totals.recorded),
            rate(|totals| totals.old_minutes_sealed),
        ];
        let partitions_lagging = node.partitions.lagging() as u64;
        let is_lagging = partitions_lagging > 0 || ledger.spooled > 0;
        memory.lags_since = is_lagging.then(|| memory.lags_since.unwrap_or(now));
        let lag_seconds = memory.lags_since.map_or(0, |since| (now - since).as_secs());
        let [series, users, sealed] = node.peaks.take();
        let levels = [totals.queued, lag_seconds, series, users, sealed];
        memory.history.add(counts, totals.received, levels);
        let copies_at = memory.copies_at.as_ref().filter(|(at, _)| now - *at < RECENT);
        let mut warnings = self.store.warnings().into_iter();
        let leftovers = warnings.find(|warning| warning.cause == Cause::Leftovers);
        let process = ProcessReport {
            received_per_second,
            recent_seconds,
            sockets_failing: node.listeners_failing.load(Ordering::Relaxed) as u64,
            stalled: node.progress.stalled(STALLED_AFTER),
            name_taken: node.name_taken.load(Ordering::Relaxed),
            requests: RequestsReport::of(&self.metrics.writes),
            ..memory.history.process(self.store.registry().identity())
        };
        let details = NodeDetails {
            store: self.store.describe(),
            store_error: errors.store.filter(|_| errors.settings.is_none()),
            settings_error: errors.settings,
            recorded_per_second,
            old_minutes_per_second,
            recent: totals.since(&before.totals),
            rejected: self.rejected(&ledger, &before),
            unrecorded: self.losses.unrecorded(),
            totals,
            lag_seconds,
            partitions_lagging,
            queue: Queue {
                events: ledger.in_memory(),
                events_max: self.queue_max[0],
                bytes: ledger.queued_bytes,
                bytes_max: self.queue_max[1],
            },
            spool: Spooled {
                events: ledger.spooled,
                bytes: u64::try_from(self.metrics.spool_bytes.get()).unwrap_or(0),
                bytes_max: self.spool_max,
            },
            limits: self.limits,
            clock_offset_ms: node.clock.store_ahead_ms(),
            coarse_stamps: node.rounded.example(),
            leftovers: leftovers.map(|found| found.why),
            unstamped: node.unstamped.sample(node.clock.store_now_ms()),
            unstamped_copies_at: copies_at.map(|(_, other)| other.clone()),
            outputs: self.outputs(),
        };
        NodeReport::new(process, details, Duration::ZERO)
    }
}
