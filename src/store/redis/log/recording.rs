//! Appending to logs.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ::redis::pipe;
use redis_link::{Attempts, Connection};
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

    /// Appends frames in one transaction. Returns false, and appends nothing, when the log is not as this process knows it.
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
        let frames = log.frames(key, recordings);
        let length = log.frames + frames.len() as u64;
        let events: usize = recordings.iter().map(|it| it.occurrences.len()).sum();
        let mut script = scripts::APPEND.prepare_invoke();
        script
            .key(of.log(&log.name))
            .key(&of.cut)
            .key(&keys.arrivals)
            .arg(&log.name)
            .arg(length)
            .arg(frames.len())
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
        push.arg(of.log(&log.name)).arg(frames).ignore();
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
            .run_in(log.generation, keys.slot, RECORDING, Attempts::One, append);
        let [appended] = run.await?;
        log.frames = length;
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
    /// Returns the next frames, none of them large. From now on the log is taken to have them.
    fn frames(&mut self, key: Key, recordings: &[&RecordRequest<'_>]) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut frame = Frame::default();
        for recording in recordings {
            let (series, batch) = (recording.series, recording.batch);
            let from = recording.overflowed_from;
            let from = from.map(|series| key.series(series_fingerprint(series)));
            let minute_start = recording.minute.start_nanos();
            let mut left = recording.occurrences;
            while !left.is_empty() {
                let known = self.numbers.get(series).copied();
                let room = frame.room(known.map_or(series.len(), |_| 0));
                if room == 0 {
                    frames.push(std::mem::take(&mut frame).bytes());
                    continue;
                }
                let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
                let number = known.unwrap_or_else(|| {
                    frame.name(next, series);
                    self.numbers.insert(series.into(), next);
                    next
                });
                let (some, rest) = left.split_at(room.min(left.len()));
                let events = some.iter().map(|it| Event {
                    user: key.user(batch.user(it)),
                    time: it.timestamp.wrapping_sub(minute_start).cast_unsigned(),
                });
                frame.add(number, from, events);
                left = rest;
            }
        }
        frames.push(frame.bytes());
        frames
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{FRAME_BYTES, Piece, read};
    use super::*;
    use crate::event::Batch;

    #[test]
    fn frames_are_bounded_whatever_the_names_and_events() {
        let minute = Minute::of_nanos(0);
        let mut sent = vec![("x".repeat(2 * FRAME_BYTES), 3_usize)];
        sent.extend((0..1000).map(|number| (format!("s={number:0998}"), 2)));
        sent.push(("s=1".to_owned(), 100_000));
        let mut batch = Batch::default();
        for (series, events) in &sent {
            for at in 0..*events {
                let at = i64::try_from(at).unwrap();
                assert!(batch.push(minute, series, "user", at));
            }
        }
        let requests: Vec<_> = batch
            .groups()
            .iter()
            .map(|group| RecordRequest {
                minute,
                series: &group.series,
                overflowed_from: None,
                new_users: None,
                occurrences: &group.occurrences,
                batch: &batch,
            })
            .collect();
        let mut log = Log {
            name: "n#1.0".to_owned(),
            generation: 1,
            frames: 0,
            numbers: HashMap::new(),
            last_used: Instant::now(),
        };
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut found: HashMap<String, usize> = HashMap::new();
        for frame in log.frames(Key(1), &requests.iter().collect::<Vec<_>>()) {
            let mut is_long = false;
            let is_whole = read(&frame, |piece| match piece {
                Piece::Entry(number, series) => {
                    is_long |= series.len() > FRAME_BYTES;
                    names.insert(number, series.to_owned());
                }
                Piece::Part(number, _, events) => {
                    *found.entry(names[&number].clone()).or_default() += events.count();
                }
            });
            assert!(is_whole);
            let is_bounded = is_long || frame.len() <= FRAME_BYTES;
            assert!(is_bounded, "{} bytes", frame.len());
        }
        assert_eq!(found, sent.into_iter().collect());
    }
}
