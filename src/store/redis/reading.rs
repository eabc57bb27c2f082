//! Looking at what is in Redis: small commands over a connection of their own. No script, no `KEYS`, nothing that
//! reads a whole hash or set.

use std::collections::BTreeSet;

use ::redis::aio::MultiplexedConnection;
use ::redis::{RedisError, cmd, pipe};
use async_trait::async_trait;

use super::RedisStore;
use super::gateway::READING;
use crate::event::{Minute, Partition};
use crate::store::{CountReader, OpenPage, SealedPage, SeriesCounts, StoreError};

/// The series read at once, roughly.
const PAGE: usize = 500;
/// The series whose sets are looked at in one transaction: three short commands each.
const LOOKED_AT: usize = 50;

impl RedisStore {
    /// Runs a command for a partition on the connection for those who look.
    async fn look<T, F>(&self, partition: Partition, command: F) -> Result<T, StoreError>
    where
        F: AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
    {
        let slot = self.keys(partition).slot;
        self.gateway.run(slot, READING, command).await
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
        self.look(partition, async move |connection| {
            pipeline.query_async(connection).await
        })
        .await
    }

    async fn sealed_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<SealedPage, StoreError> {
        let key = self.minute_key(partition, minute, "counts");
        let mut scan = cmd("HSCAN");
        scan.arg(&key).arg(cursor).arg("COUNT").arg(PAGE);
        let (next, entries): (u64, Vec<(String, String)>) = self
            .look(partition, async move |connection| {
                scan.query_async(connection).await
            })
            .await?;
        // What is admitted and not counted is empty.
        let sealed = entries.into_iter().filter(|(_, counts)| !counts.is_empty());
        let known = sealed.filter_map(|(series, counts)| {
            let numbers = counts.split_once(':').and_then(|(unique, cumulative)| {
                Some((unique.parse().ok()?, cumulative.parse().ok()?))
            });
            let Some((unique, cumulative)) = numbers else {
                tracing::error!(key, series, counts, "foreign counts");
                return None;
            };
            Some(SeriesCounts {
                series,
                unique,
                cumulative,
            })
        });
        Ok(SealedPage {
            counts: known.collect(),
            next: (next != 0).then_some(next),
        })
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
            pipeline
                .cmd("ZRANGE")
                .arg(key)
                .arg(0)
                .arg(most - 1)
                .arg("REV");
        }
        let (waiting, claimed): (Vec<String>, Vec<String>) = self
            .look(partition, async move |connection| {
                pipeline.query_async(connection).await
            })
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
    ) -> Result<OpenPage, StoreError> {
        let mut scan = cmd("SSCAN");
        scan.arg(self.minute_key(partition, minute, "event_types"))
            .arg(cursor)
            .arg("COUNT")
            .arg(PAGE);
        let (next, series): (u64, Vec<String>) = self
            .look(partition, async move |connection| {
                scan.query_async(connection).await
            })
            .await?;
        Ok(OpenPage {
            series,
            next: (next != 0).then_some(next),
        })
    }

    async fn open_counts(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        let base = self.keys(partition).minute(minute);
        let mut open = Vec::new();
        for series in series.chunks(LOOKED_AT) {
            let mut pipeline = pipe();
            pipeline.atomic();
            for name in series {
                pipeline
                    .scard(format!("{base}unique_user:{name}"))
                    .scard(format!("{base}cumulative_user:{name}"))
                    .cmd("HSTRLEN")
                    .arg(format!("{base}counts"))
                    .arg(*name);
            }
            let numbers: Vec<u64> = self
                .look(partition, async move |connection| {
                    pipeline.query_async(connection).await
                })
                .await?;
            for (name, numbers) in series.iter().zip(numbers.chunks_exact(3)) {
                if let &[unique, cumulative, 0] = numbers
                    && cumulative > 0
                {
                    open.push(SeriesCounts {
                        series: (*name).to_owned(),
                        unique,
                        cumulative,
                    });
                }
            }
        }
        Ok(open)
    }

    async fn shortage(&self) -> Result<Option<String>, StoreError> {
        self.gateway.shortage().await
    }
}
