//! From the store to the output.
//!
//! A [`Worker`] on every node goes round once an interval: it claims the minutes that are finished, whichever
//! node recorded them, compacts them to counts, and sends these. `held` keeps the leases of what it works on,
//! `delivery` finds out which counts the output refuses, `refused` puts these into the quarantine, `breaker` decides when
//! an output that fails is tried again, `settling` when minutes may be closed after the store was away, `witness` what is
//! handed back to a store that forgot it, `standing` whether this node agrees with the others, `late` what is logged of events that
//! came too late. A worker keeps nothing of a failed send: the claim lapses, and any node tries again.

mod asking;
mod breaker;
mod delivery;
mod held;
mod late;
mod refused;
mod sender;
mod settling;
mod standing;
mod suspects;
mod watch;
mod witness;
mod worker;

use std::time::Duration;

pub use standing::{Agreed, look_for_leftovers};
pub use worker::Worker;

use crate::event::Partitions;
use crate::node::Clock;
use crate::store::{Backlog, Draining};
use crate::telemetry::Metrics;

/// How a worker behaves.
#[derive(Debug, Clone, Copy)]
pub struct FlushSettings {
    /// How long a round takes at least.
    pub interval: Duration,
    /// How long a minute that is over must be idle before it is closed.
    pub grace: Duration,
    /// When it is closed in any case, counted from its end or its first event.
    pub max_hold: Duration,
    /// How long a claim holds unless it is renewed.
    pub lease: Duration,
    /// The most counts of a write; each is two points.
    pub write_counts_max: usize,
}

/// Looks how much all nodes together have to do, for the metrics. Answers whether any minute is claimed. When the store does
/// not answer it leaves the metrics as they are, and answers that one is.
async fn look_at_backlog(
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
