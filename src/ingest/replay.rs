//! [`Replay`]: the batches of the last seconds, to be recorded again.
//!
//! Redis replicates asynchronously: a replica that is promoted may lack the last writes that its master confirmed.
//! Recording is idempotent, so a recorder keeps its last batches for a while, and records all of them again when the
//! store may have forgotten something.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Batch;

/// The limits of the batches that all recorders of a node keep (`store.replay_window`).
#[derive(Debug)]
pub struct ReplayWindow {
    span: Duration,
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl ReplayWindow {
    /// Keeps batches for `span` after they were recorded, and at most about `bytes_max` bytes of them.
    #[must_use]
    pub const fn new(span: Duration, bytes_max: usize) -> Self {
        Self { span, bytes_max, bytes: AtomicUsize::new(0) }
    }
}

/// The last batches of one recorder.
#[derive(Debug)]
pub(super) struct Replay {
    window: Arc<ReplayWindow>,
    /// In order of confirmation.
    batches: VecDeque<Kept>,
}

#[derive(Debug)]
struct Kept {
    batch: Batch,
    /// The last confirmation.
    confirmed: Instant,
    /// The store's generation then.
    generation: u64,
}

impl Replay {
    pub(super) const fn new(window: Arc<ReplayWindow>) -> Self {
        Self { window, batches: VecDeque::new() }
    }

    /// Keeps a batch that was recorded now, in the store of this generation or a later one. Returns false when memory is short and
    /// it had to drop batches before their time. It drops none because of its age: the recording may have waited for a store that
    /// forgot the earlier ones.
    pub(super) fn keep(&mut self, batch: Batch, generation: u64, now: Instant) -> bool {
        if self.window.span.is_zero() {
            return true;
        }
        let bytes = batch.bytes();
        self.put_last(batch, generation, now);
        let mut all = self.window.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut in_time = true;
        while all > self.window.bytes_max
            && let Some(kept) = self.batches.pop_front()
        {
            in_time = false;
            let bytes = kept.batch.bytes();
            self.window.bytes.fetch_sub(bytes, Ordering::Relaxed);
            all -= bytes;
        }
        in_time
    }

    /// Drops batches that the store of this generation confirmed longer ago than the window. It has answered since then.
    pub(super) fn expire(&mut self, generation: u64, now: Instant) {
        let ReplayWindow { span, bytes, .. } = &*self.window;
        self.batches.retain(|kept| {
            let is_safe =
                kept.generation == generation && now.duration_since(kept.confirmed) > *span;
            if is_safe {
                bytes.fetch_sub(kept.batch.bytes(), Ordering::Relaxed);
            }
            !is_safe
        });
    }

    /// Returns the number of events.
    pub(super) fn events(&self) -> u64 {
        self.batches.iter().map(|kept| kept.batch.events() as u64).sum()
    }

    /// Returns the number of batches.
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Takes the first batch that another generation than this one confirmed; [`Replay::put_last`] puts it back.
    pub(super) fn take_forgotten(&mut self, generation: u64) -> Option<Batch> {
        let is_forgotten = |kept: &Kept| kept.generation != generation;
        let at = self.batches.iter().position(is_forgotten)?;
        self.batches.remove(at).map(|kept| kept.batch)
    }

    /// Appends a batch as confirmed now: the store that confirmed it again may forget it, too.
    pub(super) fn put_last(&mut self, batch: Batch, generation: u64, now: Instant) {
        self.batches.push_back(Kept { batch, confirmed: now, generation });
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        let bytes = self.batches.iter().map(|kept| kept.batch.bytes()).sum();
        self.window.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Minute;

    fn batch(user: &str) -> Batch {
        let mut batch = Batch::default();
        assert!(batch.push(Minute::of_nanos(0), "a=1", user, 0));
        batch
    }

    #[test]
    fn a_batch_is_kept_for_the_window_and_no_longer() {
        let window = Arc::new(ReplayWindow::new(Duration::from_secs(10), 1 << 20));
        let mut replay = Replay::new(Arc::clone(&window));
        let now = Instant::now();
        assert!(replay.keep(batch("u"), 1, now));
        assert!(replay.keep(batch("v"), 1, now + Duration::from_secs(6)));
        replay.expire(1, now + Duration::from_secs(11));
        assert_eq!(replay.len(), 1);
        drop(replay);
        assert_eq!(window.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_batch_goes_when_memory_is_short() {
        let bytes = batch("u").bytes();
        let window = Arc::new(ReplayWindow::new(Duration::from_secs(10), 2 * bytes));
        let mut replay = Replay::new(window);
        let now = Instant::now();
        assert!(replay.keep(batch("u"), 1, now));
        assert!(replay.keep(batch("v"), 1, now));
        assert!(!replay.keep(batch("w"), 1, now));
        assert_eq!(replay.len(), 2);
    }

    #[test]
    fn a_window_of_nothing_keeps_nothing() {
        let mut replay = Replay::new(Arc::new(ReplayWindow::new(Duration::ZERO, 1 << 20)));
        assert!(replay.keep(batch("u"), 1, Instant::now()));
        assert_eq!(replay.len(), 0);
    }

    /// The store is replaced in the middle of a replay that takes longer than the window.
    #[test]
    fn what_was_recorded_again_longer_ago_than_the_window_is_not_recorded_a_third_time() {
        let second = Duration::from_secs(1);
        let window = Arc::new(ReplayWindow::new(10 * second, 1 << 20));
        let mut replay = Replay::new(window);
        let mut now = Instant::now();
        for _ in 0..20 {
            replay.keep(batch("u"), 1, now);
        }
        let mut again = |replay: &mut Replay, generation| {
            let batch = replay.take_forgotten(generation)?;
            now += second;
            replay.put_last(batch, generation, now);
            replay.expire(generation, now);
            Some(())
        };
        for _ in 0..15 {
            again(&mut replay, 2).unwrap();
        }
        // The five others, and the batches of the last ten seconds.
        let recorded = std::iter::from_fn(|| again(&mut replay, 3)).count();
        assert_eq!(recorded, 5 + 11);
        // The server is the same.
        assert!(again(&mut replay, 3).is_none());
    }
}
