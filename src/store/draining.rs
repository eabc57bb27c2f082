//! The [`Draining`] role: turning open minutes into counts that every output has.
//!
//! A store may go back in time: to a snapshot, to a log that is missing its last seconds, to a lagging replica, or to
//! nothing. Each check-in leaves a stamp in the partition, which is an increasing number, and the data has an *epoch*. A node
//! that finds a stamp lower than its last one, or a different epoch, knows that the store has lost something. It then tells
//! the store which minutes are closed ([`attest`](Draining::attest)) before it claims again. None of this relies on clocks,
//! because a clock that is set back would hide the loss.
//!
//! A minute is closed when its counts are about to be written. A node *announces* this, and writes once every other live node
//! has acknowledged it ([`announce`](Draining::announce)). The knowledge therefore survives if the node dies after a write.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Page, Result, SeriesCounts, Store};
use crate::event::{Minute, Partition};

/// The name of an output: short enough for keys and labels, and made of characters that need no escaping there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputName(Arc<str>);

impl OutputName {
    /// Maximum length of a name, in bytes.
    pub const BYTES_MAX: usize = 32;

    /// Returns the name as a string.
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

/// The text is not 1 to 32 characters from `a-z 0-9 _ -`.
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

/// Maximum number of quarantined counts per output and partition.
pub const QUARANTINE_MAX: usize = 10_000;
/// Maximum number of minutes that one claim examines, for recent and for old ones. Bounds how long a claim blocks the store.
pub(super) const LOOKED_AT_MAX: usize = 250;
/// How long after it could have been closed a minute becomes old.
const RECENT_FOR: Duration = Duration::from_secs(300);

/// Returns how long after its end a minute is recent. By then, a minute without new events has been closed. Recent minutes
/// are sealed and sent before old ones, which a replayed archive or a host with a wrong clock may bring by the thousands.
pub(crate) fn recent_for(grace: Duration) -> Duration {
    grace.saturating_add(RECENT_FOR)
}

/// Returns whether a minute is recent according to the store's clock.
pub(crate) fn is_recent(minute: Minute, now_ms: i64, grace: Duration) -> bool {
    let recent_ms = i64::try_from(recent_for(grace).as_millis()).unwrap_or(i64::MAX);
    minute.end_millis().saturating_add(recent_ms) > now_ms
}

/// A request for claims.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRequest {
    /// The store generation in which the node checked in; 0 for any.
    pub generation: u64,
    /// How long a finished minute must be idle before it is closed.
    pub grace: Duration,
    /// How long after its end or first event, whichever is later, a minute is closed even if it is not idle.
    pub max_hold: Duration,
    /// The duration of the lease.
    pub lease: Duration,
    /// Maximum number of lapsed claims to seal that are taken over.
    pub lapsed_max: usize,
    /// Maximum number of finished minutes to claim: recent minutes first, starting with the newest, then old ones.
    pub finished_max: usize,
    /// Maximum number of old minutes among them.
    pub old_max: usize,
    /// What the node knows about the partition.
    pub known: Known,
}

/// Entitles a node to seal a minute of a partition, or to send its counts to one output, until the lease ends. There are
/// separate claims for sealing and for each output, so that an output delays neither sealing nor other outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The partition.
    pub partition: Partition,
    /// The minute.
    pub minute: Minute,
    /// The output that the counts are sent to; `None` if the minute is to be sealed.
    pub output: Option<OutputName>,
    /// Proves ownership of the claim. A later claim for the same purpose has a greater token.
    pub token: String,
    /// The store generation that granted it.
    pub generation: u64,
    /// Whether it was taken over from a claim that lapsed.
    pub taken_over: bool,
}

/// One step of sealing.
#[derive(Debug, Clone, Copy)]
pub struct SealRequest<'a> {
    /// Maximum number of series to seal.
    pub series_max: usize,
    /// The new duration of the lease.
    pub lease: Duration,
    /// The outputs that the counts are to be sent to.
    pub outputs: &'a [OutputName],
}

/// The result of one step of sealing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Number of series sealed in this step.
    pub sealed: u64,
    /// Total number of events that this node found in the partition after the counts of their series had been sealed.
    /// Includes duplicates of sealed events, which look the same. Because it is a total, a lost response loses nothing.
    pub late: u64,
    /// Number of duplicates among the events of these series, if recording did not return them.
    pub repeated: u64,
    /// Number of series that are still open; 0 means that the claim has ended.
    pub left: u64,
    /// Claims of the same node to send the counts: one for each output that is missing counts and has no claim.
    pub sending: Vec<Claim>,
}

/// The open and unsent minutes of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Number of unclaimed minutes, finished or not.
    pub waiting: u64,
    /// Number of these minutes before the `old_before` of a survey; 0 outside a survey.
    pub old: u64,
    /// Number of minutes that are claimed for sealing.
    pub claimed: u64,
    /// The earliest open minute.
    pub oldest: Option<Minute>,
    /// Every output that counts have been sealed for, including removed outputs.
    pub outputs: BTreeMap<OutputName, OutputBacklog>,
}

/// The unsent counts of an output in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBacklog {
    /// Number of minutes with unsent counts.
    pub unsent: u64,
    /// The earliest of these minutes.
    pub oldest: Option<Minute>,
    /// Number of counts in its quarantine.
    pub quarantined: u64,
}

impl std::ops::AddAssign for OutputBacklog {
    fn add_assign(&mut self, other: Self) {
        self.unsent += other.unsent;
        self.quarantined += other.quarantined;
        self.oldest = self.oldest.into_iter().chain(other.oldest).min();
    }
}

/// How far a store's clock may be from the expected time, in ms, to allow for the duration of a call and for clock slewing.
pub const CLOCK_TOLERANCE_MS: i64 = 2000;

/// What a node knows about a partition. The default is nothing, which is consistent with every store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The epoch of the store's data; 0 if unknown.
    pub epoch: u64,
    /// The node's last stamp.
    pub stamp: u64,
    /// The number of the last closing that the node knows of.
    pub sequence: u64,
    /// The time that the store's clock is expected to show now, in ms since the epoch.
    pub expected_ms: Option<i64>,
}

/// A node's report of its state in a partition.
#[derive(Debug, Clone, Copy)]
pub struct CheckIn {
    /// What the node knows about the partition.
    pub known: Known,
    /// Whether the node has events of the partition, in memory or on disk, that have not been recorded.
    pub lags: bool,
    /// How long a report of lag remains valid.
    pub lease: Duration,
    /// How long the node counts as alive. Until then, an announcement waits until the node has learned of it.
    pub alive: Duration,
}

/// The response to a check-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The node's stamp.
    pub stamp: u64,
    /// The time on the store's clock, in ms since the epoch.
    pub now_ms: i64,
    /// The number of the last closing in this response.
    pub sequence: u64,
    /// Minutes closed after the last closing that the node knew of.
    pub closed: Vec<Minute>,
    /// Minutes announced after that closing: their counts are about to be written, and no output is known to have them yet.
    pub announced: Vec<Minute>,
    /// All minutes before this one count as closed.
    pub since: Option<Minute>,
    /// Whether the node should request claims, because a minute is finished or claimed, or because there is a report of lag.
    pub is_due: bool,
    /// The total number of late events that this node has found in the partition.
    pub late: u64,
}

/// The knowledge to which a node attests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Testimony {
    /// The epoch; 0 if unknown.
    pub epoch: u64,
    /// The node's last stamp.
    pub stamp: u64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// Minutes that are closed.
    pub closed: BTreeSet<Minute>,
    /// Minutes whose counts may have been written, but that no output is known to have. Disjoint from `closed`.
    pub announced: BTreeSet<Minute>,
}

/// Maximum number of minutes attested at once. Bounds how long a call blocks Redis.
const HANDED_BACK_MAX: usize = 1000;

impl Testimony {
    /// Returns the epoch minutes in one or more parts, each with a flag for minutes that are only announced.
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

/// The response to a testimony.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attested {
    /// The current epoch, which is a new one if the store has lost something.
    pub epoch: u64,
    /// The node's stamp.
    pub stamp: u64,
    /// The last stamp that the store still had when this epoch began; 0 if none.
    pub forgot_from: u64,
    /// The store's clock at about the time of that stamp, in ms since the epoch; 0 if none.
    pub forgot_from_ms: i64,
}

/// Whether other nodes know that counts of a minute are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// This node no longer holds the claim, and no node has announced the minute.
    ClaimLost,
    /// A live node has not learned of it yet.
    Unheard,
    /// Every live node knows of it.
    Heard,
}

/// Returns for how many minutes before the newest closed one the store lists closed minutes. All earlier minutes count as
/// closed. This is one more than counts are kept for, since no event that old is accepted.
pub(super) fn closed_minutes(retention: Duration) -> i64 {
    i64::try_from(retention.as_secs().div_ceil(60) + 1).unwrap_or(i64::MAX)
}

/// Returns how long the counts of a minute are kept for queries after they have been sent, in a partition that keeps
/// `counts_max`: at least a minute.
pub(super) fn kept_for(retention: Duration, counts_max: u64, counts: u64) -> Duration {
    let minute = Duration::from_secs(60);
    let share = Duration::from_millis(counts_max.saturating_mul(60_000) / counts.max(1));
    share.max(minute).min(retention)
}

/// The role of workers.
#[async_trait]
pub trait Draining: Store {
    /// Tells the store which minutes this node knows to be closed, so that they stay closed even if the store has lost this.
    /// Each node does so once per generation, before it claims.
    async fn attest(&self, partition: Partition, testimony: &Testimony) -> Result<Attested>;

    /// Reports the state of this node, and returns the minutes that have been closed since its last check-in. While a node
    /// lags, idle minutes are not closed before `max_hold`. Fails with [`StoreError::Forgot`](super::StoreError::Forgot) if
    /// the store has lost something that the node knows.
    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News>;

    /// Claims minutes to seal: first lapsed claims, starting with the oldest, then finished minutes. Also
    /// claims minutes to send: lapsed claims of these outputs, up to the number given for each. Claims nothing if the
    /// generation is not that of the request, since a different server may not know which nodes lag. Fails with
    /// [`StoreError::Forgot`](super::StoreError::Forgot) if the store has lost something that the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>>;

    /// Seals the counts of some series and renews the lease. Events of a closed minute are late. With the last series, the
    /// claim ends and is replaced by claims to send. Does nothing if the generation is not that of the claim, since recorded
    /// events may be missing there.
    async fn compact(&self, claim: &Claim, request: &SealRequest<'_>) -> Result<Compaction>;

    /// Reads a page of a claim's unsent counts. The first cursor is 0.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>>;

    /// Announces that counts of these claims, which share one partition and output, are about to be written, which closes
    /// their minutes. Returns for each claim whether all nodes know; the caller repeats the call until they do. Fails with
    /// [`StoreError::Forgot`](super::StoreError::Forgot) if the store has lost something that the node knows.
    async fn announce(&self, known: &Known, claims: &[&Claim]) -> Result<Vec<Announced>>;

    /// Marks the counts of these series as acknowledged by the claim's output, and renews the lease. Returns true once the
    /// output has all counts, which ends the claim. After the last output, the counts get a TTL.
    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool>;

    /// Moves counts that the claim's output rejects to its quarantine, each with its series and the server's message. Returns
    /// whether there was room for each; the others are dropped.
    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>>;

    /// Sets the deadline of these claims, which share one partition and purpose, to `lease` from now. Skips claims that are
    /// no longer held. Returns the number of claims held.
    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize>;

    /// Returns the open and unsent minutes of a partition.
    async fn backlog(&self, partition: Partition) -> Result<Backlog>;

    /// Returns whether each of these partitions has an open minute or unsent counts for these outputs. Cheap if none has.
    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>>;
}
