//! [`Replay`]: keeps recent batches, which a recorder re-records if a promoted replica is missing its master's last writes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::event::Batch;

/// Maximum memory per known user, in bytes: a table takes 17 bytes per slot, and only 7 of 16 are full after it has grown.
const USER_BYTES_MAX: usize = 40;

/// A memory limit in bytes, shared by all recorders of a node.
#[derive(Debug)]
pub struct Budget {
    max: usize,
    used: AtomicUsize,
}

impl Budget {
    /// Creates a budget of `max` bytes.
    #[must_use]
    pub const fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    /// Creates a budget for this many known users (`input.dedup_users`).
    #[must_use]
    pub const fn of_users(users: usize) -> Self {
        Self::new(users.saturating_mul(USER_BYTES_MAX))
    }

    /// Reserves this many bytes. Returns false, without reserving anything, if the budget does not have that many left.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let used = self.used.fetch_add(bytes, Ordering::Relaxed);
        let fits = used.saturating_add(bytes) <= self.max;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    pub(super) fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Replay {
    window: Duration,
    budget: Arc<Budget>,
    /// In the order in which the store acknowledged them, so that older generations come first.
    batches: VecDeque<Kept>,
    /// The number of events in `batches`.
    events: u64,
}

#[derive(Debug)]
pub(super) struct Kept {
    pub(super) batch: Batch,
    budget: Arc<Budget>,
    confirmed: Instant,
    generation: u64,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.budget.release(self.batch.bytes());
    }
}

impl Replay {
    pub(super) const fn new(window: Duration, budget: Arc<Budget>) -> Self {
        Self { window, budget, batches: VecDeque::new(), events: 0 }
    }

    /// Keeps a batch that has just been recorded. Returns false if memory is so short that batches had to be dropped early.
    /// Does not expire old batches, because this batch may have waited for a store that has lost the earlier batches.
    pub(super) fn keep(&mut self, batch: Batch, generation: u64, now: Instant) -> bool {
        if self.window.is_zero() {
            return true;
        }
        let mut in_time = true;
        while !self.budget.reserve(batch.bytes()) {
            in_time = false;
            if self.remove(0).is_none() {
                return false;
            }
        }
        let budget = Arc::clone(&self.budget);
        self.push(Kept { batch, budget, confirmed: now, generation });
        in_time
    }

    fn push(&mut self, kept: Kept) {
        self.events += kept.batch.events() as u64;
        self.batches.push_back(kept);
    }

    fn remove(&mut self, place: usize) -> Option<Kept> {
        let kept = self.batches.remove(place)?;
        self.events -= kept.batch.events() as u64;
        Some(kept)
    }

    /// Drops the batches that this generation of the store acknowledged longer ago than the replay window.
    pub(super) fn expire(&mut self, generation: u64, now: Instant) {
        let Some(first) = self.batches.iter().position(|kept| kept.generation == generation) else {
            return;
        };
        let window = self.window;
        let is_old = |kept: &Kept| now.duration_since(kept.confirmed) > window;
        while self.batches.get(first).is_some_and(is_old) {
            self.remove(first);
        }
    }

    pub(super) const fn events(&self) -> u64 {
        self.events
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    /// Removes and returns the first batch that a different generation acknowledged, or `None` if there is none.
    pub(super) fn take_forgotten(&mut self, generation: u64) -> Option<Kept> {
        self.batches.front().filter(|kept| kept.generation != generation)?;
        self.remove(0)
    }

    /// Puts back a batch that has been re-recorded, as acknowledged by this generation at `now`.
    pub(super) fn put_back(&mut self, kept: Kept, generation: u64, now: Instant) {
        let mut kept = kept;
        (kept.generation, kept.confirmed) = (generation, now);
        self.push(kept);
    }
}

#[cfg(test)]
impl Budget {
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) const fn max(&self) -> usize {
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Minute;

    fn replay(window: Duration, bytes: usize) -> Replay {
        Replay::new(window, Arc::new(Budget::new(bytes)))
    }

    fn batch(user: &str) -> Batch {
        let mut batch = Batch::default();
        assert!(batch.push(Minute::of_nanos(0), "a=1", user, 0));
        batch
    }

    #[test]
    fn batch_is_kept_for_the_window() {
        let mut replay = replay(Duration::from_secs(10), 1 << 20);
        let now = Instant::now();
        assert!(replay.keep(batch("u"), 1, now));
        assert!(replay.keep(batch("v"), 1, now + Duration::from_secs(6)));
        replay.expire(1, now + Duration::from_secs(11));
        assert_eq!(replay.len(), 1);
        assert_eq!(replay.budget.used(), batch("v").bytes());
    }

    #[test]
    fn oldest_batch_is_evicted_when_memory_is_short() {
        let bytes = batch("u").bytes();
        let mut replay = replay(Duration::from_secs(10), 2 * bytes);
        let now = Instant::now();
        assert!(replay.keep(batch("u"), 1, now));
        assert!(replay.keep(batch("v"), 1, now));
        assert!(!replay.keep(batch("w"), 1, now));
        assert_eq!(replay.len(), 2);
    }

    #[test]
    fn an_empty_window_keeps_no_batch() {
        let mut replay = replay(Duration::ZERO, 1 << 20);
        assert!(replay.keep(batch("u"), 1, Instant::now()));
        assert_eq!(replay.len(), 0);
    }

    /// The store is replaced in the middle of a replay that takes longer than the window.
    #[test]
    fn a_batch_recorded_again_before_the_window_is_not_recorded_a_third_time() {
        let second = Duration::from_secs(1);
        let mut replay = replay(10 * second, 1 << 20);
        let mut now = Instant::now();
        for _ in 0..20 {
            replay.keep(batch("u"), 1, now);
        }
        let mut again = |replay: &mut Replay, generation| {
            let batch = replay.take_forgotten(generation)?;
            now += second;
            replay.put_back(batch, generation, now);
            replay.expire(generation, now);
            Some(())
        };
        for _ in 0..15 {
            again(&mut replay, 2).unwrap();
        }
        // The five batches not yet re-recorded, and those re-recorded in the last ten seconds.
        let recorded = std::iter::from_fn(|| again(&mut replay, 3)).count();
        assert_eq!(recorded, 5 + 11);
        // The generation has not changed.
        assert!(again(&mut replay, 3).is_none());
    }
}
