//! The counts, as somebody sees them who only looks: the [`CountReader`] trait.
//!
//! Apart from [`Store`](super::Store), because no node needs it: events become counts without it. Each call asks
//! for little, so that none holds up those who record and drain; who wants much calls often.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::StoreError;
use crate::event::{Minute, Partition};

/// The two numbers of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesCounts {
    /// The canonical series.
    pub series: String,
    /// Different users.
    pub unique: u64,
    /// Different events.
    pub cumulative: u64,
}

/// How many events of a minute each node has seen, by its name: all processes of that name together.
pub type Coverage = BTreeMap<String, u64>;

/// The same from what each process has seen, which has the node's name and its own number.
pub(super) fn by_name(processes: impl IntoIterator<Item = (String, u64)>) -> Coverage {
    let mut nodes = Coverage::new();
    for (process, events) in processes {
        let name = process.split('#').next().unwrap_or_default();
        *nodes.entry(name.to_owned()).or_default() += events;
    }
    nodes
}

/// A part of what a store has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// What there is. The same may be there twice over the pages, and what comes or goes meanwhile may be missing.
    pub items: Vec<T>,
    /// Where to go on; `None` after the last page.
    pub next: Option<u64>,
}

/// Looking at the counts, without changing anything.
#[async_trait]
pub trait CountReader: Send + Sync + std::fmt::Debug {
    /// How many series of a partition have sealed counts in each of these minutes, in their order, or more where some
    /// wait to be counted. The caller asks for some hundred minutes at most.
    async fn sealed_sizes(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<u64>, StoreError>;

    /// Reads a page of the sealed counts of a minute, from `cursor` on; 0 is the first.
    async fn sealed_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<SeriesCounts>, StoreError>;

    /// How many events of a partition each node has seen in each of these minutes, in their order. The caller asks for some
    /// hundred minutes at most.
    async fn coverage(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Coverage>, StoreError>;

    /// The minutes of a partition that may have sets, newest first, `most` of those that wait and `most` of those
    /// that are claimed, which are the ones whose lease ends last.
    async fn open_minutes(
        &self,
        partition: Partition,
        most: usize,
    ) -> Result<Vec<Minute>, StoreError>;

    /// Reads a page of the series of a minute that have sets, from `cursor` on; 0 is the first.
    async fn open_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<String>, StoreError>;

    /// What the sets of these series hold now: the two numbers of one series are of one instant. Those without
    /// sets, and those whose counts are sealed, are left out. The caller asks for some hundred series at most.
    async fn open_counts(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>, StoreError>;

    /// Why nobody should look now: the store has hardly any room left, and that is for events. `None` when it has
    /// room. May be asked for each question; looks once a second at most.
    async fn shortage(&self) -> Result<Option<String>, StoreError> {
        Ok(None)
    }
}
