//! Moves events from the sockets to the store. [`Listener`] threads read the sockets and send batches to one [`Recorder`]
//! task per partition, through a channel. While the channel is full, the listeners' open batches grow, which makes the next
//! transaction cheaper per event. Events beyond the memory limits go to disk, or are dropped and counted.

mod address;
mod holder;
mod line_batcher;
mod listener;
mod rates;
mod receive;
mod recorder;
mod sockets;
mod unspooler;
mod writes;

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
pub(crate) use writes::{Refused, SeriesQuota, Terms, Writes, Written};

/// Capacity of the channel to a recorder, in batches. While one batch is waiting, later events join an open batch.
pub const QUEUED_BATCHES: usize = 1;
/// Minimum pause before a worker retries. The pause doubles with each failure, up to [`RETRY_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A datagram that was read from a socket.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// The content, up to the maximum length of a datagram.
    pub bytes: &'a [u8],
    /// Whether the datagram was longer than the maximum, so that the rest of it is missing.
    pub truncated: bool,
    /// The source address, which the sender may have spoofed.
    pub source: Source<'a>,
}

impl<'a> From<&'a str> for Received<'a> {
    /// Returns a complete datagram without a source address.
    fn from(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), truncated: false, source: Source::default() }
    }
}

/// A batch for a recorder.
#[derive(Debug)]
pub struct Delivery {
    /// The events, all for the recorder's partition.
    pub batch: Batch,
    /// Whether the events are on disk, and stay there until they have been recorded.
    pub is_spooled: bool,
    /// Notified once all events are processed, or dropped on abort.
    pub done: Vec<oneshot::Sender<()>>,
}

impl From<Batch> for Delivery {
    fn from(batch: Batch) -> Self {
        Self { batch, is_spooled: false, done: Vec::new() }
    }
}

/// Maximum number of nanoseconds by which a stamp may be ahead of the clock. If the last stamp is further ahead, the clock
/// has probably been set back, so the stamps follow the clock again.
const AHEAD_MAX: i64 = 30_000_000_000;

/// Generates the timestamps ("stamps") of lines that have none. All stamps of a node are distinct, so that two events by the
/// same user in the same datagram count as two events. Only after the node's clock has been set back may stamps repeat.
#[derive(Debug, Default)]
pub struct ArrivalStamps(AtomicI64);

impl ArrivalStamps {
    /// Returns the next stamp: `now` or, if that is later, the previous stamp plus `apart` (all in nanoseconds).
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
