//! Looking at what this process holds.

use std::collections::BTreeSet;

use async_trait::async_trait;

use super::{MemoryStore, MinuteState, State};
use crate::event::{Minute, Partition};
use crate::store::{CountReader, OpenPage, SealedPage, SeriesCounts, StoreError};

/// The series given at once.
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
    ) -> Result<SealedPage, StoreError> {
        let state = self.lock();
        let Some(minute) = minute_of(&state, partition, minute) else {
            return Ok(SealedPage::default());
        };
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let page = minute.counts.iter().skip(from).take(PAGE);
        let counts = page.map(|(series, &(unique, cumulative))| SeriesCounts {
            series: series.clone(),
            unique,
            cumulative,
        });
        Ok(SealedPage {
            counts: counts.collect(),
            next: next(from, minute.counts.len()),
        })
    }

    async fn open_minutes(
        &self,
        partition: Partition,
        most: usize,
    ) -> Result<Vec<Minute>, StoreError> {
        let state = self.lock();
        let partition = &state.partitions[partition.index()];
        let waiting = partition.waiting.iter().rev().take(most).copied();
        let claimed = partition.by_deadline().into_iter().rev().take(most);
        let claimed = claimed.map(|(_, minute)| minute);
        let minutes: BTreeSet<Minute> = waiting.chain(claimed).collect();
        Ok(minutes.into_iter().rev().collect())
    }

    async fn open_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<OpenPage, StoreError> {
        let state = self.lock();
        let Some(minute) = minute_of(&state, partition, minute) else {
            return Ok(OpenPage::default());
        };
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let page = minute.sets.keys().skip(from).take(PAGE);
        Ok(OpenPage {
            series: page.cloned().collect(),
            next: next(from, minute.sets.len()),
        })
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
            (!minute.counts.contains_key(series)).then(|| SeriesCounts {
                series: series.to_owned(),
                unique: sets.users.len() as u64,
                cumulative: sets.cumulative(),
            })
        });
        Ok(open.collect())
    }
}

fn minute_of(state: &State, partition: Partition, minute: Minute) -> Option<&MinuteState> {
    state.partitions[partition.index()].minutes.get(&minute)
}

fn next(from: usize, all: usize) -> Option<u64> {
    let next = from.saturating_add(PAGE);
    (next < all).then_some(next as u64)
}
