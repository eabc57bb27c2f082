//! Appending to logs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use tokio::time::Instant;

use super::frame::{Frame, Key};
use super::{LogKeys, Logs};
use crate::event::{Minute, Partition, series_fingerprint};
use crate::store::redis::gateway::RECORDING;
use crate::store::redis::recording::by_minute;
use crate::store::redis::{RedisStore, millis, scripts};
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
            let seen = seen.iter().find(|seen| seen.minute == minute);
            let mut log = logs.own.take(&(partition, minute));
            log = log.filter(|log| log.generation == generation);
            loop {
                let is_new = log.is_none();
                let mut at = log.unwrap_or_else(|| self.new_log(logs, generation));
                if self
                    .append_to(&mut at, partition, minute, &recordings, seen)
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
        seen: Option<&Seen>,
    ) -> Result<bool, StoreError> {
        let keys = self.keys(partition);
        let of = LogKeys::new(keys, minute);
        let key = self.gateway.fingerprint_key().await?;
        let frame = log.frame(key, recordings);
        let events: usize = recordings.iter().map(|it| it.occurrences.len()).sum();
        let minute_key = |what: &str| format!("{}{what}", of.base);
        let told = seen.map(|seen| seen.events.to_string());
        let renewed = seen.filter(|seen| seen.renew);
        let renewed = renewed.map(|_| millis(self.retention).to_string());
        let mut script = scripts::APPEND.prepare_invoke();
        script
            .key(of.log(&log.name))
            .key(&[&of.logs, &of.cut, &keys.minutes, &keys.arrivals])
            .key(&["counts", "coverage"].map(minute_key))
            .arg(&log.name)
            .arg(log.frames)
            .arg(frame)
            .arg(minute.to_string())
            .arg(minute.epoch_minutes())
            .arg(events)
            .arg(&self.node)
            .arg(told.unwrap_or_default())
            .arg(renewed.unwrap_or_default());
        let append = async move |connection: &mut MultiplexedConnection| {
            script.invoke_async::<bool>(connection).await
        };
        let run = self
            .gateway
            .run_in(log.generation, keys.slot, RECORDING, append);
        let appended = run.await?;
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
        let (mut frame, mut bytes) = (Frame::default(), Vec::new());
        for recording in recordings {
            let batch = recording.batch;
            let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
            let known = self.numbers.get(recording.series).copied();
            let number = known.unwrap_or_else(|| {
                frame.name(next, recording.series);
                self.numbers.insert(recording.series.into(), next);
                next
            });
            let users = recording.new_users.as_deref().unwrap_or_default();
            let from = recording.overflowed_from.map(series_fingerprint);
            let events = recording.occurrences.iter();
            let events = events.map(|it| key.event(&mut bytes, batch.user(it), it.timestamp, from));
            frame.add(
                number,
                (users.len(), users.iter().map(|user| key.user(user))),
                (recording.occurrences.len(), events),
            );
        }
        frame.bytes()
    }
}
