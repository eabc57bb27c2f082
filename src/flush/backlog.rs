//! [`BacklogReport`]: exports metrics on the open and unsent minutes of all nodes, and on unsent counts for removed outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::Instant;

use super::Shared;
use super::partitions::PartitionState;
use crate::diagnosis::Cause;
use crate::event::Minute;
use crate::node::Throttle;
use crate::store::{Backlog, OutputBacklog, OutputName, StoreError};
use crate::telemetry::{Gauges, gauge, of_output};

const REMOVED_LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Interval at which partitions are polled that are quiet or only fill up, because an operator may have changed their counts.
const ALL_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct BacklogReport {
    shared: Arc<Shared>,
    backlogs: Vec<Backlog>,
    all_throttle: Throttle,
    /// Outputs that are no longer configured but still have unsent or quarantined counts.
    removed: BTreeSet<OutputName>,
    removed_throttle: Throttle,
}

impl BacklogReport {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            backlogs: Vec::new(),
            all_throttle: Throttle::new(ALL_INTERVAL),
            removed: BTreeSet::new(),
            removed_throttle: Throttle::new(REMOVED_LOG_INTERVAL),
        }
    }

    /// Updates the metrics. Returns whether any minute is being sealed or has unsent counts; true if the store is down.
    pub(super) async fn update(&mut self, agrees: bool) -> bool {
        let Shared { store, partitions, states, settings, metrics, outputs, node, .. } =
            &*self.shared;
        let is_due = self.all_throttle.is_due() || self.backlogs.is_empty();
        let (now, now_ms) = (Instant::now(), node.clock.store_now_ms());
        let asked = partitions.all().filter(|&partition| {
            let PartitionState { ask_times: times, settling, .. } = &mut *states.of(partition);
            // While a partition's minute only fills up, it is the whole backlog.
            let is_known = times.fills(now)
                && !times.found_work
                && settling.may_close(now)
                && (self.backlogs.get(partition.index()))
                    .is_some_and(|known| is_open(known, now_ms));
            let is_asked = is_due || !(is_known || times.is_quiet(now, settings.interval));
            times.found_work &= !is_asked;
            is_asked
        });
        let answers = asked.map(async |partition| {
            Ok::<_, StoreError>((partition, store.backlog(partition).await?))
        });
        let Ok(answers) = try_join_all(answers).await else {
            self.all_throttle.reset();
            metrics.forget_backlog();
            return true;
        };
        self.backlogs.resize_with(partitions.all().count(), Backlog::default);
        for (partition, backlog) in answers {
            self.backlogs[partition.index()] = backlog;
        }
        let sum = |part: fn(&Backlog) -> u64| self.backlogs.iter().map(part).sum();
        metrics.backlog_pending.get_or_create(&[]).set(gauge(sum(|backlog| backlog.waiting)));
        metrics.backlog_claimed.get_or_create(&[]).set(gauge(sum(|backlog| backlog.claimed)));
        let (bytes, _) = store.memory();
        metrics.store_memory_bytes.set(gauge(bytes));
        let mut by_output: BTreeMap<_, OutputBacklog> =
            outputs.iter().map(|name| (name, OutputBacklog::default())).collect();
        for (name, backlog) in self.backlogs.iter().flat_map(|backlog| &backlog.outputs) {
            *by_output.entry(name).or_default() += *backlog;
        }
        let open = self.backlogs.iter().filter_map(|backlog| backlog.oldest).min();
        let mut unsent = 0;
        let mut removed = BTreeSet::new();
        for (name, backlog) in by_output {
            if outputs.contains(name) {
                unsent += backlog.unsent;
                self.set_metrics(name, backlog, backlog.oldest.into_iter().chain(open).min());
            } else if backlog.unsent + backlog.quarantined > 0 {
                self.set_metrics(name, backlog, backlog.oldest);
                removed.insert(name.clone());
            }
        }
        for name in self.removed.difference(&removed) {
            metrics.forget_output(name.as_str());
        }
        self.removed = removed;
        if !self.removed.is_empty() && agrees && self.removed_throttle.is_due() {
            let names: Vec<_> = self.removed.iter().map(OutputName::as_str).collect();
            tracing::warn!(
                outputs = names.join(", "),
                "the store has unsent or quarantined counts for outputs that are not configured on this node; {}",
                Cause::OutputGone.remedy()
            );
        }
        unsent > 0 || self.backlogs.iter().any(|backlog| backlog.claimed > 0)
    }

    fn set_metrics(&self, output: &OutputName, backlog: OutputBacklog, oldest: Option<Minute>) {
        let Shared { node, metrics, .. } = &*self.shared;
        let age = oldest.map_or(0.0, |minute| {
            let (now_nanos, ahead) = (node.clock.now_nanos(), node.clock.store_ahead_seconds());
            age_seconds(minute.end_millis(), now_nanos, ahead)
        });
        let labels = &of_output(output.as_str());
        let set = |family: &Gauges, number| {
            family.get_or_create(labels).set(gauge(number));
        };
        set(&metrics.backlog_unsent, backlog.unsent);
        set(&metrics.counts_quarantined, backlog.quarantined);
        metrics.oldest_unsent_minute_age_seconds.get_or_create(labels).set(age);
    }
}

/// Returns whether a partition's backlog consists of minutes that have not ended.
fn is_open(backlog: &Backlog, now_ms: i64) -> bool {
    backlog.claimed == 0
        && backlog.oldest.is_some_and(|minute| minute.end_millis() > now_ms)
        && backlog.outputs.values().all(|output| output.unsent + output.quarantined == 0)
}

/// Returns how many seconds ago a minute ended on a clock that is ahead by `offset_seconds`; 0 if it has not ended yet.
#[expect(clippy::cast_precision_loss, reason = "f64 is exact for centuries' worth of milliseconds")]
fn age_seconds(end_ms: i64, now_nanos: i64, offset_seconds: f64) -> f64 {
    let age = (now_nanos / 1_000_000).saturating_sub(end_ms) as f64 / 1000.0;
    (age + offset_seconds).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_uses_the_store_clock_and_is_never_negative() {
        let age = |now_seconds: i64, offset| {
            let age = age_seconds(60_000, now_seconds * 1_000_000_000, offset);
            humantime::format_duration(Duration::from_secs_f64(age)).to_string()
        };
        assert_eq!(age(90, 0.0), "30s");
        assert_eq!(age(90, 2.5), "32s 500ms");
        assert_eq!(age(90, -31.0), "0s");
        assert_eq!(age(59, 0.0), "0s", "the minute has not ended");
    }

    #[test]
    fn only_open_minutes_are_not_polled() {
        let minute = Minute::of_nanos(0);
        let open = Backlog { waiting: 1, oldest: Some(minute), ..Backlog::default() };
        assert!(is_open(&open, minute.end_millis() - 1));
        assert!(!is_open(&open, minute.end_millis()));
        let unsent = OutputBacklog { unsent: 1, ..OutputBacklog::default() };
        let quarantined = OutputBacklog { quarantined: 1, ..OutputBacklog::default() };
        let of = |output| BTreeMap::from([("default".parse().unwrap(), output)]);
        for other in [
            Backlog::default(),
            Backlog { claimed: 1, ..open.clone() },
            Backlog { outputs: of(unsent), ..open.clone() },
            Backlog { outputs: of(quarantined), ..open.clone() },
        ] {
            assert!(!is_open(&other, 0), "{other:?}");
        }
        assert!(is_open(&Backlog { outputs: of(OutputBacklog::default()), ..open }, 0));
    }

    #[test]
    fn gauge_saturates() {
        assert_eq!(gauge(7), 7);
        assert_eq!(gauge(u64::MAX), i64::MAX);
    }
}
