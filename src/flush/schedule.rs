//! Decides when to check in at a partition and when its minutes may be closed. Pure: the caller passes in the time.

use std::time::Duration;

use tokio::time::Instant;

use super::FlushSettings;
use crate::store::News;

/// Minimum time that all nodes get to record their queued events after a store failure: several times the longest pause
/// between attempts. After a rollback, no node claims anything from the store for at least this long.
pub(super) const SETTLE_MIN: Duration = Duration::from_secs(5);
/// Every node checks the store at least once in this many intervals.
const LOOKS: u32 = 3;
/// The time a partition is checked in every round after it last had work, so that every node learns of closed minutes.
const ACTIVE_MIN: Duration = Duration::from_secs(10);
/// Maximum time between two check-ins at a partition without work.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// Maximum time between check-ins while a partition's minute is only filling up. There is normally one every third round.
const FILLING_MAX: Duration = Duration::from_millis(2500);
const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn looked_within(interval: Duration) -> Duration {
    SETTLE_MIN.max(LOOKS * interval)
}

/// Tracks whether minutes may be closed after a store failure or a start of this node. After an outage, minutes look idle
/// until all nodes have recorded their queued events; closing them earlier would lose events. After a lost connection the
/// store may have been rolled back, so nothing is claimed until every node has had time to restore the closed minutes.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// The last known generation of the store; 0 before the first connection.
    generation: u64,
    closes_from: Option<Instant>,
    /// When claims may be taken over again: by then every live node has checked the store that was replaced or rolled back.
    takes_over_from: Option<Instant>,
    lags_until: Option<Instant>,
}

impl Settling {
    /// Checks whether there is a new connection: the first since this node started, or one made after the store failed.
    pub(super) fn look(&mut self, generation: u64, now: Instant, settings: &FlushSettings) {
        match std::mem::replace(&mut self.generation, generation) {
            before if before == generation => {}
            0 => {
                self.hold(now + settings.grace);
                self.takes_over_from = Some(now + looked_within(settings.interval));
            }
            _ => self.went_back(now, settings),
        }
    }

    pub(super) fn went_back(&mut self, now: Instant, settings: &FlushSettings) {
        self.failed(now, settings);
        self.takes_over_from = Some(now + looked_within(settings.interval));
    }

    pub(super) fn failed(&mut self, now: Instant, settings: &FlushSettings) {
        self.hold(now + settings.grace.max(SETTLE_MIN));
    }

    /// Records that the store's clock jumped by `ahead`. No minute is closed for that long, since it may only look finished.
    pub(super) fn jumped(&mut self, ahead: Duration, now: Instant, settings: &FlushSettings) {
        self.hold(now + ahead.min(settings.max_hold.max(MINUTE + settings.grace)));
    }

    fn hold(&mut self, until: Instant) {
        self.closes_from = self.closes_from.max(Some(until));
    }

    /// Returns whether this node must report lag, which it does while it lags and for a grace period afterwards.
    pub(super) fn reports_lag(&mut self, lags: bool, now: Instant, grace: Duration) -> bool {
        if lags {
            self.lags_until = Some(now + grace.max(SETTLE_MIN));
        }
        self.lags_until.is_some_and(|until| now < until)
    }

    pub(super) fn may_close(&self, now: Instant) -> bool {
        self.closes_from.is_none_or(|from| now >= from)
    }

    pub(super) fn may_take_over(&self, now: Instant) -> bool {
        self.takes_over_from.is_none_or(|from| now >= from)
    }
}

/// Decides when to check in: every round while there is work, less often while a minute is filling up, rarely otherwise.
#[derive(Debug, Default)]
pub(super) struct AskTimes {
    worked: Option<Instant>,
    asked: Option<Instant>,
    fills_until: Option<Instant>,
    /// Whether the backlog may have changed since it was last polled: a check-in found more than a minute that fills up.
    pub(super) found_work: bool,
}

impl AskTimes {
    /// Returns whether to check in now, which is always true if `must` is set.
    pub(super) fn is_due(
        &mut self,
        must: bool,
        has_work: bool,
        now: Instant,
        interval: Duration,
    ) -> bool {
        if must || has_work || self.worked.is_none() {
            self.worked = Some(now);
        }
        let is_late = |asked| now.duration_since(asked) >= QUIET_MAX;
        let is_active = !self.is_quiet(now, interval) || self.asked.is_none_or(is_late);
        let is_due = must || (is_active && !self.fills(now));
        if is_due {
            self.asked = Some(now);
        }
        is_due
    }

    /// Records a reply. If no claim is due, the next check-in is no later than the end of the minute by the store's clock.
    /// In the grace period after that, the minute's first events may still arrive, so the node checks in every round.
    pub(super) fn learn(&mut self, news: &News, now: Instant, interval: Duration, grace: Duration) {
        let into_minute = Duration::from_millis(news.now_ms.rem_euclid(60_000).unsigned_abs());
        let pause = (interval * 5 / 2).min(FILLING_MAX).min(MINUTE.saturating_sub(into_minute));
        let fills = !news.is_due && into_minute >= grace;
        self.fills_until = fills.then(|| now + pause);
        self.found_work |= !fills;
    }

    /// Returns whether no claim can be due yet, because the minute is only filling up.
    pub(super) fn fills(&self, now: Instant) -> bool {
        self.fills_until.is_some_and(|until| now < until)
    }

    pub(super) fn is_quiet(&self, now: Instant, interval: Duration) -> bool {
        let active = ACTIVE_MIN.max(LOOKS * interval);
        self.worked.is_some_and(|worked| now.duration_since(worked) > active)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(7);
    const SETTINGS: FlushSettings = FlushSettings {
        interval: Duration::from_secs(2),
        grace: GRACE,
        max_hold: Duration::ZERO,
        window_hold: Duration::ZERO,
        lease: Duration::ZERO,
        zeros: 0,
    };

    #[test]
    fn local_store_needs_no_settling() {
        let mut settling = Settling::default();
        let now = Instant::now();
        settling.look(0, now, &SETTINGS);
        assert!(settling.may_close(now));
    }

    #[test]
    fn any_failure_starts_the_grace() {
        let now = Instant::now();
        let mut failed = Settling::default();
        failed.failed(now, &SETTINGS);
        let mut started = Settling::default();
        started.look(1, now, &SETTINGS);
        let mut connected_again = Settling::default();
        connected_again.look(1, now - 2 * GRACE, &SETTINGS);
        assert!(connected_again.may_close(now));
        connected_again.look(2, now, &SETTINGS);
        for settling in [failed, started, connected_again] {
            assert!(!settling.may_close(now + GRACE / 2));
            assert!(settling.may_close(now + GRACE));
        }
    }

    #[test]
    fn nothing_is_taken_over_after_a_possible_rollback() {
        let now = Instant::now();
        let interval = SETTINGS.interval;
        let mut settling = Settling::default();
        settling.failed(now, &SETTINGS);
        assert!(settling.may_take_over(now));
        settling.look(1, now, &SETTINGS);
        assert!(!settling.may_take_over(now + SETTLE_MIN));
        assert!(settling.may_take_over(now + 3 * interval));
        settling.look(2, now + 4 * interval, &SETTINGS);
        assert!(!settling.may_take_over(now + 4 * interval));
    }

    #[test]
    fn clock_jump_closes_nothing_early_and_holds_nothing_indefinitely() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut settling = Settling::default();
        settling.jumped(seconds(20), now, &SETTINGS);
        settling.jumped(seconds(10), now, &SETTINGS);
        assert!(!settling.may_close(now + seconds(19)));
        assert!(settling.may_close(now + seconds(20)));
        settling.jumped(seconds(86_400), now, &SETTINGS);
        assert!(!settling.may_close(now + seconds(66)));
        assert!(settling.may_close(now + MINUTE + GRACE));
    }

    #[test]
    fn node_lags_for_the_grace_after_replaying_its_spool() {
        let now = Instant::now();
        let mut settling = Settling::default();
        assert!(!settling.reports_lag(false, now, GRACE));
        assert!(settling.reports_lag(true, now, GRACE));
        assert!(settling.reports_lag(false, now + GRACE / 2, GRACE));
        assert!(!settling.reports_lag(false, now + GRACE, GRACE));
    }

    #[test]
    fn short_grace_applies_only_after_a_start() {
        let now = Instant::now();
        let settings = FlushSettings { grace: Duration::ZERO, ..SETTINGS };
        let mut settling = Settling::default();
        settling.look(1, now, &settings);
        assert!(settling.may_close(now));
        settling.failed(now, &settings);
        assert!(!settling.may_close(now + SETTLE_MIN / 2));
    }

    #[test]
    fn busy_partition_is_checked_each_round_and_idle_one_rarely() {
        let (start, interval) = (Instant::now(), Duration::from_secs(1));
        let mut times = AskTimes::default();
        let mut asked = Vec::new();
        for second in 0..100 {
            let now = start + second * interval;
            // It counts as having work in the first round, and has work again much later.
            if times.is_due(false, second == 90, now, interval) {
                asked.push(second);
            }
        }
        let expected: Vec<u32> = (0..=10).chain([40, 70]).chain(90..100).collect();
        assert_eq!(asked, expected);
    }

    #[test]
    fn long_rounds_do_not_make_a_partition_idle() {
        let (start, interval) = (Instant::now(), Duration::from_secs(20));
        let mut times = AskTimes::default();
        assert!(times.is_due(false, true, start, interval));
        assert!(!times.is_quiet(start + 3 * interval, interval));
        assert!(times.is_quiet(start + 4 * interval, interval));
        let at = start + 4 * interval;
        assert!(times.is_due(false, false, at, interval), "a quiet partition is due");
    }

    #[test]
    fn open_minute_is_checked_every_third_round() {
        let grace = Duration::from_secs(5);
        let (start, interval) = (Instant::now(), Duration::from_secs(1));
        let mut times = AskTimes::default();
        let mut asked = Vec::new();
        for second in 0..75 {
            let now = start + second * interval;
            // The store's clock is half a second behind this node's. After the grace period, another node takes two seconds
            // to claim the minute.
            let now_ms = 120_000 + i64::from(second) * 1000 - 500;
            let is_due = (180_000..187_000).contains(&now_ms);
            if times.is_due(second == 30, true, now, interval) {
                asked.push(second);
                let news = News { now_ms, is_due, ..News::default() };
                times.learn(&news, now, interval, grace);
            }
        }
        // A check-in was forced at 30, so the pauses restart there.
        let filling = (6..30).step_by(3).chain((30..61).step_by(3));
        let expected: Vec<u32> = (0..6).chain(filling).chain(61..69).chain([71, 74]).collect();
        assert_eq!(asked, expected);
    }
}
