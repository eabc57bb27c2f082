//! What was recorded in the last seconds, to be recorded again.
//!
//! Redis replicates asynchronously: a replica that is promoted may lack the last writes that its master
//! confirmed. Recording is idempotent, so a recorder keeps its last batches for a while and gives all of them
//! again when the store may have forgotten something.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Batch;

/// How long, and how much, the recorders of a node keep together.
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
}

impl Replay {
    pub(super) const fn new(window: Arc<ReplayWindow>) -> Self {
        Self {
            window,
            batches: VecDeque::new(),
        }
    }

    /// Keeps a batch that was recorded now. Answers false when memory is short and batches had to go before
    /// their time. None goes because of its age: the recording may have waited for a store that forgot the ones
    /// before it.
    pub(super) fn keep(&mut self, batch: Batch, now: Instant) -> bool {
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

    /// Lets go of what was recorded longer ago than the window. Only for when the store is the one that has
    /// them all.
    pub(super) fn forget(&mut self, now: Instant) {
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

    /// The oldest batch, which comes back by [`Replay::put_last`].
    pub(super) fn take_first(&mut self) -> Option<Batch> {
        self.batches.pop_front().map(|(_, batch)| batch)
    }

    /// Puts a batch that was taken to the end, as recorded now: the store that took it again may be lost too.
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
    fn keeps_for_the_window_and_no_longer() {
        let window = Arc::new(ReplayWindow::new(Duration::from_secs(10), 1 << 20));
        let mut replay = Replay::new(Arc::clone(&window));
        let now = Instant::now();
        assert!(replay.keep(batch("u"), now));
        assert!(replay.keep(batch("v"), now + Duration::from_secs(6)));
        replay.forget(now + Duration::from_secs(11));
        assert_eq!(replay.len(), 1);
        drop(replay);
        assert_eq!(window.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_goes_when_memory_is_short() {
        let bytes = batch("u").bytes();
        let window = Arc::new(ReplayWindow::new(Duration::from_secs(10), 2 * bytes));
        let mut replay = Replay::new(window);
        let now = Instant::now();
        assert!(replay.keep(batch("u"), now));
        assert!(replay.keep(batch("v"), now));
        assert!(!replay.keep(batch("w"), now));
        assert_eq!(replay.len(), 2);
    }

    #[test]
    fn a_window_of_nothing_keeps_nothing() {
        let mut replay = Replay::new(Arc::new(ReplayWindow::new(Duration::ZERO, 1 << 20)));
        assert!(replay.keep(batch("u"), Instant::now()));
        assert_eq!(replay.len(), 0);
    }
}
