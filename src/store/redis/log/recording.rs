//! Appending to logs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::pipe;
use redis_link::Connection;
use tokio::time::Instant;

use super::frame::{Event, Frame, Key};
use super::{LogKeys, Logs};
use crate::event::{Minute, Partition, series_fingerprint};
use crate::store::redis::gateway::RECORDING;
use crate::store::redis::recording::{announce, by_minute, cover};
use crate::store::redis::{RedisStore, scripts};
use crate::store::{RecordRequest, Seen, StoreError};

/// How long a log is known after its last frame. What comes later begins another one.
const UNUSED_FOR: Duration = Duration::from_secs(120);

/// A log of this process as it is in Redis.
#[derive(Debug)]
pub(super) struct Log {
    name: String,
    generation: u64,
    frames: u64,
    numbers: HashMap<Box<str>, u32>,
    last_used: Instant,
}

impl RedisStore {
    /// Appends events to the logs of their minutes.
    pub(in crate::store::redis) async fn append(
        &self,
        logs: &Logs,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<(), StoreError> {
        let generation = match generation {
            0 => self.generation_of(partition).await?,
            bound => bound,
        };
        for (minute, recordings) in by_minute(recordings) {
            let seen: Vec<_> = seen
                .iter()
                .copied()
                .filter(|it| it.minute == minute)
                .collect();
            let mut log = logs.own.take(&(partition, minute));
            log = log.filter(|log| log.generation == generation);
            loop {
                let is_new = log.is_none();
                let mut at = log.unwrap_or_else(|| self.new_log(logs, generation));
                if self
                    .append_to(&mut at, partition, minute, &recordings, &seen)
                    .await?
                {
                    let is_used = |log: &Log| log.last_used.elapsed() < UNUSED_FOR;
                    logs.own.put((partition, minute), at, is_used);
                    break;
                }
                if is_new {
                    let message = format!("the new log {:?} is there already", at.name);
                    return Err(StoreError::Unavailable(message));
                }
                log = None;
            }
        }
        Ok(())
    }

    fn new_log(&self, logs: &Logs, generation: u64) -> Log {
        let number = logs.next.fetch_add(1, Ordering::Relaxed);
        Log {
            name: format!("{}.{number}", self.node),
            generation,
            frames: 0,
            numbers: HashMap::new(),
            last_used: Instant::now(),
        }
    }

    /// Answers whether the log was as this process knows it.
    async fn append_to(
        &self,
        log: &mut Log,
        partition: Partition,
        minute: Minute,
        recordings: &[&RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<bool, StoreError> {
        let keys = self.keys(partition);
        let of = LogKeys::new(keys, minute);
        let key = self.gateway.fingerprint_key().await?;
        let frame = log.frame(key, recordings);
        let events: usize = recordings.iter().map(|it| it.occurrences.len()).sum();
        let mut script = scripts::APPEND.prepare_invoke();
        script
            .key(of.log(&log.name))
            .key(&of.cut)
            .key(&keys.arrivals)
            .arg(&log.name)
            .arg(log.frames + 1)
            .arg(minute.to_string())
            .arg(events);
        // All or nothing, but where the server does not know the script. So what leads to a log is there before it.
        let mut transaction = pipe();
        transaction.atomic();
        announce(&mut transaction, keys, minute);
        let is_new = log.frames == 0;
        if is_new {
            transaction.sadd(&of.logs, &log.name).ignore();
        }
        let push = transaction.cmd(if is_new { "RPUSH" } else { "RPUSHX" });
        push.arg(of.log(&log.name)).arg(frame).ignore();
        cover(&mut transaction, keys, &self.node, seen, self.retention);
        transaction.invoke_script(&script);
        let append = async move |connection: &mut Connection| {
            if is_new {
                script.load_async(connection).await?;
            }
            transaction.query_async::<[bool; 1]>(connection).await
        };
        let run = self
            .gateway
            .run_in(log.generation, keys.slot, RECORDING, append);
        let [appended] = run.await?;
        log.frames += 1;
        log.last_used = Instant::now();
        Ok(appended)
    }

    /// The generation of the server that a partition is on.
    async fn generation_of(&self, partition: Partition) -> Result<u64, StoreError> {
        let slot = self.keys(partition).slot;
        self.gateway.redis.server(slot).await?;
        Ok(self.gateway.generation(slot))
    }
}

impl Log {
    /// The next frame. From now on the log is taken to have it.
    fn frame(&mut self, key: Key, recordings: &[&RecordRequest<'_>]) -> Vec<u8> {
        let mut frame = Frame::default();
        for recording in recordings {
            let batch = recording.batch;
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let known = self.numbers.get(recording.series).copied();
            let number = known.unwrap_or_else(|| {
                frame.name(next, recording.series);
                self.numbers.insert(recording.series.into(), next);
                next
            });
            let from = recording.overflowed_from;
            let from = from.map(|series| key.series(series_fingerprint(series)));
            let minute_start = recording.minute.start_nanos();
            let events = recording.occurrences.iter().map(|it| Event {
                user: key.user(batch.user(it)),
                time: it.timestamp.wrapping_sub(minute_start).cast_unsigned(),
            });
            frame.add(number, from, events);
        }
        frame.bytes()
    }
}
