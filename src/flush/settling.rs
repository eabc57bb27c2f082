//! Whether minutes may be closed after the store was away. Pure: the caller brings the time.
//!
//! A store that comes back looks quiet although it is not: nothing arrived while it was away, and what waits in
//! the nodes is not recorded yet. A minute that is closed at that moment loses these events. So for a while
//! after the last trouble no minute is closed; claims that lapse are taken over all the same. A node that starts
//! cannot know what was before, and waits as well: after a power cut all come back at the same time, and some have
//! events on disk.

use std::time::Duration;

use tokio::time::Instant;

/// The least time that all nodes get to record what waited: a few times the longest pause between attempts.
const SETTLE_MIN: Duration = Duration::from_secs(5);

/// When the store was last seen in trouble.
#[derive(Debug, Default)]
pub(super) struct Settling {
    /// As it was last seen; 0 before there was a connection.
    generation: u64,
    /// When there was one.
    started: Option<Instant>,
    trouble: Option<Instant>,
    /// When this node was last seen to be behind.
    behind: Option<Instant>,
}

impl Settling {
    /// Looks at the connection by which events are recorded. Another one than before tells of trouble; the first one
    /// tells that this node is new. A store that is of this process alone has none.
    pub(super) fn look(&mut self, generation: u64, now: Instant) {
        match std::mem::replace(&mut self.generation, generation) {
            before if before == generation => {}
            0 => self.started = Some(now),
            _ => self.trouble = Some(now),
        }
    }

    /// The store did not answer this worker.
    pub(super) const fn failed(&mut self, now: Instant) {
        self.trouble = Some(now);
    }

    /// Whether this node counts as behind: while it is, and as long after as a minute must be quiet.
    pub(super) fn is_behind(&mut self, behind: bool, now: Instant, grace: Duration) -> bool {
        if behind {
            self.behind = Some(now);
        }
        self.behind
            .is_some_and(|last| now.duration_since(last) < grace.max(SETTLE_MIN))
    }

    /// Whether minutes that are over and quiet may be closed now.
    pub(super) fn may_close(&self, now: Instant, grace: Duration) -> bool {
        let is_past = |at: Option<Instant>, long: Duration| {
            at.is_none_or(|at| now.duration_since(at) >= long)
        };
        is_past(self.started, grace) && is_past(self.trouble, grace.max(SETTLE_MIN))
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
    fn a_node_that_brought_what_was_on_disk_is_behind_for_the_grace() {
        let now = Instant::now();
        let mut settling = Settling::default();
        assert!(!settling.is_behind(false, now, GRACE));
        assert!(settling.is_behind(true, now, GRACE));
        assert!(settling.is_behind(false, now + GRACE / 2, GRACE));
        assert!(!settling.is_behind(false, now + GRACE, GRACE));
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
