//! Counts of minutes that are not sealed, for those who look; and the users of a series, for its cap.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{cmd, pipe};
use hashbrown::HashSet;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::frame::{self, Piece};
use super::pieces::{Length, Place, ReadBudget};
use super::{LogKeys, Logs};
use crate::event::{Minute, Partition};
use crate::store::redis::RedisStore;
use crate::store::redis::gateway::{READING, RECORDING};
use crate::store::{SeriesCounts, SeriesUsers as Found, StoreError};
use redis_link::{Attempts, Connection, Lane};

/// How much older an answer may be than the time that counting all partitions takes: so looking takes a tenth of a core at most,
/// however large the minute is and however many look.
const AGE_MAX: u32 = 10;
/// How long what was counted is kept after somebody looked at it, and what is known of a series' users after its last question.
const UNUSED_FOR: Duration = Duration::from_secs(120);

/// What was counted of minutes that somebody looks at. Each is counted by one at a time; the others wait for it.
#[derive(Debug, Default)]
pub(super) struct Looks(std::sync::Mutex<ByPlace>);

type ByPlace = HashMap<(Partition, Minute), Arc<Mutex<Look>>>;

#[derive(Debug, Default)]
struct Look {
    counts: Arc<Vec<SeriesCounts>>,
    counted: Option<(Instant, Duration)>,
}

impl Looks {
    fn of(&self, place: (Partition, Minute)) -> Arc<Mutex<Look>> {
        let mut all = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_used = |look: &Arc<Mutex<Look>>| {
            let counted = look.try_lock().ok().and_then(|look| look.counted);
            // Whoever counts holds it, too; what nobody could count goes.
            Arc::strong_count(look) > 1 || counted.is_some_and(|(at, _)| at.elapsed() < UNUSED_FOR)
        };
        all.retain(|_, look| is_used(look));
        Arc::clone(all.entry(place).or_default())
    }
}

/// The users of a series as far as the logs were read.
#[derive(Debug)]
pub(super) struct SeriesUsers {
    generation: u64,
    logs: HashMap<String, Read>,
    users: HashSet<u64>,
    last_used: Instant,
}

/// How far a log was read, and the number of the series there.
#[derive(Debug, Default)]
struct Read {
    frames: u64,
    number: Option<u64>,
}

impl RedisStore {
    /// What the logs of a minute come to, about now, in the order of the series.
    pub(in crate::store::redis) async fn look_at(
        &self,
        logs: &Logs,
        partition: Partition,
        minute: Minute,
    ) -> Result<Arc<Vec<SeriesCounts>>, StoreError> {
        let look = logs.looks.of((partition, minute));
        let mut look = look.lock().await;
        let age_max = AGE_MAX * u32::from(self.partitions.count());
        if let Some((at, took)) = look.counted
            && at.elapsed() < took * age_max
        {
            return Ok(Arc::clone(&look.counts));
        }
        let began = Instant::now();
        look.counts = Arc::new(self.count_now(logs, partition, minute, READING).await?);
        look.counted = Some((Instant::now(), began.elapsed()));
        Ok(Arc::clone(&look.counts))
    }

    /// Returns what the logs of a minute come to now, in the order of the series.
    pub(in crate::store::redis) async fn count_now(
        &self,
        logs: &Logs,
        partition: Partition,
        minute: Minute,
        lane: Lane,
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        let lengths = self.lengths(partition, minute, lane).await?;
        let place = Place { partition, minute, lane, generation: 0, may_go: true, logs: &lengths };
        Ok(self.count(logs, place).await?.0)
    }

    /// The logs of a minute as they are now.
    async fn lengths(
        &self,
        partition: Partition,
        minute: Minute,
        lane: Lane,
    ) -> Result<Vec<Length>, StoreError> {
        let keys = self.keys(partition);
        let of = LogKeys::new(keys, minute);
        let mut names = cmd("SMEMBERS");
        names.arg(&of.logs);
        let names = async move |connection: &mut Connection| names.query_async(connection).await;
        let names: Vec<String> = self.gateway.run(keys.slot, lane, Attempts::Two, names).await?;
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut lengths = pipe();
        for name in &names {
            lengths.llen(of.log(name));
        }
        let ask = async move |connection: &mut Connection| {
            lengths.query_async::<Vec<u64>>(connection).await
        };
        let lengths = self.gateway.run(keys.slot, lane, Attempts::Two, ask).await?;
        Ok(names.into_iter().zip(lengths).collect())
    }

    /// See [`users`](crate::store::Recording::users). Reads only what came since the last question for the same series.
    pub(in crate::store::redis) async fn users_in_logs(
        &self,
        logs: &Logs,
        partition: Partition,
        minute: Minute,
        series: &str,
        asked: &[&str],
    ) -> Result<Found, StoreError> {
        let generation = self.gateway.generation(self.keys(partition).slot);
        let place = (partition, minute, series.to_owned());
        let known = logs.users.take(&place);
        let known = known.filter(|known| known.generation == generation);
        let mut known = known.unwrap_or_else(|| SeriesUsers {
            generation,
            logs: HashMap::new(),
            users: HashSet::new(),
            last_used: Instant::now(),
        });
        // It is never closed.
        let _turn = logs.asking.acquire().await;
        let lengths = self.lengths(partition, minute, RECORDING).await?;
        let at = Place {
            partition,
            minute,
            lane: RECORDING,
            generation: 0,
            may_go: true,
            logs: &lengths,
        };
        let mut budget = ReadBudget::new(logs.response);
        for log in &lengths {
            let read = known.logs.entry(log.0.clone()).or_default();
            let users = &mut known.users;
            let mut position = read.frames;
            while let Some(frames) = self.read(&mut budget, at, log, &mut position).await? {
                for bytes in frames {
                    frame::read(&bytes, |piece| match piece {
                        Piece::Entry(number, text) if text == series => read.number = Some(number),
                        Piece::Part(number, _, events) if read.number == Some(number) => {
                            users.extend(events.iter().map(|event| event.user));
                        }
                        Piece::Entry(..) | Piece::Part(..) => {}
                    });
                }
                read.frames = position;
            }
        }
        let key = self.gateway.fingerprint_key().await?;
        let there = asked.iter().map(|user| known.users.contains(&key.user(user)));
        let found = Found { count: known.users.len() as u64, there: there.collect() };
        known.last_used = Instant::now();
        logs.users.put(place, known, |it| it.last_used.elapsed() < UNUSED_FOR);
        Ok(found)
    }
}
