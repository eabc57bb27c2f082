//! [`Rest`]: whether a partition is left alone in a round. Pure: the caller brings the time.
//!
//! All nodes ask every partition that has something to do, once a round. One that has nothing is asked now and then only:
//! that is most of them where series are few, and all of them at night.

use std::time::Duration;

use tokio::time::Instant;

/// How long a partition is asked after it last had something to do, at least: until every node has heard what was closed.
const AWAKE_MIN: Duration = Duration::from_secs(10);
/// The same, in rounds.
const ROUNDS: u32 = 3;
/// How long it is left alone at most.
const ALONE_MAX: Duration = Duration::from_secs(30);

/// When a partition was last asked, and why. A new one has something to do.
#[derive(Debug, Default)]
pub(super) struct Rest {
    worked: Option<Instant>,
    asked: Option<Instant>,
}

impl Rest {
    /// Whether it is asked now.
    pub(super) fn is_asked(&mut self, has_work: bool, now: Instant, interval: Duration) -> bool {
        if has_work || self.worked.is_none() {
            self.worked = Some(now);
        }
        let is_due = |asked| now.duration_since(asked) >= ALONE_MAX;
        let is_asked = !self.rests(now, interval) || self.asked.is_none_or(is_due);
        if is_asked {
            self.asked = Some(now);
        }
        is_asked
    }

    /// Whether it is asked now and then only.
    pub(super) fn rests(&self, now: Instant, interval: Duration) -> bool {
        let awake = AWAKE_MIN.max(ROUNDS * interval);
        self.worked
            .is_some_and(|worked| now.duration_since(worked) > awake)
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
            if rest.is_asked(second == 90, now, interval) {
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
        assert!(rest.is_asked(true, start, interval));
        assert!(!rest.rests(start + 3 * interval, interval));
        assert!(rest.rests(start + 4 * interval, interval));
        assert!(
            rest.is_asked(false, start + 4 * interval, interval),
            "it is due"
        );
    }
}
