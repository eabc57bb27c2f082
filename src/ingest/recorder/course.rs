//! [`Course`]: what a recorder does next with a transaction, and whether its node lags. Pure: the time is an argument.
//!
//! ```text
//!         begin                 failed
//!   idle ───────▶ attempting ───────────▶ pausing
//!    ▲             │  ▲   ▲ │ replaced       │
//!    │ done,emptied│  │   └─┘                │ the pause is over
//!    └─────────────┘  └──────────────────────┘
//! ```
//!
//! `abort` leads from everywhere to idle. The node lags from a failure, an answer that takes too long, or a store that forgot,
//! until the queue is drained.

use std::time::Duration;

use tokio::time::Instant;

use crate::ingest::{RETRY_MAX, RETRY_MIN};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Input {
    /// A transaction begins.
    Begin,
    /// The store has all of the transaction.
    Done,
    /// Nothing of the transaction is left to be recorded.
    Emptied,
    /// The store is another one than when the attempt began.
    Replaced,
    /// The store did not take the transaction; the pause is this share of the longest.
    Failed { jitter: f64 },
    /// Time has passed.
    Tick,
    /// The node may not wait any longer.
    Abort,
    /// The store may have forgotten what it confirmed, which is recorded again.
    Forgotten,
    /// No batch waits.
    Drained,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Try to record the transaction.
    Attempt,
    /// Go on with the next.
    Finish,
    /// Give the transaction up.
    Abort,
}

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Course {
    phase: Phase,
    /// A node that waits longer than this for an answer lags.
    lagging_after: Duration,
    lagging: bool,
    /// The failed attempts since the store took a transaction.
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Attempting { lags_at: Instant },
    Pausing { until: Instant },
}

impl Course {
    pub(super) const fn new(lagging_after: Duration) -> Self {
        Self { phase: Phase::Idle, lagging_after, lagging: false, failures: 0 }
    }

    pub(super) const fn is_lagging(&self) -> bool {
        self.lagging
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    /// When a [`Input::Tick`] will change something.
    pub(super) const fn wakes_at(&self) -> Option<Instant> {
        match self.phase {
            Phase::Attempting { lags_at } if !self.lagging => Some(lags_at),
            Phase::Pausing { until } => Some(until),
            Phase::Idle | Phase::Attempting { .. } => None,
        }
    }

    /// Takes the input, and returns what to do; `None`: wait on.
    pub(super) fn on(&mut self, input: Input, now: Instant) -> Option<Next> {
        match (self.phase, input) {
            (Phase::Idle, Input::Begin) | (Phase::Attempting { .. }, Input::Replaced) => {
                Some(self.attempt(now))
            }
            (Phase::Pausing { until }, Input::Tick) if now >= until => Some(self.attempt(now)),
            (Phase::Attempting { lags_at }, Input::Tick) => {
                self.lagging |= now >= lags_at;
                None
            }
            (Phase::Attempting { .. }, Input::Failed { jitter }) => {
                self.lagging = true;
                self.failures = self.failures.saturating_add(1);
                let pause = RETRY_MIN.saturating_mul(1 << self.failures.min(8));
                let until = now + pause.min(RETRY_MAX).mul_f64(jitter);
                self.phase = Phase::Pausing { until };
                None
            }
            (Phase::Attempting { .. }, Input::Done | Input::Emptied) => {
                self.phase = Phase::Idle;
                if input == Input::Done {
                    self.failures = 0;
                }
                Some(Next::Finish)
            }
            (Phase::Attempting { .. } | Phase::Pausing { .. }, Input::Abort) => {
                self.phase = Phase::Idle;
                Some(Next::Abort)
            }
            (Phase::Idle, Input::Forgotten) => {
                self.lagging = true;
                None
            }
            (Phase::Idle, Input::Drained) => {
                self.lagging = false;
                None
            }
            _ => None,
        }
    }

    fn attempt(&mut self, now: Instant) -> Next {
        let lags_at = now + self.lagging_after;
        self.phase = Phase::Attempting { lags_at };
        Next::Attempt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAGGING_AFTER: Duration = Duration::from_secs(1);

    /// Each phase with each input, just before the phase ends and when it ends. Pairs without a row change nothing.
    #[test]
    fn every_input_has_its_effect_in_every_phase() {
        let ends = Instant::now() + Duration::from_secs(60);
        let early = ends - Duration::from_millis(1);
        let (idle, attempting) = (Phase::Idle, Phase::Attempting { lags_at: ends });
        let pausing = Phase::Pausing { until: ends };
        let again = Phase::Attempting { lags_at: ends + LAGGING_AFTER };
        let paused = Phase::Pausing { until: ends + 2 * RETRY_MIN };
        let failed = Input::Failed { jitter: 1.0 };
        let rows = [
            (idle, Input::Begin, again, None, Some(Next::Attempt)),
            (idle, Input::Forgotten, idle, Some(true), None),
            (idle, Input::Drained, idle, Some(false), None),
            (attempting, Input::Done, idle, None, Some(Next::Finish)),
            (attempting, Input::Emptied, idle, None, Some(Next::Finish)),
            (attempting, Input::Replaced, again, None, Some(Next::Attempt)),
            (attempting, failed, paused, Some(true), None),
            (attempting, Input::Tick, attempting, Some(true), None),
            (attempting, Input::Abort, idle, None, Some(Next::Abort)),
            (pausing, Input::Tick, again, None, Some(Next::Attempt)),
            (pausing, Input::Abort, idle, None, Some(Next::Abort)),
        ];
        let inputs = [
            (Input::Begin, ends),
            (Input::Done, ends),
            (Input::Emptied, ends),
            (Input::Replaced, ends),
            (failed, ends),
            (Input::Tick, early),
            (Input::Tick, ends),
            (Input::Abort, ends),
            (Input::Forgotten, ends),
            (Input::Drained, ends),
        ];
        for phase in [idle, attempting, pausing] {
            for ((input, now), lagging) in inputs.iter().flat_map(|it| [(*it, false), (*it, true)])
            {
                let mut course = Course::new(LAGGING_AFTER);
                (course.phase, course.lagging) = (phase, lagging);
                let next = course.on(input, now);
                let row = rows.iter().find(|row| (row.0, row.1, ends) == (phase, input, now));
                let expected = row
                    .map_or((phase, lagging, None), |row| (row.2, row.3.unwrap_or(lagging), row.4));
                let outcome = (course.phase, course.lagging, next);
                assert_eq!(outcome, expected, "{phase:?}, {input:?}, lagging: {lagging}");
            }
        }
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_when_a_transaction_was_taken() {
        let mut now = Instant::now();
        let mut course = Course::new(LAGGING_AFTER);
        for lags_at in [Some(now + LAGGING_AFTER), None] {
            assert_eq!(course.on(Input::Begin, now), Some(Next::Attempt));
            assert_eq!(course.wakes_at(), lags_at, "not to lag again");
            for pause_ms in [100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000, 2000] {
                assert_eq!(course.on(Input::Failed { jitter: 0.5 }, now), None);
                now += Duration::from_millis(pause_ms / 2);
                assert_eq!(course.wakes_at(), Some(now));
                assert_eq!(course.on(Input::Tick, now), Some(Next::Attempt));
            }
            assert_eq!(course.on(Input::Emptied, now), Some(Next::Finish));
            assert_eq!(course.on(Input::Begin, now), Some(Next::Attempt));
            assert_eq!(course.on(Input::Failed { jitter: 0.5 }, now), None);
            now += Duration::from_secs(1);
            assert_eq!(course.on(Input::Tick, now), Some(Next::Attempt));
            assert_eq!(course.on(Input::Done, now), Some(Next::Finish));
        }
    }
}
