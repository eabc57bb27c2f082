//! Moves datagrams to the store: each socket has a [`Listener`] thread, and each partition a [`Recorder`] task. They are
//! connected by a channel of [`QUEUED_BATCHES`]. While it is full, the open batch grows, which makes the next transaction cheaper
//! per event. Events beyond the limit on all batches go to disk, or are dropped and counted.

mod address;
mod holder;
mod line_batcher;
mod listener;
mod rates;
mod receive;
mod recorder;
mod sockets;
mod unspooler;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::event::Batch;

pub use address::ListenAddress;
pub(crate) use holder::{Table, explained, holder};
pub use line_batcher::{BatcherSettings, LineBatcher, Linger, QueueLimits};
pub use listener::{Listener, read_timeout};
pub use rates::SourceRates;
pub use receive::{Receiver, Source};
pub use recorder::{Budget, CapSettings, Recorder, RecorderSettings};
pub(crate) use sockets::{Inherited, Opened, Sockets, inherited};
pub(crate) use unspooler::Unspooler;

/// How many batches fit between a listener and a recorder. With one, the next batch is ready while one is being recorded, and
/// later events join the open batch, where events for the same series are grouped.
pub const QUEUED_BATCHES: usize = 1;
/// The first and the longest pause before a worker retries.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A datagram.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The bytes, up to the limit.
    pub bytes: &'a [u8],
    /// Whether the datagram was longer than the limit.
    pub truncated: bool,
    /// The source address it claims.
    pub source: Source<'a>,
}

impl<'a> From<&'a str> for Received<'a> {
    /// A complete datagram without a source.
    fn from(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), truncated: false, source: Source::default() }
    }
}

/// A batch for a recorder.
#[derive(Debug)]
pub struct Delivery {
    /// The events, all for the recorder's partition.
    pub batch: Batch,
    /// Signals that all events have been recorded or rejected. Only batches from disk have it; a recorder that aborts drops it,
    /// so they stay on disk.
    pub done: Option<oneshot::Sender<()>>,
}

impl From<Batch> for Delivery {
    fn from(batch: Batch) -> Self {
        Self { batch, done: None }
    }
}

/// A clock more than this many nanoseconds behind the stamps must have been set back. A relay that stamps over a million lines
/// per second for long enough also gets this far ahead of its clock.
const AHEAD_MAX: i64 = 30_000_000_000;

/// Stamps for lines without a timestamp. A node's stamps are distinct, so two events by one user in the same datagram stay two
/// events. After its clock has been set back, stamps may repeat.
#[derive(Debug, Default)]
pub struct ArrivalStamps(AtomicI64);

impl ArrivalStamps {
    /// Returns the arrival time in nanoseconds since the epoch, but at least `apart` after the previous stamp.
    pub fn stamp(&self, now: i64, apart: i64) -> i64 {
        let next = |last: i64| match last.saturating_add(apart) {
            next if next > now && next - now <= AHEAD_MAX => next,
            _ => now,
        };
        let update = |last| Some(next(last));
        let last = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        next(last.unwrap_or_else(|last| last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_never_repeat() {
        let stamps = ArrivalStamps::default();
        let stamped = [5, 5, 3, 9].map(|now| stamps.stamp(now, 1));
        assert_eq!(stamped, [5, 6, 7, 9]);
        let stamped = [5000, 5999, 6100].map(|now| stamps.stamp(now, 1000));
        assert_eq!(stamped, [5000, 6000, 7000]);
    }

    #[test]
    fn timestamps_follow_a_clock_that_is_set_back() {
        const HOUR: i64 = 3_600_000_000_000;
        let stamps = ArrivalStamps::default();
        let clock = [2 * HOUR, 2 * HOUR - 1, HOUR, HOUR, HOUR + 7];
        let stamped = clock.map(|now| stamps.stamp(now, 1));
        let expected = [2 * HOUR, 2 * HOUR + 1, HOUR, HOUR + 1, HOUR + 7];
        assert_eq!(stamped, expected);
    }
}
