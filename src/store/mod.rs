//! The shared memory of a minute: the [`Store`] trait and its errors.
//!
//! A minute of a partition goes through these steps, and every node may do any of them:
//!
//! 1. [`admit`](Store::admit) says which series get sets of their own; those beyond the cap share the overflow series.
//!    [`record`](Store::record) adds users and events to sets. Idempotent: doing it again changes nothing.
//! 2. [`claim`](Store::claim) takes minutes that are over and idle, each with a token and for the length of a
//!    lease. A claim that lapses is taken over with a new token.
//! 3. [`compact`](Store::compact) turns the sets into counts, once for good, and drops the sets.
//! 4. [`unsent`](Store::unsent) reads the counts that no output has confirmed.
//! 5. [`acknowledge`](Store::acknowledge) marks them confirmed, and with the last one ends the claim and closes the minute;
//!    [`extend`](Store::extend) keeps a claim, or lets it lapse sooner.
//!
//! Which minutes are closed is known to all nodes: they hand it back ([`attest`](Store::attest)) to a store that forgets.
//!
//! All that is done after a claim checks its token, so a node that slept through its lease changes nothing.

mod admission;
pub mod memory;
mod quarantine;
mod reading;
pub mod redis;
mod witness;

use std::time::Duration;

use async_trait::async_trait;

pub use self::admission::{Admission, AdmitRequest, Admitted, SeriesUsers};
pub use self::quarantine::{QUARANTINE_MAX, Quarantine, Quarantined, QuarantinedPage};
pub use self::reading::{CountReader, OpenPage, SealedPage, SeriesCounts};
pub use self::witness::{Attested, CLOCK_TOLERANCE_MS, Claimed, Known, Testimony};
use crate::event::{Batch, Minute, Occurrence, Partition};

/// Events of one series in one minute, to be recorded.
#[derive(Debug)]
pub struct RecordRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The canonical series under which they are recorded.
    pub series: &'a str,
    /// The series that they came with, where that one was refused and `series` is the overflow series: events of
    /// different series are different events there.
    pub gathered_from: Option<&'a str>,
    /// The users that the store may not know yet in this minute and series.
    pub new_users: Vec<&'a str>,
    /// The events.
    pub occurrences: &'a [Occurrence],
    /// The batch that holds the users of `occurrences`.
    pub batch: &'a Batch,
}

/// What a claim is asked for.
#[derive(Debug, Clone, Copy)]
pub struct ClaimRequest {
    /// How long a minute that is over must be idle.
    pub grace: Duration,
    /// When a minute is closed although it is not idle, counted from its end or its first event.
    pub max_hold: Duration,
    /// How long the claim holds.
    pub lease: Duration,
    /// The most lapsed claims to take over at once.
    pub lapsed_max: usize,
    /// The most finished minutes to claim at once.
    pub finished_max: usize,
    /// Whether this node has events of the partition that it could not record, or any on disk. It counts for a lease,
    /// or until the node says otherwise; as long as any node is lagging, idle minutes are not closed before `max_hold`.
    pub lagging: bool,
    /// What the node has seen of the partition before.
    pub known: Known,
}

/// A minute of a partition that this node works on until the lease is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The partition.
    pub partition: Partition,
    /// The minute.
    pub minute: Minute,
    /// Proof of the claim; a later claim of the same minute has a greater one.
    pub token: String,
    /// The store's generation that granted it.
    pub generation: u64,
    /// Whether an earlier claim of this minute lapsed.
    pub taken_over: bool,
}

/// What a compaction did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Series whose counts are fixed now.
    pub sealed: u64,
    /// Events of series whose counts were fixed before: too late. Copies of counted events count here too,
    /// since nobody can tell them apart any more.
    pub late: u64,
    /// Series that still have sets.
    pub left: u64,
}

/// Counts of one series that no output has confirmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsentCounts {
    /// The canonical series.
    pub series: String,
    /// Different users.
    pub unique: u64,
    /// Different events.
    pub cumulative: u64,
}

/// A part of the unsent counts of a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnsentPage {
    /// The counts. A series may be there twice over the pages of a claim.
    pub counts: Vec<UnsentCounts>,
    /// Where to go on; `None` after the last page.
    pub next: Option<u64>,
}

/// How much a partition has to do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Minutes that are not claimed, those that still fill included.
    pub waiting: u64,
    /// Minutes that are claimed and not done.
    pub claimed: u64,
    /// Counts in the quarantine.
    pub quarantined: u64,
    /// The earliest of all these minutes.
    pub oldest: Option<Minute>,
}

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Away, slow, or not ready. What was asked may have been done.
    #[error("store is unavailable: {0}")]
    Unavailable(String),
    /// Out of memory. Minutes can be drained all the same, which makes room.
    #[error("store is full: {0}")]
    Full(String),
    /// It will not serve this node until somebody mends something.
    #[error("store cannot be used: {reason}; {hint}")]
    Refused {
        /// What is wrong.
        reason: String,
        /// How to fix it.
        hint: String,
    },
    /// The store lacks what this node has seen in it; nothing was done. Hand back what is closed first.
    #[error("the store went back to what it was before, or is another one")]
    Forgot,
    /// The claim is no longer this node's; nothing was changed.
    #[error("the claim was taken over by another node")]
    ClaimLost,
}

/// The shared memory of all nodes.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Looks whether the store is there and fit for this node. Every later call does so by itself where it
    /// has to; this is for start-up and readiness.
    async fn check(&self) -> Result<(), StoreError>;

    /// How this node's settings differ from those that all nodes must have alike, as the error of [`Store::check`]. A node
    /// that differs may record what it receives, but neither close minutes nor send.
    async fn difference(&self) -> Result<Option<StoreError>, StoreError> {
        Ok(None)
    }

    /// Says that this node lives, for some seconds. Answers whether another process does so under its name.
    async fn register(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// A number that changes whenever the store may have forgotten what it confirmed: with the connection. 0 as
    /// long as there was none, and where none is needed.
    fn generation(&self, partition: Partition) -> u64;

    /// Says which of these series are recorded under their own names in a minute, and which under the overflow
    /// series. The first that ask are admitted, as many as the cap allows; the answer is the same for all nodes and
    /// for good, as long as the generation does not change.
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError>;

    /// How many users a series has in a minute, and which of these are among them.
    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError>;

    /// Adds events to the sets of their minutes, and answers how many of them were there already: copies, from whichever
    /// node, or events of a user that have one timestamp. All recordings are of this partition. Changes nothing when the
    /// generation is not this one: another store may have admitted other series. 0 stands for any.
    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError>;

    /// Hands back what this node knows to be closed: a minute that is handed back is closed, whatever the store knew of
    /// it. Each node does so once for each generation, before it claims anything.
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError>;

    /// Claims minutes: lapsed claims first, from the longest lapsed on, then minutes that are over and idle, lowest first.
    /// Tells what was closed since the node last heard of it. Fails with [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Claimed, StoreError>;

    /// Fixes the counts of at most `series_max` series and renews the lease. Those of a minute that was closed are late.
    /// Changes nothing when the generation is not that of the claim: what was recorded may not all be there yet.
    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError>;

    /// Reads a page of the unsent counts of a claim, from `cursor` on; 0 is the first.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<UnsentPage, StoreError>;

    /// Marks the counts of these series confirmed and renews the lease. Answers true when nothing was left
    /// to do, which ends the claim and closes the minute: what comes later is late.
    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError>;

    /// Puts counts of a claim that the output refuses into the quarantine, each series with the server's message.
    /// Answers for each whether there was room; the others leave `unsent` all the same.
    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError>;

    /// Moves the deadline of these claims, all of one partition, to this long from now. Those that are no
    /// longer held are passed over. Answers how many were held.
    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError>;

    /// How much a partition has to do.
    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError>;

    /// The memory that open minutes take in this process and the most that they may take, in bytes; `None` where they are
    /// elsewhere.
    fn memory(&self) -> Option<(u64, u64)> {
        None
    }

    /// How many different events would be lost if the process ended now: those of minutes that are not counted, and of
    /// counts that no output has. `None` where the store outlives the process.
    fn ends_with_process(&self) -> Option<u64> {
        None
    }

    /// What an operator should fix although nothing is lost yet, in words; as far as the last calls have shown it.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Looks whether something waits in the store that no partition of this node's has, for [`Store::warnings`]. Takes its
    /// time.
    async fn look_for_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Where the events are kept, in words for the log, without secrets.
    fn describe(&self) -> String;
}
