//! [`History`]: totals of the last minutes, to compute rates and recent totals.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// The period of recent totals.
pub(super) const RECENT: Duration = Duration::from_secs(300);
/// The period of rates.
const RATED: Duration = Duration::from_secs(10);

/// Totals with their times, oldest first.
#[derive(Debug)]
pub struct History<T>(VecDeque<(Instant, T)>);

/// Totals of an earlier moment.
#[derive(Debug, Clone, Copy)]
pub struct Earlier<T> {
    /// Time since then.
    pub ago: Duration,
    /// The totals at that moment.
    pub totals: T,
}

impl<T: Copy + Default> History<T> {
    /// The history of a process that began now and has counted nothing.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self([(now, T::default())].into())
    }

    /// Adds the present totals and removes those older than the longest period.
    pub fn add(&mut self, now: Instant, totals: T) {
        while (self.0.get(1)).is_some_and(|(at, _)| now - *at >= RECENT) {
            self.0.pop_front();
        }
        self.0.push_back((now, totals));
    }

    /// Returns the totals at the start of the period of rates.
    #[must_use]
    pub fn rated(&self, now: Instant) -> Earlier<T> {
        self.before(now, RATED)
    }

    /// Returns the totals at the start of the period of recent totals.
    #[must_use]
    pub fn recent(&self, now: Instant) -> Earlier<T> {
        self.before(now, RECENT)
    }

    fn before(&self, now: Instant, span: Duration) -> Earlier<T> {
        let is_before = |(at, _): &&(Instant, T)| now - *at >= span;
        let found = self.0.iter().rev().find(is_before).or(self.0.front());
        let (at, totals) = found.copied().unwrap_or((now, T::default()));
        Earlier { ago: now - at, totals }
    }
}

impl<T> Earlier<T> {
    /// Returns the rate per second since then, to a tenth.
    #[must_use]
    pub fn rate(&self, now: u64, then: u64) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
        let events = now.saturating_sub(then) as f64;
        (events / self.ago.as_secs_f64().max(0.001) * 10.0).round() / 10.0
    }
}
