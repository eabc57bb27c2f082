//! What a node knows of the store's clock: it showed a time at some instant between question and answer. So an answer that comes
//! late tells little, and is no clock that jumped. Pure: the caller brings the time.

use tokio::time::Instant;

use crate::store::CLOCK_TOLERANCE_MS;

/// The least and the most that the clock can show at an instant, in ms since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreClock {
    at: Instant,
    low_ms: i64,
    high_ms: i64,
}

impl StoreClock {
    /// The clock showed this time between a question and its answer.
    pub(super) fn showed(ms: i64, asked: Instant, answered: Instant) -> Self {
        Self { at: answered, low_ms: ms, high_ms: ms + millis_between(asked, answered) }
    }

    /// Returns when this was heard last.
    pub(super) const fn heard_at(self) -> Instant {
        self.at
    }

    /// Returns what the clock shows at this later instant, in ms since the epoch.
    pub(super) fn expected_ms(self, now: Instant) -> i64 {
        let at_now = self.at(now);
        i64::midpoint(at_now.low_ms, at_now.high_ms)
    }

    /// Takes in what it showed later. Returns how far it jumped ahead at most, in ms; 0 if all can be explained without a jump.
    pub(super) fn update(&mut self, later: Self) -> i64 {
        let known = self.at(later.at);
        let low_ms = known.low_ms.max(later.low_ms);
        let high_ms = known.high_ms.min(later.high_ms);
        *self = if low_ms <= high_ms { Self { low_ms, high_ms, ..later } } else { later };
        if later.low_ms - known.high_ms > CLOCK_TOLERANCE_MS {
            later.high_ms - known.low_ms
        } else {
            0
        }
    }

    fn at(self, now: Instant) -> Self {
        let passed_ms = millis_between(self.at, now);
        Self { at: now, low_ms: self.low_ms + passed_ms, high_ms: self.high_ms + passed_ms }
    }
}

pub(super) fn millis_between(from: Instant, to: Instant) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A clock that shows `ms` when it is asked at `asked` and answers so many ms later.
    fn showed(start: Instant, ms: i64, asked: u64, answered: u64) -> StoreClock {
        let at = |ms| start + Duration::from_millis(ms);
        StoreClock::showed(ms, at(asked), at(answered))
    }

    #[test]
    fn an_answer_that_comes_late_is_no_jump_and_hides_none() {
        let start = Instant::now();
        let mut clock = showed(start, 100_000, 0, 2);
        // It was read at once, and the answer took 9 s; or the question did.
        for (read_ms, asked) in [(101_000, 1000), (121_000, 12_000)] {
            assert_eq!(clock.update(showed(start, read_ms, asked, asked + 9000)), 0);
            let next = asked + 9500;
            let right_ms = 100_000 + i64::try_from(next).unwrap();
            assert_eq!(clock.update(showed(start, right_ms, next, next + 1)), 0);
        }
        // It jumped by 5 s while an answer took 6 s: the next shows it.
        assert_eq!(clock.update(showed(start, 135_000, 30_000, 36_000)), 0);
        let jumped_ms = clock.update(showed(start, 142_000, 37_000, 37_001));
        assert!((5000..5010).contains(&jumped_ms), "{jumped_ms}");
    }

    #[test]
    fn a_clock_that_jumps_is_followed() {
        let start = Instant::now();
        let mut clock = showed(start, 5000, 0, 10);
        let later = start + Duration::from_secs(1);
        assert_eq!(clock.expected_ms(later), 6000 - 5);
        let jumped_ms = clock.update(showed(start, 96_000, 1000, 1010));
        assert!((90_000..90_021).contains(&jumped_ms), "{jumped_ms}");
        assert_eq!(clock.update(showed(start, 97_000, 2000, 2010)), 0);
        // Back is no jump ahead, and the next time is right again.
        assert_eq!(clock.update(showed(start, 8000, 3000, 3010)), 0);
        assert_eq!(clock.update(showed(start, 9000, 4000, 4010)), 0);
        assert!(clock.update(showed(start, 99_000, 5000, 5010)) > 88_000);
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let start = Instant::now();
        let mut clock = showed(start, 0, 0, 1);
        for minute in 1..10_000_i64 {
            // 5 ms a minute fast.
            let ms = 60_005 * minute;
            let asked = 60_000 * minute.unsigned_abs();
            assert_eq!(clock.update(showed(start, ms, asked, asked + 1)), 0);
        }
    }
}
