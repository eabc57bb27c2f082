//! What a sequence consists of.
//!
//! A step says what is done without knowing what was answered: "the second of the claims that are held". So a sequence from
//! which steps are taken out is a sequence still, which is how one that fails is made short.

use std::time::Duration;

pub(crate) const NODES: usize = 3;
pub(crate) const PARTITIONS: u16 = 2;
/// 2016-12-04T18:38:00Z, a minute of four digits. An hour and more later those of one digit follow.
pub(crate) const BEGIN_MS: i64 = 1_480_876_680_000;
pub(crate) const MINUTE_MS: i64 = 60_000;

/// The outputs. Not every sequence uses both.
pub(crate) const OUTPUTS: [&str; 2] = ["one", "two"];

pub(crate) const SERIES: [&str; 6] = [
    "a=1",
    "a=1,b=2",
    "a=:counts",
    "a=20161204:1118:unsent",
    "ü=x|y",
    "z=\"0:0\"",
];
pub(crate) const USERS: [&str; 4] = ["ann", "ann_1", "007", "ö|"];

/// Who does it, and with which partition.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) node: usize,
    pub(crate) partition: usize,
}

/// Which claim: the so-many-eth of those that are held, or of the last that were granted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pick {
    pub(crate) held: bool,
    pub(crate) nth: usize,
    /// Whether it is taken for one of another generation.
    pub(crate) stale: bool,
}

/// An event, by the places of its series and user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Event {
    pub(crate) minute: i64,
    pub(crate) series: usize,
    pub(crate) user: usize,
    pub(crate) nanos: i64,
}

/// What a node says that it knows.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Knowledge {
    Nothing,
    Own,
    /// Its own, but for an epoch so many before the last one, so many stamps more, and so many closings fewer.
    Altered {
        epochs_back: usize,
        stamps_ahead: i64,
        closings_back: u64,
    },
}

/// What is done.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    Move {
        micros: i64,
    },
    /// The data of the store is kept, as in a snapshot.
    Save,
    /// The store has the data again that was kept last.
    GoBack,
    /// A thousand series come into one minute.
    Crowd {
        at: At,
        minute: i64,
    },
    /// The quarantine has room for so many more.
    FillQuarantine {
        partition: usize,
        output: usize,
        room: usize,
    },
    Admit {
        at: At,
        minute: i64,
        series: Vec<usize>,
        series_max: u64,
    },
    Users {
        at: At,
        minute: i64,
        series: usize,
        users: Vec<usize>,
    },
    Record {
        at: At,
        events: Vec<Event>,
        /// The cap on series; without one nothing is asked before.
        series_max: Option<u64>,
        /// The users that the node takes for recorded.
        known_user: Option<usize>,
        stale: bool,
    },
    Attest {
        at: At,
        known: Knowledge,
        since: Option<i64>,
        closed: Vec<i64>,
        announced: Vec<i64>,
    },
    Announce {
        node: usize,
        claim: Pick,
        known: Knowledge,
    },
    Claim {
        at: At,
        grace_ms: u64,
        max_hold_ms: u64,
        lease_ms: u64,
        lapsed_max: usize,
        finished_max: usize,
        old_max: usize,
        /// For each output, the most lapsed claims to send.
        sending: Vec<(usize, usize)>,
        known: Knowledge,
        /// How far the node's expectation is from the clock.
        expected: Option<i64>,
        /// Whether it checked in in another generation.
        stale: bool,
    },
    CheckIn {
        at: At,
        known: Knowledge,
        lags: bool,
        lease_ms: u64,
    },
    Compact {
        node: usize,
        claim: Pick,
        series_max: usize,
        lease_ms: u64,
        /// For which it is sealed.
        outputs: Vec<usize>,
    },
    Unsent {
        node: usize,
        claim: Pick,
    },
    /// Of these series, or of all that are unsent.
    Acknowledge {
        node: usize,
        claim: Pick,
        series: Option<Vec<usize>>,
        lease_ms: u64,
    },
    /// So many of those that are unsent, and one more.
    Quarantine {
        node: usize,
        claim: Pick,
        nth: usize,
        most: usize,
    },
    Extend {
        at: At,
        claims: Vec<Pick>,
        lease_ms: u64,
    },
    /// From the so-many-eth entry on.
    Requeue {
        partition: usize,
        output: usize,
        nth: usize,
        most: usize,
    },
    Discard {
        partition: usize,
        output: usize,
        nth: usize,
        most: usize,
        altered: bool,
    },
    /// Nobody has this output any more.
    DropOutput {
        partition: usize,
        output: usize,
    },
    Read {
        partition: usize,
        minute: i64,
        most: usize,
    },
}

pub(crate) fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
