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

/// How long, and how much, the recorders of a node keep together (`store.replay_window`).
#[derive(Debug)]
pub struct ReplayWindow {
    span: Duration,
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl ReplayWindow {
    /// Keeps batches for this long after they were recorded, and at most so many bytes of them, roughly.
    #[must_use]
    pub const fn new(span: Duration, bytes_max: usize) -> Self {
        Self {
            span,
            bytes_max,
            bytes: AtomicUsize::new(0),
        }
    }
}

/// The last batches of one recorder.
#[derive(Debug)]
pub(super) struct Replay {
    window: Arc<ReplayWindow>,
    batches: VecDeque<(Instant, Batch)>,
    /// The store's generation that confirmed all of them.
    generation: u64,
}

impl Replay {
    pub(super) const fn new(window: Arc<ReplayWindow>) -> Self {
        Self {
            window,
            batches: VecDeque::new(),
            generation: 0,
        }
    }

    /// Keeps a batch that was recorded now, in the store of this generation or a later one. Returns false when memory is
    /// short and batches had to go before their time. None goes because of its age: the recording may have waited for a
    /// store that forgot the ones before it.
    pub(super) fn keep(&mut self, batch: Batch, generation: u64, now: Instant) -> bool {
        if self.batches.is_empty() {
            self.generation = generation;
        }
        if self.window.span.is_zero() {
            return true;
        }
        let bytes = batch.bytes();
        self.batches.push_back((now, batch));
        let mut all = self.window.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let mut in_time = true;
        while all > self.window.bytes_max && !self.batches.is_empty() {
            in_time = false;
            all -= self.drop_oldest();
        }
        in_time
    }

    /// Whether the store of this generation has all of them.
    pub(super) const fn is_confirmed_by(&self, generation: u64) -> bool {
        self.generation == generation
    }

    /// The store of this generation has all of them.
    pub(super) const fn confirmed_by(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Drops what was recorded longer ago than the window, once the store has all of them.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some((recorded, _)) = self.batches.front()
            && now.duration_since(*recorded) > self.window.span
        {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> usize {
        let bytes = self
            .batches
            .pop_front()
            .map_or(0, |(_, batch)| batch.bytes());
        self.window.bytes.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    /// How many events there are.
    pub(super) fn events(&self) -> u64 {
        self.batches
            .iter()
            .map(|(_, batch)| batch.events() as u64)
            .sum()
    }

    /// How many batches there are.
    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Takes the oldest batch; [`Replay::put_last`] puts it back.
    pub(super) fn take_first(&mut self) -> Option<Batch> {
        self.batches.pop_front().map(|(_, batch)| batch)
    }

    /// Puts a batch to the end, as recorded now: the store that confirmed it again may forget it, too.
    pub(super) fn put_last(&mut self, batch: Batch, now: Instant) {
        self.batches.push_back((now, batch));
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        while !self.batches.is_empty() {
            self.drop_oldest();
        }
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
        replay.expire(now + Duration::from_secs(11));
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

    /// A batch that joins earlier ones may be in another store than they are.
    #[test]
    fn only_the_first_batch_sets_the_generation_that_has_all() {
        let window = Arc::new(ReplayWindow::new(Duration::from_secs(10), 1 << 20));
        let mut replay = Replay::new(window);
        let now = Instant::now();
        replay.keep(batch("u"), 1, now);
        replay.keep(batch("v"), 2, now);
        assert!(replay.is_confirmed_by(1) && !replay.is_confirmed_by(2));
        replay.confirmed_by(2);
        assert!(replay.is_confirmed_by(2));
    }
}
