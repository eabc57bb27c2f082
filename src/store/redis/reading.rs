//! Looking at what is in Redis: small commands over a connection of their own. No `KEYS`, nothing that reads a whole hash or set
//! that grows with what is sent.

use std::collections::BTreeSet;

use ::redis::{FromRedisValue, RedisError, pipe};
use async_trait::async_trait;
use redis_link::{Attempts, Connection, Lane};

use super::gateway::READING;
use super::{RedisStore, scripts};
use crate::event::{Minute, Partition};
use crate::store::reading::by_name;
use crate::store::{CountReader, Coverage, Page, SeriesCounts, StoreError};

/// The bytes that are read at once, roughly.
const PAGE_BYTES: usize = 128 << 10;
/// The series of a page of those in logs.
const PAGE: usize = 500;
/// The series whose sets are looked at in one transaction: three short commands each.
const LOOKED_AT: usize = 50;

impl RedisStore {
    /// Runs a command for a partition on the connection for those who look.
    async fn look<T, F>(&self, partition: Partition, command: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut Connection) -> Result<T, RedisError>,
    {
        let slot = self.keys(partition).slot;
        self.gateway.run(slot, READING, Attempts::Two, command).await
    }

    /// Reads a page of a hash (HSCAN) or set (SSCAN). With two keys, a set of series and counts, each member has its counts.
    pub(super) async fn scan<T: FromRedisValue>(
        &self,
        partition: Partition,
        lane: Lane,
        command: &str,
        keys: &[&str],
        cursor: u64,
    ) -> Result<Page<T>, StoreError> {
        let mut script = scripts::PAGE.prepare_invoke();
        script.key(keys).arg(command).arg(cursor).arg(PAGE_BYTES);
        let scan = async |connection: &mut Connection| script.invoke_async(connection).await;
        let slot = self.keys(partition).slot;
        let (next, items): (u64, Vec<T>) =
            self.gateway.run(slot, lane, Attempts::Two, scan).await?;
        Ok(Page { items, next: (next != 0).then_some(next) })
    }

    fn minute_key(&self, partition: Partition, minute: Minute, what: &str) -> String {
        format!("{}{what}", self.keys(partition).minute(minute))
    }
}

#[async_trait]
impl CountReader for RedisStore {
    async fn sealed_sizes(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<u64>, StoreError> {
        if minutes.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = pipe();
        for &minute in minutes {
            pipeline.hlen(self.minute_key(partition, minute, "counts"));
        }
        self.look(partition, async move |connection| pipeline.query_async(connection).await).await
    }

    async fn sealed_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<SeriesCounts>, StoreError> {
        let key = self.minute_key(partition, minute, "counts");
        let keys = [&*key];
        let page = self.scan::<(String, String)>(partition, READING, "HSCAN", &keys, cursor);
        let Page { items, next } = page.await?;
        // What is admitted and not counted is empty.
        let sealed = items.into_iter().filter(|(_, counts)| !counts.is_empty());
        let known = sealed.filter_map(|(series, counts)| {
            let known = series_counts(&series, &counts);
            if known.is_none() {
                tracing::error!(key, series, counts, "foreign counts");
            }
            known
        });
        Ok(Page { items: known.collect(), next })
    }

    async fn coverage(
        &self,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Coverage>, StoreError> {
        if minutes.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = pipe();
        for &minute in minutes {
            // A field for each process that recorded in the minute.
            pipeline.hgetall(self.minute_key(partition, minute, "coverage"));
        }
        let ask = async move |connection: &mut Connection| pipeline.query_async(connection).await;
        let all: Vec<Vec<(String, u64)>> = self.look(partition, ask).await?;
        Ok(all.into_iter().map(by_name).collect())
    }

    async fn open_minutes(
        &self,
        partition: Partition,
        most: usize,
    ) -> Result<Vec<Minute>, StoreError> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let keys = self.keys(partition);
        let mut pipeline = pipe();
        // The scores of the claims are deadlines; there are few, and what is left out is what was claimed first.
        for key in [&keys.minutes, &keys.claims] {
            pipeline.cmd("ZRANGE").arg(key).arg(0).arg(most - 1).arg("REV");
        }
        let (waiting, claimed): (Vec<String>, Vec<String>) = self
            .look(partition, async move |connection| pipeline.query_async(connection).await)
            .await?;
        let names = waiting.iter().chain(&claimed);
        let minutes: BTreeSet<Minute> = names.filter_map(|name| name.parse().ok()).collect();
        Ok(minutes.into_iter().rev().collect())
    }

    async fn open_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<String>, StoreError> {
        if let Some(logs) = &self.logs {
            let counts = self.look_at(logs, partition, minute).await?;
            let from = usize::try_from(cursor).unwrap_or(usize::MAX);
            let page = counts.iter().skip(from).take(PAGE);
            let next = cursor + PAGE as u64;
            return Ok(Page {
                items: page.map(|counts| counts.series.clone()).collect(),
                next: (next < counts.len() as u64).then_some(next),
            });
        }
        let key = self.minute_key(partition, minute, "event_types");
        self.scan(partition, READING, "SSCAN", &[&key], cursor).await
    }

    async fn open_counts(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        let base = self.keys(partition).minute(minute);
        let in_logs = match &self.logs {
            Some(logs) => Some(self.look_at(logs, partition, minute).await?),
            None => None,
        };
        let mut open = Vec::new();
        for series in series.chunks(LOOKED_AT) {
            let mut pipeline = pipe();
            pipeline.atomic();
            for name in series {
                if in_logs.is_none() {
                    pipeline
                        .scard(format!("{base}unique_user:{name}"))
                        .scard(format!("{base}cumulative_user:{name}"));
                }
                pipeline.cmd("HSTRLEN").arg(format!("{base}counts")).arg(*name);
            }
            let numbers: Vec<u64> = self
                .look(partition, async move |connection| pipeline.query_async(connection).await)
                .await?;
            let of_each = numbers.chunks_exact(numbers.len() / series.len());
            for (name, numbers) in series.iter().zip(of_each) {
                let counts = match (numbers, &in_logs) {
                    (&[unique, cumulative, 0], _) => Some((unique, cumulative)),
                    ([0], Some(counts)) => counts
                        .binary_search_by(|counts| counts.series.as_str().cmp(name))
                        .ok()
                        .map(|place| (counts[place].unique, counts[place].cumulative)),
                    _ => None,
                };
                if let Some((unique, cumulative)) = counts
                    && cumulative > 0
                {
                    open.push(SeriesCounts { series: (*name).to_owned(), unique, cumulative });
                }
            }
        }
        Ok(open)
    }

    async fn shortage(&self) -> Result<Option<String>, StoreError> {
        self.gateway.shortage().await
    }
}

/// Counts as `compact.lua` writes them.
pub(super) fn series_counts(series: &str, counts: &str) -> Option<SeriesCounts> {
    let (unique, cumulative) = counts.split_once(':')?;
    Some(SeriesCounts {
        series: series.to_owned(),
        unique: unique.parse().ok()?,
        cumulative: cumulative.parse().ok()?,
    })
}
