//! From sets to counts that every output has: the [`Draining`] role.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{Announced, Attested, Known, News, Page, SeriesCounts, Store, StoreError, Testimony};
use crate::event::{Minute, Partition};

/// The name of an output: short enough for keys and labels, and of letters that need no escapes there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutputName(Arc<str>);

impl OutputName {
    /// The longest, in bytes.
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

/// A text that is not 1 to 32 of `a-z 0-9 _ -`.
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

/// The most minutes of a kind, recent or old, that one claim looks at: what bounds the time for which it blocks the store.
pub(super) const LOOKED_AT_MAX: usize = 250;
/// A minute is recent for this long after it could have been closed, and old from then on.
const RECENT_FOR: Duration = Duration::from_secs(300);

/// Returns for how long after its end a minute is recent: one that fills no more is closed by then. Recent minutes are sealed and
/// sent before old ones, which an archive that is replayed, or a host whose clock is wrong, may bring by thousands.
pub(crate) fn recent_for(grace: Duration) -> Duration {
    grace.saturating_add(RECENT_FOR)
}

/// Returns whether a minute is recent at this time of the store's clock.
pub(crate) fn is_recent(minute: Minute, now_ms: i64, grace: Duration) -> bool {
    let recent_ms = i64::try_from(recent_for(grace).as_millis()).unwrap_or(i64::MAX);
    minute.end_millis().saturating_add(recent_ms) > now_ms
}

/// What a claim is asked for.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRequest {
    /// The store's generation in which the node checked in; 0 stands for any.
    pub generation: u64,
    /// How long a minute that is over must be idle.
    pub grace: Duration,
    /// When a minute is closed although it is not idle, counted from its end or its first event.
    pub max_hold: Duration,
    /// How long the claim holds.
    pub lease: Duration,
    /// The most lapsed claims of sealing to take over at once.
    pub lapsed_max: usize,
    /// The most finished minutes to claim at once, to be sealed: recent ones first, the newest before the others, then old ones.
    pub finished_max: usize,
    /// The most of them that are old.
    pub old_max: usize,
    /// What the node has seen of the partition before.
    pub known: Known,
}

/// A minute of a partition that this node works on until the lease is over: it seals the minute, or sends its counts to one
/// output. Each is claimed apart, so that one output delays neither the sealing nor another output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The partition.
    pub partition: Partition,
    /// The minute.
    pub minute: Minute,
    /// The output that its counts are sent to; `None`: it is sealed.
    pub output: Option<OutputName>,
    /// Proof of the claim; a later claim of the same minute, for the same, has a greater one.
    pub token: String,
    /// The store's generation that granted it.
    pub generation: u64,
    /// Whether an earlier claim of this minute lapsed.
    pub taken_over: bool,
}

/// What a compaction did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Series whose counts are sealed now.
    pub sealed: u64,
    /// How many events this node found in the partition, in all, whose series' counts were sealed before: too late. Copies of sealed
    /// events count here too, since nobody can tell them apart any more. An answer that is lost takes none with it.
    pub late: u64,
    /// Copies among the events of these series, where recording did not tell them.
    pub repeated: u64,
    /// Series that still have sets. Without any the claim has ended.
    pub left: u64,
    /// Claims of the same node to send the counts, one for each output that lacks some and that nobody sends to.
    pub sending: Vec<Claim>,
}

/// How much a partition has to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Minutes that are not claimed, those that still fill included.
    pub waiting: u64,
    /// Those of them before the minute that the survey asked about; 0 where it is no survey.
    pub old: u64,
    /// Minutes that are claimed to be sealed.
    pub claimed: u64,
    /// The earliest of these minutes.
    pub oldest: Option<Minute>,
    /// Every output that anything was sealed for, those that are gone included.
    pub outputs: BTreeMap<OutputName, OutputBacklog>,
}

/// How much of a partition an output lacks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutputBacklog {
    /// Minutes that it does not have in full.
    pub unsent: u64,
    /// The earliest of them.
    pub oldest: Option<Minute>,
    /// Counts in its quarantine.
    pub quarantined: u64,
}

/// That of another partition besides.
impl std::ops::AddAssign for OutputBacklog {
    fn add_assign(&mut self, other: Self) {
        self.unsent += other.unsent;
        self.quarantined += other.quarantined;
        self.oldest = self.oldest.into_iter().chain(other.oldest).min();
    }
}

/// What a worker does with a store.
#[async_trait]
pub trait Draining: Store {
    /// Hands back what this node knows to be closed: a minute that is handed back is closed, whatever the store knew of
    /// it. Each node does so once for each generation, before it claims anything.
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError>;

    /// Reports whether this node lags, for the length of a lease unless it reports again: whether it has events of the
    /// partition which are not recorded, in memory or on disk. As long as any node lags, no claim closes a minute before
    /// `max_hold` because it is idle. Answers what was closed since the node last heard of it. Unless it checks in again this
    /// node counts as alive for so long, and who is about to write counts waits for it to hear so. Fails with
    /// [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
        alive: Duration,
    ) -> Result<News, StoreError>;

    /// Claims minutes: to be sealed, lapsed claims first, from the longest lapsed on, then minutes that are over and idle,
    /// lowest first; to be sent, for each of these outputs at most so many lapsed claims.
    /// Claims nothing when the generation is not that of the request: another server may not know which nodes lag. Fails
    /// with [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError>;

    /// Seals the counts of at most `series_max` series for these outputs and renews the lease. Events of a minute that was
    /// closed are late. When no sets are left the claim ends, and claims to send what was sealed take its place. Changes
    /// nothing when the generation is not that of the claim: what was recorded may not all be there yet.
    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        outputs: &[OutputName],
    ) -> Result<Compaction, StoreError>;

    /// Reads a page of the counts that the output of a claim has not confirmed, from `cursor` on; 0 is the first.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError>;

    /// Makes it known that counts of these claims, all of one partition and output, are about to be written, which closes their
    /// minutes, and answers for each who has heard so. To be asked again until every node has. Fails with
    /// [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn announce(
        &self,
        partition: Partition,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError>;

    /// Marks the counts of these series confirmed by the output of the claim and renews the lease. Answers true when it
    /// lacks none, which ends the claim. The counts get their time to live with the last output.
    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError>;

    /// Puts counts of a claim that its output refuses into the quarantine of that, each series with the server's message.
    /// Answers for each whether there was room; the others leave `unsent` all the same.
    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError>;

    /// Moves the deadline of these claims, all of one partition and for the same, to this long from now. Those that are no
    /// longer held are passed over. Answers how many were held.
    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError>;

    /// How much a partition has to do.
    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError>;

    /// Whether each of these partitions has anything to do: a minute that is not done, or one that one of these outputs lacks.
    /// Cheap where none has.
    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError>;
}
