//! Read access: small commands over a separate connection. No `KEYS`, and no command that reads a whole hash or set that grows with
//! the number of events.

use std::collections::BTreeSet;

use ::redis::{FromRedisValue, pipe};
use async_trait::async_trait;

use crate::event::{Minute, Partition};
use crate::store::reading::by_name;
use crate::store::redis::RedisStore;
use crate::store::redis::gateway::{ANY, READING};
use crate::store::{CountReader, Coverage, Page, Result, SeriesCounts};

impl RedisStore {
    /// Reads a key of each of these minutes.
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
        let mut pipeline = pipe();
        for &minute in minutes {
            let key = self.gateway.at(partition, minute).key(key);
            pipeline.cmd(command).arg(key);
        }
        self.gateway.ask(partition, READING, ANY, pipeline).await
    }
}

#[async_trait]
impl CountReader for RedisStore {
    async fn sealed_sizes(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<u64>> {
        self.of_minutes(partition, minutes, "HLEN", "counts").await
    }

    async fn sealed_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<SeriesCounts>> {
        let key = self.gateway.at(partition, minute).key("counts");
        let page = self.gateway.page(partition, READING, "HSCAN", (&key, None), cursor);
        let Page::<(String, String)> { items, next } = page.await?;
        // An admitted series without sealed counts has an empty value.
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

    async fn coverage(&self, partition: Partition, minutes: &[Minute]) -> Result<Vec<Coverage>> {
        // A field for each process that recorded in the minute.
        let all = self.of_minutes(partition, minutes, "HGETALL", "coverage");
        let all: Vec<Vec<(String, u64)>> = all.await?;
        Ok(all.into_iter().map(by_name).collect())
    }

    async fn open_minutes(&self, partition: Partition, most: usize) -> Result<Vec<Minute>> {
        if most == 0 {
            return Ok(Vec::new());
        }
        let mut pipeline = pipe();
        // The scores of the claims are deadlines; there are few, and the first claims are left out.
        for key in ["minutes", "claims"] {
            let key = self.gateway.keys(partition).key(key);
            pipeline.cmd("ZRANGE").arg(key).arg(0).arg(most - 1).arg("REV");
        }
        let (waiting, claimed): (Vec<String>, Vec<String>) =
            self.gateway.ask(partition, READING, ANY, pipeline).await?;
        let names = waiting.iter().chain(&claimed);
        let minutes: BTreeSet<Minute> = names.filter_map(|name| name.parse().ok()).collect();
        Ok(minutes.into_iter().rev().collect())
    }

    async fn open_page(
        &self,
        partition: Partition,
        minute: Minute,
        cursor: u64,
    ) -> Result<Page<String>> {
        self.layout.open_page(self.gateway.at(partition, minute), cursor).await
    }

    async fn open_counts(
        &self,
        partition: Partition,
        minute: Minute,
        series: &[&str],
    ) -> Result<Vec<SeriesCounts>> {
        let mut open = self.layout.open_counts(self.gateway.at(partition, minute), series).await?;
        open.retain(|counts| counts.cumulative > 0);
        Ok(open)
    }

    async fn shortage(&self) -> Result<Option<String>> {
        self.gateway.shortage().await
    }
}

/// Counts as the scripts that seal write them.
pub(super) fn series_counts(series: &str, counts: &str) -> Option<SeriesCounts> {
    let (unique, cumulative) = counts.split_once(':')?;
    Some(SeriesCounts {
        series: series.to_owned(),
        unique: unique.parse().ok()?,
        cumulative: cumulative.parse().ok()?,
    })
}
