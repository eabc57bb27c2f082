//! Reading the counts that no output has confirmed.

use super::RedisStore;
use crate::store::{Claim, StoreError, UnsentCounts, UnsentPage};

/// The counts read at once, roughly.
const UNSENT_PAGE: usize = 500;

impl RedisStore {
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
