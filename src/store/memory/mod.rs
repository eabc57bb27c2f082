//! The store of a single node: sets in this process.
//!
//! It is the default, for which nothing has to be installed. What it holds is lost with the process, and no other node reaches it. So
//! a claim is only a note of when to give it again: what was not renewed by then has failed, and is tried again.
//!
//! `sets` and `users` are what a minute is kept in until it is sealed, `draining` seals and sends, `looking` is for who looks.

mod draining;
mod looking;
mod sets;
mod users;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

pub use self::sets::OpenSets;
use self::sets::Sets;
use self::users::Users;
use super::witness::{closed_minutes, kept_for};
use super::{
    Admission, AdmitRequest, Admitted, Capabilities, OutputName, RecordRequest, Recording, Seen,
    SeriesUsers, Store, StoreError,
};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition, Partitions};

/// A clock that answers microseconds since the epoch.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The clock of this machine.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| chrono::Utc::now().timestamp_micros())
}

/// Sets in this process.
pub struct MemoryStore {
    node: String,
    clock: Clock,
    /// How long counts are kept after their minute is done.
    retention: Duration,
    /// The counts that a partition keeps after they are sent.
    counts_max: u64,
    bytes_max: u64,
    /// When it was told that nothing is received any more.
    stopped_ms: OnceLock<i64>,
    state: Mutex<State>,
}

/// What the store holds.
struct State {
    /// By [`Partition::index`].
    partitions: Vec<PartitionState>,
    /// The memory that open sets take, and counts of minutes of which an output lacks some; roughly.
    bytes: u64,
    /// Nothing expires before this, in ms since the epoch.
    next_expiry_ms: i64,
}

/// The minutes of one partition.
#[derive(Default)]
struct PartitionState {
    minutes: HashMap<Minute, MinuteState>,
    /// Those of them that have sets, or counts that an output lacks, or are claimed.
    busy: BTreeSet<Minute>,
    /// Every output that anything was sealed for, and what it refused: how many events the counts of a minute's series are.
    outputs: BTreeMap<OutputName, BTreeMap<(Minute, String), u64>>,
    /// Whether this node has events to bring.
    lags: bool,
    /// How many events came too late.
    late: u64,
    /// Minutes that seal nothing new, and before which minute none does.
    closed: BTreeSet<Minute>,
    since: Option<Minute>,
}

/// One minute of a partition.
#[derive(Default)]
struct MinuteState {
    /// Events recorded since it was last done, copies included.
    arrivals: u64,
    /// The arrivals when it was last looked at, since when they are the same, and when it was first looked at.
    idle: Option<(u64, Instant, Instant)>,
    /// Series that are recorded under their own names and not counted; with the overflow series when some are not.
    /// Those that are counted are in `counts`.
    admitted: BTreeSet<String>,
    /// The users in `sets`.
    users: Users,
    /// What is not sealed yet, by series.
    sets: BTreeMap<String, Sets>,
    /// Until when it is claimed to be sealed.
    sealing: Option<Instant>,
    /// Different users and different events, by series. Fixed for good.
    counts: BTreeMap<String, (u64, u64)>,
    /// The series of which an output lacks the counts, and until when these are claimed to be sent; `None`: not all are sealed.
    unsent: BTreeMap<OutputName, (BTreeSet<String>, Option<Instant>)>,
    /// The memory of its counts that is reckoned as long as any output lacks one.
    unsent_bytes: u64,
    /// How many of its events this node has seen.
    seen: u64,
    /// When the counts are forgotten, in ms since the epoch.
    expires_ms: Option<i64>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemoryStore")
    }
}

impl MemoryStore {
    /// An empty store for this node. `retention` is how long the counts of a minute are kept after it is
    /// done; `bytes_max` is when recording is refused, roughly.
    #[must_use]
    pub fn new(
        node: &str,
        partitions: &Partitions,
        retention: Duration,
        bytes_max: u64,
        clock: Clock,
    ) -> Self {
        let empty = partitions.iter().map(|_| PartitionState::default());
        Self {
            node: node.to_owned(),
            clock,
            retention,
            counts_max: u64::MAX,
            bytes_max,
            stopped_ms: OnceLock::new(),
            state: Mutex::new(State {
                partitions: empty.collect(),
                bytes: 0,
                next_expiry_ms: i64::MAX,
            }),
        }
    }

    /// The same, but it keeps only so many counts after they are sent.
    #[must_use]
    pub fn keeping(self, counts_max: u64) -> Self {
        let counts_max = counts_max / (self.lock().partitions.len() as u64).max(1);
        Self { counts_max, ..self }
    }

    /// The sets of a minute that are not sealed yet, members in order.
    #[must_use]
    pub fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        let state = self.lock();
        let minutes = state.partitions.iter();
        let minutes = minutes.filter_map(|partition| partition.minutes.get(&minute));
        let open = minutes.flat_map(|it| {
            let sets = it.sets.iter();
            sets.map(|(series, sets)| sets.open(series, minute, &it.users))
        });
        open.collect()
    }

    /// The data, without what has expired.
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held is a bug elsewhere; the counts are better served than refused.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget_expired(self.now_ms());
        state
    }

    fn now_ms(&self) -> i64 {
        (self.clock)().div_euclid(1000)
    }

    fn check_room(&self, state: &State) -> Result<(), StoreError> {
        if state.bytes < self.bytes_max {
            return Ok(());
        }
        let why = format!(
            "open minutes and counts that an output lacks take {} bytes and store.memory_max is {}",
            state.bytes, self.bytes_max
        );
        Err(StoreError::Full(Diagnosis::new(Cause::MemoryFull, why)))
    }

    /// Work on a minute has ended. Where nothing is left to do it is closed, and its counts get their time to live.
    fn end(&self, state: &mut State, partition: Partition, minute: Minute) {
        let of = &mut state.partitions[partition.index()];
        let ended = of.minutes.entry(minute).or_default();
        if !ended.sets.is_empty() || !ended.unsent.is_empty() {
            return;
        }
        state.bytes -= std::mem::take(&mut ended.unsent_bytes);
        let counts = (ended.counts.len() + ended.admitted.len()) as u64;
        let kept = kept_for(self.retention, self.counts_max, counts);
        let expires_ms = after_ms(self.now_ms(), kept);
        ended.expires_ms = Some(expires_ms);
        state.next_expiry_ms = state.next_expiry_ms.min(expires_ms);
        of.busy.remove(&minute);
        of.close(minute, self.retention);
    }
}

impl State {
    fn forget_expired(&mut self, now_ms: i64) {
        if now_ms <= self.next_expiry_ms {
            return;
        }
        let minutes = self.partitions.iter_mut().map(|of| &mut of.minutes);
        for minutes in minutes {
            minutes.retain(|_, minute| minute.expires_ms.is_none_or(|at_ms| at_ms >= now_ms));
        }
        let minutes = self.partitions.iter().flat_map(|of| of.minutes.values());
        let next_ms = minutes.filter_map(|minute| minute.expires_ms).min();
        self.next_expiry_ms = next_ms.unwrap_or(i64::MAX);
    }
}

impl PartitionState {
    fn has_closed(&self, minute: Minute) -> bool {
        self.since.is_some_and(|since| minute < since) || self.closed.contains(&minute)
    }

    /// From now on the minute seals nothing new. That is known for longer than its counts: as long as an event of it may come. Then
    /// all minutes before count as closed, but none that has something to do.
    fn close(&mut self, minute: Minute, retention: Duration) {
        self.closed.insert(minute);
        let newest = self.closed.last().map_or(0, |newest| newest.epoch_minutes());
        let since = Minute::from_epoch_minutes(newest - closed_minutes(retention));
        let first = self.busy.first().copied();
        let since = since.map(|since| first.map_or(since, |first| first.min(since)));
        self.since = self.since.max(since);
        if let Some(since) = self.since {
            self.closed = self.closed.split_off(&since);
        }
    }
}

impl MinuteState {
    fn admits(&self, series: &str) -> bool {
        self.admitted.contains(series) || self.counts.contains_key(series)
    }

    fn users_of(&self, series: &str) -> u64 {
        let sets = self.sets.get(series);
        sets.map_or(0, |sets| sets.counts(&self.users).0)
    }
}

/// So long after an instant, both in ms since the epoch.
fn after_ms(from_ms: i64, span: Duration) -> i64 {
    from_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self) -> Result<(), StoreError> {
        self.check_room(&self.lock())
    }

    fn generation(&self, _partition: Partition) -> u64 {
        0
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::IN_PROCESS
    }

    fn memory(&self) -> (u64, u64) {
        (self.lock().bytes, self.bytes_max)
    }

    /// Those of refused counts included.
    fn unpublished(&self) -> u64 {
        let of = |partition: &PartitionState| {
            let refused = partition.outputs.values().flatten();
            let mut lacking: BTreeMap<(Minute, &str), u64> = refused
                .map(|((minute, series), events)| ((*minute, series.as_str()), *events))
                .collect();
            let mut open = 0;
            for (minute, state) in &partition.minutes {
                open += state.sets.values().map(|sets| sets.cumulative).sum::<u64>();
                for series in state.unsent.values().flat_map(|(series, _)| series) {
                    let events = state.counts.get(series).map_or(0, |(_, events)| *events);
                    lacking.insert((*minute, series), events);
                }
            }
            open + lacking.values().sum::<u64>()
        };
        self.lock().partitions.iter().map(of).sum()
    }

    fn stopping(&self) {
        self.stopped_ms.get_or_init(|| self.now_ms());
    }

    fn describe(&self) -> String {
        "this process' memory (single node)".to_owned()
    }
}

#[async_trait]
impl Recording for MemoryStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        let state = &mut *self.lock();
        self.check_room(state)?;
        let minutes = &mut state.partitions[partition.index()].minutes;
        let minute = minutes.entry(request.minute).or_default();
        let is_new =
            minute.admitted.is_empty() && minute.counts.is_empty() && minute.sets.is_empty();
        let mut answers = Vec::new();
        for &series in request.series {
            if !minute.admits(request.overflow) && !minute.admits(series) {
                // The first that is refused closes the minute.
                let admitted = (minute.admitted.len() + minute.counts.len()) as u64;
                let has_room = admitted < request.series_max;
                let entered = if has_room { series } else { request.overflow };
                minute.admitted.insert(entered.to_owned());
            }
            answers.push(if minute.admits(series) {
                let users = Some(minute.users_of(series));
                Admission::Admitted { users }
            } else {
                Admission::Refused
            });
        }
        // What nobody records anything under is forgotten, too. An event may come until it is too old.
        if is_new || minute.expires_ms.is_some() {
            let from_ms = self.now_ms().max(request.minute.end_millis());
            // Never sooner, also when the clock was set back.
            let expires_ms = minute.expires_ms.max(Some(after_ms(from_ms, self.retention)));
            minute.expires_ms = expires_ms;
            state.next_expiry_ms = state.next_expiry_ms.min(expires_ms.unwrap_or(i64::MAX));
        }
        Ok(Admitted {
            overflow_users: Some(minute.users_of(request.overflow)),
            arrivals: minute.arrivals,
            series: answers,
        })
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        let state = self.lock();
        let minute = state.partitions[partition.index()].minutes.get(&minute);
        let found = minute.and_then(|it| Some(it.sets.get(series)?.users(&it.users, users)));
        let (count, there) = found.unwrap_or_else(|| (0, vec![false; users.len()]));
        Ok(SeriesUsers { count, there })
    }

    async fn record(
        &self,
        partition: Partition,
        _generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<u64, StoreError> {
        let state = &mut *self.lock();
        self.check_room(state)?;
        let mut repeated = 0;
        let partition = &mut state.partitions[partition.index()];
        for recording in recordings {
            let minute = partition.minutes.entry(recording.minute).or_default();
            if !minute.users.has_room(recording.batch) {
                let why = format!(
                    "minute {} has 268 million users in one of store.partitions, or their names take 4 GiB, which is the most",
                    recording.minute
                );
                return Err(StoreError::Full(Diagnosis::new(Cause::MemoryCrowded, why)));
            }
            let series = recording.series;
            let sets = if let Some(sets) = minute.sets.get_mut(series) {
                state.bytes -= sets.bytes;
                sets
            } else {
                let new = minute.sets.entry(series.to_owned());
                new.or_insert_with(|| Sets::new(series))
            };
            repeated += sets.record(&mut minute.users, recording);
            state.bytes += sets.bytes + minute.users.charge();
            minute.arrivals += recording.occurrences.len() as u64;
            // Nothing is forgotten of a minute that has something to do.
            minute.expires_ms = None;
            partition.busy.insert(recording.minute);
        }
        for seen in seen {
            if let Some(minute) = partition.minutes.get_mut(&seen.minute) {
                minute.seen = seen.events;
            }
        }
        Ok(repeated)
    }
}
