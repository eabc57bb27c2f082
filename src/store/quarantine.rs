//! The counts that an output refused, as an operator sees them: the [`Quarantine`] trait.
//!
//! Apart from [`Store`](super::Store), because no node needs it: sets and counts flow without it.
//! [`Store::set_aside`](super::Store::set_aside) brings counts in; here they go back to be sent, or for good.

use async_trait::async_trait;

use super::StoreError;
use crate::event::{Minute, Partition};

/// The most counts that a partition sets aside.
pub const SET_ASIDE_MAX: usize = 10_000;

/// Counts of one series in one minute that an output refused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SetAside {
    /// The minute.
    pub minute: Minute,
    /// The canonical series.
    pub series: String,
    /// Different users.
    pub unique: u64,
    /// Different events.
    pub cumulative: u64,
    /// When they were set aside last, in seconds since the epoch, by the store's clock.
    pub since: i64,
    /// What the server said.
    pub words: String,
}

/// A part of what is set aside in a partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SetAsidePage {
    /// The counts. One may be there twice over the pages, and one that is set aside meanwhile may be missing.
    pub counts: Vec<SetAside>,
    /// Where to go on; `None` after the last page.
    pub next: Option<u64>,
}

/// The counts that outputs refused. At most 10 000 a partition are kept.
#[async_trait]
pub trait Quarantine: Send + Sync + std::fmt::Debug {
    /// Reads a page of what is set aside in a partition, from `cursor` on; 0 is the first.
    async fn set_aside_page(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<SetAsidePage, StoreError>;

    /// Makes the counts of these series unsent again, and their minute one that any node claims. Where the
    /// store has forgotten the counts it takes them from here; where it has not, its own stay, whatever is
    /// here: there never are two values. Answers how many of the series were set aside.
    async fn send_again(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<u64, StoreError>;

    /// Forgets these counts, as far as they are still what the caller has seen. Answers how many they were.
    async fn forget(&self, partition: Partition, seen: &[SetAside]) -> Result<u64, StoreError>;
}
