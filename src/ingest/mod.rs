//! From datagrams to the store.
//!
//! A [`Listener`] is a thread of its own per socket: it reads datagrams, parses their lines and gathers the
//! events in one open batch a partition. A [`Recorder`] is a task per partition: it takes a batch at a time and
//! keeps at it until the store has it. A channel of [`QUEUED_BATCHES`] lies between the two; while it is
//! full the open batch grows instead, which makes the next transaction cheaper per event. What all batches
//! hold together is bounded, and what comes beyond it is dropped and counted.

mod caps;
mod checksums;
mod dedup;
mod delivery;
mod inherited;
mod listener;
mod parts;
mod rates;
mod receive;
mod recorder;
mod replay;
mod sieve;
mod socket;
mod unspooler;

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub use caps::CapSettings;
pub use dedup::DedupBudget;
pub use delivery::Delivery;
pub use inherited::{InheritError, Inherited, check_all_named, inherited, take_at};
pub use listener::{Listener, ListenerSettings};
pub use rates::SourceRates;
pub use receive::{Received, Receiver};
pub use recorder::{Recorder, RecorderSettings};
pub use replay::ReplayWindow;
pub use sieve::{QueueLimits, Sample, Sieve, SieveSettings};
pub use socket::{BindError, bind};
pub use unspooler::Unspooler;

/// The batches between a listener and a recorder. One: while a batch is recorded the next is ready, and
/// everything later gathers in the open one, where events of a series meet.
pub const QUEUED_BATCHES: usize = 1;

/// Stamps for lines that come without a timestamp. No two are the same in this node, so that two events of a
/// user in one datagram stay two.
#[derive(Debug, Default)]
pub struct ArrivalStamps(AtomicI64);

impl ArrivalStamps {
    /// The time of arrival in nanoseconds since the epoch, or one more than the last where that is not later.
    pub fn stamp(&self, now: i64) -> i64 {
        let next = |last: i64| now.max(last.saturating_add(1));
        let mut last = self.0.load(Ordering::Relaxed);
        loop {
            let stamp = next(last);
            match self
                .0
                .compare_exchange_weak(last, stamp, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return stamp,
                Err(current) => last = current,
            }
        }
    }
}

/// How long a worker that cannot go on waits at least before it tries again.
const RETRY_MIN: Duration = Duration::from_millis(50);
/// How long it waits at most.
const RETRY_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_never_repeat() {
        let stamps = ArrivalStamps::default();
        assert_eq!([5, 5, 3, 9].map(|now| stamps.stamp(now)), [5, 6, 7, 9]);
    }
}
