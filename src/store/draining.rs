//! From sets to counts that an output has: the [`Draining`] role.

use std::time::Duration;

use async_trait::async_trait;

use super::{Attested, Known, News, Page, SeriesCounts, Store, StoreError, Testimony};
use crate::event::{Minute, Partition};

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
    /// The most lapsed claims to take over at once.
    pub lapsed_max: usize,
    /// The most finished minutes to claim at once.
    pub finished_max: usize,
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
    /// Series whose counts are sealed now.
    pub sealed: u64,
    /// Events of series whose counts were sealed before: too late. Copies of sealed events count here too,
    /// since nobody can tell them apart any more.
    pub late: u64,
    /// Series that still have sets.
    pub left: u64,
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
    /// `max_hold` because it is idle. Answers what was closed since the node last heard of it. Fails with
    /// [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
    ) -> Result<News, StoreError>;

    /// Claims minutes: lapsed claims first, from the longest lapsed on, then minutes that are over and idle, lowest first.
    /// Claims nothing when the generation is not that of the request: another server may not know which nodes lag. Fails
    /// with [`StoreError::Forgot`] when the store lacks what the node knows.
    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Vec<Claim>, StoreError>;

    /// Seals the counts of at most `series_max` series and renews the lease. Those of a minute that was closed are late.
    /// Changes nothing when the generation is not that of the claim: what was recorded may not all be there yet.
    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError>;

    /// Reads a page of the counts of a claim that no output has confirmed, from `cursor` on; 0 is the first.
    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError>;

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
}
