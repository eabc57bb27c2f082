//! The store of a single node: the hash maps that the service began with, in this process.
//!
//! It is the default, for which nothing has to be installed, and the model that tests hold the Redis store
//! against. What it holds is lost with the process.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{
    Backlog, Claim, ClaimRequest, Compaction, Recording, Store, StoreError, UnsentCounts,
    UnsentPage,
};
use crate::event::{Minute, Partition, Partitions};

/// What a member of a set costs beside its text, in bytes; roughly.
const MEMBER_BYTES: u64 = 64;
/// The counts given at once.
const UNSENT_PAGE: usize = 500;

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
    retention: Duration,
    bytes_max: u64,
    state: Mutex<State>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    partitions: Vec<PartitionState>,
    bytes: u64,
    probe_until: i64,
}

#[derive(Default)]
struct PartitionState {
    /// Minutes with something to do, that nobody has claimed.
    waiting: BTreeSet<Minute>,
    claims: BTreeMap<Minute, Held>,
    minutes: HashMap<Minute, MinuteState>,
    set_aside: BTreeMap<(Minute, String), String>,
}

struct Held {
    token: String,
    number: i64,
    deadline_ms: i64,
}

#[derive(Default)]
struct MinuteState {
    arrivals: u64,
    quiet: Option<Quiet>,
    sets: BTreeMap<String, Sets>,
    counts: BTreeMap<String, (u64, u64)>,
    unsent: BTreeSet<String>,
    /// When the counts are forgotten, in ms since the epoch.
    expires_ms: Option<i64>,
}

struct Quiet {
    arrivals: u64,
    since_ms: i64,
    first_ms: i64,
}

#[derive(Default)]
struct Sets {
    users: HashSet<Box<str>>,
    events: HashSet<(Box<str>, i64)>,
    bytes: u64,
}

/// The sets of one series in one minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSets {
    /// The canonical series.
    pub series: String,
    /// The users.
    pub users: Vec<String>,
    /// The events: user and timestamp, joined by an underscore.
    pub events: Vec<String>,
}

impl MemoryStore {
    /// An empty store for this node. `retention` is how long the counts of a minute are remembered after it is
    /// done; `bytes_max` is when recording is refused, roughly.
    #[must_use]
    pub fn new(
        node: &str,
        partitions: Partitions,
        retention: Duration,
        bytes_max: u64,
        clock: Clock,
    ) -> Self {
        let partitions = partitions
            .iter()
            .map(|_| PartitionState::default())
            .collect();
        let state = Mutex::new(State {
            partitions,
            ..State::default()
        });
        Self {
            node: node.to_owned(),
            clock,
            retention,
            bytes_max,
            state,
        }
    }

    /// The sets of a minute that are not compacted yet, members in order.
    #[must_use]
    pub fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        let state = self.lock();
        let minutes = state
            .partitions
            .iter()
            .filter_map(|partition| partition.minutes.get(&minute));
        let open = |(series, sets): (&String, &Sets)| {
            let mut users: Vec<_> = sets.users.iter().map(ToString::to_string).collect();
            let event = |(user, timestamp): &(Box<str>, i64)| format!("{user}_{timestamp}");
            let mut events: Vec<_> = sets.events.iter().map(event).collect();
            users.sort_unstable();
            events.sort_unstable();
            OpenSets {
                series: series.clone(),
                users,
                events,
            }
        };
        minutes
            .flat_map(|minute| minute.sets.iter().map(open))
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held is a bug elsewhere; the counts are better served than refused.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> i64 {
        (self.clock)().div_euclid(1000)
    }

    /// Runs a step on a claim that is held.
    fn with_claim<T>(
        &self,
        claim: &Claim,
        step: impl FnOnce(&mut PartitionState, &mut u64) -> T,
    ) -> Result<T, StoreError> {
        let state = &mut *self.lock();
        let partition = &mut state.partitions[claim.partition.index()];
        match partition.claims.get(&claim.minute) {
            Some(held) if held.token == claim.token => Ok(step(partition, &mut state.bytes)),
            _ => Err(StoreError::ClaimLost),
        }
    }
}

impl PartitionState {
    fn extend(&mut self, minute: Minute, deadline_ms: i64) {
        if let Some(held) = self.claims.get_mut(&minute) {
            held.deadline_ms = deadline_ms;
        }
    }

    fn grant(&mut self, node: &str, minute: Minute, micros: i64, lease: Duration) -> String {
        let last = self.claims.get(&minute).map_or(0, |held| held.number);
        let number = micros.max(last + 1);
        let token = format!("{node}|{number}");
        let deadline_ms = deadline(micros.div_euclid(1000), lease);
        self.claims.insert(
            minute,
            Held {
                token: token.clone(),
                number,
                deadline_ms,
            },
        );
        token
    }

    /// Whether a minute that is over may be closed.
    fn is_finished(&mut self, minute: Minute, now_ms: i64, request: &ClaimRequest) -> bool {
        let Some(state) = self.minutes.get_mut(&minute) else {
            return true;
        };
        let arrivals = state.arrivals;
        let quiet = state.quiet.get_or_insert(Quiet {
            arrivals,
            since_ms: now_ms,
            first_ms: now_ms,
        });
        if quiet.arrivals != arrivals {
            quiet.arrivals = arrivals;
            quiet.since_ms = now_ms;
        }
        let hold_from = minute.end_millis().max(quiet.first_ms);
        now_ms >= deadline(quiet.since_ms, request.grace)
            || now_ms >= deadline(hold_from, request.max_hold)
    }

    fn forget_expired(&mut self, now_ms: i64) {
        self.minutes
            .retain(|_, state| state.expires_ms.is_none_or(|expires| expires > now_ms));
    }
}

fn deadline(from_ms: i64, span: Duration) -> i64 {
    from_ms.saturating_add(i64::try_from(span.as_millis()).unwrap_or(i64::MAX))
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn generation(&self, _partition: Partition) -> u64 {
        1
    }

    async fn record(
        &self,
        partition: Partition,
        recordings: &[Recording<'_>],
    ) -> Result<(), StoreError> {
        let state = &mut *self.lock();
        if state.bytes >= self.bytes_max {
            return Err(StoreError::Full(format!(
                "the open minutes take {} bytes; store.memory_max allows {}",
                state.bytes, self.bytes_max
            )));
        }
        let partition = &mut state.partitions[partition.index()];
        for recording in recordings {
            let minute = partition.minutes.entry(recording.minute).or_default();
            let sets = minute.sets.entry(recording.series.to_owned()).or_default();
            let before = sets.bytes;
            for user in &recording.new_users {
                if sets.users.insert((*user).into()) {
                    sets.bytes += user.len() as u64 + MEMBER_BYTES;
                }
            }
            for occurrence in recording.occurrences {
                let user = recording.batch.user(occurrence);
                if sets.events.insert((user.into(), occurrence.timestamp)) {
                    sets.bytes += user.len() as u64 + MEMBER_BYTES;
                }
            }
            state.bytes += sets.bytes - before;
            minute.arrivals += recording.occurrences.len() as u64;
            // Nothing is forgotten of a minute that has something to do.
            minute.expires_ms = None;
            partition.waiting.insert(recording.minute);
        }
        Ok(())
    }

    async fn claim(
        &self,
        index: Partition,
        request: &ClaimRequest,
    ) -> Result<Vec<Claim>, StoreError> {
        let micros = (self.clock)();
        let now_ms = micros.div_euclid(1000);
        let partition = &mut self.lock().partitions[index.index()];
        partition.forget_expired(now_ms);
        let mut granted = Vec::new();
        let lapsed: Vec<Minute> = partition
            .claims
            .iter()
            .filter(|(_, held)| held.deadline_ms <= now_ms)
            .map(|(minute, _)| *minute)
            .take(request.lapsed_max)
            .collect();
        for minute in lapsed {
            let token = partition.grant(&self.node, minute, micros, request.lease);
            granted.push(Claim {
                partition: index,
                minute,
                token,
                taken_over: true,
            });
        }
        let mut finished = 0;
        for minute in partition.waiting.clone() {
            if partition.claims.contains_key(&minute) {
                partition.waiting.remove(&minute);
            } else if minute.end_millis() > now_ms || finished >= request.finished_max {
                break;
            } else if partition.is_finished(minute, now_ms, request) {
                let token = partition.grant(&self.node, minute, micros, request.lease);
                partition.waiting.remove(&minute);
                if let Some(state) = partition.minutes.get_mut(&minute) {
                    state.quiet = None;
                }
                granted.push(Claim {
                    partition: index,
                    minute,
                    token,
                    taken_over: false,
                });
                finished += 1;
            }
        }
        Ok(granted)
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError> {
        let deadline_ms = deadline(self.now_ms(), lease);
        self.with_claim(claim, |partition, bytes| {
            partition.extend(claim.minute, deadline_ms);
            let mut done = Compaction::default();
            let Some(state) = partition.minutes.get_mut(&claim.minute) else {
                return done;
            };
            for _ in 0..series_max {
                let Some((series, sets)) = state.sets.pop_first() else {
                    break;
                };
                *bytes -= sets.bytes;
                if state.counts.contains_key(&series) {
                    done.late += sets.events.len() as u64;
                } else {
                    let counts = (sets.users.len() as u64, sets.events.len() as u64);
                    state.counts.insert(series.clone(), counts);
                    state.unsent.insert(series);
                    done.counted += 1;
                }
            }
            done.left = state.sets.len() as u64;
            done
        })
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<UnsentPage, StoreError> {
        let state = &*self.lock();
        let partition = &state.partitions[claim.partition.index()];
        let Some(minute) = partition.minutes.get(&claim.minute) else {
            return Ok(UnsentPage::default());
        };
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let counts: Vec<_> = minute
            .unsent
            .iter()
            .skip(from)
            .take(UNSENT_PAGE)
            .filter_map(|series| {
                let &(unique, cumulative) = minute.counts.get(series)?;
                Some(UnsentCounts {
                    series: series.clone(),
                    unique,
                    cumulative,
                })
            })
            .collect();
        let next = from + UNSENT_PAGE;
        let next = (next < minute.unsent.len()).then_some(next as u64);
        Ok(UnsentPage { counts, next })
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let now_ms = self.now_ms();
        self.with_claim(claim, |partition, _| {
            if let Some(state) = partition.minutes.get_mut(&claim.minute) {
                for series in series {
                    state.unsent.remove(*series);
                }
                if !state.sets.is_empty() || !state.unsent.is_empty() {
                    partition.extend(claim.minute, deadline(now_ms, lease));
                    return false;
                }
                state.arrivals = 0;
                state.expires_ms = Some(deadline(now_ms, self.retention));
            }
            partition.claims.remove(&claim.minute);
            true
        })
    }

    async fn set_aside(
        &self,
        claim: &Claim,
        series: &str,
        words: &str,
    ) -> Result<bool, StoreError> {
        const SET_ASIDE_MAX: usize = 10_000;
        self.with_claim(claim, |partition, _| {
            if let Some(state) = partition.minutes.get_mut(&claim.minute) {
                state.unsent.remove(series);
            }
            let entry = (claim.minute, series.to_owned());
            let room = partition.set_aside.len() < SET_ASIDE_MAX
                || partition.set_aside.contains_key(&entry);
            if room {
                partition.set_aside.insert(entry, words.to_owned());
            }
            room
        })
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let deadline_ms = deadline(self.now_ms(), lease);
        let partition = &mut self.lock().partitions[partition.index()];
        let mut extended = 0;
        for claim in claims {
            if let Some(held) = partition.claims.get_mut(&claim.minute)
                && held.token == claim.token
            {
                held.deadline_ms = deadline_ms;
                extended += 1;
            }
        }
        Ok(extended)
    }

    async fn try_probe(&self, lease: Duration) -> Result<bool, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let free = state.probe_until <= now_ms;
        if free {
            state.probe_until = deadline(now_ms, lease);
        }
        Ok(free)
    }

    async fn end_probe(&self) -> Result<(), StoreError> {
        self.lock().probe_until = 0;
        Ok(())
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        let partition = &self.lock().partitions[partition.index()];
        Ok(Backlog {
            waiting: partition.waiting.len() as u64,
            claimed: partition.claims.len() as u64,
            set_aside: partition.set_aside.len() as u64,
        })
    }

    fn describe(&self) -> String {
        "this process' memory (single node)".to_owned()
    }
}
