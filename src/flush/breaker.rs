//! [`Breaker`]: decides how long to back off from a failing output. Pure: the caller passes in the time and the randomness.

use std::time::Duration;

use tokio::time::Instant;

/// The backoff after the first failure, before jitter. It doubles with each failure, up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// Maximum pause that a server may request; longer requests are shortened.
const ASKED_MAX: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Breaker {
    pub(super) is_known_well: bool,
    /// The number of consecutive failed writes.
    pub(super) failures: u32,
    pub(super) retry_at: Option<Instant>,
}

impl Breaker {
    /// Returns how long to back off, or `None` if the last write did not fail. At zero, one node may write a probe.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        self.retry_at.map(|at| at.saturating_duration_since(now))
    }

    /// Records a successful write. Returns whether the previous one failed.
    pub(super) const fn succeeded(&mut self) -> bool {
        self.failures = 0;
        self.is_known_well = true;
        self.retry_at.take().is_some()
    }

    /// Records a failed write. Returns the pause, multiplied by `jitter` (0.5 to 1) but at least what the server requested.
    pub(super) fn failed(
        &mut self,
        now: Instant,
        asked: Option<Duration>,
        jitter: f64,
    ) -> Duration {
        let longest = PAUSE_MIN.saturating_mul(1 << self.failures.min(8)).min(PAUSE_MAX);
        let pause = longest.mul_f64(jitter).max(asked.unwrap_or_default().min(ASKED_MAX));
        self.failures = self.failures.saturating_add(1);
        self.is_known_well = false;
        self.retry_at = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn back_off_grows_until_a_success() {
        let mut breaker = Breaker { is_known_well: true, ..Breaker::default() };
        let now = Instant::now();
        assert_eq!(breaker.pause(now), None);
        assert!(breaker.is_known_well);
        let pauses: Vec<_> = (0..6).map(|_| breaker.failed(now, None, 1.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 10, 10]);
        assert_eq!(breaker.failures, 6);
        assert_eq!(breaker.pause(now), Some(Duration::from_secs(10)));
        assert_eq!(breaker.pause(now + Duration::from_secs(10)), Some(Duration::ZERO));
        assert!(!breaker.is_known_well);
        assert!(breaker.succeeded());
        assert!(!breaker.succeeded());
        assert_eq!(breaker.failures, 0);
        assert!(breaker.is_known_well);
        assert_eq!(breaker.pause(now), None);
    }

    #[test]
    fn untried_output_takes_writes_and_is_not_known_to_be_up() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.pause(Instant::now()), None);
        assert!(!breaker.is_known_well);
        assert!(!breaker.succeeded(), "the first success is not a recovery");
        assert!(breaker.is_known_well);
    }

    #[test]
    fn retry_after_is_bounded() {
        let mut breaker = Breaker::default();
        let now = Instant::now();
        let asked = |secs| Some(Duration::from_secs(secs));
        assert_eq!(breaker.failed(now, asked(30), 0.5).as_secs(), 30);
        assert_eq!(breaker.failed(now, asked(86_400), 0.5).as_secs(), 60);
    }
}
