//! Time and chance of a node: [`Clock`], [`Rng`] and [`Throttle`]. They are handed in, so that a simulation sets the one and
//! repeats the other.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// What stands for a difference of clocks that is not known.
const UNKNOWN_MS: i64 = i64::MIN;

/// The wall clock of a node: for stamps and ages, never for closing a minute.
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
    /// This machine's.
    fn default() -> Self {
        Self::new(|| chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX))
    }
}

impl Clock {
    /// A clock that reads nanoseconds since the epoch.
    #[must_use]
    pub fn new(now_nanos: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        Self { now_nanos: Box::new(now_nanos), store_ahead_ms: AtomicI64::new(UNKNOWN_MS) }
    }

    /// Nanoseconds since the epoch.
    #[must_use]
    pub fn now_nanos(&self) -> i64 {
        (self.now_nanos)()
    }

    /// Returns how far the store's clock was ahead of this one when it was last read; `None` until then.
    #[must_use]
    pub fn store_ahead_ms(&self) -> Option<i64> {
        Some(self.store_ahead_ms.load(Ordering::Relaxed)).filter(|ms| *ms != UNKNOWN_MS)
    }

    /// The same in seconds; 0 until it is known.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a difference of clocks in ms is far below 2^52"
    )]
    pub fn store_ahead_seconds(&self) -> f64 {
        self.store_ahead_ms().unwrap_or(0) as f64 / 1000.0
    }

    /// Returns the time of the store's clock in ms since the epoch, as far as it is known.
    #[must_use]
    pub fn store_now_ms(&self) -> i64 {
        self.store_ms_at(self.now_nanos())
    }

    /// Returns what the store's clock showed at a time of this clock.
    #[must_use]
    pub fn store_ms_at(&self, nanos: i64) -> i64 {
        let ahead_ms = self.store_ahead_ms.load(Ordering::Relaxed);
        nanos.div_euclid(1_000_000).saturating_add(ahead_ms)
    }

    /// Keeps how far the store's clock is ahead.
    pub fn set_store_ahead_ms(&self, ms: i64) {
        self.store_ahead_ms.store(ms, Ordering::Relaxed);
    }
}

/// The random numbers of a node.
#[derive(Debug)]
pub struct Rng(Mutex<StdRng>);

impl Default for Rng {
    /// Seeded by the system.
    fn default() -> Self {
        Self::new(rand::random())
    }
}

impl Rng {
    /// The same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(StdRng::seed_from_u64(seed)))
    }

    /// A factor from 0.5 to 1 for a pause, so that nodes do not try in step.
    #[must_use]
    pub fn jitter(&self) -> f64 {
        let mut rng = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rng.random_range(0.5..1.0)
    }
}

/// Lets something be logged, or done, at once and then again only after a while.
#[derive(Debug)]
pub struct Throttle {
    interval: Duration,
    last: Option<Instant>,
}

impl Throttle {
    /// At most once in this time.
    #[must_use]
    pub const fn new(interval: Duration) -> Self {
        let last = None;
        Self { interval, last }
    }

    /// Whether it is time. Then the next time is an interval from now.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.last.is_none_or(|at| at.elapsed() >= self.interval);
        if is_due {
            self.last = Some(Instant::now());
        }
        is_due
    }

    /// Makes it time at once. Answers whether it was ever due since the last reset.
    pub const fn reset(&mut self) -> bool {
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
    async fn it_is_time_at_once_and_again_after_the_interval() {
        let mut throttle = Throttle::new(Duration::from_secs(60));
        assert_eq!([throttle.is_due(), throttle.is_due()], [true, false]);
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!([throttle.is_due(), throttle.is_due()], [true, false]);
        assert_eq!([throttle.reset(), throttle.reset()], [true, false]);
        assert!(throttle.is_due());
    }
}
