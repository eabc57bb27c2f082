//! The [`Quarantine`] role: operators read refused counts, send them again or drop them. Nodes do not need it;
//! [`Draining::quarantine`](super::Draining::quarantine) adds the counts.

use async_trait::async_trait;

use super::{OutputName, Page, Result};
use crate::event::{Minute, Partition};

/// The most counts of an output in the quarantine of a partition.
pub const QUARANTINE_MAX: usize = 10_000;

/// Counts of one series in one minute that an output refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quarantined {
    /// The minute.
    pub minute: Minute,
    /// The canonical series.
    pub series: String,
    /// Different users.
    pub unique: u64,
    /// Different events.
    pub cumulative: u64,
    /// The time of the last refusal in seconds since the epoch, by the store's clock.
    pub since: i64,
    /// The server's message.
    pub message: String,
}

/// The counts dropped with an output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Minutes with unsent counts.
    pub minutes: u64,
    /// Unsent counts.
    pub counts: u64,
    /// Quarantined counts.
    pub quarantined: u64,
}

/// The refused counts of outputs.
#[async_trait]
pub trait Quarantine: Send + Sync + std::fmt::Debug {
    /// Reads a page of an output's quarantine of a partition. The first cursor is 0.
    async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>>;

    /// Makes the counts of these series unsent again, and lets any node claim their minute. Counts that the store has are kept;
    /// counts that it forgot are restored from the quarantine, so that no point gets a second value. Returns how many of the series
    /// were quarantined.
    async fn requeue(
        &self,
        partition: Partition,
        output: &OutputName,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64>;

    /// Drops these counts if they did not change since the caller saw them. Returns the number of counts dropped.
    async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64>;

    /// Drops the unsent and quarantined counts and the name of an output that no node has. A minute that no other output
    /// lacks is closed.
    async fn drop_output(&self, partition: Partition, output: &OutputName) -> Result<Dropped>;
}
