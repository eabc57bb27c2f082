//! [`Rest`]: whether a partition is left alone in a round. Pure: the caller brings the time.
//!
//! All nodes ask every partition where something is due, once a round. One whose minute only fills is asked less often, until
//! the minute ends; one that has nothing to do now and then: that is most of them where series are few, and all at night.

use std::time::Duration;

use tokio::time::Instant;

use crate::store::News;

/// How long a partition is asked after it last had something to do, at least: until every node has heard what was closed.
const AWAKE_MIN: Duration = Duration::from_secs(10);
/// The same, in rounds.
const ROUNDS: u32 = 3;
/// How long it is left alone at most.
const ALONE_MAX: Duration = Duration::from_secs(30);
/// A partition where nothing is due is asked in every third round, if that is no later than this.
const SPARED_MAX: Duration = Duration::from_millis(2500);
const MINUTE_MS: i64 = 60_000;

/// When a partition was last asked, and why. A new one has something to do.
#[derive(Debug, Default)]
pub(super) struct Rest {
    worked: Option<Instant>,
    asked: Option<Instant>,
    /// Until when nothing will be due there, by what it answered last.
    spared_until: Option<Instant>,
}

impl Rest {
    /// Whether it is asked now. One that `must` be is, whatever it answered.
    pub(super) fn is_asked(
        &mut self,
        must: bool,
        has_work: bool,
        now: Instant,
        interval: Duration,
    ) -> bool {
        if must || has_work || self.worked.is_none() {
            self.worked = Some(now);
        }
        let is_due = |asked| now.duration_since(asked) >= ALONE_MAX;
        let is_awake = !self.rests(now, interval) || self.asked.is_none_or(is_due);
        let is_asked = must || (is_awake && !self.is_spared(now));
        if is_asked {
            self.asked = Some(now);
        }
        is_asked
    }

    /// Takes in what it answered. Who hears that nothing is due asks again when the minute is over by the store's clock, or
    /// before. In the grace after that events of the minute may still come, where there were none yet: nobody is spared then.
    pub(super) fn heard(&mut self, news: &News, now: Instant, interval: Duration, grace: Duration) {
        let millis = |ms: i64| Duration::from_millis(ms.unsigned_abs());
        let into_minute = news.now_ms.rem_euclid(MINUTE_MS);
        let spared = (interval * 5 / 2).min(SPARED_MAX);
        let spared = spared.min(millis(MINUTE_MS - into_minute));
        let is_spared = !news.is_due && millis(into_minute) >= grace;
        self.spared_until = is_spared.then(|| now + spared);
    }

    /// Whether nothing can be due there yet.
    pub(super) fn is_spared(&self, now: Instant) -> bool {
        self.spared_until.is_some_and(|until| now < until)
    }

    /// Whether it is asked now and then only.
    pub(super) fn rests(&self, now: Instant, interval: Duration) -> bool {
        let awake = AWAKE_MIN.max(ROUNDS * interval);
        self.worked.is_some_and(|worked| now.duration_since(worked) > awake)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_asked_each_round_while_it_has_work_and_a_while_after_and_then_now_and_then() {
        let (start, interval) = (Instant::now(), Duration::from_secs(1));
        let mut rest = Rest::default();
        let mut asked = Vec::new();
        for second in 0..100 {
            let now = start + second * interval;
            // Work for half a second, and again much later.
            if rest.is_asked(false, second == 90, now, interval) {
                asked.push(second);
            }
        }
        let expected: Vec<u32> = (0..=10).chain([40, 70]).chain(90..100).collect();
        assert_eq!(asked, expected);
    }

    #[test]
    fn long_rounds_are_no_reason_to_leave_it_alone() {
        let (start, interval) = (Instant::now(), Duration::from_secs(20));
        let mut rest = Rest::default();
        assert!(rest.is_asked(false, true, start, interval));
        assert!(!rest.rests(start + 3 * interval, interval));
        assert!(rest.rests(start + 4 * interval, interval));
        assert!(rest.is_asked(false, false, start + 4 * interval, interval), "it is due");
    }

    #[test]
    fn a_minute_that_fills_is_looked_at_in_every_third_round_until_it_ends() {
        const GRACE: Duration = Duration::from_secs(5);
        let (start, interval) = (Instant::now(), Duration::from_secs(1));
        let mut rest = Rest::default();
        let mut asked = Vec::new();
        for second in 0..75 {
            let now = start + second * interval;
            // Its clock is half a second behind ours; another node claims the minute after the grace, and is done in two seconds.
            let now_ms = 120_000 + i64::from(second) * 1000 - 500;
            let is_due = (180_000..187_000).contains(&now_ms);
            if rest.is_asked(second == 30, true, now, interval) {
                asked.push(second);
                let news = News { now_ms, is_due, ..News::default() };
                rest.heard(&news, now, interval, GRACE);
            }
        }
        // At 30 it had to be asked, and from then on it is spared anew.
        let filling = (6..30).step_by(3).chain((30..61).step_by(3));
        let expected: Vec<u32> = (0..6).chain(filling).chain(61..69).chain([71, 74]).collect();
        assert_eq!(asked, expected);
    }
}
