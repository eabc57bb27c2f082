//! [`Overview`]: how much all nodes together have to do, for the metrics; and what waits for an output that is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use super::worker::Worker;
use tokio::time::Instant;

use crate::diagnosis::Cause;
use crate::event::Minute;
use crate::node::Throttle;
use crate::store::{Backlog, OutputBacklog, OutputName, StoreError};
use crate::telemetry::of_output;

/// How often it is logged what waits for an output that is gone.
const GONE_LOG_INTERVAL: Duration = Duration::from_secs(600);
/// How often partitions that rest are looked at.
const ALL_INTERVAL: Duration = Duration::from_secs(30);

/// What was last seen.
#[derive(Debug)]
pub(super) struct Overview {
    /// Outputs that are not configured, and that something waits for.
    gone: BTreeSet<OutputName>,
    throttle: Throttle,
    /// Of each partition.
    backlogs: Vec<Backlog>,
    /// When those are looked at, too, that rest: an operator may have changed something.
    all: Throttle,
}

impl Default for Overview {
    fn default() -> Self {
        Self {
            gone: BTreeSet::new(),
            throttle: Throttle::new(GONE_LOG_INTERVAL),
            backlogs: Vec::new(),
            all: Throttle::new(ALL_INTERVAL),
        }
    }
}

impl Overview {
    /// Looks. Returns whether any minute is claimed, to be sealed or sent. When the store does not answer, the metrics of the
    /// backlog are unknown, and a minute may be claimed.
    pub(super) async fn look(&mut self, worker: &Worker, agrees: bool) -> bool {
        let (store, metrics) = (&worker.store, &worker.metrics);
        let (now, interval) = (Instant::now(), worker.settings.interval);
        let is_due = self.all.is_due() || self.backlogs.is_empty();
        let partitions = worker.partitions.iter();
        let looked_at =
            partitions.filter(|&it| is_due || !worker.watches.of(it).rest.rests(now, interval));
        let answers = looked_at.map(async |it| Ok::<_, StoreError>((it, store.backlog(it).await?)));
        let Ok(seen) = futures_util::future::try_join_all(answers).await else {
            self.all.reset();
            metrics.forget_backlog();
            return true;
        };
        let count = usize::from(worker.partitions.count());
        self.backlogs.resize_with(count, Backlog::default);
        for (partition, backlog) in seen {
            self.backlogs[partition.index()] = backlog;
        }
        let backlogs = &self.backlogs;
        let sum = |part: fn(&Backlog) -> u64| gauge(backlogs.iter().map(part).sum());
        (metrics.backlog_pending.get_or_create(&[])).set(sum(|backlog| backlog.waiting));
        (metrics.backlog_claimed.get_or_create(&[])).set(sum(|backlog| backlog.claimed));
        let (bytes, _) = store.memory();
        metrics.store_memory_bytes.set(gauge(bytes));
        let open = backlogs.iter().filter_map(|backlog| backlog.oldest).min();
        let of = |name: &OutputName| {
            let mut all = OutputBacklog::default();
            for backlog in backlogs {
                all += backlog.outputs.get(name).copied().unwrap_or_default();
            }
            all
        };
        let mut unsent = 0;
        for outbox in &worker.outboxes {
            let lacks = of(&outbox.name);
            unsent += lacks.unsent;
            worker.report(
                &outbox.name,
                lacks,
                lacks.oldest.into_iter().chain(open).min(),
            );
        }
        let seen: BTreeSet<_> = backlogs.iter().flat_map(|it| it.outputs.keys()).collect();
        let is_known = |name: &OutputName| worker.outboxes.iter().any(|it| it.name == *name);
        let mut gone = BTreeSet::new();
        for name in seen.into_iter().filter(|name| !is_known(name)) {
            let lacks = of(name);
            if lacks.unsent + lacks.quarantined > 0 {
                worker.report(name, lacks, lacks.oldest);
                gone.insert(name.clone());
            }
        }
        for name in self.gone.difference(&gone) {
            metrics.forget_output(name.as_str());
        }
        self.gone = gone;
        if !self.gone.is_empty() && agrees && self.throttle.is_due() {
            let names: Vec<_> = self.gone.iter().map(OutputName::as_str).collect();
            tracing::warn!(
                outputs = names.join(", "),
                "counts wait for outputs that this node does not have; {}",
                Cause::OutputGone.remedy()
            );
        }
        unsent > 0 || backlogs.iter().any(|backlog| backlog.claimed > 0)
    }
}

impl Worker {
    fn report(&self, output: &OutputName, lacks: OutputBacklog, oldest: Option<Minute>) {
        let clock = &self.node.clock;
        let age = oldest.map_or(0.0, |minute| {
            let offset = clock.store_ahead_seconds();
            age_seconds(minute.end_millis(), clock.now_nanos(), offset)
        });
        let (of, metrics) = (&of_output(output.as_str()), &self.metrics);
        let set = |family: &crate::telemetry::Gauges, number: u64| {
            family.get_or_create(of).set(gauge(number));
        };
        set(&metrics.backlog_unsent, lacks.unsent);
        set(&metrics.counts_quarantined, lacks.quarantined);
        let oldest = &metrics.oldest_unsent_minute_age_seconds;
        oldest.get_or_create(of).set(age);
    }
}

fn gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// How long ago something ended, by a store's clock that is ahead of this node's by an offset; 0 when it has not ended.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of centuries")]
fn age_seconds(end_ms: i64, now_nanos: i64, offset_seconds: f64) -> f64 {
    let age = (now_nanos / 1_000_000).saturating_sub(end_ms) as f64 / 1000.0;
    (age + offset_seconds).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_by_the_clock_of_the_store_and_never_negative() {
        let age = |now_seconds: i64, offset| {
            let age = age_seconds(60_000, now_seconds * 1_000_000_000, offset);
            humantime::format_duration(Duration::from_secs_f64(age)).to_string()
        };
        assert_eq!(age(90, 0.0), "30s");
        assert_eq!(age(90, 2.5), "32s 500ms");
        assert_eq!(age(90, -31.0), "0s");
        assert_eq!(age(59, 0.0), "0s", "it has not ended");
    }

    #[test]
    fn a_number_beyond_a_gauge_is_its_largest() {
        assert_eq!(gauge(7), 7);
        assert_eq!(gauge(u64::MAX), i64::MAX);
    }
}
