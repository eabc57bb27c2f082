//! Recording: one transaction, many members a command.
//!
//! No script: Redis spends about a quarter more on the same additions from Lua. The transaction makes
//! the minute known (`minutes`) with its first event, so that nothing lies in a set that no claim will find. It
//! also ends the expiry of the counts that the minute may have already (`PERSIST`): they are what a late event
//! must meet, and no node may be there to claim it before they would be forgotten. The same `counts` say which series
//! are admitted, which is asked before, over the same connection: what it answers holds for what is recorded over it.
//!
//! A long name with few events would be most of what is sent. Where it is, `record.lua` adds to the sets, and the name goes once.
//!
//! With the events goes what this process has seen of their minutes (`coverage`): one HSET a minute, whatever the series.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use ::redis::{Cmd, Pipeline, RedisError, RedisWrite as _, ScriptInvocation, cmd, pipe};
use async_trait::async_trait;
use redis_link::{Attempts, Connection};

use super::gateway::RECORDING;
use super::keys::PartitionKeys;
use super::{RedisStore, millis, scripts};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Batch, Minute, Partition, series_fingerprint};
use crate::store::{
    Admission, AdmitRequest, Admitted, RecordRequest, Recording, Seen, SeriesCounts, SeriesUsers,
    StoreError,
};

/// The bytes of most members of a set of events: a user's name, and when.
const MEMBER_BYTES: usize = 40;
/// The bytes from which on a name is long.
const LONG_NAME: usize = 128;
/// The most members that a script adds at once: those of a command have to fit on Lua's stack.
const SCRIPTED_MAX: usize = 1000;

#[async_trait]
impl Recording for RedisStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        let keys = self.keys(partition);
        let base = keys.minute(request.minute);
        let mut script = scripts::ADMIT.prepare_invoke();
        let minute = request.minute;
        let divided = self.partitions.count_in(minute);
        if let Some(outdated) = self.gateway.outdated_from(minute) {
            return Err(StoreError::Refused(outdated));
        }
        let sets = match self.logs {
            Some(_) => String::new(),
            None => format!("{base}unique_user:"),
        };
        script
            .key(format!("{base}counts"))
            .key(&[&keys.division, &keys.arrivals])
            .arg(request.series_max)
            .arg(request.overflow)
            .arg(millis(self.retention))
            .arg(request.minute.end_millis())
            .arg(sets)
            .arg(minute.to_string())
            .arg(minute.epoch_minutes())
            .arg(divided)
            .arg(request.series);
        let ask = async move |connection: &mut Connection| {
            script.invoke_async::<Option<(u64, Vec<i64>)>>(connection).await
        };
        let answers = self.gateway.run(keys.slot, RECORDING, Attempts::One, ask).await?;
        let (arrivals, answers) = answers.ok_or_else(|| {
            let why = format!(
                "minute {} is not divided into {divided} partitions any more",
                minute.shown()
            );
            StoreError::Refused(Diagnosis::new(Cause::SettingsOutdated, why))
        })?;
        let mut answers = answers.into_iter();
        let users = |answer: i64| u64::try_from(answer).ok();
        let overflow_users = answers.next().and_then(users);
        let series: Vec<_> = answers
            .map(|answer| match answer {
                -1 => Admission::Refused,
                answer => Admission::Admitted { users: users(answer) },
            })
            .collect();
        if series.len() != request.series.len() {
            return Err(StoreError::unavailable("an answer of another length"));
        }
        Ok(Admitted { overflow_users, arrivals, series })
    }

    async fn counts(
        &self,
        partition: Partition,
        minute: Minute,
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        match &self.logs {
            Some(logs) => self.count_now(logs, partition, minute, RECORDING).await,
            // Its sets have told.
            None => Ok(Vec::new()),
        }
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        if let Some(logs) = &self.logs {
            let found = self.users_in_logs(logs, partition, minute, series, users);
            return found.await;
        }
        let keys = self.keys(partition);
        let key = format!("{}unique_user:{series}", keys.minute(minute));
        let mut pipeline = pipe();
        pipeline.scard(&key);
        pipeline.cmd("SMISMEMBER").arg(&key).arg(users);
        let ask = async |connection: &mut Connection| {
            pipeline.query_async::<(u64, Vec<bool>)>(connection).await
        };
        let (count, there) = self.gateway.run(keys.slot, RECORDING, Attempts::One, ask).await?;
        Ok(SeriesUsers { count, there })
    }

    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<u64, StoreError> {
        if let Some(logs) = &self.logs {
            let appended = self.append(logs, partition, generation, recordings, seen);
            // What is there already is found out when the minute is counted.
            return appended.await.map(|()| 0);
        }
        let keys = self.keys(partition);
        let slot = keys.slot;
        let mut recorded = pipeline(keys, recordings);
        cover(&mut recorded, keys, &self.node, seen, self.retention);
        let record = async |connection: &mut Connection| {
            let added = recorded.query_async::<Vec<u64>>(connection).await;
            match added {
                // All else is recorded, and would count as repeated.
                Err(error) if lacks_script(&error) => {
                    let script = scripts::RECORD.prepare_invoke();
                    script.load_async(connection).await?;
                    recorded.exec_async(connection).await.map(|()| None)
                }
                added => added.map(Some),
            }
        };
        let run = self.gateway.run_in(generation, slot, RECORDING, Attempts::One, record);
        let added = run.await?;
        Ok(added.map_or(0, |added| repeated(recordings, &added)))
    }
}

/// The recordings of each minute.
pub(super) fn by_minute<'a, 'b>(
    recordings: &'a [RecordRequest<'b>],
) -> BTreeMap<Minute, Vec<&'a RecordRequest<'b>>> {
    let mut minutes: BTreeMap<Minute, Vec<_>> = BTreeMap::new();
    for recording in recordings {
        minutes.entry(recording.minute).or_default().push(recording);
    }
    minutes
}

/// The commands that record. All keys are in one slot. They answer how many events each series did not have.
pub(super) fn pipeline(keys: &PartitionKeys, recordings: &[RecordRequest<'_>]) -> Pipeline {
    let mut pipeline = pipe();
    pipeline.atomic();
    for (minute, recordings) in by_minute(recordings) {
        let base = keys.minute(minute);
        let event_types = format!("{base}event_types");
        let mut arrivals = 0;
        let mut all_series = cmd("SADD");
        all_series.arg(&event_types);
        let mut named_once = scripts::RECORD.prepare_invoke();
        named_once.key(&event_types).arg(&base);
        let (mut is_in_sets, mut is_scripted) = (false, false);
        // The recordings of an overflow series follow each other, and are many.
        for of_series in recordings.chunk_by(|one, next| one.series == next.series) {
            let series = of_series[0].series;
            let count: usize = of_series.iter().map(|it| it.occurrences.len()).sum();
            arrivals += count;
            if is_mostly_name(series, of_series, count) {
                is_scripted = true;
                add_by_script(&mut named_once, series, of_series);
                continue;
            }
            is_in_sets = true;
            let mut users = cmd("SADD");
            users.arg(format!("{base}unique_user:{series}"));
            let mut events = Cmd::with_capacity(count + 2, count * MEMBER_BYTES);
            events.arg("SADD");
            events.arg(format!("{base}cumulative_user:{series}"));
            for recording in of_series {
                users.arg(recording.new_users.as_deref().unwrap_or_default());
                let overflowed_from = recording.overflowed_from.map(series_fingerprint);
                for occurrence in recording.occurrences {
                    let user = recording.batch.user(occurrence);
                    let mut member = events.writer_for_next_arg();
                    write_member(&mut member, user, occurrence.timestamp, overflowed_from);
                }
            }
            if of_series
                .iter()
                .any(|recording| recording.new_users.iter().flatten().next().is_some())
            {
                pipeline.add_command(users).ignore();
            }
            pipeline.add_command(events);
            all_series.arg(series);
        }
        if is_scripted {
            pipeline.invoke_script(&named_once);
        }
        if is_in_sets {
            pipeline.add_command(all_series).ignore();
        }
        announce(&mut pipeline, keys, minute);
        let arrived = pipeline.hincr(&keys.arrivals, minute.to_string(), arrivals);
        arrived.ignore();
    }
    pipeline
}

/// The commands that lead whoever closes minutes to one that has more to count.
pub(super) fn announce(pipeline: &mut Pipeline, keys: &PartitionKeys, minute: Minute) {
    let minutes = pipeline.cmd("ZADD").arg(&keys.minutes).arg("NX");
    let name = minute.to_string();
    minutes.arg(minute.epoch_minutes()).arg(name).ignore();
    let counts = format!("{}counts", keys.minute(minute));
    pipeline.persist(counts).ignore();
}

/// The commands that keep what a process has seen, for so long.
pub(super) fn cover(
    pipeline: &mut Pipeline,
    keys: &PartitionKeys,
    process: &str,
    seen: &[Seen],
    retention: Duration,
) {
    for seen in seen {
        let coverage = format!("{}coverage", keys.minute(seen.minute));
        pipeline.hset(&coverage, process, seen.events).ignore();
        let expire = pipeline.cmd("PEXPIRE").arg(coverage);
        let expire = expire.arg(millis(retention)).ignore();
        if !seen.renew {
            // A Redis that went back, which nobody has noticed yet, has no such key.
            expire.arg("NX");
        }
    }
}

/// How many events were there already, by what the commands answered.
fn repeated(recordings: &[RecordRequest<'_>], added: &[u64]) -> u64 {
    let events: usize = recordings.iter().map(|it| it.occurrences.len()).sum();
    (events as u64).saturating_sub(added.iter().sum())
}

/// Whether the name of a series would be most of the commands that record so many events of it.
fn is_mostly_name(series: &str, recordings: &[&RecordRequest<'_>], count: usize) -> bool {
    if series.len() < LONG_NAME || 2 * count > SCRIPTED_MAX {
        return false;
    }
    let events = recordings.iter().flat_map(|it| it.occurrences);
    let users: usize = events.map(Batch::user_bytes).sum();
    2 * series.len() > 2 * users + count * MEMBER_BYTES
}

/// Adds users and events of a series to the arguments of `record.lua`.
fn add_by_script(
    script: &mut ScriptInvocation<'_>,
    series: &str,
    recordings: &[&RecordRequest<'_>],
) {
    let (mut users, mut events) = (Vec::new(), Vec::new());
    for recording in recordings {
        users.extend(recording.new_users.iter().flatten().copied());
        let overflowed_from = recording.overflowed_from.map(series_fingerprint);
        for occurrence in recording.occurrences {
            let (mut member, user) = (Vec::new(), recording.batch.user(occurrence));
            write_member(&mut member, user, occurrence.timestamp, overflowed_from);
            events.push(member);
        }
    }
    script.arg(series).arg(users.len()).arg(events.len());
    script.arg(users).arg(events);
}

/// Whether a server does not know a script of a transaction.
fn lacks_script(error: &RedisError) -> bool {
    let causes = error.clone().into_server_errors().unwrap_or_default();
    causes.iter().any(|(_, cause)| cause.code() == "NOSCRIPT") || error.code() == Some("NOSCRIPT")
}

/// Writes `<user>_<timestamp>`, or `<user>_<timestamp>_<fingerprint>` for an event of the overflow series.
/// Neither number has an underscore, so different events of a set are different members.
fn write_member(
    member: &mut impl io::Write,
    user: &str,
    timestamp: i64,
    overflowed_from: Option<u128>,
) {
    // Writing to memory cannot fail.
    let _ = member.write_all(user.as_bytes());
    let _ = member.write_all(b"_");
    let _ = member.write_all(itoa::Buffer::new().format(timestamp).as_bytes());
    if let Some(series) = overflowed_from {
        let _ = write!(member, "_{series:032x}");
    }
}
