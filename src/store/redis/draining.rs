//! Draining: claims, and from sets to counts that an output has. Each step but reading is a script.

use std::time::Duration;

use ::redis::{cmd, pipe};
use async_trait::async_trait;

use super::gateway::DRAINING;
use super::keys::PartitionKeys;
use super::reading::series_counts;
use super::{RedisStore, millis, scripts};
use crate::event::{Minute, Partition};
use crate::store::witness::closed_minutes;
use crate::store::{
    Attested, Backlog, CLOCK_TOLERANCE_MS, Claim, ClaimRequest, Compaction, Draining, Known, News,
    Page, QUARANTINE_MAX, SeriesCounts, StoreError, Testimony,
};

/// The most finished minutes of a partition that one claim looks at: what bounds the time it blocks Redis.
const LOOKED_AT_MAX: usize = 1000;
/// The minutes that are handed back at once, for the same reason.
const HANDED_BACK_MAX: usize = 1000;

/// Minute's name, token, whether it was taken over.
type Granted = (String, String, bool);
/// Stamp and clock in ms, the number of the last closing, closed minutes, since.
type Heard = (i64, i64, u64, Vec<i64>, String);

#[async_trait]
impl Draining for RedisStore {
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        let keys = self.keys(partition);
        let closed: Vec<i64> = testimony
            .closed
            .iter()
            .map(|minute| minute.epoch_minutes())
            .collect();
        let since = testimony
            .since
            .map(|since| since.epoch_minutes().to_string());
        let mut from = 0;
        loop {
            let to = closed.len().min(from + HANDED_BACK_MAX);
            let mut script = scripts::ATTEST.prepare_invoke();
            script
                .key(&[&keys.witness, &keys.closed, &keys.stamps])
                .arg(&self.node)
                .arg(testimony.epoch)
                .arg(testimony.stamp_ms)
                .arg(new_epoch())
                .arg(since.as_deref().unwrap_or_default())
                .arg(&closed[from..to]);
            let (epoch, forgot_from_ms): (u64, i64) = self.invoke(keys.slot, script).await?;
            from = to;
            if from == closed.len() {
                return Ok(Attested {
                    epoch,
                    forgot_from_ms,
                });
            }
        }
    }

    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
    ) -> Result<News, StoreError> {
        let keys = self.keys(partition);
        let mut script = scripts::CHECK_IN.prepare_invoke();
        script
            .key(&[&keys.lagging, &keys.witness, &keys.stamps])
            .key(&[&keys.claims, &keys.idle, &keys.closed])
            .arg(&self.node)
            .arg(i32::from(lags))
            .arg(millis(lease))
            .arg(known.epoch)
            .arg(known.stamp_ms)
            .arg(known.sequence)
            .arg(CLOCK_TOLERANCE_MS);
        let answer: Option<Heard> = self.invoke(keys.slot, script).await?;
        let (stamp_ms, now_ms, sequence, closed, since) =
            answer.ok_or_else(|| self.forgot(keys))?;
        let minute = |number: &i64| Minute::from_epoch_minutes(*number);
        Ok(News {
            stamp_ms,
            now_ms,
            sequence,
            closed: closed.iter().filter_map(minute).collect(),
            since: since.parse().ok().as_ref().and_then(minute),
        })
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
    ) -> Result<Vec<Claim>, StoreError> {
        let keys = self.keys(partition);
        let known = &request.known;
        let mut script = scripts::CLAIM.prepare_invoke();
        script
            .key(&[&keys.minutes, &keys.claims, &keys.tokens, &keys.arrivals])
            .key(&[&keys.idle, &keys.lagging, &keys.witness, &keys.stamps])
            .arg(&self.node)
            .arg(millis(request.grace))
            .arg(millis(request.max_hold))
            .arg(millis(request.lease))
            .arg(request.lapsed_max)
            .arg(request.finished_max)
            .arg(LOOKED_AT_MAX)
            .arg(known.epoch)
            .arg(known.stamp_ms)
            .arg(known.expected_ms.unwrap_or_default())
            .arg(CLOCK_TOLERANCE_MS);
        let answer = self.invoke_in(request.generation, keys.slot, script);
        let granted: Option<Vec<Granted>> = answer.await?;
        let granted = granted.ok_or_else(|| self.forgot(keys))?;
        let generation = match request.generation {
            0 => self.gateway.generation(keys.slot),
            bound => bound,
        };
        let claim = |(name, token, taken_over): Granted| match name.parse::<Minute>() {
            Ok(minute) => Some(Claim {
                partition,
                minute,
                token,
                generation,
                taken_over,
            }),
            Err(error) => {
                tracing::error!(key = keys.claims, %error, "a foreign member in the claims");
                None
            }
        };
        Ok(granted.into_iter().filter_map(claim).collect())
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::COMPACT.prepare_invoke();
        script
            .key(&[&keys.claims, &keys.tokens])
            .key(&["event_types", "counts", "unsent"].map(|what| format!("{base}{what}")))
            .key(&[&keys.witness, &keys.closed])
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(series_max)
            .arg(millis(lease))
            .arg(base)
            .arg(claim.minute.epoch_minutes());
        let answer = self.invoke_in(claim.generation, keys.slot, script);
        let (sealed, late, left) = held(answer.await?)?;
        Ok(Compaction { sealed, late, left })
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let base = self.keys(claim.partition).minute(claim.minute);
        let key = format!("{base}unsent");
        let page = self.scan::<String>(claim.partition, DRAINING, "SSCAN", &key, cursor);
        let Page { items, next } = page.await?;
        let mut counts: Vec<Option<String>> = Vec::new();
        if !items.is_empty() {
            let mut read = cmd("HMGET");
            read.arg(format!("{base}counts")).arg(&items);
            let read = self.drain(claim.partition, async move |connection| {
                read.query_async(connection).await
            });
            counts = read.await?;
        }
        let counts = items.iter().zip(counts);
        // A series without counts is about to be compacted.
        let counts = counts.filter_map(|(series, counts)| series_counts(series, &counts?));
        Ok(Page {
            items: counts.collect(),
            next,
        })
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::ACKNOWLEDGE.prepare_invoke();
        script
            .key(&[&keys.claims, &keys.tokens, &keys.arrivals])
            .key(&["event_types", "counts", "unsent"].map(|what| format!("{base}{what}")))
            .key(&[&keys.minutes, &keys.witness, &keys.closed])
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(millis(lease))
            .arg(millis(self.retention))
            .arg(self.counts_max)
            .arg(claim.minute.epoch_minutes())
            .arg(closed_minutes(self.retention))
            .arg(series);
        held(self.invoke(keys.slot, script).await?)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::QUARANTINE.prepare_invoke();
        script
            .key(&keys.tokens)
            .key(&["counts", "unsent"].map(|what| format!("{base}{what}")))
            .key(&keys.quarantine)
            .arg(claim.minute.to_string())
            .arg(&claim.token)
            .arg(QUARANTINE_MAX);
        for (series, message) in refused {
            script.arg(series).arg(message);
        }
        held(self.invoke(keys.slot, script).await?)
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let keys = self.keys(partition);
        let mut script = scripts::EXTEND.prepare_invoke();
        script.key(&[&keys.claims, &keys.tokens]).arg(millis(lease));
        for claim in claims {
            script.arg(claim.minute.to_string()).arg(&claim.token);
        }
        self.invoke(keys.slot, script).await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        let keys = self.keys(partition);
        let mut pipeline = pipe();
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
}

impl RedisStore {
    /// Redis lacks what this node knows.
    fn forgot(&self, keys: &PartitionKeys) -> StoreError {
        self.gateway.forgot(keys.slot);
        StoreError::Forgot
    }
}

/// The scripts answer nothing when the token is not that of the claim.
fn held<T>(answer: Option<T>) -> Result<T, StoreError> {
    answer.ok_or(StoreError::ClaimLost)
}

/// One that no other has. Below 2^53, which Lua holds exactly, and never 0.
fn new_epoch() -> u64 {
    rand::random_range(1..1 << 53)
}
