//! Read access to counts: the [`CountReader`] role. Nodes can run without it.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{Bucket, Result};
use crate::event::{Minute, Partition};

/// The counts of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesCounts {
    /// The canonical series.
    pub series: String,
    /// Number of distinct users.
    pub unique: u64,
    /// Number of distinct events.
    pub cumulative: u64,
}

/// The number of events in a minute that each node has seen, by node name. Processes with the same name are added up.
pub type Coverage = BTreeMap<String, u64>;

/// Adds up the coverage of processes, whose names consist of the node's name and a number.
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
    /// An item may be on several pages, and an item that is added or removed between two pages may be on none.
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
    /// Returns for each of up to a few hundred minutes the number of sealed series, or more if some are not sealed yet.
    async fn sealed_sizes(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<u64>>;

    /// Reads a page of the sealed counts of a minute. The first cursor is 0.
    async fn sealed_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<SeriesCounts>>;

    /// Returns the coverage of each of these minutes, a few hundred at most.
    async fn coverage(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<Coverage>>;

    /// Returns minutes that may be open, newest first: up to `most` unclaimed, and `most` claimed with the latest deadlines.
    async fn open_minutes(&self, partition: Partition, most: usize) -> Result<Vec<Minute>>;

    /// Reads a page of a minute's open series. The first cursor is 0.
    async fn open_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<String>>;

    /// Returns the counts of a few hundred series, as of one instant. Omits series that are sealed or have no events.
    async fn open_counts(&self, bucket: Bucket, series: &[&str]) -> Result<Vec<SeriesCounts>>;

    /// Returns why queries are currently rejected, if memory is reserved for events. Checks at most once per second.
    async fn shortage(&self) -> Result<Option<String>> {
        Ok(None)
    }
}
