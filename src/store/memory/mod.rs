//! The store of a single node: sets in this process's memory. A claim is a deadline, after which the worker gets it again.

mod draining;
mod sets;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::RandomState;
use std::iter::once;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use tokio::time::Instant;

use self::sets::{Sets, Users};
use super::survey::OPEN_WINDOWS_MAX;
use super::{
    Admission, AdmitRequest, Admitted, Backlog, Bucket, Capabilities, CountReader, Coverage,
    OutputBacklog, OutputName, Page, Recording, Records, Registry, SeriesCounts, SeriesUsers,
    Store, StoreError, Survey, Surveyed, Union,
};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition, Partitions, Quality};

type Result<T> = std::result::Result<T, StoreError>;

/// Sets in the memory of this process.
#[derive(Debug)]
pub struct MemoryStore {
    node: String,
    partitions: Partitions,
    retention: Duration,
    bytes_max: u64,
    counts_max: u64,
    stopped_ms: OnceLock<i64>,
    /// Computes the fingerprints of users. Its keys are random.
    hasher: RandomState,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Indexed by [`Partition::index`].
    partitions: Vec<PartitionState>,
    /// The approximate memory used by the sets, and by the counts of minutes that have not been sent completely, in bytes.
    bytes: u64,
}

/// The numbers of distinct users and events, and their quality.
type Counts = (u64, u64, Quality);

#[derive(Debug, Default)]
struct PartitionState {
    minutes: HashMap<Minute, MinuteState>,
    /// The minutes with sets or unsent counts.
    busy: BTreeSet<Minute>,
    /// For each output with sealed counts: the quarantined counts by minute and series, each with its number of events.
    outputs: BTreeMap<OutputName, BTreeMap<(Minute, String), u64>>,
    lags: bool,
    late: u64,
    /// The closed minutes. All minutes before `since` are closed as well.
    closed: BTreeSet<Minute>,
    since: Option<Minute>,
    /// The last minute with events of each series that can get zeros.
    active: BTreeMap<String, Minute>,
}

#[derive(Debug, Default)]
struct MinuteState {
    /// Events recorded since the minute was last sealed, including duplicates.
    arrivals: u64,
    /// `arrivals` at the last request for claims, when this value was new, and when claims were first requested.
    idle: Option<(u64, Instant, Instant)>,
    /// Series without counts that are recorded under their own names, plus the overflow series once one has been rejected.
    admitted: BTreeSet<String>,
    users: Users,
    /// Not sorted, because finding one of many series in a tree takes several cache misses.
    sets: hashbrown::HashMap<String, Sets>,
    /// The numbers of distinct users and events by series. They never change once sealed.
    counts: BTreeMap<String, Counts>,
    unsent: BTreeMap<OutputName, BTreeSet<String>>,
    /// The fingerprints of the users of sealed series, until they have been added to windows.
    sealed_users: BTreeMap<String, Vec<u64>>,
    /// If this is a window: its users, and the minutes that have been added, by partition.
    union: Option<Union>,
    added: BTreeSet<Bucket>,
    /// Whether the minute is to be sealed even if it gets no events, because a series could get a zero in it.
    awaits_zeros: bool,
    /// The deadline of each claim: to seal (`None`), or to send to an output.
    leases: BTreeMap<Option<OutputName>, Instant>,
    /// The share of this minute's counts in [`State::bytes`].
    unsent_bytes: u64,
    seen: u64,
    /// When the minute is dropped, unless it is busy.
    expires_ms: i64,
}

impl MemoryStore {
    /// Creates a store that keeps about `counts_max` counts at most, for `retention`, and stops recording at `bytes_max`.
    #[must_use]
    pub fn new(
        node: &str,
        partitions: &Partitions,
        retention: Duration,
        bytes_max: u64,
        counts_max: u64,
    ) -> Self {
        Self {
            node: node.to_owned(),
            partitions: partitions.clone(),
            retention,
            bytes_max,
            counts_max: counts_max / u64::from(partitions.count()).max(1),
            stopped_ms: OnceLock::new(),
            hasher: RandomState::new(),
            state: Mutex::new(State {
                partitions: partitions.all().map(|_| PartitionState::default()).collect(),
                bytes: 0,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // If a thread panicked while holding the lock, it is still better to serve the counts than to fail.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn windows(&self, partitions: &[PartitionState]) -> Vec<(Bucket, u64)> {
        let of_rollup = |(partition, _): (Partition, _)| {
            let windows =
                partitions[partition.index()].busy().rev().filter_map(move |(minute, state)| {
                    Some((Bucket { partition, minute }, state.union.as_ref()?.bytes()))
                });
            windows.take(OPEN_WINDOWS_MAX)
        };
        self.partitions.rollups().flat_map(of_rollup).collect()
    }

    fn look<T: Default>(&self, bucket: Bucket, look: impl FnOnce(&MinuteState) -> T) -> T {
        let minutes = &self.lock().partitions[bucket.partition.index()].minutes;
        minutes.get(&bucket.minute).map(look).unwrap_or_default()
    }

    fn check_room(&self, state: &State) -> Result<()> {
        if state.bytes < self.bytes_max {
            return Ok(());
        }
        let why = format!(
            "open minutes and unsent counts use {} bytes, but store.memory_max is {}",
            state.bytes, self.bytes_max
        );
        Err(StoreError::Full(Diagnosis::new(Cause::MemoryFull, why)))
    }
}

impl PartitionState {
    fn busy(&self) -> impl DoubleEndedIterator<Item = (Minute, &MinuteState)> {
        self.busy.iter().filter_map(|minute| Some((*minute, self.minutes.get(minute)?)))
    }

    /// Returns how many minutes have work. `old` in the result is the number of waiting minutes before `old_before`.
    fn backlog(&self, old_before: Minute) -> Backlog {
        let mut backlog = Backlog::default();
        backlog.outputs.extend(self.outputs.iter().map(|(output, quarantine)| {
            let quarantined = quarantine.len() as u64;
            (output.clone(), OutputBacklog { quarantined, ..OutputBacklog::default() })
        }));
        for (minute, state) in self.busy() {
            backlog.waiting += u64::from(state.waits());
            backlog.old += u64::from(state.waits() && minute < old_before);
            backlog.claimed += u64::from(state.leases.contains_key(&None));
            if state.is_open() {
                backlog.oldest.get_or_insert(minute);
            }
            for output in state.unsent.keys() {
                let output = backlog.outputs.entry(output.clone()).or_default();
                output.unsent += 1;
                output.oldest.get_or_insert(minute);
            }
        }
        backlog
    }
}

impl MinuteState {
    fn admits(&self, series: &str) -> bool {
        self.admitted.contains(series) || self.counts.contains_key(series)
    }

    fn users_of(&self, series: &str) -> u64 {
        self.sets.get(series).map_or(0, |sets| sets.counts(&self.users).0)
    }

    fn is_open(&self) -> bool {
        !self.sets.is_empty() || self.union.is_some() || self.awaits_zeros
    }

    fn waits(&self) -> bool {
        self.is_open() && !self.leases.contains_key(&None)
    }
}

fn now_ms() -> i64 {
    Utc::now().timestamp_millis()
}

fn after_ms(from_ms: i64, span: Duration) -> i64 {
    from_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

fn series_counts((series, counts): (&String, &Counts)) -> SeriesCounts {
    let &(unique, cumulative, quality) = counts;
    SeriesCounts { series: series.clone(), unique, cumulative, quality }
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self) -> Result<()> {
        self.check_room(&self.lock())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::IN_PROCESS
    }

    fn memory(&self) -> (u64, u64) {
        (self.lock().bytes, self.bytes_max)
    }

    /// Includes the events of quarantined counts.
    fn unpublished(&self) -> u64 {
        let of_partition = |partition: &PartitionState| {
            let quarantined = partition.outputs.values().flatten();
            let mut sealed: BTreeMap<_, u64> = quarantined
                .map(|((minute, series), events)| ((*minute, series), *events))
                .collect();
            let mut open = 0;
            for (minute, state) in partition.busy() {
                open += state.sets.values().map(|sets| sets.cumulative).sum::<u64>();
                let unsent = state.unsent.values().flatten();
                sealed.extend(unsent.map(|series| ((minute, series), state.counts[series].1)));
            }
            open + sealed.values().sum::<u64>()
        };
        self.lock().partitions.iter().map(of_partition).sum()
    }

    fn stopping(&self) {
        self.stopped_ms.get_or_init(now_ms);
    }

    fn describe(&self) -> String {
        "this process's memory (single node)".to_owned()
    }
}

#[async_trait]
impl Recording for MemoryStore {
    async fn admit(&self, partition: Partition, request: &AdmitRequest<'_>) -> Result<Admitted> {
        let state = &mut *self.lock();
        self.check_room(state)?;
        let partition = &mut state.partitions[partition.index()];
        let minute = partition.minutes.entry(request.minute).or_default();
        let admit = |&series: &&str| {
            if !minute.admits(request.overflow) && !minute.admits(series) {
                // Once a series has been rejected, no further series are admitted.
                let admitted = (minute.admitted.len() + minute.counts.len()) as u64;
                let has_room = admitted < request.series_max;
                let entered = if has_room { series } else { request.overflow };
                minute.admitted.insert(entered.to_owned());
            }
            if minute.admits(series) {
                Admission::Admitted { users: Some(minute.users_of(series)) }
            } else {
                Admission::Refused
            }
        };
        let series = request.series.iter().map(admit).collect();
        if !partition.busy.contains(&request.minute) {
            // Events are accepted for this long. The expiry never becomes earlier, even if the clock was set back.
            let from_ms = now_ms().max(request.minute.end_millis());
            minute.expires_ms = minute.expires_ms.max(after_ms(from_ms, self.retention));
        }
        Ok(Admitted {
            overflow_users: Some(minute.users_of(request.overflow)),
            arrivals: minute.arrivals,
            series,
        })
    }

    async fn users(&self, bucket: Bucket, series: &str, users: &[&str]) -> Result<SeriesUsers> {
        let found =
            self.look(bucket, |minute| Some(minute.sets.get(series)?.users(&minute.users, users)));
        let (count, there) = found.unwrap_or_else(|| (0, vec![false; users.len()]));
        Ok(SeriesUsers { count, there })
    }

    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64> {
        let state = &mut *self.lock();
        self.check_room(state)?;
        let mut repeated = 0;
        let partition = &mut state.partitions[partition.index()];
        for recording in records.requests {
            let minute = partition.minutes.entry(recording.minute).or_default();
            if !minute.users.has_room(recording.batch) {
                let why = format!(
                    "minute {} reached the limit of 268 million users in one partition (store.partitions)",
                    recording.minute
                );
                return Err(StoreError::Full(Diagnosis::new(Cause::MemoryCrowded, why)));
            }
            let (series, known_bytes) = (recording.series, minute.users.bytes);
            let sets = if let Some(sets) = minute.sets.get_mut(series) {
                state.bytes -= sets.bytes;
                sets
            } else {
                minute.sets.entry(series.to_owned()).or_insert_with(|| Sets::new(series))
            };
            repeated += sets.record(&mut minute.users, recording);
            state.bytes += sets.bytes + minute.users.bytes - known_bytes;
            minute.arrivals += recording.occurrences.len() as u64;
            partition.busy.insert(recording.minute);
        }
        for seen in records.seen {
            if let Some(minute) = partition.minutes.get_mut(&seen.minute) {
                minute.seen = seen.events;
            }
        }
        Ok(repeated)
    }
}

#[async_trait]
impl CountReader for MemoryStore {
    async fn sealed_sizes(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<u64>> {
        let size = |&minute: &Minute| {
            self.look(Bucket { partition, minute }, |minute| minute.counts.len() as u64)
        };
        Ok(minutes.iter().map(size).collect())
    }

    async fn sealed_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<SeriesCounts>> {
        let counts =
            |minute: &MinuteState| Page::cut(minute.counts.iter().map(series_counts), cursor);
        Ok(self.look(bucket, counts))
    }

    async fn coverage(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<Coverage>> {
        let coverage = |&minute: &Minute| {
            let seen = self.look(Bucket { partition, minute }, |minute| minute.seen);
            once((self.node.clone(), seen)).filter(|_| seen > 0).collect()
        };
        Ok(minutes.iter().map(coverage).collect())
    }

    async fn open_minutes(&self, at: Partition, most: usize) -> Result<Vec<Minute>> {
        let state = self.lock();
        let busy: Vec<_> = state.partitions[at.index()].busy().collect();
        let open = busy.iter().rev().filter(|(_, state)| state.is_open());
        Ok(open.take(most).map(|(minute, _)| *minute).collect())
    }

    async fn open_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<String>> {
        Ok(self.look(bucket, |minute| {
            if let Some(union) = &minute.union {
                return Page::cut(union.counts().map(|counts| counts.series), cursor);
            }
            let mut names: Vec<_> = minute.sets.keys().cloned().collect();
            names.sort_unstable();
            Page::cut(names.into_iter(), cursor)
        }))
    }

    async fn open_counts(&self, bucket: Bucket, series: &[&str]) -> Result<Vec<SeriesCounts>> {
        Ok(self.look(bucket, |minute| {
            if let Some(union) = &minute.union {
                let series: BTreeSet<_> = series.iter().copied().collect();
                return union.counts().filter(|counts| series.contains(&*counts.series)).collect();
            }
            let open = series.iter().filter(|series| !minute.counts.contains_key(**series));
            let open = open.filter_map(|series| minute.sets.get_key_value(*series));
            open.map(|(series, sets)| {
                let (unique, cumulative) = sets.counts(&minute.users);
                series_counts((series, &(unique, cumulative, Quality::default())))
            })
            .collect()
        }))
    }
}

#[async_trait]
impl Survey for MemoryStore {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(Alone(self.node.clone()))
    }

    async fn survey(&self, _minutes: &[Minute], old_before: Minute) -> Surveyed {
        let partitions = &self.lock().partitions;
        let backlogs = partitions.iter().map(|partition| partition.backlog(old_before));
        Surveyed {
            backlogs: Ok(backlogs.collect()),
            windows: Ok(self.windows(partitions)),
            ..Surveyed::empty()
        }
    }

    async fn open_windows(&self) -> Result<Vec<(Bucket, u64)>> {
        Ok(self.windows(&self.lock().partitions))
    }
}

#[derive(Debug)]
struct Alone(String);

impl Registry for Alone {
    fn identity(&self) -> &str {
        &self.0
    }
}
