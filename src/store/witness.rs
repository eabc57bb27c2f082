//! What nodes know to be closed, so that a store which forgets it learns it again.
//!
//! A store may go back: to a snapshot, to a log without its last seconds, to a replica that lagged, to nothing. Whenever a
//! node checks in it leaves a stamp in the partition, a number that grows with every check-in, and the data has an *epoch*. A node
//! whose stamp is lower than it was, or that finds another epoch, knows that the store forgot something; it hands back which
//! minutes are closed ([`attest`](super::Draining::attest)) before it claims anything again. Clocks decide none of that: one that
//! is set back would hide it.
//!
//! A minute is closed from when its counts are about to be written. A node *announces* it, and writes when every other node that
//! is alive has heard so ([`announce`](super::Draining::announce)); so whoever dies behind a write takes no knowledge along.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::Minute;

/// How far a store's clock may be from what a node expects of it, in ms: the way of a call, and the slewing of clocks.
pub const CLOCK_TOLERANCE_MS: i64 = 2000;

/// What a node has seen of a partition. The default is to know nothing, which every store agrees with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The epoch of the store's data; 0: none is known.
    pub epoch: u64,
    /// Its last stamp.
    pub stamp: u64,
    /// The number of the last closing that it has heard of.
    pub sequence: u64,
    /// What the store's clock should show now, in ms since the epoch.
    pub expected_ms: Option<i64>,
}

/// What a node learns when it checks in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The node's stamp.
    pub stamp: u64,
    /// The store's clock, in ms since the epoch.
    pub now_ms: i64,
    /// The number of the last closing in this answer.
    pub sequence: u64,
    /// Minutes that were closed after the one that the node had heard of last.
    pub closed: Vec<Minute>,
    /// Minutes that were announced after that one: their counts are about to be written, and no output is known to have them.
    pub announced: Vec<Minute>,
    /// All minutes before this one count as closed; `None`: none does.
    pub since: Option<Minute>,
    /// Whether to ask for claims: a minute is over, one is claimed, or a node lags, or has lagged until it died.
    pub is_due: bool,
    /// How many events this node found too late in the partition, in all.
    pub late: u64,
}

/// What a node hands back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The epoch that it knows; 0: none.
    pub epoch: u64,
    /// Its last stamp.
    pub stamp: u64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// Minutes that are closed.
    pub closed: BTreeSet<Minute>,
    /// Minutes of which points may be written, and that no output is known to have.
    pub announced: BTreeSet<Minute>,
}

/// The minutes that are handed back at once: what bounds the time that it blocks Redis.
const HANDED_BACK_MAX: usize = 1000;

impl Testimony {
    /// The epoch minutes in parts, each with whether they are only announced. At least one, which may be empty.
    pub(super) fn parts(&self) -> Vec<(bool, Vec<i64>)> {
        let mut parts = Vec::new();
        for (is_announced, minutes) in [(false, &self.closed), (true, &self.announced)] {
            let numbers: Vec<_> = minutes.iter().map(|it| it.epoch_minutes()).collect();
            let chunks = numbers.chunks(HANDED_BACK_MAX);
            parts.extend(chunks.map(|part| (is_announced, part.to_vec())));
        }
        if parts.is_empty() {
            parts.push((false, Vec::new()));
        }
        parts
    }
}

/// What a store answers to a testimony.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attested {
    /// The epoch from now on. Another one than before when the store forgot something.
    pub epoch: u64,
    /// The node's stamp.
    pub stamp: u64,
    /// The last stamp that the store had before it forgot everything up to this epoch; 0: it had nothing.
    pub forgot_from: u64,
    /// The store's clock at about that stamp, in ms since the epoch; 0: it had nothing.
    pub forgot_from_ms: i64,
}

/// How far other nodes know that counts of a minute are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// The claim is no longer this node's, and nobody announced the minute.
    ClaimLost,
    /// A node that is alive has not heard it yet.
    Unheard,
    /// Every node that is alive has heard it.
    Heard,
}

/// For how many minutes before the newest closed one it is listed which are closed; all before count as closed. One more
/// than counts are kept, for no event is accepted that is as old.
pub(super) fn closed_minutes(retention: Duration) -> i64 {
    i64::try_from(retention.as_secs().div_ceil(60) + 1).unwrap_or(i64::MAX)
}

/// How long so many counts of a minute are kept after they are sent, in a partition that keeps `counts_max`: a minute at
/// least. They are for queries only, since the minute is closed.
pub(super) fn kept_for(retention: Duration, counts_max: u64, counts: u64) -> Duration {
    let minute = Duration::from_secs(60);
    let share = Duration::from_millis(counts_max.saturating_mul(60_000) / counts.max(1));
    share.max(minute).min(retention)
}
