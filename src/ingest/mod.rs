//! From datagrams to the store: a [`Listener`] is a thread for each socket, and a [`Recorder`] a task for each partition. A
//! channel of [`QUEUED_BATCHES`] connects the two; while it is full the open batch grows, which makes the next transaction
//! cheaper per event. Events beyond the bound of all batches go to the disk, or are dropped and counted.

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

/// The batches between a listener and a recorder. One: while a batch is recorded the next is ready, and later events
/// join the open one, where events of a series meet.
pub const QUEUED_BATCHES: usize = 1;
/// The first and the longest pause of a worker before it tries again.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// A datagram.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Its bytes, up to the limit.
    pub bytes: &'a [u8],
    /// Whether it was longer.
    pub truncated: bool,
    /// The claimed source.
    pub source: Source<'a>,
}

impl<'a> From<&'a str> for Received<'a> {
    /// A whole datagram without a source.
    fn from(text: &'a str) -> Self {
        Self { bytes: text.as_bytes(), truncated: false, source: Source::default() }
    }
}

/// A batch for a recorder.
#[derive(Debug)]
pub struct Delivery {
    /// The events, all of the recorder's partition.
    pub batch: Batch,
    /// Signals that all of them are recorded or rejected. Only batches that are on disk have it; a recorder that aborts drops it,
    /// and they stay on disk.
    pub done: Option<oneshot::Sender<()>>,
}

impl From<Batch> for Delivery {
    fn from(batch: Batch) -> Self {
        Self { batch, done: None }
    }
}

/// A clock that is more than these nanoseconds behind the stamps was set back. A relay that stamps more than a million lines a second
/// for long gets ahead of it, too.
const AHEAD_MAX: i64 = 30_000_000_000;

/// Stamps for lines without a timestamp. The stamps of a node differ, so that two events of a user in one datagram stay two; but
/// after its clock was set back stamps may repeat.
#[derive(Debug, Default)]
pub struct ArrivalStamps(AtomicI64);

impl ArrivalStamps {
    /// Returns the time of arrival in nanoseconds since the epoch, but at least `apart` after the last stamp.
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
