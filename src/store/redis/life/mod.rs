//! The steps in the life of a minute that both layouts share, each with its script, and read access to counts. Readers use
//! only small commands over a separate connection; none reads a whole hash or set that grows with the number of events.

mod draining;
mod quarantine;

use std::collections::BTreeSet;

use ::redis::{FromRedisValue, pipe};
use async_trait::async_trait;

pub use self::quarantine::{Dropped, Quarantined};
use super::RedisStore;
use super::gateway::{At, READING, RECORDING};
use super::keys::{Place, Scope};
use super::scripts::{SHARED, Source, scripts};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition, Quality};
use crate::store::reading::by_name;
use crate::store::{
    Admission, AdmitRequest, Admitted, Bucket, CountReader, Coverage, Page, Recording, Records,
    Result, SeriesCounts, SeriesUsers, StoreError,
};

scripts! {
    ADMIT Admit = SHARED + "admit.lua"() Partition[division arrivals] Minute[counts]
        => name minute minute_end_ms kept_ms (series_max overflow user_sets divided);
    ATTEST Attest = SHARED + "attest.lua"() Partition[witness closed stamps]
        => node (known_epoch known_stamp new_epoch known_since kind);
    CHECK_IN CheckInAt = SHARED + "check_in.lua"()
        Partition[lagging witness stamps claims idle closed outputs minutes]
        => node tolerance_ms (lags lease_ms known_epoch known_stamp heard alive_ms);
    CLAIM TakeClaims = SHARED + "claim.lua"()
        Partition[minutes claims tokens arrivals idle lagging witness stamps]
        => node tolerance_ms looked_max
            (grace_ms max_hold_ms lease_ms lapsed_max finished_max known_epoch known_stamp expected_ms old_max recent_ms);
    ANNOUNCE Announce = SHARED + "announce.lua"() Partition[witness closed stamps] Output[tokens]
        => node (known_epoch known_stamp);
    ACKNOWLEDGE Acknowledge = SHARED + "acknowledge.lua"(to_seal)
        Partition[minutes witness closed claims outputs] Minute[counts kept] Output[claims tokens] OutputOfMinute[unsent]
        => name minute base output kept_ms kept_counts listed_minutes (token lease_ms);
    EXTEND Extend = SHARED + "extend.lua"() Output[claims tokens] => (lease_ms);
    QUARANTINE Refuse = "quarantine.lua"() Minute[counts] Output[quarantine tokens] OutputOfMinute[unsent]
        => name (token entries_max);
    REQUEUE Requeue = "requeue.lua"() Partition[outputs] Minute[counts] Output[quarantine claims] OutputOfMinute[unsent]
        => name output ();
    DISCARD Discard = "discard.lua"() Output[quarantine] => ();
    DROP_OUTPUT DropOutput = SHARED + "drop_output.lua"()
        Partition[claims tokens quarantine outputs witness closed]
        => output tag kept_ms kept_counts (to_seal);
}

impl RedisStore {
    fn bucket(&self, bucket: Bucket, lane: redis_link::Lane) -> At<'_> {
        self.gateway.at(bucket.partition, lane).minute(bucket.minute)
    }

    async fn of_minutes<T: FromRedisValue>(
        &self,
        partition: Partition,
        minutes: &[Minute],
        command: &str,
        key: &str,
    ) -> Result<Vec<T>> {
        if minutes.is_empty() {
            return Ok(Vec::new());
        }
        let at = self.gateway.at(partition, READING);
        let mut pipeline = pipe();
        for &minute in minutes {
            pipeline.cmd(command).arg(at.minute(minute).key(key));
        }
        at.ask(pipeline).await
    }
}

#[async_trait]
impl Recording for RedisStore {
    async fn admit(&self, partition: Partition, request: &AdmitRequest<'_>) -> Result<Admitted> {
        let (gateway, minute) = (&self.gateway, request.minute);
        if let Some(outdated) = gateway.outdated_from(minute) {
            return Err(StoreError::Refused(outdated));
        }
        let divided = gateway.partitions.count_in(minute);
        let at = gateway.at(partition, RECORDING).minute(minute);
        let mut script = Admit {
            series_max: request.series_max,
            overflow: request.overflow,
            user_sets: self.layout.user_sets().map_or_else(String::new, |sets| at.key(sets)),
            divided,
        }
        .at(&at.place);
        script.arg(request.series);
        let answers: Option<(u64, Vec<i64>)> = at.ask(script).await?;
        let (arrivals, answers) = answers.ok_or_else(|| {
            let why =
                format!("minute {} is no longer divided into {divided} partitions", minute.shown());
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
            return Err(StoreError::unavailable(
                "Redis replied with a different number of series than requested",
            ));
        }
        Ok(Admitted { overflow_users, arrivals, series })
    }

    async fn counts(&self, bucket: Bucket) -> Result<Vec<SeriesCounts>> {
        self.layout.counts(self.bucket(bucket, RECORDING)).await
    }

    async fn users(&self, bucket: Bucket, series: &str, users: &[&str]) -> Result<SeriesUsers> {
        self.layout.users(self.bucket(bucket, RECORDING), series, users).await
    }

    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64> {
        let at = self.gateway.at(partition, RECORDING).bound_to(records.generation);
        self.layout.record(at, records).await
    }
}

#[async_trait]
impl CountReader for RedisStore {
    async fn sealed_sizes(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<u64>> {
        self.of_minutes(partition, minutes, "HLEN", "counts").await
    }

    async fn sealed_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<SeriesCounts>> {
        let at = self.bucket(bucket, READING);
        let key = at.key("counts");
        let page = at.page("HSCAN", (&key, None), cursor);
        let Page::<(String, String)> { items, next } = page.await?;
        // An admitted series without sealed counts has an empty value.
        let sealed = items.into_iter().filter(|(_, counts)| !counts.is_empty());
        let known = sealed.filter_map(|(series, counts)| {
            let known = series_counts(&series, &counts);
            if known.is_none() {
                tracing::error!(key, series, counts, "ignoring unrecognized counts");
            }
            known
        });
        Ok(Page { items: known.collect(), next })
    }

    async fn coverage(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<Coverage>> {
        // Each hash has one field for each process that recorded in the minute.
        let all = self.of_minutes(partition, minutes, "HGETALL", "coverage");
        let all: Vec<Vec<(String, u64)>> = all.await?;
        Ok(all.into_iter().map(by_name).collect())
    }

    async fn open_minutes(&self, partition: Partition, most: usize) -> Result<Vec<Minute>> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let at = self.gateway.at(partition, READING);
        let mut pipeline = pipe();
        // Claims are sorted by deadline. If there are too many, those with the earliest deadlines are left out.
        for key in ["minutes", "claims"] {
            let key = at.place.key(Scope::Partition, key);
            pipeline.cmd("ZRANGE").arg(key).arg(0).arg(most - 1).arg("REV");
        }
        let (waiting, claimed): (Vec<String>, Vec<String>) = at.ask(pipeline).await?;
        let names = waiting.iter().chain(&claimed);
        let minutes: BTreeSet<Minute> = names.filter_map(|name| name.parse().ok()).collect();
        Ok(minutes.into_iter().rev().collect())
    }

    async fn open_page(&self, bucket: Bucket, cursor: u64) -> Result<Page<String>> {
        self.layout_of(bucket.partition).open_page(self.bucket(bucket, READING), cursor).await
    }

    async fn open_counts(&self, bucket: Bucket, series: &[&str]) -> Result<Vec<SeriesCounts>> {
        let mut open = self
            .layout_of(bucket.partition)
            .open_counts(self.bucket(bucket, READING), series)
            .await?;
        open.retain(|counts| counts.cumulative > 0);
        Ok(open)
    }

    async fn shortage(&self) -> Result<Option<String>> {
        self.gateway.shortage().await
    }
}

/// Parses counts as written by the scripts that seal, or returns None if they are malformed.
fn series_counts(series: &str, counts: &str) -> Option<SeriesCounts> {
    let (quality, counts) = Quality::split(counts);
    let (unique, cumulative) = counts.split_once(':')?;
    Some(SeriesCounts {
        series: series.to_owned(),
        unique: unique.parse().ok()?,
        cumulative: cumulative.parse().ok()?,
        quality,
    })
}
