//! Reading what no output has confirmed: how much there is, and the counts.

use super::RedisStore;
use crate::event::{Minute, Partition};
use crate::store::{Backlog, Claim, StoreError, UnsentCounts, UnsentPage};

/// The counts read at once, roughly.
const UNSENT_PAGE: usize = 500;

impl RedisStore {
    pub(super) async fn look_at_backlog(
        &self,
        partition: Partition,
    ) -> Result<Backlog, StoreError> {
        let keys = self.keys(partition);
        let mut pipeline = ::redis::pipe();
        // Claims are in the order of their deadlines, so the earliest of the minutes may be anywhere.
        pipeline
            .zcard(&keys.minutes)
            .zrange(&keys.minutes, 0, 0)
            .zrange(&keys.claims, 0, -1)
            .hlen(&keys.quarantine);
        let (waiting, mut names, claimed, quarantined) = self
            .drain(partition, async move |connection| {
                let answer = pipeline.query_async(connection);
                answer.await as Result<(u64, Vec<String>, Vec<String>, u64), _>
            })
            .await?;
        let count = claimed.len() as u64;
        names.extend(claimed);
        Ok(Backlog {
            waiting,
            claimed: count,
            quarantined,
            oldest: Minute::earliest(names.iter().map(String::as_str)),
        })
    }

    pub(super) async fn unsent_page(
        &self,
        claim: &Claim,
        cursor: u64,
    ) -> Result<UnsentPage, StoreError> {
        let base = self.keys(claim.partition).minute(claim.minute);
        self.drain(claim.partition, async move |connection| {
            let (next, series): (u64, Vec<String>) = ::redis::cmd("SSCAN")
                .arg(format!("{base}unsent"))
                .arg(cursor)
                .arg("COUNT")
                .arg(UNSENT_PAGE)
                .query_async(connection)
                .await?;
            let next = (next != 0).then_some(next);
            if series.is_empty() {
                return Ok(UnsentPage {
                    counts: Vec::new(),
                    next,
                });
            }
            let counts: Vec<Option<String>> = ::redis::cmd("HMGET")
                .arg(format!("{base}counts"))
                .arg(&series)
                .query_async(connection)
                .await?;
            let counts = series
                .into_iter()
                .zip(counts)
                .filter_map(|(series, counts)| {
                    // A series without counts is about to be compacted.
                    let (unique, cumulative) = counts.as_deref()?.split_once(':')?;
                    let (unique, cumulative) = (unique.parse().ok()?, cumulative.parse().ok()?);
                    Some(UnsentCounts {
                        series,
                        unique,
                        cumulative,
                    })
                });
            Ok(UnsentPage {
                counts: counts.collect(),
                next,
            })
        })
        .await
    }
}
