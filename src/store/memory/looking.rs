//! Looking at what this process holds. There is nobody else who could, and nothing to report to.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{MemoryStore, MinuteState, State};
use crate::event::{Minute, Partition};
use crate::store::reading::by_name;
use crate::store::{
    Backlog, CountReader, Coverage, LossRecord, OutputName, Page, Reported, SeriesCounts,
    Store as _, StoreError, Survey, Surveyed,
};

/// What is given at once.
const PAGE: usize = 500;

#[async_trait]
impl CountReader for MemoryStore {
    async fn sealed_sizes(
        &self,
        at: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<u64>, StoreError> {
        let state = self.lock();
        let sealed = minutes.iter().map(|minute| state.minute(at, *minute));
        let sizes = sealed.map(|minute| minute.map_or(0, |minute| minute.counts.len() as u64));
        Ok(sizes.collect())
    }

    async fn sealed_page(
        &self,
        at: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<SeriesCounts>, StoreError> {
        let state = self.lock();
        let counts = state.minute(at, minute).map(|minute| {
            let counts = minute.counts.iter();
            page(counts.map(|(series, counts)| series_counts(series, *counts)), cursor)
        });
        Ok(counts.unwrap_or_default())
    }

    async fn coverage(
        &self,
        at: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Coverage>, StoreError> {
        let state = self.lock();
        let coverage = |minute: &Minute| {
            let minute = state.minute(at, *minute);
            let seen = minute.map(|minute| (self.node.clone(), minute.seen));
            by_name(seen.filter(|(_, events)| *events > 0))
        };
        Ok(minutes.iter().map(coverage).collect())
    }

    async fn open_minutes(&self, at: Partition, most: usize) -> Result<Vec<Minute>, StoreError> {
        let state = self.lock();
        let partition = &state.partitions[at.index()];
        let open = partition.busy.iter().rev().copied();
        let open = open.filter(|minute| !partition.minutes[minute].sets.is_empty());
        Ok(open.take(most).collect())
    }

    async fn open_page(
        &self,
        at: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<String>, StoreError> {
        let state = self.lock();
        let series = state.minute(at, minute);
        let series = series.map(|minute| page(minute.sets.keys().cloned(), cursor));
        Ok(series.unwrap_or_default())
    }

    async fn open_counts(
        &self,
        at: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        let state = self.lock();
        let Some(minute) = state.minute(at, minute) else {
            return Ok(Vec::new());
        };
        let is_open = |series: &&&str| !minute.counts.contains_key(**series);
        let open = series.iter().filter(is_open).filter_map(|series| {
            let sets = minute.sets.get(*series)?;
            Some(series_counts(series, sets.counts(&minute.users)))
        });
        Ok(open.collect())
    }
}

/// For tests of outputs, which begin and end with what is sealed. Everything is in the first partition.
#[doc(hidden)]
impl MemoryStore {
    /// Adds counts that an output lacks.
    pub fn add_unsent(
        &self,
        output: &OutputName,
        minute: Minute,
        series: &str,
        counts: (u64, u64),
    ) {
        let mut state = self.lock();
        let of = &mut state.partitions[0];
        of.busy.insert(minute);
        of.outputs.entry(output.clone()).or_default();
        let minute = of.minutes.entry(minute).or_default();
        minute.counts.insert(series.to_owned(), counts);
        let (unsent, until) = minute.unsent.entry(output.clone()).or_default();
        unsent.insert(series.to_owned());
        *until = Some(Instant::now());
    }

    /// The counts that an output lacks.
    #[must_use]
    pub fn unsent_of(&self, output: &OutputName) -> BTreeSet<(Minute, String)> {
        let state = self.lock();
        let minutes = state.partitions[0].minutes.iter();
        let unsent = minutes.filter_map(|(minute, it)| Some((minute, it.unsent.get(output)?)));
        let unsent = unsent.flat_map(|(minute, (series, _))| {
            series.iter().map(|series| (*minute, series.clone()))
        });
        unsent.collect()
    }

    /// The counts that it refused.
    #[must_use]
    pub fn quarantined_of(&self, output: &OutputName) -> BTreeSet<(Minute, String)> {
        let state = self.lock();
        let refused = state.partitions[0].outputs.get(output);
        refused.into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

impl State {
    fn minute(&self, partition: Partition, minute: Minute) -> Option<&MinuteState> {
        self.partitions[partition.index()].minutes.get(&minute)
    }
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
    SeriesCounts { series: series.to_owned(), unique, cumulative }
}

impl LossRecord for MemoryStore {
    fn identity(&self) -> &str {
        &self.node
    }
}

#[async_trait]
impl Survey for MemoryStore {
    fn place(&self) -> String {
        self.describe()
    }

    async fn report(&self, _report: &str) -> Result<bool, StoreError> {
        Ok(false)
    }

    async fn reports(&self) -> Result<Vec<Reported>, StoreError> {
        Ok(Vec::new())
    }

    async fn withdraw(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn survey(&self, _minutes: &[Minute], old_before: Minute) -> Surveyed {
        let state = self.lock();
        let backlogs = state.partitions.iter().map(|partition| Backlog {
            old: partition.waiting().filter(|minute| *minute < old_before).count() as u64,
            ..partition.backlog()
        });
        Surveyed {
            servers: Vec::new(),
            reports: Ok(Vec::new()),
            relays: Ok(Vec::new()),
            backlogs: Ok(backlogs.collect()),
            seen: Ok(BTreeMap::new()),
            losses: Ok(Vec::new()),
            difference: None,
            counts_max: 0,
            in_logs: false,
        }
    }
}
