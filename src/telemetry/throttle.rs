//! [`Throttle`]: what is said, or done, at once and then again only after a while.

use std::time::Duration;

use tokio::time::Instant;

/// See the module.
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

    /// What was said is over: it is time at once. Answers whether it was ever said.
    pub const fn reset(&mut self) -> bool {
        self.last.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
