//! The `log` layout: each process has one log per partition per minute, and the node that seals the minute counts the
//! distinct fingerprints in all its logs. When a log is counted, it is *cut*, which closes it. `append.lua` rejects frames
//! if the log has been cut, is gone or does not have the length that the process expects; the process then starts a new log,
//! as it does after every failure. Therefore no log has a gap, and an event that is in two logs is counted once.

mod counting;
mod frame;
mod recording;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::redis::Cmd;
use async_trait::async_trait;
use hashbrown::{HashMap, HashSet};
use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::time::Instant;

use self::counting::{Found, ReadBudget};
use self::frame::{Event, Piece};
use self::recording::Log;
use super::counted::{Cuts, Taken, UNUSED_FOR, lengths, log_key};
use super::gateway::At;
use super::keys::Place;
use super::layout::{OpenMinutes, RecordedMinutes};
use super::lock;
use super::scripts::{Source, scripts};
use crate::event::Partition;
use crate::store::{
    Bucket, Claim, Compaction, OutputName, Page, Records, Result, SealRequest, SeriesCounts,
    SeriesUsers,
};

scripts! {
    APPEND Append = "append.lua"(log) Partition[arrivals] Minute[cut] => name (log_name length added events);
}

/// The maximum number of minutes that are counted at the same time. Counting a minute takes a bounded amount of memory.
const COUNTED_AT_ONCE: usize = 2;
/// The maximum age of cached counts, relative to the time that counting took: readers cost at most a tenth of a core.
const AGE_MAX: u32 = 10;
#[derive(Debug)]
pub(super) struct Logs {
    /// The logs of this process.
    own: Taken<Log>,
    /// The number of the next log.
    next: AtomicU64,
    sealing: Cuts,
    /// The users of sealed minutes that are still to be added to windows.
    found: Taken<Found>,
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
            sealing: Cuts::new(),
            found: Taken::new(),
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

    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction> {
        let keeps_users = request.outputs.contains(&OutputName::rollup());
        let count = async |cut| self.count_cut(at, cut, keeps_users).await;
        self.sealing.seal(at, claim, request, count).await
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

#[async_trait]
impl RecordedMinutes for Logs {
    fn user_sets(&self) -> Option<&'static str> {
        None
    }

    async fn counts(&self, at: At<'_>) -> Result<Vec<SeriesCounts>> {
        Ok(self.count(at, &lengths(at).await?, true, 0).await?.counts)
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
            let key = log_key(at.place, &log.0);
            let read = known.logs.entry(log.0.clone()).or_default();
            let users = &mut known.users;
            let mut position = read.frames;
            while let Some(frames) = budget.read(at, (&key, log.1), &mut position, true).await? {
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

    async fn sealed_users(
        &self,
        at: At<'_>,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()> {
        self.kept_users(at, series, take).await
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
}
