//! [`Course`]: what a recorder does next with a transaction, and whether its node lags. Pure: the time is an argument.
//!
//! ```text
//!         begin                 failed
//!   idle ───────▶ attempting ───────────▶ pausing
//!    ▲             │  ▲   ▲ │ replaced       │
//!    │    done     │  │   └─┘                │ the pause is over
//!    └─────────────┘  └──────────────────────┘
//! ```
//!
//! `abort` leads from everywhere to idle. The node lags from a failure, or an answer that takes too long, until the
//! queue is drained.

use std::time::Duration;

use tokio::time::Instant;

use crate::ingest::{RETRY_MAX, RETRY_MIN};

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Input {
    /// A transaction begins.
    Begin,
    /// The store has all of the transaction, or nothing of it is left to be recorded.
    Done,
    /// The store is another one than when the attempt began.
    Replaced,
    /// The store did not take the transaction; the pause is this share of the longest.
    Failed { jitter: f64 },
    /// Time has passed.
    Tick,
    /// The node may not wait any longer.
    Abort,
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
    /// The failed attempts of the transaction.
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
        Self {
            phase: Phase::Idle,
            lagging_after,
            lagging: false,
            failures: 0,
        }
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
            (Phase::Idle, Input::Begin) => {
                self.failures = 0;
                self.attempt(now)
            }
            (Phase::Attempting { .. }, Input::Replaced) => self.attempt(now),
            (Phase::Pausing { until }, Input::Tick) if now >= until => self.attempt(now),
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
            (Phase::Attempting { .. }, Input::Done) => {
                self.phase = Phase::Idle;
                Some(Next::Finish)
            }
            (Phase::Attempting { .. } | Phase::Pausing { .. }, Input::Abort) => {
                self.phase = Phase::Idle;
                Some(Next::Abort)
            }
            (Phase::Idle, Input::Drained) => {
                self.lagging = false;
                None
            }
            _ => None,
        }
    }

    fn attempt(&mut self, now: Instant) -> Option<Next> {
        let lags_at = now + self.lagging_after;
        self.phase = Phase::Attempting { lags_at };
        Some(Next::Attempt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every phase and input: the phase then, whether the node lags (`-`: as before), and what is next. The time of a
    /// tick is just before, or when, the phase ends.
    const TRANSITIONS: &str = "
        idle        begin     attempting  -     attempt
        idle        done      idle        -     wait
        idle        replaced  idle        -     wait
        idle        failed    idle        -     wait
        idle        early     idle        -     wait
        idle        late      idle        -     wait
        idle        abort     idle        -     wait
        idle        drained   idle        no    wait
        attempting  begin     attempting  -     wait
        attempting  done      idle        -     finish
        attempting  replaced  attempting  -     attempt
        attempting  failed    pausing     lags  wait
        attempting  early     attempting  -     wait
        attempting  late      attempting  lags  wait
        attempting  abort     idle        -     abort
        attempting  drained   attempting  -     wait
        pausing     begin     pausing     -     wait
        pausing     done      pausing     -     wait
        pausing     replaced  pausing     -     wait
        pausing     failed    pausing     -     wait
        pausing     early     pausing     -     wait
        pausing     late      attempting  -     attempt
        pausing     abort     idle        -     abort
        pausing     drained   pausing     -     wait";

    const LAGGING_AFTER: Duration = Duration::from_secs(1);
    const INPUTS: [&str; 8] = [
        "begin", "done", "replaced", "failed", "early", "late", "abort", "drained",
    ];

    fn phase(name: &str, ends: Instant) -> Phase {
        match name {
            "idle" => Phase::Idle,
            "attempting" => Phase::Attempting { lags_at: ends },
            _ => Phase::Pausing { until: ends },
        }
    }

    #[test]
    fn every_input_has_its_effect_in_every_phase() {
        let ends = Instant::now() + Duration::from_secs(60);
        let mut rows = TRANSITIONS.lines().skip(1);
        for from in ["idle", "attempting", "pausing"] {
            for input in INPUTS {
                let row: Vec<_> = rows.next().unwrap().split_whitespace().collect();
                let [row_from, row_input, to, lags, next] = row[..] else {
                    panic!("{row:?}");
                };
                assert_eq!(
                    (row_from, row_input),
                    (from, input),
                    "the order of the table"
                );
                let (now, input) = match input {
                    "early" => (ends - Duration::from_millis(1), Input::Tick),
                    "late" => (ends, Input::Tick),
                    "begin" => (ends, Input::Begin),
                    "done" => (ends, Input::Done),
                    "replaced" => (ends, Input::Replaced),
                    "failed" => (ends, Input::Failed { jitter: 1.0 }),
                    "abort" => (ends, Input::Abort),
                    _ => (ends, Input::Drained),
                };
                for lagging in [false, true] {
                    let mut course = Course::new(LAGGING_AFTER);
                    (course.phase, course.lagging) = (phase(from, ends), lagging);
                    let done = course.on(input, now);
                    // A phase that begins now ends later; one that goes on ends when it did.
                    let to_ends = match (to, next) {
                        ("attempting", "attempt") => now + LAGGING_AFTER,
                        ("pausing", _) if from == "attempting" => now + 2 * RETRY_MIN,
                        _ => ends,
                    };
                    assert_eq!(course.phase, phase(to, to_ends), "{row:?}");
                    let lags = lags == "lags" || lags == "-" && lagging;
                    assert_eq!(course.is_lagging(), lags, "{row:?}");
                    let expected = match next {
                        "attempt" => Some(Next::Attempt),
                        "finish" => Some(Next::Finish),
                        "abort" => Some(Next::Abort),
                        _ => None,
                    };
                    assert_eq!(done, expected, "{row:?}");
                }
            }
        }
        assert_eq!(rows.next(), None);
    }

    #[test]
    fn pauses_double_up_to_the_longest_and_begin_anew_with_the_next_transaction() {
        let mut now = Instant::now();
        let mut course = Course::new(LAGGING_AFTER);
        for _ in 0..2 {
            assert_eq!(course.on(Input::Begin, now), Some(Next::Attempt));
            for pause_ms in [100, 200, 400, 800, 1600, 2000, 2000, 2000, 2000, 2000] {
                assert_eq!(course.on(Input::Failed { jitter: 0.5 }, now), None);
                now += Duration::from_millis(pause_ms / 2);
                assert_eq!(course.wakes_at(), Some(now));
                assert_eq!(course.on(Input::Tick, now), Some(Next::Attempt));
            }
            assert_eq!(course.on(Input::Done, now), Some(Next::Finish));
        }
    }

    #[test]
    fn a_lagging_recorder_does_not_wake_for_lagging_again() {
        let now = Instant::now();
        let mut course = Course::new(LAGGING_AFTER);
        course.on(Input::Begin, now);
        let lags_at = course.wakes_at().unwrap();
        course.on(Input::Tick, lags_at);
        assert_eq!((course.is_lagging(), course.wakes_at()), (true, None));
        course.on(Input::Replaced, lags_at);
        assert_eq!(course.wakes_at(), None);
    }
}
