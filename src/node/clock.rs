//! [`Clock`], [`Rng`] and [`Throttle`]. The clock and the random numbers are injected, so that simulations are repeatable.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

use super::lock;

const UNKNOWN_MS: i64 = i64::MIN;

/// A node's wall clock, used for timestamps and ages, and its difference from the store's clock, which closes minutes.
pub struct Clock {
    now_nanos: Box<dyn Fn() -> i64 + Send + Sync>,
    store_ahead_ms: AtomicI64,
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(|| chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX))
    }
}

impl Clock {
    /// Creates a clock from a function that returns nanoseconds since the epoch.
    #[must_use]
    pub fn new(now_nanos: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { now_nanos: Box::new(now_nanos), store_ahead_ms: AtomicI64::new(UNKNOWN_MS) }
    }

    /// Returns the current time in nanoseconds since the epoch.
    #[must_use]
    pub fn now_nanos(&self) -> i64 {
        (self.now_nanos)()
    }

    pub(crate) fn store_ahead_ms(&self) -> Option<i64> {
        Some(self.store_ahead_ms.load(Ordering::Relaxed)).filter(|ms| *ms != UNKNOWN_MS)
    }

    #[expect(clippy::cast_precision_loss, reason = "a clock difference in ms is far below 2^52")]
    pub(crate) fn store_ahead_seconds(&self) -> f64 {
        self.store_ahead_ms().unwrap_or(0) as f64 / 1000.0
    }

    pub(crate) fn store_now_ms(&self) -> i64 {
        self.store_ms_at(self.now_nanos())
    }

    /// Converts a time on this clock to the store's clock, in ms since the epoch.
    pub(crate) fn store_ms_at(&self, nanos: i64) -> i64 {
        let ahead_ms = self.store_ahead_ms.load(Ordering::Relaxed);
        nanos.div_euclid(1_000_000).saturating_add(ahead_ms)
    }

    pub(crate) fn set_store_ahead_ms(&self, ms: i64) {
        self.store_ahead_ms.store(ms, Ordering::Relaxed);
    }
}

/// The random number generator of a node.
#[derive(Debug)]
pub struct Rng(Mutex<StdRng>);

impl Default for Rng {
    fn default() -> Self {
        Self::new(rand::random())
    }
}

impl Rng {
    /// Creates a generator from a seed, which determines all its numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// Returns a random factor from 0.5 to 1 for a pause, so that nodes do not retry in lockstep.
    pub(crate) fn jitter(&self) -> f64 {
        lock(&self.0).random_range(0.5..1.0)
    }
}

#[derive(Debug)]
pub(crate) struct Throttle {
    interval: Duration,
    last: Option<Instant>,
}

impl Default for Throttle {
    fn default() -> Self {
        Self::new(Duration::from_secs(60))
    }
}

impl Throttle {
    /// Creates a throttle for an action that is due immediately, and then at most once per interval.
    pub(crate) const fn new(interval: Duration) -> Self {
        Self { interval, last: None }
    }

    /// Returns whether the action is due and, if so, starts the next interval.
    pub(crate) fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|at| at.elapsed() >= self.interval);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }

    /// Makes the action due immediately. Returns whether it has been due since the last reset.
    pub(crate) const fn reset(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_the_random_numbers() {
        let jitters = |seed| {
            let rng = Rng::new(seed);
            [(); 8].map(|()| rng.jitter())
        };
        assert_eq!(jitters(1).map(f64::to_bits), jitters(1).map(f64::to_bits));
        assert!(jitters(2).iter().all(|jitter| (0.5..1.0).contains(jitter)));
    }

    #[tokio::test(start_paused = true)]
    async fn interval_is_due_at_once_and_then_periodically() {
        let mut throttle = Throttle::new(Duration::from_secs(60));
        assert_eq!([throttle.is_due(), throttle.is_due()], [true, false]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!([throttle.is_due(), throttle.is_due()], [true, false]);
        assert_eq!([throttle.reset(), throttle.reset()], [true, false]);
        assert!(throttle.is_due());
    }
}
