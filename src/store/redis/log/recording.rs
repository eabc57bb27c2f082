//! Appends events to the logs of this process.

use std::sync::atomic::Ordering;

use ::redis::pipe;
use hashbrown::HashMap;
use redis_link::Connection;

use super::frame::{Event, Frame};
use super::{APPEND, Append, Logs};
use crate::event::{Minute, series_fingerprint};
use crate::store::redis::counted::log_key;
use crate::store::redis::gateway::{ANY, At};
use crate::store::redis::layout::{announce, by_minute, cover, events_of};
use crate::store::redis::lock;
use crate::store::redis::settings::Key;
use crate::store::{RecordRequest, Records, Result, Seen, StoreError};

/// The maximum number of minutes per transaction, because a transaction for a thousand minutes would block a slow link.
const MINUTES_AT_ONCE: usize = 16;

type OfMinute<'a, 'b> = (Minute, Vec<&'a RecordRequest<'b>>);

#[derive(Debug)]
pub(super) struct Log {
    name: String,
    generation: u64,
    frames: u64,
    numbers: HashMap<Box<str>, u32>,
}

impl Logs {
    pub(super) async fn append(&self, at: At<'_>, records: &Records<'_>) -> Result<()> {
        let At { gateway, partition, .. } = at;
        let at = match at.generation {
            ANY => {
                gateway.redis.server(gateway.keys(partition).slot).await?;
                at.bound_to(gateway.generation(partition))
            }
            _ => at,
        };
        if lock(&self.loaded).remove(&partition) != Some(at.generation) {
            at.run(async |connection: &mut Connection| APPEND.script.load_async(connection).await)
                .await?;
        }
        let minutes: Vec<_> = by_minute(records.requests).into_iter().collect();
        for minutes in minutes.chunks(MINUTES_AT_ONCE) {
            let mut left = minutes.to_vec();
            while !left.is_empty() {
                left = self.append_to(at, left, records.seen).await?;
            }
        }
        lock(&self.loaded).insert(partition, at.generation);
        Ok(())
    }

    fn new_log(&self, at: At<'_>) -> Log {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        Log {
            name: format!("{}.{number}", at.gateway.process.node),
            generation: at.generation,
            frames: 0,
            numbers: HashMap::new(),
        }
    }

    /// Appends events in one transaction. Returns the minutes whose log was in an unexpected state and remains unchanged.
    async fn append_to<'a, 'b>(
        &self,
        at: At<'_>,
        minutes: Vec<OfMinute<'a, 'b>>,
        seen: &[Seen],
    ) -> Result<Vec<OfMinute<'a, 'b>>> {
        let key = at.gateway.fingerprint_key().await?;
        let mut transaction = pipe();
        transaction.atomic();
        let (mut appended_to, mut scripts) = (Vec::new(), Vec::new());
        for (minute, recordings) in minutes {
            let at = at.minute(minute);
            let known = self.own.take(&at.bucket());
            let known = known.filter(|log| log.generation == at.generation);
            let is_new = known.is_none();
            let mut log = known.unwrap_or_else(|| self.new_log(at));
            let frames = log.frames(key, &recordings);
            log.frames += frames.len() as u64;
            let list = log_key(at.place, &log.name);
            let script = Append {
                log: &list,
                log_name: &log.name,
                length: log.frames,
                added: frames.len(),
                events: events_of(recordings.iter().copied()),
            };
            scripts.push(script.at(&at.place));
            announce(&mut transaction, &at.place, minute);
            if is_new {
                transaction.sadd(at.key("logs"), &log.name).ignore();
            }
            let push = transaction.cmd(if is_new { "RPUSH" } else { "RPUSHX" });
            push.arg(list).arg(frames).ignore();
            let seen: Vec<_> = seen.iter().copied().filter(|seen| seen.minute == minute).collect();
            cover(&mut transaction, at.place, &at.gateway.process, &seen);
            appended_to.push((at.bucket(), recordings, log, is_new));
        }
        // The transaction takes effect completely or not at all, unless the server does not know the script. Therefore, the
        // keys that lead to the logs are written first, and a process starts new logs on a new connection.
        for script in &scripts {
            transaction.invoke_script(script);
        }
        let answers: Vec<bool> = at.ask(transaction).await?;
        let mut refused = Vec::new();
        for ((bucket, recordings, log, is_new), is_appended) in appended_to.into_iter().zip(answers)
        {
            if is_appended {
                self.own.put(bucket, log);
            } else if is_new {
                let message = format!("the new log {:?} already exists", log.name);
                return Err(StoreError::unavailable(message));
            } else {
                refused.push((bucket.minute, recordings));
            }
        }
        Ok(refused)
    }
}

impl Log {
    /// Encodes these events as frames, and remembers the numbers that the frames assign to series.
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
                let (fitting, rest) = left.split_at(room.min(left.len()));
                let events = fitting.iter().map(|occurrence| Event {
                    user: key.user(batch.user(occurrence)),
                    time: occurrence.timestamp.wrapping_sub(minute_start).cast_unsigned(),
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
    fn frames_are_bounded_for_any_names_and_events() {
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
        let requests: Vec<_> =
            batch.groups().iter().map(|group| RecordRequest::new(&batch, group)).collect();
        let mut log =
            Log { name: "n#1.0".to_owned(), generation: 1, frames: 0, numbers: HashMap::new() };
        let mut names: HashMap<u64, String> = HashMap::new();
        let mut found: HashMap<String, usize> = HashMap::new();
        for frame in log.frames(Key(1), &requests.iter().collect::<Vec<_>>()) {
            let mut is_long = false;
            let whole = read(&frame, |piece| match piece {
                Piece::Entry(number, series) => {
                    is_long |= series.len() > FRAME_BYTES;
                    names.insert(number, series.to_owned());
                }
                Piece::Part(number, _, events) => {
                    *found.entry(names[&number].clone()).or_default() += events.len();
                }
            });
            assert!(whole.is_some());
            let is_bounded = is_long || frame.len() <= FRAME_BYTES;
            assert!(is_bounded, "{} bytes", frame.len());
        }
        assert_eq!(found, sent.into_iter().collect());
    }
}
