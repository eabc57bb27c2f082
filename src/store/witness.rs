//! What nodes know to be closed, so that a store which forgets it learns it again.
//!
//! A store may go back: to a snapshot, to a log without its last seconds, to a replica that lagged, to nothing. Whenever a
//! node checks in it stamps its clock into the partition, for that node, and its data has an *epoch*. A node whose stamp is older
//! than it was, or that finds another epoch, knows that the store forgot something; it hands back which minutes are closed
//! ([`attest`](super::Draining::attest)) before it claims anything again.

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
    /// Its last stamp, in ms of the store's clock.
    pub stamp_ms: i64,
    /// The number of the last closing that it has heard of.
    pub sequence: u64,
    /// What the store's clock should show now, in ms since the epoch.
    pub expected_ms: Option<i64>,
}

/// What a node learns when it checks in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The node's stamp: the store's clock, or more where that was set back.
    pub stamp_ms: i64,
    /// The store's clock, in ms since the epoch.
    pub now_ms: i64,
    /// The number of the last closing in this answer.
    pub sequence: u64,
    /// Minutes that were closed after the one that the node had heard of last.
    pub closed: Vec<Minute>,
    /// All minutes before this one count as closed; `None`: none does.
    pub since: Option<Minute>,
    /// Whether to ask for claims: a minute is over, one is claimed, or a node lags, or has lagged until it died.
    pub is_due: bool,
}

/// What a node hands back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Testimony {
    /// The epoch that it knows; 0: none.
    pub epoch: u64,
    /// Its last stamp, in ms of the store's clock.
    pub stamp_ms: i64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// Minutes that are closed, or of which points may be written.
    pub closed: BTreeSet<Minute>,
}

/// What a store answers to a testimony.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attested {
    /// The epoch from now on. Another one than before when the store forgot something.
    pub epoch: u64,
    /// From when on the store knows nothing of what was before this epoch, in ms of its clock; 0: from the beginning.
    pub forgot_from_ms: i64,
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
