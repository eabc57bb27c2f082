//! The `sets` layout: two sets per series per minute, for users and for events.
//!
//! Recording is one transaction with many members per command. A script would take Redis about a quarter longer for the same
//! work. The transaction registers the minute (`minutes`), so that every set will be found by a claim. It also cancels the
//! expiry of the minute's counts (`PERSIST`), because a late event must find them. The same `counts` show which series are
//! admitted. The caller reads them beforehand over the same connection, so they still apply when the events are recorded.
//!
//! If a long name would dominate the transaction, `record.lua` adds the events, so that the name is sent only once.
//!
//! The transaction also stores what this process has seen of the minutes (`coverage`), with one HSET per minute.

mod recorded;

use std::io;

use ::redis::{Cmd, Pipeline, RedisError, RedisWrite as _, ScriptInvocation, cmd, pipe};
use async_trait::async_trait;
use hashbrown::HashMap;
use redis_link::Connection;

use self::recorded::{OwnUsers, Recorded};
use super::counted::Taken;
use super::gateway::{ANY, At};
use super::keys::{Place, Scope};
use super::layout::{
    OpenMinutes, RecordedMinutes, SEALING, announce, by_minute, cover, events_of, names, seal,
    zeros_for,
};
use super::millis;
use super::scripts::{SHARED, Source, scripts};
use crate::event::{Batch, series_fingerprint};
use crate::store::{
    Claim, Compaction, OutputName, Page, RecordRequest, Records, Result, SealRequest, SeriesCounts,
    SeriesUsers, off_runtime,
};

scripts! {
    COMPACT Compact = SHARED + SEALING + "compact.lua"()
        Partition[claims tokens witness closed arrivals outputs stamps minutes active] Minute[event_types counts]
        => name minute base kept_ms kept_counts (token lease_ms sealed_for zeros_for series_max);
    RECORD Record = "record.lua"() Minute[event_types] => base ();
}

/// The typical maximum size of a member in a set of events, in bytes.
const MEMBER_BYTES: usize = 40;
/// The minimum length of a series name that counts as long, in bytes.
const LONG_NAME: usize = 128;
/// The maximum number of members that a script adds with one command, since they must fit on Lua's stack.
const SCRIPTED_MAX: usize = 1000;
/// The maximum number of users that are read at once, so that a read blocks Redis for about a ms.
const USERS_READ: u64 = 10_000;
/// The number of series per read transaction, which has three short commands for each series.
const LOOKED_AT: usize = 50;

/// A minute that this process is sealing, or has sealed.
#[derive(Debug)]
struct Sealing {
    token: String,
    /// The number of series that this process has sealed.
    sealed: u64,
    /// The users that this process had recorded before it sealed the first series.
    own: Option<OwnUsers>,
}

#[derive(Debug)]
pub(super) struct Sets {
    recorded: Recorded,
    /// The minutes whose users will be added to windows.
    sealing: Taken<Sealing>,
}

impl Sets {
    pub(super) fn new() -> Self {
        Self { recorded: Recorded::default(), sealing: Taken::new() }
    }

    /// Passes the users of the series whose users this process has all recorded itself to `take`. Returns the other series.
    ///
    /// A set contains all users that were recorded before it was sealed, as long as the store has not lost anything. If this
    /// process has sealed all series, it has sealed each after it recorded these users, so equal numbers mean equal sets.
    async fn take_own<'a>(
        &self,
        at: At<'_>,
        series: &'a [SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Vec<(usize, &'a SeriesCounts)> {
        let generation = at.gateway.generation(at.partition);
        let sealing = self.sealing.take(&at.bucket());
        let own = sealing.filter(|sealing| sealing.sealed == series.len() as u64);
        let own = own.and_then(|sealing| sealing.own);
        let mut users = match own.filter(|own| own.generation == generation) {
            Some(own) => off_runtime(move || own.distinct()).await,
            None => HashMap::new(),
        };
        let mut others = Vec::new();
        for (place, counts) in series.iter().enumerate() {
            match users.remove(&counts.series) {
                Some(users) if users.len() as u64 == counts.unique => take(place, users),
                _ => others.push((place, counts)),
            }
        }
        others.retain(|(_, counts)| counts.unique > 0);
        others
    }
}

#[async_trait]
impl OpenMinutes for Sets {
    fn to_seal(&self) -> &'static str {
        "event_types"
    }

    async fn seal(
        &self,
        at: At<'_>,
        claim: &Claim,
        request: &SealRequest<'_>,
    ) -> Result<Compaction> {
        let is_known = |known: &Sealing| known.token == claim.token;
        let mut sealing = self.sealing.take(&at.bucket()).filter(is_known).unwrap_or_else(|| {
            Sealing { token: claim.token.clone(), sealed: 0, own: self.recorded.take(at.bucket()) }
        });
        let script = Compact {
            token: &claim.token,
            lease_ms: millis(request.lease),
            sealed_for: names(request.outputs),
            zeros_for: zeros_for(at, request.zeros),
            series_max: request.series_max,
        };
        let compaction = seal(at, claim, script.at(&at.place), request.outputs).await?;
        if request.outputs.contains(&OutputName::rollup()) {
            sealing.sealed += compaction.sealed;
            self.sealing.put(at.bucket(), sealing);
        }
        Ok(compaction)
    }

    async fn open_page(&self, at: At<'_>, cursor: u64) -> Result<Page<String>> {
        at.page("SSCAN", (&at.key("event_types"), None), cursor).await
    }

    async fn open_counts(&self, at: At<'_>, series: &[&str]) -> Result<Vec<SeriesCounts>> {
        let base = at.place.base();
        let mut open = Vec::new();
        for series in series.chunks(LOOKED_AT) {
            let mut pipeline = pipe();
            pipeline.atomic();
            for name in series {
                pipeline
                    .scard(format!("{base}unique_user:{name}"))
                    .scard(format!("{base}cumulative_user:{name}"));
                pipeline.cmd("HSTRLEN").arg(format!("{base}counts")).arg(*name);
            }
            let numbers: Vec<u64> = at.ask(pipeline).await?;
            for (name, numbers) in series.iter().zip(numbers.chunks_exact(3)) {
                if let &[unique, cumulative, 0] = numbers {
                    let series = (*name).to_owned();
                    open.push(SeriesCounts {
                        series,
                        unique,
                        cumulative,
                        ..SeriesCounts::default()
                    });
                }
            }
        }
        Ok(open)
    }
}

#[async_trait]
impl RecordedMinutes for Sets {
    fn user_sets(&self) -> Option<&'static str> {
        Some("unique_user:")
    }

    async fn users(&self, at: At<'_>, series: &str, users: &[&str]) -> Result<SeriesUsers> {
        let key = at.key("unique_user:") + series;
        let mut pipeline = pipe();
        pipeline.scard(&key);
        pipeline.cmd("SMISMEMBER").arg(&key).arg(users);
        let (count, there) = at.ask(pipeline).await?;
        Ok(SeriesUsers { count, there })
    }

    async fn record(&self, at: At<'_>, records: &Records<'_>) -> Result<u64> {
        let mut recorded = pipeline(at.place, records.requests);
        cover(&mut recorded, at.place, &at.gateway.process, records.seen);
        let record = async |connection: &mut Connection| {
            let added = recorded.query_async::<Vec<u64>>(connection).await;
            match added {
                // The other commands have taken effect, so repeating them reports new events as duplicates.
                Err(error) if lacks_script(&error) => {
                    RECORD.script.load_async(connection).await?;
                    recorded.exec_async(connection).await.map(|()| None)
                }
                added => added.map(Some),
            }
        };
        let added = at.run(record).await?;
        let has_rollups = at.gateway.partitions.rollups().next().is_some();
        if has_rollups
            && at.generation != ANY
            && let Ok(key) = at.gateway.fingerprint_key().await
        {
            for (minute, requests) in by_minute(records.requests) {
                self.recorded.add(at.minute(minute).bucket(), at.generation, key, &requests);
            }
        }
        let events = events_of(records.requests) as u64;
        Ok(added.map_or(0, |added| events.saturating_sub(added.iter().sum())))
    }

    async fn sealed_users(
        &self,
        at: At<'_>,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()> {
        let others = self.take_own(at, series, take).await;
        let key = at.gateway.fingerprint_key().await?;
        let base = at.place.base();
        let mut rest = &others[..];
        while let Some((place, largest)) = rest.first() {
            // Combines small sets, and reads a large set on its own.
            let mut users = 0;
            let fits = |(_, counts): &&(usize, &SeriesCounts)| {
                users += counts.unique;
                users <= USERS_READ
            };
            let count = rest.iter().take_while(fits).count();
            if count == 0 {
                let (set, mut cursor) = (format!("{base}sealed_user:{}", largest.series), 0_u64);
                loop {
                    let mut scan = cmd("SSCAN");
                    scan.arg(&set).arg(cursor).arg("COUNT").arg(USERS_READ / 2);
                    let users: Vec<String>;
                    (cursor, users) = at.ask(scan).await?;
                    take(*place, users.iter().map(|user| key.user(user)).collect());
                    if cursor == 0 {
                        break;
                    }
                }
            } else {
                let mut pipeline = pipe();
                for (_, counts) in &rest[..count] {
                    pipeline.smembers(format!("{base}sealed_user:{}", counts.series));
                }
                let sets: Vec<Vec<String>> = at.ask(pipeline).await?;
                for ((place, _), users) in rest.iter().zip(sets) {
                    take(*place, users.iter().map(|user| key.user(user)).collect());
                }
            }
            rest = &rest[count.max(1)..];
        }
        Ok(())
    }
}

/// Builds the transaction that records these events. Its replies add up to the number of new events.
pub(super) fn pipeline(place: Place<'_>, recordings: &[RecordRequest<'_>]) -> Pipeline {
    let mut pipeline = pipe();
    pipeline.atomic();
    for (minute, recordings) in by_minute(recordings) {
        let place = place.minute(minute);
        let base = place.base();
        let mut arrivals = 0;
        let mut all_series = cmd("SADD");
        all_series.arg(place.key(Scope::Minute, "event_types"));
        let mut named_once = Record {}.at(&place);
        let (mut is_in_sets, mut is_scripted) = (false, false);
        // Combine consecutive recordings of the same series; the overflow series has many of them.
        for of_series in recordings.chunk_by(|previous, next| previous.series == next.series) {
            let series = of_series[0].series;
            let count = events_of(of_series.iter().copied());
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
        announce(&mut pipeline, &place, minute);
        let arrived = place.key(Scope::Partition, "arrivals");
        pipeline.hincr(arrived, minute.to_string(), arrivals).ignore();
    }
    pipeline
}

/// Returns whether the series name would make up most of the bytes of commands with this number of events.
fn is_mostly_name(series: &str, recordings: &[&RecordRequest<'_>], count: usize) -> bool {
    if series.len() < LONG_NAME || 2 * count > SCRIPTED_MAX {
        return false;
    }
    let events = recordings.iter().flat_map(|recording| recording.occurrences);
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

fn lacks_script(error: &RedisError) -> bool {
    let causes = error.clone().into_server_errors().unwrap_or_default();
    causes.iter().any(|(_, cause)| cause.code() == "NOSCRIPT") || error.code() == Some("NOSCRIPT")
}

/// Writes `<user>_<timestamp>`, followed by `_<fingerprint>` in the overflow series. No number contains an underscore.
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
