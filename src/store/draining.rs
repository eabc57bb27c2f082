//! The [`Draining`] role: turning open minutes into counts that every output has.
//!
//! A store may go back in time: to a snapshot, to a log that is missing its last seconds, to a lagging replica, or to an
//! empty state. Each check-in leaves a *stamp*, an increasing number, in the partition, and the data of the partition has an
//! *epoch*. A node that finds a lower stamp than its last one, or a different epoch, knows that the store has lost
//! something. The node then tells the store which minutes are closed ([`attest`](Draining::attest)) before it requests
//! claims again. None of this relies on clocks, because a clock that is set back would hide the loss.
//!
//! A minute is closed when its counts are about to be written. A node *announces* this ([`announce`](Draining::announce)),
//! and writes the counts once every other live node knows. This knowledge therefore survives if the node dies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{Bucket, Page, Result, SeriesCounts, Store};
use crate::event::{Every, Minute, Partition};

/// The name of an output: short enough for keys and labels, and made of characters that need no escaping there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputName(Arc<str>);

impl OutputName {
    /// The maximum length of a name, in bytes.
    pub const BYTES_MAX: usize = 32;

    /// Returns the name of the claims to add sealed minutes to windows. No configured output has it.
    #[must_use]
    pub fn rollup() -> Self {
        Self("rollup".into())
    }

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

/// The error for an invalid output name. A valid name is 1 to 32 characters from `a-z 0-9 _ -`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a valid output name")]
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

/// The maximum number of quarantined counts per output per partition.
pub const QUARANTINE_MAX: usize = 10_000;
/// The maximum number of series per partition that get zeros once they are silent.
pub(super) const ACTIVE_MAX: usize = 10_000;
/// The maximum number of recent minutes, and also of old ones, that a claim request examines, so as not to block the store.
pub(super) const LOOKED_AT_MAX: usize = 250;
/// The time a minute remains recent after the earliest time at which it could have been closed.
const RECENT_FOR: Duration = Duration::from_secs(300);

/// Returns the time a minute stays recent after its end: long enough to close a minute that gets no new events. Recent
/// minutes are sealed and sent before old ones, of which a replayed archive or a wrong clock may produce thousands.
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
    /// The store generation in which the node checked in; 0 if any generation may grant the claims.
    pub generation: u64,
    /// The time a finished minute must be idle before it is closed.
    pub grace: Duration,
    /// How long after its end or first event, whichever is later, a minute is closed even if it is not idle.
    pub max_hold: Duration,
    /// The duration of the lease of each claim.
    pub lease: Duration,
    /// The maximum number of lapsed claims for sealing that are taken over.
    pub lapsed_max: usize,
    /// The maximum number of finished minutes to claim: recent minutes first, starting with the newest, then old ones.
    pub finished_max: usize,
    /// The maximum number of old minutes among the finished minutes to claim.
    pub old_max: usize,
    /// The node's knowledge of the partition.
    pub known: Known,
}

/// Entitles a node to seal a minute of a partition, or to send its counts to one output, until the lease ends.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Claim {
    pub partition: Partition,
    pub minute: Minute,
    /// The output that the counts are sent to; `None` if the minute is to be sealed.
    pub output: Option<OutputName>,
    /// Proves ownership of the claim. A later claim for the same purpose has a greater token.
    pub token: String,
    /// The store generation in which the claim was granted.
    pub generation: u64,
    /// Whether this claim was taken over after its previous holder's lease had lapsed.
    pub taken_over: bool,
}

/// A request for one step of sealing.
#[derive(Debug, Clone, Copy, Default)]
pub struct SealRequest<'a> {
    /// The maximum number of series to seal in this step.
    pub series_max: usize,
    /// The duration of the lease after this step has renewed it.
    pub lease: Duration,
    /// The outputs that the counts are to be sent to.
    pub outputs: &'a [OutputName],
    /// For a window: which minutes of each partition must have been added to it.
    pub sources: &'a [(Partition, Vec<Minute>)],
    /// For how many minutes after its last events a series gets counts of zero; 0 if this minute gets none.
    pub zeros: u32,
}

/// The result of one step of sealing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compaction {
    /// The number of series sealed in this step.
    pub sealed: u64,
    /// The total number of late events that this node found in the partition, including duplicates of sealed events.
    pub late: u64,
    /// The number of duplicates among the events of these series; 0 if recording has already returned this number.
    pub repeated: u64,
    /// The number of counts sealed in this step whose number of users is an estimate.
    pub estimated: u64,
    /// The number of minutes of partitions that a window lacks; 0 if an earlier step has returned it.
    pub missing: u64,
    /// The number of series that are still open; 0 means that the claim has ended.
    pub left: u64,
    /// The new claims of this node to send the counts: one for each output that is missing counts and has no claim yet.
    pub sending: Vec<Claim>,
}

/// The open and unsent minutes of a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of unclaimed minutes, finished or not.
    pub waiting: u64,
    /// The number of unclaimed minutes before the `old_before` of a survey; 0 if this is not the result of a survey.
    pub old: u64,
    /// The number of minutes that are claimed for sealing.
    pub claimed: u64,
    /// The earliest open minute.
    pub oldest: Option<Minute>,
    /// Every output that counts have been sealed for, including removed outputs.
    pub outputs: BTreeMap<OutputName, OutputBacklog>,
}

/// The unsent counts of an output in a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBacklog {
    /// The number of minutes with unsent counts.
    pub unsent: u64,
    /// The earliest minute with unsent counts.
    pub oldest: Option<Minute>,
    /// The number of counts in the output's quarantine.
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

/// A node's knowledge of a partition. By default, the node knows nothing, which is consistent with any state of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The epoch of the store's data; 0 if unknown.
    pub epoch: u64,
    /// The stamp that the node's last check-in left; 0 if unknown.
    pub stamp: u64,
    /// The number of the last closing that the node knows of.
    pub sequence: u64,
    /// The time that the store's clock is expected to show now, in ms since the epoch.
    pub expected_ms: Option<i64>,
}

/// A node's report of its state in a partition.
#[derive(Debug, Clone, Copy)]
pub struct CheckIn {
    /// The node's knowledge of the partition.
    pub known: Known,
    /// Whether the node has events of the partition, in memory or on disk, that have not been recorded.
    pub lags: bool,
    /// The time a report of lag remains valid.
    pub lease: Duration,
    /// The time the node counts as alive. During this time, no announcement is complete until the node has learned of it.
    pub alive: Duration,
}

/// The response to a check-in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct News {
    /// The stamp that this check-in has left.
    pub stamp: u64,
    /// The time on the store's clock, in ms since the epoch.
    pub now_ms: i64,
    /// The number of the last closing in this response.
    pub sequence: u64,
    /// The minutes with events that have been closed since the last closing that the node knew of.
    pub closed: Vec<Minute>,
    /// The minutes without events that have been closed since then.
    pub empty: Vec<Minute>,
    /// Minutes announced since the last known closing: counts are about to be written; no output is known to have them all.
    pub announced: Vec<Minute>,
    /// All minutes before this one count as closed.
    pub since: Option<Minute>,
    /// Whether the node should request claims, because a minute is finished or claimed, or because a node reports lag.
    pub is_due: bool,
    /// The total number of late events that this node has found in the partition.
    pub late: u64,
}

/// A node's knowledge of the closed minutes of a partition, for [`Draining::attest`].
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Testimony {
    /// The epoch of the store's data; 0 if unknown.
    pub epoch: u64,
    /// The stamp that the node's last check-in left; 0 if unknown.
    pub stamp: u64,
    /// All minutes before this one are closed.
    pub since: Option<Minute>,
    /// The minutes with events that are known to be closed.
    pub closed: BTreeSet<Minute>,
    /// The minutes without events that are known to be closed.
    pub empty: BTreeSet<Minute>,
    /// Minutes whose counts may have been written, although no output is known to have all of them. No minute is in two sets.
    pub announced: BTreeSet<Minute>,
}

/// The maximum number of minutes that one call attests to, so that it does not block Redis for long.
const HANDED_BACK_MAX: usize = 1000;

impl Testimony {
    /// Returns the epoch minutes in one or more bounded parts, each with the kind of its minutes.
    pub(super) fn parts(&self) -> Vec<(&'static str, Vec<i64>)> {
        let Self { closed, empty, announced, .. } = self;
        let mut parts = Vec::new();
        for (kind, minutes) in [("closed", closed), ("empty", empty), ("announced", announced)] {
            let numbers: Vec<_> = minutes.iter().map(|minute| minute.epoch_minutes()).collect();
            let chunks = numbers.chunks(HANDED_BACK_MAX);
            parts.extend(chunks.map(|part| (kind, part.to_vec())));
        }
        if parts.is_empty() {
            parts.push(("closed", Vec::new()));
        }
        parts
    }
}

/// The response to a testimony.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Attested {
    /// The current epoch, which is a new one if the store has lost something.
    pub epoch: u64,
    /// The node's new stamp.
    pub stamp: u64,
    /// The last stamp that the store still had when this epoch began; 0 if none.
    pub forgot_from: u64,
    /// The store's clock at about the time of that stamp, in ms since the epoch; 0 if none.
    pub forgot_from_ms: i64,
}

/// Whether all other nodes know that counts of a minute are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Announced {
    /// This node no longer holds the claim, and no node has announced the minute.
    ClaimLost,
    /// At least one live node has not learned of the announcement yet.
    Unheard,
    /// Every live node knows of the announcement.
    Heard,
}

/// Returns for how many recent minutes the store lists whether they are closed, not counting the longest window.
pub(super) fn closed_minutes(retention: Duration) -> i64 {
    i64::try_from(retention.as_secs().div_ceil(60) + 1).unwrap_or(i64::MAX)
}

/// The minimum number of sent windows of a rollup that are kept for queries.
const WINDOWS_KEPT: i64 = 31;

/// Returns the maximum time the counts of a window are kept for queries, if minute counts are kept for `retention`.
pub(super) fn retention_of(retention: Duration, every: Every) -> Duration {
    match every {
        Every::MINUTE => retention,
        every => {
            retention.max(Duration::from_secs((WINDOWS_KEPT * every.minutes()).unsigned_abs() * 60))
        }
    }
}

/// Returns the value of `counts_max` for [`kept_for`] with which a partition of windows keeps as many counts as one of minutes.
pub(super) fn kept_counts(counts_max: u64, every: Every) -> u64 {
    counts_max.saturating_mul(every.minutes().unsigned_abs())
}

/// Returns the time minute counts are kept for queries after they have been sent: at least a minute, and at most
/// `retention`. The more counts the minute has, the shorter the time, so that a partition keeps about `counts_max` counts.
pub(super) fn kept_for(retention: Duration, counts_max: u64, counts: u64) -> Duration {
    let minute = Duration::from_secs(60);
    let share = Duration::from_millis(counts_max.saturating_mul(60_000) / counts.max(1));
    share.max(minute).min(retention)
}

/// The role of workers, which seal minutes and send their counts.
#[async_trait]
pub trait Draining: Store {
    /// Tells the store which minutes this node knows to be closed. Each node does so once per generation, before any claim.
    async fn attest(&self, partition: Partition, testimony: &Testimony) -> Result<Attested>;

    /// Reports the node's state, and returns the minutes closed since its last check-in. While any node lags, idle minutes
    /// stay open until `max_hold`. Fails with [`Forgot`](super::StoreError::Forgot) if the store lost what the node knows.
    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News>;

    /// Claims minutes to seal: first those with lapsed claims, oldest first, then finished minutes. Also takes over lapsed
    /// claims to send to these outputs, up to the number given for each output. Claims nothing if the store's generation is
    /// not that of the request. Fails with [`Forgot`](super::StoreError::Forgot) if the store lost what the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>>;

    /// Seals the counts of up to `series_max` series and renews the lease. If the minute is closed, no counts are sealed,
    /// and the events are late. After the last series, seals zeros for series that are silent in this minute, and registers
    /// the next minute if a series could be silent in that. Then the claim ends and is replaced by claims to send. Does nothing if the
    /// generation of the store is not that of the claim, because the store may be missing recorded events.
    async fn compact(&self, claim: &Claim, request: &SealRequest<'_>) -> Result<Compaction>;

    /// Passes the fingerprints of the users of sealed series to `take`, with the index of the series: once or more for each
    /// series, possibly with duplicates. The claim is one to add the minute to windows, and none of these series has been
    /// acknowledged.
    async fn sealed_users(
        &self,
        claim: &Claim,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()>;

    /// Adds the frames of a [`Union`](super::union::Union) to a window: the groups of a minute of a partition, or no frames if
    /// it has none. Repeating the call changes nothing. Returns false if the window is closed.
    async fn contribute(&self, window: Bucket, source: Bucket, frames: &[Vec<u8>]) -> Result<bool>;

    /// Returns which of these minutes of a partition have not been added to the window.
    async fn lacks(
        &self,
        window: Bucket,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>>;

    /// Closes the minutes of a window, given by its first and its last minute, in a partition of series, under the same
    /// conditions as an idle minute. Returns None until they are closed, every other live node knows, and their users have been
    /// added to the window; then returns those that had events.
    async fn settle(
        &self,
        partition: Partition,
        window: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>>;

    /// Reads a page of a claim's unsent counts. The first cursor is 0.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>>;

    /// Announces that counts of these claims, which share one partition and output, are about to be written, which closes
    /// their minutes. Returns for each claim whether all nodes know this; the caller repeats the call until they do. Fails
    /// with [`StoreError::Forgot`](super::StoreError::Forgot) if the store has lost something that the node knows.
    async fn announce(&self, known: &Known, claims: &[&Claim]) -> Result<Vec<Announced>>;

    /// Marks the counts of these series as acknowledged by the claim's output, and renews the lease. Returns true once the
    /// output has all counts, which ends the claim. Once all outputs have all counts, the counts get a time to live.
    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool>;

    /// Quarantines counts that the claim's output has rejected. For each count, `refused` contains its series and the
    /// server's message. Returns, for each count, whether there was room for it; if not, it is dropped.
    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>>;

    /// Sets the deadlines of claims of one partition and purpose to `lease` from now. Returns how many are still held.
    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize>;

    /// Returns the open and unsent minutes of a partition.
    async fn backlog(&self, partition: Partition) -> Result<Backlog>;

    /// Returns for each partition whether it has an open minute, or unsent counts for these outputs. Cheap if none has.
    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>>;
}
