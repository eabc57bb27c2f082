//! The knowledge of nodes about closed minutes, from which a store that forgets learns it again.
//!
//! A store may go back: to a snapshot, to a log without its last seconds, to a replica that lagged, to nothing. Each
//! check-in leaves a stamp in the partition, a number that grows, and the data has an *epoch*. A node
//! that finds a lower stamp than its last one, or another epoch, knows that the store forgot something; it tells the store which
//! minutes are closed ([`attest`](super::Draining::attest)) before it claims again. Clocks decide none of that: a clock
//! that is set back would hide it.
//!
//! A minute is closed when its counts are about to be written. A node *announces* that, and writes when every other node that
//! is alive has confirmed it ([`announce`](super::Draining::announce)). So the knowledge survives a node that dies after a write.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::event::Minute;

/// How far a store's clock may be from the expected time, in ms: the duration of a call, and the slewing of clocks.
pub const CLOCK_TOLERANCE_MS: i64 = 2000;

/// A node's knowledge of a partition. The default is none, which agrees with every store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The epoch of the store's data; 0: unknown.
    pub epoch: u64,
    /// The node's last stamp.
    pub stamp: u64,
    /// The number of the last closing that the node has heard of.
    pub sequence: u64,
    /// The time that the store's clock should show now, in ms since the epoch.
    pub expected_ms: Option<i64>,
}

/// The answer to a check-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The node's stamp.
    pub stamp: u64,
    /// The time of the store's clock, in ms since the epoch.
    pub now_ms: i64,
    /// The number of the last closing in this answer.
    pub sequence: u64,
    /// Minutes that were closed after the last closing that the node had heard of.
    pub closed: Vec<Minute>,
    /// Minutes that were announced after that closing: their counts are about to be written, and no output is known to have them.
    pub announced: Vec<Minute>,
    /// All minutes before this one count as closed.
    pub since: Option<Minute>,
    /// Whether the node should ask for claims: a minute is finished or claimed, or a report of lag exists.
    pub is_due: bool,
    /// The total of late events that this node found in the partition.
    pub late: u64,
}

/// The knowledge that a node attests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The epoch; 0: unknown.
    pub epoch: u64,
    /// The node's last stamp.
    pub stamp: u64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// Minutes that are closed.
    pub closed: BTreeSet<Minute>,
    /// Minutes whose counts may be written, and that no output is known to have.
    pub announced: BTreeSet<Minute>,
}

/// The most minutes that are handed back at once. Bounds the time for which a call blocks Redis.
const HANDED_BACK_MAX: usize = 1000;

impl Testimony {
    /// Returns the epoch minutes in parts, at least one, each with whether its minutes are only announced.
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

/// The answer to a testimony.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attested {
    /// The present epoch: a new one when the store forgot something.
    pub epoch: u64,
    /// The node's stamp.
    pub stamp: u64,
    /// The last stamp that the store kept when this epoch began; 0: none.
    pub forgot_from: u64,
    /// The store's clock at about that stamp, in ms since the epoch; 0: none.
    pub forgot_from_ms: i64,
}

/// Whether other nodes know that counts of a minute are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// The claim is no longer this node's, and no node announced the minute.
    ClaimLost,
    /// A node that is alive has not heard it yet.
    Unheard,
    /// Every node that is alive has heard it.
    Heard,
}

/// Returns the number of minutes before the newest closed minute for which closed minutes are listed; all earlier minutes count as
/// closed. One more than counts are kept, since no event as old is accepted.
pub(super) fn closed_minutes(retention: Duration) -> i64 {
    i64::try_from(retention.as_secs().div_ceil(60) + 1).unwrap_or(i64::MAX)
}

/// Returns the time for which the counts of a minute are kept for queries after they are sent, in a partition that keeps `counts_max`: a minute
/// at least.
pub(super) fn kept_for(retention: Duration, counts_max: u64, counts: u64) -> Duration {
    let minute = Duration::from_secs(60);
    let share = Duration::from_millis(counts_max.saturating_mul(60_000) / counts.max(1));
    share.max(minute).min(retention)
}
