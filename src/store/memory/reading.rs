//! Looking at what this process holds.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::claiming::by_deadline;
use super::{MemoryStore, MinuteState, State};
use crate::event::{Minute, Partition};
use crate::store::reading::by_name;
use crate::store::{CountReader, Coverage, Page, SeriesCounts, StoreError};

/// What is given at once.
const PAGE: usize = 500;

#[async_trait]
impl CountReader for MemoryStore {
    async fn sealed_sizes(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<u64>, StoreError> {
        let state = self.lock();
        let size = |minute: &Minute| {
            minute_of(&state, partition, *minute).map_or(0, |minute| minute.counts.len() as u64)
        };
        Ok(minutes.iter().map(size).collect())
    }

    async fn sealed_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<SeriesCounts>, StoreError> {
        let state = self.lock();
        let Some(minute) = minute_of(&state, partition, minute) else {
            return Ok(Page::default());
        };
        let counts = minute.counts.iter();
        let counts = counts.map(|(series, &counts)| series_counts(series, counts));
        Ok(page(counts, cursor))
    }

    async fn coverage(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Coverage>, StoreError> {
        let state = self.lock();
        let coverage = |minute: &Minute| {
            let minute = minute_of(&state, partition, *minute);
            by_name(minute.into_iter().flat_map(|it| it.coverage.clone()))
        };
        Ok(minutes.iter().map(coverage).collect())
    }

    async fn open_minutes(
        &self,
        partition: Partition,
        most: usize,
    ) -> Result<Vec<Minute>, StoreError> {
        let state = self.lock();
        let partition = &state.partitions[partition.index()];
        let waiting = partition.waiting.iter().rev().take(most).copied();
        let claimed = by_deadline(&partition.claims).into_iter().rev().take(most);
        let claimed = claimed.map(|(_, minute)| minute);
        let minutes: BTreeSet<Minute> = waiting.chain(claimed).collect();
        Ok(minutes.into_iter().rev().collect())
    }

    async fn open_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<String>, StoreError> {
        let state = self.lock();
        let Some(minute) = minute_of(&state, partition, minute) else {
            return Ok(Page::default());
        };
        Ok(page(minute.sets.keys().cloned(), cursor))
    }

    async fn open_counts(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        let state = self.lock();
        let Some(minute) = minute_of(&state, partition, minute) else {
            return Ok(Vec::new());
        };
        let open = series.iter().filter_map(|&series| {
            let sets = minute.sets.get(series)?;
            let counts = (sets.unique(), sets.cumulative());
            (!minute.counts.contains_key(series)).then(|| series_counts(series, counts))
        });
        Ok(open.collect())
    }
}

fn minute_of(state: &State, partition: Partition, minute: Minute) -> Option<&MinuteState> {
    state.partitions[partition.index()].minutes.get(&minute)
}

/// A page of all of these, from the cursor on.
pub(super) fn page<T>(all: impl ExactSizeIterator<Item = T>, cursor: u64) -> Page<T> {
    let from = usize::try_from(cursor).unwrap_or(usize::MAX);
    let next = from.saturating_add(PAGE);
    Page {
        next: (next < all.len()).then_some(next as u64),
        items: all.skip(from).take(PAGE).collect(),
    }
}

pub(super) fn series_counts(series: &str, (unique, cumulative): (u64, u64)) -> SeriesCounts {
    SeriesCounts {
        series: series.to_owned(),
        unique,
        cumulative,
    }
}
