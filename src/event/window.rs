//! The span of time in which events are accepted.

use std::time::Duration;

use super::Rejection;

/// Accepts events from `max_age` before now to `max_future` after it.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    max_age_nanos: i64,
    max_future_nanos: i64,
}

impl Window {
    /// A window of these two spans around now. Spans beyond 292 years are unbounded.
    #[must_use]
    pub fn new(max_age: Duration, max_future: Duration) -> Self {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        Self {
            max_age_nanos: nanos(max_age),
            max_future_nanos: nanos(max_future),
        }
    }

    /// Judges an event's timestamp by the clock, both in nanoseconds since the epoch.
    pub const fn judge(&self, timestamp: i64, now: i64) -> Result<(), Rejection> {
        if timestamp < now.saturating_sub(self.max_age_nanos) {
            Err(Rejection::TooOld)
        } else if timestamp > now.saturating_add(self.max_future_nanos) {
            Err(Rejection::TooFarAhead)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_accepted_and_nothing_beyond() {
        let window = Window::new(Duration::from_nanos(100), Duration::from_nanos(10));
        let now = 1_000;
        assert_eq!(window.judge(900, now), Ok(()));
        assert_eq!(window.judge(899, now), Err(Rejection::TooOld));
        assert_eq!(window.judge(1_010, now), Ok(()));
        assert_eq!(window.judge(1_011, now), Err(Rejection::TooFarAhead));
    }

    #[test]
    fn an_unbounded_window_accepts_every_instant() {
        let window = Window::new(Duration::MAX, Duration::MAX);
        for timestamp in [-1_000_000_000_000_000_000, 0, i64::MAX] {
            assert_eq!(window.judge(timestamp, 1_480_876_707_352_348_928), Ok(()));
        }
    }
}
