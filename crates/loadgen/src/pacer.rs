//! Limits the rate with a token bucket. Events are paid for after they are sent, so the state of the bucket is the time at
//! which its debt will be paid off. A sleep lasts at least [`SLOT`], because shorter ones are inefficient. The burst after a
//! sleep makes up for oversleeping by up to [`BURST`], so that the average rate is preserved.

use std::time::{Duration, Instant};

const SLOT: Duration = Duration::from_millis(1);
/// The maximum oversleep that a burst makes up for. A larger burst could overflow the receiver's buffer.
const BURST: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct Pacer {
    /// Events per second; 0 for no limit.
    rate: u64,
    /// The time at which all events sent so far will be paid for.
    due: Instant,
}

impl Pacer {
    pub(super) const fn new(rate: u64, now: Instant) -> Self {
        Self { rate, due: now }
    }

    /// Returns how long to sleep before sending; `None` to send now.
    pub(super) fn sleep_before_sending(&self, now: Instant) -> Option<Duration> {
        let debt = self.due.saturating_duration_since(now);
        (!debt.is_zero()).then(|| debt.max(SLOT))
    }

    pub(super) fn sent(&mut self, events: usize, now: Instant) {
        if self.rate == 0 {
            return;
        }
        let price_nanos = events as u128 * 1_000_000_000 / u128::from(self.rate);
        let price = Duration::from_nanos(u64::try_from(price_nanos).unwrap_or(u64::MAX));
        let oldest = now.checked_sub(BURST).unwrap_or(now);
        self.due = self.due.max(oldest) + price;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates one second of sending in which every sleep is too long by `oversleep`. Returns the number of events sent.
    fn sent_in_a_second(rate: u64, oversleep: Duration) -> usize {
        let start = Instant::now();
        let (mut now, mut events) = (start, 0);
        let mut pacer = Pacer::new(rate, now);
        while now < start + Duration::from_secs(1) {
            if let Some(sleep) = pacer.sleep_before_sending(now) {
                now += sleep + oversleep;
            } else {
                pacer.sent(15, now);
                events += 15;
                now += Duration::from_micros(2);
            }
        }
        events
    }

    #[test]
    fn the_rate_holds_on_average() {
        for rate in [100, 1_000, 30_000, 500_000, 2_000_000] {
            for oversleep_micros in [0, 60, 3_000] {
                let events = sent_in_a_second(rate, Duration::from_micros(oversleep_micros));
                let wanted = usize::try_from(rate).unwrap();
                let slack = 30 + wanted / 100;
                assert!(
                    events.abs_diff(wanted) <= slack,
                    "{events} of {wanted}, {oversleep_micros} µs"
                );
            }
        }
    }

    #[test]
    fn a_long_interruption_is_not_caught_up_at_once() {
        let start = Instant::now();
        let mut pacer = Pacer::new(1_000, start);
        let later = start + Duration::from_secs(60);
        let mut burst = 0;
        while pacer.sleep_before_sending(later).is_none() {
            pacer.sent(1, later);
            burst += 1;
        }
        assert_eq!(burst, 11);
    }

    #[test]
    fn no_rate_means_no_limit() {
        let now = Instant::now();
        let mut pacer = Pacer::new(0, now);
        pacer.sent(usize::MAX, now);
        assert_eq!(pacer.sleep_before_sending(now), None);
    }
}
