//! How much all nodes together have to do, for the metrics.

use crate::event::Partitions;
use crate::node::Clock;
use crate::store::{Backlog, Draining};
use crate::telemetry::Metrics;

/// Looks at every partition. Answers whether any minute is claimed. Leaves the metrics as they are when the store does not
/// answer, and answers that one is.
pub(super) async fn look(
    store: &dyn Draining,
    partitions: &Partitions,
    metrics: &Metrics,
    clock: &Clock,
) -> bool {
    let answers = partitions.iter().map(|partition| store.backlog(partition));
    let answers = futures_util::future::join_all(answers).await;
    let Ok(backlogs) = answers.into_iter().collect::<Result<Vec<Backlog>, _>>() else {
        return true;
    };
    let gauge = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    let sum = |part: fn(&Backlog) -> u64| gauge(backlogs.iter().map(part).sum());
    metrics.backlog_pending.set(sum(|backlog| backlog.waiting));
    metrics.backlog_claimed.set(sum(|backlog| backlog.claimed));
    metrics
        .counts_quarantined
        .set(sum(|backlog| backlog.quarantined));
    let oldest = backlogs.iter().filter_map(|backlog| backlog.oldest).min();
    let age = oldest.map_or(0.0, |minute| {
        let offset = clock.store_ahead_seconds();
        age_seconds(minute.end_millis(), clock.now_nanos(), offset)
    });
    metrics.oldest_unsent_minute_age_seconds.set(age);
    let (bytes, _) = store.memory().unwrap_or_default();
    metrics.store_memory_bytes.set(gauge(bytes));
    backlogs.iter().any(|backlog| backlog.claimed > 0)
}

/// How long ago something ended, by a store's clock that is ahead of this node's by an offset; 0 when it has not ended.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of centuries")]
fn age_seconds(end_ms: i64, now_nanos: i64, offset_seconds: f64) -> f64 {
    let age = (now_nanos / 1_000_000).saturating_sub(end_ms) as f64 / 1000.0;
    (age + offset_seconds).max(0.0)
}
