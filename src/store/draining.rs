//! The [`Draining`] role: from open minutes to counts that every output has.
//!
//! A store may go back: to a snapshot, to a log without its last seconds, to a replica that lagged, to nothing. Each
//! check-in leaves a stamp in the partition, a number that grows, and the data has an *epoch*. A node
//! that finds a lower stamp than its last one, or another epoch, knows that the store forgot something; it tells the store which
//! minutes are closed ([`attest`](Draining::attest)) before it claims again. Clocks decide none of that: a clock
//! that is set back would hide it.
//!
//! A minute is closed when its counts are about to be written. A node *announces* that, and writes when every other node that
//! is alive has confirmed it ([`announce`](Draining::announce)). So the knowledge survives a node that dies after a write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Page, Result, SeriesCounts, Store};
use crate::event::{Minute, Partition};

/// The name of an output: short enough for keys and labels, and of letters that need no escapes there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputName(Arc<str>);

impl OutputName {
    /// The longest name, in bytes.
    pub const BYTES_MAX: usize = 32;

    /// The name as a text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for OutputName {
    fn default() -> Self {
        Self("default".into())
    }
}

/// The error of a text that is not 1 to 32 of `a-z 0-9 _ -`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an output")]
pub struct NotAName;

impl FromStr for OutputName {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let is_allowed =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'_' | b'-');
        let is_name = (1..=Self::BYTES_MAX).contains(&text.len()) && text.bytes().all(is_allowed);
        is_name.then(|| Self(text.into())).ok_or(NotAName)
    }
}

impl fmt::Display for OutputName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The most counts of an output in the quarantine of a partition.
pub const QUARANTINE_MAX: usize = 10_000;
/// The most minutes, recent or old, of one claim. Bounds the time for which a claim blocks the store.
pub(super) const LOOKED_AT_MAX: usize = 250;
/// The time after which a minute that could have been closed is old.
const RECENT_FOR: Duration = Duration::from_secs(300);

/// Returns how long after its end a minute is recent: a minute without new events is closed by then. Recent minutes are sealed and
/// sent before old ones, of which a replayed archive, or a host with a wrong clock, may bring thousands.
pub(crate) fn recent_for(grace: Duration) -> Duration {
    grace.saturating_add(RECENT_FOR)
}

/// Returns whether a minute is recent by the store's clock.
pub(crate) fn is_recent(minute: Minute, now_ms: i64, grace: Duration) -> bool {
    let recent_ms = i64::try_from(recent_for(grace).as_millis()).unwrap_or(i64::MAX);
    minute.end_millis().saturating_add(recent_ms) > now_ms
}

/// Asks for claims.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRequest {
    /// The store's generation in which the node checked in; 0: any.
    pub generation: u64,
    /// The idle time of a finished minute before it is closed.
    pub grace: Duration,
    /// How long after its end, or its first event, a minute is closed although it is not idle.
    pub max_hold: Duration,
    /// The length of the lease.
    pub lease: Duration,
    /// The most lapsed claims to seal that are taken over.
    pub lapsed_max: usize,
    /// The most finished minutes to claim: recent minutes first, the newest before the others, then old ones.
    pub finished_max: usize,
    /// The most old minutes among them.
    pub old_max: usize,
    /// The node's knowledge of the partition.
    pub known: Known,
}

/// The right of a node to seal a minute of a partition, or to send its counts to one output, until the lease ends. Sealing and each
/// output have separate claims, so that one output delays neither sealing nor another output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The partition.
    pub partition: Partition,
    /// The minute.
    pub minute: Minute,
    /// The output that the counts are sent to; `None`: the minute is sealed.
    pub output: Option<OutputName>,
    /// Proof of the claim; a later claim for the same purpose has a greater token.
    pub token: String,
    /// The store's generation that granted it.
    pub generation: u64,
    /// Whether an earlier claim of this minute lapsed.
    pub taken_over: bool,
}

/// A step of sealing.
#[derive(Debug, Clone, Copy)]
pub struct SealRequest<'a> {
    /// The most series to seal.
    pub series_max: usize,
    /// The new length of the lease.
    pub lease: Duration,
    /// The outputs that the counts are for.
    pub outputs: &'a [OutputName],
}

/// The result of a step of sealing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Series that were sealed by this step.
    pub sealed: u64,
    /// The total of events that this node found in the partition after the counts of their series were sealed. Copies of sealed
    /// events are included, since they look the same. As a total it survives a lost answer.
    pub late: u64,
    /// Copies among the events of these series, where recording did not return them.
    pub repeated: u64,
    /// Series that are still open; 0: the claim has ended.
    pub left: u64,
    /// Claims of the same node to send the counts, one for each output that lacks counts and has no claim.
    pub sending: Vec<Claim>,
}

/// The open and unsent minutes of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Unclaimed minutes, finished or not.
    pub waiting: u64,
    /// Minutes among them before the `old_before` of a survey; 0 outside a survey.
    pub old: u64,
    /// Minutes that are claimed to be sealed.
    pub claimed: u64,
    /// The earliest open minute.
    pub oldest: Option<Minute>,
    /// Every output that counts were sealed for, including outputs that were removed.
    pub outputs: BTreeMap<OutputName, OutputBacklog>,
}

/// The unsent counts of an output in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBacklog {
    /// Minutes with unsent counts.
    pub unsent: u64,
    /// The earliest of these minutes.
    pub oldest: Option<Minute>,
    /// Counts in its quarantine.
    pub quarantined: u64,
}

impl std::ops::AddAssign for OutputBacklog {
    fn add_assign(&mut self, other: Self) {
        self.unsent += other.unsent;
        self.quarantined += other.quarantined;
        self.oldest = self.oldest.into_iter().chain(other.oldest).min();
    }
}

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

/// The state of a node in a partition.
#[derive(Debug, Clone, Copy)]
pub struct CheckIn {
    /// The node's knowledge of the partition.
    pub known: Known,
    /// Whether it has events of the partition, in memory or on disk, that are not recorded.
    pub lags: bool,
    /// How long a report of lag is valid.
    pub lease: Duration,
    /// How long the node counts as alive: an announcement waits until it has heard of it.
    pub alive: Duration,
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Testimony {
    /// The epoch; 0: unknown.
    pub epoch: u64,
    /// The node's last stamp.
    pub stamp: u64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// Minutes that are closed.
    pub closed: BTreeSet<Minute>,
    /// Minutes whose counts may be written, and that no output is known to have. None is in `closed`.
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

/// The role of a worker.
#[async_trait]
pub trait Draining: Store {
    /// Tells the store which minutes this node knows to be closed; they stay closed, even if the store forgot them. Each node does so
    /// once in each generation, before it claims.
    async fn attest(&self, partition: Partition, testimony: &Testimony) -> Result<Attested>;

    /// Reports the state of this node, and returns the minutes that were closed since its last check-in. While a node lags, no idle
    /// minute is closed before `max_hold`. Fails with [`StoreError::Forgot`](super::StoreError::Forgot) when the store forgot
    /// something that the node knows.
    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News>;

    /// Claims minutes to seal: lapsed claims first, the longest lapsed before the others, then finished minutes. Also claims minutes
    /// to send: lapsed claims of these outputs, up to a number for each. Claims nothing in another generation than the request's:
    /// another server may not know which nodes lag. Fails with [`StoreError::Forgot`](super::StoreError::Forgot) when the store forgot something that the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>>;

    /// Seals the counts of some series and renews the lease. Events of a closed minute are
    /// late. With the last series the claim ends, and claims to send replace it. Does nothing in another generation than the
    /// claim's: recorded events may be missing there.
    async fn compact(&self, claim: &Claim, request: &SealRequest<'_>) -> Result<Compaction>;

    /// Reads a page of the unsent counts of a claim. The first cursor is 0.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>>;

    /// Announces that counts of these claims, all of one partition and output, are about to be written, which closes their
    /// minutes. Returns for each claim whether all nodes have heard; the caller asks again until they have. Fails with
    /// [`StoreError::Forgot`](super::StoreError::Forgot) when the store forgot something that the node knows.
    async fn announce(&self, known: &Known, claims: &[&Claim]) -> Result<Vec<Announced>>;

    /// Marks the counts of these series as confirmed by the claim's output and renews the lease. Returns true when the output lacks
    /// none, which ends the claim. With the last output the counts get a time to live.
    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool>;

    /// Moves counts that the claim's output refuses to its quarantine, each series with the server's message. Returns for each
    /// whether there was room; the others are dropped.
    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>>;

    /// Moves the deadline of these claims, all of one partition and purpose, to this long from now. Claims that are not held any
    /// more are skipped. Returns the number of claims held.
    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize>;

    /// Returns the open and unsent minutes of a partition.
    async fn backlog(&self, partition: Partition) -> Result<Backlog>;

    /// Returns whether each of these partitions has an open minute, or unsent counts of one of these outputs. Cheap where none has.
    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>>;
}
