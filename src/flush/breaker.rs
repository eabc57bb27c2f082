//! [`Breaker`]: the pauses of an output that fails. Pure: the caller passes the time and the randomness.

use std::time::Duration;

use tokio::time::Instant;

/// The longest pause after the first failure.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause that is chosen here.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The longest pause that a server may ask for.
const ASKED_MAX: Duration = Duration::from_secs(60);

/// The health of an output.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    /// Nothing was written since the start.
    is_untried: bool,
    /// The number of writes that failed in a row.
    pub(super) failures: u32,
    retry_at: Option<Instant>,
}

/// Whether to write now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Advice {
    /// The output worked when it was last used.
    Write,
    /// It failed, and may be probed: one node at a time, one write.
    Probe,
    /// It failed; leave it alone for this long.
    Wait(Duration),
}

impl Breaker {
    /// Returns the breaker of an output that nothing was written to.
    pub(super) fn untried() -> Self {
        Self { is_untried: true, ..Self::default() }
    }

    pub(super) fn advice(&self, now: Instant) -> Advice {
        match self.retry_at {
            None => Advice::Write,
            Some(at) if at <= now => Advice::Probe,
            Some(at) => Advice::Wait(at - now),
        }
    }

    /// Records a write that succeeded. Returns whether the last one failed.
    pub(super) const fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.is_untried = false;
        self.retry_at.take().is_some()
    }

    /// Records a write that failed. Returns how long to leave the output alone: twice as long as after the failure before,
    /// with `jitter` (0.5 to 1) so that nodes do not try in step, and at least as long as the server asked.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        asked: Option<Duration>,
        jitter: f64,
    ) -> Duration {
        let longest = PAUSE_MIN.saturating_mul(1 << self.failures.min(8)).min(PAUSE_MAX);
        let pause = longest.mul_f64(jitter).max(asked.unwrap_or_default().min(ASKED_MAX));
        self.failures = self.failures.saturating_add(1);
        self.is_untried = false;
        self.retry_at = Some(now + pause);
        pause
    }

    /// Returns whether the output accepted points when it was last used.
    pub(super) const fn is_known_well(&self) -> bool {
        !self.is_untried && self.retry_at.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_a_success_ends_them() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        assert_eq!(breaker.advice(now), Advice::Write);
        assert!(breaker.is_known_well());
        let pauses: Vec<_> = (0..6).map(|_| breaker.failed(now, None, 1.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(breaker.failures, 6);
        assert_eq!(breaker.advice(now), Advice::Wait(Duration::from_secs(10)));
        assert_eq!(breaker.advice(now + Duration::from_secs(10)), Advice::Probe);
        assert!(!breaker.is_known_well());
        assert!(breaker.succeeded());
        assert!(!breaker.succeeded());
        assert_eq!(breaker.failures, 0);
        assert!(breaker.is_known_well());
        assert_eq!(breaker.advice(now), Advice::Write);
    }

    #[test]
    fn an_output_that_nothing_was_written_to_takes_writes_and_is_not_known_to_be_well() {
        let mut breaker = Breaker::untried();
        assert_eq!(breaker.advice(Instant::now()), Advice::Write);
        assert!(!breaker.is_known_well());
        assert!(!breaker.succeeded(), "it is no news that it takes points");
        assert!(breaker.is_known_well());
    }

    #[test]
    fn a_server_may_ask_for_a_longer_pause_within_reason() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        let asked = |secs| Some(Duration::from_secs(secs));
        assert_eq!(breaker.failed(now, asked(30), 0.5).as_secs(), 30);
        assert_eq!(breaker.failed(now, asked(86_400), 0.5).as_secs(), 60);
    }
}
