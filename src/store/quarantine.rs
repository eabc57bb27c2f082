//! The counts that an output refused, and what waits for one that is gone, as an operator sees them: the [`Quarantine`]
//! trait.
//!
//! Apart from [`Store`](super::Store), because no node needs it: sets and counts flow without it.
//! [`Draining::quarantine`](super::Draining::quarantine) brings counts in; here they go back to be sent, or for good.

use async_trait::async_trait;

use super::{OutputName, Page, StoreError};
use crate::event::{Minute, Partition};

/// The most counts of one output that the quarantine of a partition holds.
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
    /// When they were quarantined last, in seconds since the epoch, by the store's clock.
    pub since: i64,
    /// What the server said.
    pub message: String,
}

/// What was dropped of an output that is gone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Minutes that it did not have in full.
    pub minutes: u64,
    /// The counts of them that it lacked.
    pub counts: u64,
    /// Counts in its quarantine.
    pub quarantined: u64,
}

/// The counts that outputs refused. At most 10 000 an output and partition are kept.
#[async_trait]
pub trait Quarantine: Send + Sync + std::fmt::Debug {
    /// Reads a page of an output's quarantine of a partition, from `cursor` on; 0 is the first.
    async fn quarantined_page(
        &self,
        partition: Partition,
        output: &OutputName,
        cursor: u64,
    ) -> Result<Page<Quarantined>, StoreError>;

    /// Makes the counts of these series unsent again for the output, and their minute one that any node claims. Where the
    /// store has forgotten the counts it takes them from here; where it has not, its own stay, whatever is
    /// here: there never are two values. Answers how many of the series were quarantined.
    async fn requeue(
        &self,
        partition: Partition,
        output: &OutputName,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64, StoreError>;

    /// Forgets these counts, as far as they are still what the caller has seen. Answers how many they were.
    async fn discard(
        &self,
        partition: Partition,
        output: &OutputName,
        seen: &[Quarantined],
    ) -> Result<u64, StoreError>;

    /// Drops all that waits for an output, its quarantine included, and forgets that there was one. For outputs that no
    /// node has any more. A minute that no other output lacks is closed.
    async fn drop_output(
        &self,
        partition: Partition,
        output: &OutputName,
    ) -> Result<Dropped, StoreError>;
}
