//! The `log` layout: each process has one log per partition per minute, and the node that seals the minute counts the
//! distinct fingerprints in all its logs. When a log is counted, it is *cut*, which closes it. `append.lua` rejects frames
//! if the log has been cut, is gone or does not have the length that the process expects; the process then starts a new log,
//! as it does after every failure. Therefore no log has a gap, and an event that is in two logs is counted once.

mod counting;
mod frame;
mod recording;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::redis::{Cmd, pipe};
use async_trait::async_trait;
use hashbrown::HashSet;
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;

use self::counting::{Length, ReadBudget};
use self::frame::{Event, Piece};
use self::recording::Log;
use super::gateway::At;
use super::keys::{Place, Scope};
use super::layout::{OpenMinutes, SEALING, held, names, pieces, seal};
use super::scripts::{SHARED, Source, scripts};
use super::{lock, millis};
use crate::event::Partition;
use crate::store::{
    Bucket, Claim, Compaction, Page, Records, Result, SealRequest, SeriesCounts, SeriesUsers,
};

scripts! {
    APPEND Append = "append.lua"(log) Partition[arrivals] Minute[cut] => name (log_name length added events);
    CUT Cut = "cut.lua"() Partition[tokens] Minute[logs cut] => name base (token);
    SEAL Seal = SHARED + SEALING + "seal.lua"()
        Partition[claims tokens witness closed arrivals outputs stamps] Minute[logs counts cut]
        => name minute base kept_ms kept_counts (token lease_ms sealed_for from all);
}

/// The maximum number of minutes that are counted at the same time. Counting a minute takes a bounded amount of memory.
const COUNTED_AT_ONCE: usize = 2;
/// The maximum age of cached counts, relative to the time that counting took: readers cost at most a tenth of a core.
const AGE_MAX: u32 = 10;
/// How long counts, users, cuts and logs are cached after their last use.
const UNUSED_FOR: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(super) struct Logs {
    /// The logs of this process.
    own: Taken<Log>,
    /// The number of the next log.
    next: AtomicU64,
    sealing: Taken<Sealing>,
    /// The known users by minute, generation and series. Only one task at a time reads users from logs.
    users: AsyncMutex<HashMap<(Bucket, u64, String), KnownUsers>>,
    /// Cached counts of open minutes, for readers. Each minute is counted by at most one task at a time.
    looks: Mutex<HashMap<Bucket, Arc<AsyncMutex<Option<Look>>>>>,
    /// The generation in which `append.lua` was loaded on the server of a partition.
    loaded: Mutex<HashMap<Partition, u64>>,
    counting: Semaphore,
    /// The response timeout.
    response: Duration,
}

impl Logs {
    pub(super) fn new(response: Duration) -> Self {
        Self {
            own: Taken::new(),
            next: AtomicU64::new(0),
            sealing: Taken::new(),
            users: AsyncMutex::default(),
            looks: Mutex::default(),
            loaded: Mutex::default(),
            counting: Semaphore::new(COUNTED_AT_ONCE),
            response,
        }
    }
}

#[async_trait]
impl OpenMinutes for Logs {
    fn to_seal(&self) -> &'static str {
        "logs"
    }

    fn user_sets(&self) -> Option<&'static str> {
        None
    }

    async fn counts(&self, at: At<'_>) -> Result<Vec<SeriesCounts>> {
        Ok(self.count(at, &lengths(at).await?, true).await?.0)
    }

    async fn users(&self, at: At<'_>, series: &str, asked: &[&str]) -> Result<SeriesUsers> {
        let generation = at.gateway.generation(at.partition);
        let mut users = self.users.lock().await;
        users.retain(|_, known| known.last_used.elapsed() < UNUSED_FOR);
        let place = (at.bucket(), generation, series.to_owned());
        let known = users.entry(place).or_insert_with(|| KnownUsers {
            logs: HashMap::new(),
            users: HashSet::new(),
            last_used: Instant::now(),
        });
        known.last_used = Instant::now();
        let mut budget = ReadBudget::new(self.response);
        for log in &lengths(at).await? {
            let read = known.logs.entry(log.0.clone()).or_default();
            let users = &mut known.users;
            let mut position = read.frames;
            while let Some(frames) = budget.read(at, log, &mut position, true).await? {
                for bytes in frames {
                    frame::read(&bytes, |piece| match piece {
                        Piece::Entry(number, text) if text == series => read.number = Some(number),
                        Piece::Part(number, _, events) if read.number == Some(number) => {
                            users.extend(events.iter().map(|event| Event::of_bytes(event).user));
                        }
                        Piece::Entry(..) | Piece::Part(..) => {}
                    });
                }
                read.frames = position;
            }
        }
        let key = at.gateway.fingerprint_key().await?;
        let there = asked.iter().map(|user| known.users.contains(&key.user(user)));
        Ok(SeriesUsers { count: known.users.len() as u64, there: there.collect() })
    }

    /// Always returns 0, because duplicates are only found when the minute is counted.
    async fn record(&self, at: At<'_>, records: &Records<'_>) -> Result<u64> {
        self.append(at, records).await.map(|()| 0)
    }

    /// Once part of a cut is sealed, the cut stays the same until all of it is sealed; newer logs belong to the next cut.
    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction> {
        let begun = self.sealing.take(&at.bucket()).filter(|begun| begun.token == claim.token);
        let mut sealing = match begun {
            Some(sealing) => sealing,
            None => self.cut(at, claim).await?,
        };
        let (from, all) = (sealing.done, sealing.counts.len());
        let next = &sealing.counts[from..all.min(from + request.series_max)];
        let next = pieces(next, |counts| counts.series.len()).next().unwrap_or_default();
        let to = from + next.len();
        let mut script = Seal {
            token: &claim.token,
            lease_ms: millis(request.lease),
            sealed_for: names(request.outputs),
            from,
            all,
        }
        .at(&at.place);
        for counts in next {
            let value = format!("{}:{}", counts.unique, counts.cumulative);
            script.arg(&counts.series).arg(value);
        }
        let mut compaction = seal(at, claim, script, request.outputs).await?;
        compaction.repeated = std::mem::take(&mut sealing.repeated);
        if to < all {
            sealing.done = to;
            self.sealing.put(at.bucket(), sealing);
        }
        Ok(compaction)
    }

    async fn open_page(&self, at: At<'_>, cursor: u64) -> Result<Page<String>> {
        let counts = self.look_at(at).await?;
        Ok(Page::cut(counts.iter().map(|counts| counts.series.clone()), cursor))
    }

    async fn open_counts(&self, at: At<'_>, series: &[&str]) -> Result<Vec<SeriesCounts>> {
        let counts = self.look_at(at).await?;
        let ask = Cmd::hmget(at.key("counts"), series);
        let sealed: Vec<Option<String>> = at.ask(ask).await?;
        let open = series.iter().zip(sealed).filter_map(|(name, sealed)| {
            let place = counts.binary_search_by(|counts| counts.series.as_str().cmp(name)).ok()?;
            sealed.unwrap_or_default().is_empty().then(|| counts[place].clone())
        });
        Ok(open.collect())
    }
}

#[derive(Debug)]
struct Look {
    counts: Arc<Vec<SeriesCounts>>,
    counted: Instant,
    took: Duration,
}

#[derive(Debug)]
struct KnownUsers {
    logs: HashMap<String, Read>,
    users: HashSet<u64>,
    last_used: Instant,
}

/// The number of frames of a log that have been read, and the number of the series in that log.
#[derive(Debug, Default)]
struct Read {
    frames: u64,
    number: Option<u64>,
}

/// Items that a task takes out to work with and puts back after success. After a failure, an item is gone.
#[derive(Debug)]
struct Taken<V>(Mutex<HashMap<Bucket, (V, Instant)>>);

impl<V> Taken<V> {
    fn new() -> Self {
        Self(Mutex::default())
    }

    fn take(&self, key: &Bucket) -> Option<V> {
        lock(&self.0).remove(key).map(|(value, _)| value)
    }

    fn put(&self, key: Bucket, value: V) {
        let mut all = lock(&self.0);
        all.retain(|_, (_, last_used)| last_used.elapsed() < UNUSED_FOR);
        all.insert(key, (value, Instant::now()));
    }
}

fn log_key(place: Place<'_>, name: &str) -> String {
    place.key(Scope::Minute, "log:") + name
}

/// The counts of a cut, and how many of them have been sealed.
#[derive(Debug)]
struct Sealing {
    token: String,
    counts: Vec<SeriesCounts>,
    /// The number of duplicates in the cut; 0 once a step has returned it.
    repeated: u64,
    done: usize,
}

async fn lengths(at: At<'_>) -> Result<Vec<Length>> {
    let names: Vec<String> = at.ask(Cmd::smembers(at.key("logs"))).await?;
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut lengths = pipe();
    for name in &names {
        lengths.llen(log_key(at.place, name));
    }
    let lengths: Vec<u64> = at.ask(lengths).await?;
    Ok(names.into_iter().zip(lengths).collect())
}

impl Logs {
    /// Returns a minute's counts, sorted by series. They may be cached and slightly out of date.
    async fn look_at(&self, at: At<'_>) -> Result<Arc<Vec<SeriesCounts>>> {
        let look = {
            let mut looks = lock(&self.looks);
            let is_used = |look: &Option<Look>| {
                look.as_ref().is_some_and(|look| look.counted.elapsed() < UNUSED_FOR)
            };
            looks.retain(|_, look| look.try_lock().map_or(true, |look| is_used(&look)));
            Arc::clone(looks.entry(at.bucket()).or_default())
        };
        let mut look = look.lock().await;
        let age_max = AGE_MAX * u32::from(at.gateway.partitions.count());
        if let Some(look) = &*look
            && look.counted.elapsed() < look.took * age_max
        {
            return Ok(Arc::clone(&look.counts));
        }
        let began = Instant::now();
        let counts = Arc::new(self.counts(at).await?);
        let (counted, took) = (Instant::now(), began.elapsed());
        *look = Some(Look { counts: Arc::clone(&counts), counted, took });
        Ok(counts)
    }

    async fn cut(&self, at: At<'_>, claim: &Claim) -> Result<Sealing> {
        let token = claim.token.clone();
        let script = Cut { token: &token }.at(&at.place);
        let mut cut: HashMap<String, i64> = held(at.ask(script).await?)?;
        let Ok(done) = usize::try_from(cut.remove("done").unwrap_or_default()) else {
            // The whole cut has been sealed, and its logs are about to be dropped.
            return Ok(Sealing { token, counts: Vec::new(), repeated: 0, done: 0 });
        };
        let length = |(name, frames)| (name, u64::try_from(frames).unwrap_or(0));
        let cut: Vec<Length> = cut.into_iter().map(length).collect();
        let (counts, events) = self.count(at, &cut, false).await?;
        let different: u64 = counts.iter().map(|counts| counts.cumulative).sum();
        // The node that sealed the first part has already returned the number of duplicates.
        let repeated = if done == 0 { events - different } else { 0 };
        Ok(Sealing { token, done: done.min(counts.len()), counts, repeated })
    }
}
