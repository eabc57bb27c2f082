//! The [`CountReader`] role: read access to counts. A node can run without this role.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{Bucket, Result};
use crate::event::{Minute, Partition, Quality};

/// The counts of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesCounts {
    /// The canonical series.
    pub series: String,
    /// The number of distinct users.
    pub unique: u64,
    /// The number of distinct events.
    pub cumulative: u64,
    /// Whether the numbers are exact and complete, as those of a minute always are.
    pub quality: Quality,
}

/// How many events of a minute each node has seen, by node name. The numbers of processes with the same name are added up.
pub type Coverage = BTreeMap<String, u64>;

/// Returns the coverage by node name, given how many events each process (a node's name, a `#` and a number) has seen.
pub(super) fn by_name(processes: impl IntoIterator<Item = (String, u64)>) -> Coverage {
    let mut nodes = Coverage::new();
    for (process, events) in processes {
        let name = process.split('#').next().unwrap_or_default();
        *nodes.entry(name.to_owned()).or_default() += events;
    }
    nodes
}

/// A page of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Page<T> {
    /// The items on the page. An item may be on several pages, or on none if it is added or removed during the reading.
    pub items: Vec<T>,
    /// The cursor of the next page; `None` on the last page.
    pub next: Option<u64>,
}

const PAGE: usize = 500;

impl<T> Page<T> {
    pub(super) fn cut(all: impl ExactSizeIterator<Item = T>, cursor: u64) -> Self {
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let next = from.saturating_add(PAGE);
        let next = (next < all.len()).then_some(next as u64);
        Self { next, items: all.skip(from).take(PAGE).collect() }
    }
}

/// Reads counts without changing anything. Each call is small, so that none delays recording or draining.
#[async_trait]
pub trait CountReader: Send + Sync + std::fmt::Debug {
    /// Returns the number of sealed series in each of these minutes, a few hundred at most. May include unsealed series.
    async fn sealed_sizes(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<u64>>;

    /// Reads a page of the sealed counts of a minute. The first cursor is 0.
    async fn sealed_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<SeriesCounts>>;

    /// Returns the coverage of each of these minutes, a few hundred at most.
    async fn coverage(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<Coverage>>;

    /// Returns minutes that may be open, newest first: up to `most` unclaimed minutes, and up to `most` claimed minutes.
    async fn open_minutes(&self, partition: Partition, most: usize) -> Result<Vec<Minute>>;

    /// Reads a page of a minute's open series. The first cursor is 0.
    async fn open_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<String>>;

    /// Returns the current counts of these series (at most a few hundred). Omits series that are sealed or have no events.
    async fn open_counts(&self, bucket: Bucket, series: &[&str]) -> Result<Vec<SeriesCounts>>;

    /// Returns why queries are rejected to reserve memory for events, or None if they are not. Checks once a second at most.
    async fn shortage(&self) -> Result<Option<String>> {
        Ok(None)
    }
}
