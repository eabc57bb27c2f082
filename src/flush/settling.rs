//! Whether minutes may be closed after the store was away. Pure: the caller brings the time.
//!
//! A store that comes back looks idle although it is not: nothing arrived while it was away, and what waits in
//! the nodes is not recorded yet. A minute that is closed at that moment loses these events. So for a while
//! after the last trouble no minute is closed; claims that lapse are taken over all the same. A node that starts
//! cannot know what was before, and waits as well: after a power cut all come back at the same time, and some have
//! events on disk.
//!
//! A connection that was lost may lead to a store that went back. Until every node has had the time to hand back what it
//! knows to be closed, nothing is claimed at all.

use std::time::Duration;

use tokio::time::Instant;

/// The least time that all nodes get to record what waited: a few times the longest pause between attempts. Nothing is claimed from
/// a store for as long after it went back.
pub(super) const SETTLE_MIN: Duration = Duration::from_secs(5);
/// So many intervals are enough for every node to look at the store.
const LOOKS: u32 = 3;

/// How long it takes every node that is alive, and looks at the store at this interval, to have looked at it.
pub(super) fn looked_within(interval: Duration) -> Duration {
    SETTLE_MIN.max(LOOKS * interval)
}

/// When the store was last seen in trouble.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// As it was last seen; 0 before there was a connection.
    generation: u64,
    /// When there was one.
    started: Option<Instant>,
    trouble: Option<Instant>,
    /// When the store was last seen to be another one, or to have gone back.
    changed: Option<Instant>,
    /// Until when nothing is closed because the store's clock jumped.
    hold_until: Option<Instant>,
    /// When this node was last seen to be lagging.
    lagging: Option<Instant>,
}

impl Settling {
    /// Looks at the connection by which events are recorded. Another one than before means trouble, the first one that
    /// this node is new. A store that is of this process alone has none.
    pub(super) fn look(&mut self, generation: u64, now: Instant) {
        match std::mem::replace(&mut self.generation, generation) {
            before if before == generation => {}
            0 => {
                self.started = Some(now);
                self.changed = Some(now);
            }
            _ => self.went_back(now),
        }
    }

    /// The store may have gone back.
    pub(super) const fn went_back(&mut self, now: Instant) {
        self.trouble = Some(now);
        self.changed = Some(now);
    }

    /// The store's clock jumped ahead by this much, of which `hold_max` counts: minutes look over that are not.
    pub(super) fn jumped(&mut self, ahead: Duration, hold_max: Duration, now: Instant) {
        self.hold_until = self.hold_until.max(Some(now + ahead.min(hold_max)));
    }

    /// The store did not answer this worker.
    pub(super) const fn failed(&mut self, now: Instant) {
        self.trouble = Some(now);
    }

    /// Whether this node counts as lagging: while it is, and as long after as a minute must be idle.
    pub(super) fn is_lagging(&mut self, lagging: bool, now: Instant, grace: Duration) -> bool {
        if lagging {
            self.lagging = Some(now);
        }
        self.lagging.is_some_and(|last| now.duration_since(last) < grace.max(SETTLE_MIN))
    }

    /// Whether minutes that are over and idle may be closed now.
    pub(super) fn may_close(&self, now: Instant, grace: Duration) -> bool {
        let is_past = |at: Option<Instant>, long: Duration| {
            at.is_none_or(|at| now.duration_since(at) >= long)
        };
        is_past(self.started, grace)
            && is_past(self.trouble, grace.max(SETTLE_MIN))
            && self.hold_until.is_none_or(|until| now >= until)
    }

    /// Whether lapsed claims may be taken over: every node that lives has looked at the store since it changed.
    pub(super) fn may_take_over(&self, now: Instant, interval: Duration) -> bool {
        self.changed.is_none_or(|at| now.duration_since(at) >= looked_within(interval))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(7);

    #[test]
    fn a_store_of_this_process_needs_no_time() {
        let mut settling = Settling::default();
        let now = Instant::now();
        settling.look(0, now);
        assert!(settling.may_close(now, GRACE));
    }

    #[test]
    fn trouble_of_any_kind_is_followed_by_the_grace() {
        let now = Instant::now();
        let mut failed = Settling::default();
        failed.failed(now);
        let mut started = Settling::default();
        started.look(1, now);
        let mut connected_again = Settling::default();
        connected_again.look(1, now - 2 * GRACE);
        assert!(connected_again.may_close(now, GRACE));
        connected_again.look(2, now);
        for settling in [failed, started, connected_again] {
            assert!(!settling.may_close(now + GRACE / 2, GRACE));
            assert!(settling.may_close(now + GRACE, GRACE));
        }
    }

    #[test]
    fn nothing_is_taken_over_from_a_store_that_may_have_gone_back() {
        let now = Instant::now();
        let interval = Duration::from_secs(2);
        let mut settling = Settling::default();
        settling.failed(now);
        assert!(settling.may_take_over(now, interval));
        settling.look(1, now);
        assert!(!settling.may_take_over(now + SETTLE_MIN, interval));
        assert!(settling.may_take_over(now + 3 * interval, interval));
        settling.look(2, now + 4 * interval);
        assert!(!settling.may_take_over(now + 4 * interval, interval));
    }

    #[test]
    fn a_clock_that_jumps_closes_nothing_early_and_holds_nothing_for_ever() {
        let now = Instant::now();
        let seconds = Duration::from_secs;
        let mut settling = Settling::default();
        settling.jumped(seconds(20), seconds(60), now);
        assert!(!settling.may_close(now + seconds(19), GRACE));
        assert!(settling.may_close(now + seconds(20), GRACE));
        settling.jumped(seconds(86_400), seconds(60), now);
        assert!(!settling.may_close(now + seconds(59), GRACE));
        assert!(settling.may_close(now + seconds(60), GRACE));
    }

    #[test]
    fn a_node_that_brought_what_was_on_disk_lags_for_the_grace() {
        let now = Instant::now();
        let mut settling = Settling::default();
        assert!(!settling.is_lagging(false, now, GRACE));
        assert!(settling.is_lagging(true, now, GRACE));
        assert!(settling.is_lagging(false, now + GRACE / 2, GRACE));
        assert!(!settling.is_lagging(false, now + GRACE, GRACE));
    }

    #[test]
    fn a_short_grace_is_enough_after_a_start_only() {
        let now = Instant::now();
        let mut settling = Settling::default();
        settling.look(1, now);
        assert!(settling.may_close(now, Duration::ZERO));
        settling.failed(now);
        assert!(!settling.may_close(now + SETTLE_MIN / 2, Duration::ZERO));
    }
}
