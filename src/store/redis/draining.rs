//! Draining: claims, and from sets to counts that every output has. Each step but reading counts is a script.

use std::time::Duration;

use async_trait::async_trait;

use super::backlog::{ask_backlog, read_backlog};
use super::gateway::DRAINING;
use super::keys::PartitionKeys;
use super::reading::series_counts;
use super::step::{compaction, outputs_of_step, pieces};
use super::{RedisStore, millis, scripts};
use crate::event::{Minute, Partition};
use crate::store::witness::closed_minutes;
use crate::store::{
    Announced, Attested, Backlog, CLOCK_TOLERANCE_MS, Claim, ClaimRequest, Compaction, Draining,
    Known, LOOKED_AT_MAX, News, OutputName, Page, QUARANTINE_MAX, SeriesCounts, StoreError,
    Testimony, recent_for,
};

/// Minute's name, token, whether it was taken over, output.
type Granted = (String, String, bool, String);
/// Stamp, clock in ms, the number of the last closing, closed and announced minutes, since, whether anything is due, late in all.
type Heard = (u64, i64, u64, Vec<i64>, Vec<i64>, String, bool, u64);

#[async_trait]
impl Draining for RedisStore {
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        let keys = self.keys(partition);
        let since = testimony.since.map(|since| since.epoch_minutes().to_string());
        let mut attested = Attested::default();
        for (is_announced, minutes) in testimony.parts() {
            let mut script = scripts::ATTEST.prepare_invoke();
            script
                .key(&[&keys.witness, &keys.closed, &keys.stamps])
                .arg(&self.node)
                .arg(testimony.epoch)
                .arg(testimony.stamp)
                .arg(new_epoch())
                .arg(since.as_deref().unwrap_or_default())
                .arg(i32::from(is_announced))
                .arg(minutes);
            let answer: (u64, u64, u64, i64) = self.invoke(keys.slot, script).await?;
            let (epoch, stamp, forgot_from, forgot_from_ms) = answer;
            attested = Attested { epoch, stamp, forgot_from, forgot_from_ms };
        }
        Ok(attested)
    }

    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
        alive: Duration,
    ) -> Result<News, StoreError> {
        let keys = self.keys(partition);
        let mut script = scripts::CHECK_IN.prepare_invoke();
        script
            .key(&[&keys.lagging, &keys.witness, &keys.stamps])
            .key(&[&keys.claims, &keys.idle, &keys.closed, &keys.outputs])
            .key(&keys.minutes)
            .arg(&self.node)
            .arg(i32::from(lags))
            .arg(millis(lease))
            .arg(known.epoch)
            .arg(known.stamp)
            .arg(known.sequence)
            .arg(CLOCK_TOLERANCE_MS)
            .arg(millis(alive));
        let answer: Option<Heard> = self.invoke(keys.slot, script).await?;
        let (stamp, now_ms, sequence, closed, announced, since, is_due, late) =
            answer.ok_or_else(|| self.forgot(keys))?;
        let minute = |number: &i64| Minute::from_epoch_minutes(*number);
        Ok(News {
            stamp,
            now_ms,
            sequence,
            closed: closed.iter().filter_map(minute).collect(),
            announced: announced.iter().filter_map(minute).collect(),
            since: since.parse().ok().as_ref().and_then(minute),
            is_due,
            late,
        })
    }

    async fn claim(
        &self,
        partition: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
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
            .arg(known.stamp)
            .arg(known.expected_ms.unwrap_or_default())
            .arg(CLOCK_TOLERANCE_MS)
            .arg(request.old_max)
            .arg(millis(recent_for(request.grace)));
        for (output, most) in sending {
            script.arg(output.as_str()).arg(most);
        }
        let answer = self.invoke_in(request.generation, keys.slot, script);
        let granted: Option<Vec<Granted>> = answer.await?;
        let granted = granted.ok_or_else(|| self.forgot(keys))?;
        let generation = match request.generation {
            0 => self.gateway.generation(keys.slot),
            bound => bound,
        };
        let claim = |(name, token, taken_over, output): Granted| match name.parse::<Minute>() {
            Ok(minute) => Some(Claim {
                partition,
                minute,
                output: output.parse().ok(),
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
        outputs: &[OutputName],
    ) -> Result<Compaction, StoreError> {
        if claim.output.is_some() {
            return Err(StoreError::ClaimLost);
        }
        if let Some(logs) = &self.logs {
            return self.seal(logs, claim, series_max, lease, outputs).await;
        }
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let mut script = scripts::COMPACT.prepare_invoke();
        script
            .key(&[&keys.claims, &keys.tokens])
            .key(&["event_types", "counts"].map(|what| format!("{base}{what}")))
            .key(&[&keys.witness, &keys.closed, &keys.arrivals, &keys.outputs])
            .key(&keys.stamps);
        self.step(&mut script, claim, series_max, lease);
        outputs_of_step(&mut script, keys, claim.minute, outputs);
        let answer = self.invoke_in(claim.generation, keys.slot, script);
        Ok(compaction(claim, held(answer.await?)?))
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let base = self.keys(claim.partition).minute(claim.minute);
        let key = PartitionKeys::of(&format!("{base}unsent"), claim.output.as_ref());
        let keys = [&*key, &*format!("{base}counts")];
        let page = self.scan(claim.partition, DRAINING, "SSCAN", &keys, cursor);
        let Page { items, next } = page.await?;
        let counts = items.into_iter();
        // A series without counts is about to be compacted.
        let counts = counts.filter_map(|(series, counts): (String, Option<String>)| {
            series_counts(&series, &counts?)
        });
        Ok(Page { items: counts.collect(), next })
    }

    async fn announce(
        &self,
        partition: Partition,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        let keys = self.keys(partition);
        let Some(first) = claims.first() else {
            return Ok(Vec::new());
        };
        let mut script = scripts::ANNOUNCE.prepare_invoke();
        script
            .key(of_output(&keys.tokens, first)?)
            .key(&[&keys.witness, &keys.closed, &keys.stamps])
            .arg(&self.node)
            .arg(known.epoch)
            .arg(known.stamp);
        for claim in claims {
            script
                .arg(claim.minute.to_string())
                .arg(&claim.token)
                .arg(claim.minute.epoch_minutes());
        }
        let states: Option<Vec<u8>> = self.invoke(keys.slot, script).await?;
        let states = states.ok_or_else(|| self.forgot(keys))?.into_iter();
        let announced = states.map(|state| match state {
            0 => Announced::ClaimLost,
            1 => Announced::Unheard,
            _ => Announced::Heard,
        });
        Ok(announced.collect())
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let of = |key: &str| of_output(key, claim);
        let mut pieces = pieces(series, |series| series.len()).peekable();
        loop {
            let mut script = scripts::ACKNOWLEDGE.prepare_invoke();
            script
                .key(&[of(&keys.claims)?, of(&keys.tokens)?])
                .key(&[self.to_seal(), "counts"].map(|what| format!("{base}{what}")))
                .key(of(&format!("{base}unsent"))?)
                .key(&[&keys.minutes, &keys.witness, &keys.closed])
                .key(&[&keys.claims, &keys.outputs])
                .arg(claim.minute.to_string())
                .arg(&claim.token)
                .arg(millis(lease))
                .arg(millis(self.retention))
                .arg(self.counts_max)
                .arg(claim.minute.epoch_minutes())
                .arg(closed_minutes(self.retention))
                .arg(pieces.next().unwrap_or_default());
            let has_all = held(self.invoke(keys.slot, script).await?)?;
            if has_all || pieces.peek().is_none() {
                return Ok(has_all);
            }
        }
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let keys = self.keys(claim.partition);
        let base = keys.minute(claim.minute);
        let of = |key: &str| of_output(key, claim);
        let mut script = scripts::QUARANTINE.prepare_invoke();
        script
            .key(of(&keys.tokens)?)
            .key(format!("{base}counts"))
            .key(&[of(&format!("{base}unsent"))?, of(&keys.quarantine)?])
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
        let output = claims.first().and_then(|claim| claim.output.as_ref());
        let of = [&keys.claims, &keys.tokens].map(|key| PartitionKeys::of(key, output));
        let mut script = scripts::EXTEND.prepare_invoke();
        script.key(&of).arg(millis(lease));
        for claim in claims {
            script.arg(claim.minute.to_string()).arg(&claim.token);
        }
        self.invoke(keys.slot, script).await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        let keys = self.keys(partition);
        let answer = self.invoke(keys.slot, ask_backlog(keys, Minute::MIN)).await?;
        Ok(read_backlog(answer))
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        self.look_for_work(partitions, outputs).await
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
pub(super) fn held<T>(answer: Option<T>) -> Result<T, StoreError> {
    answer.ok_or(StoreError::ClaimLost)
}

/// The name of one of these keys for the output of a claim. One to seal is none to send.
fn of_output(key: &str, claim: &Claim) -> Result<String, StoreError> {
    let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
    Ok(PartitionKeys::of(key, Some(output)))
}

/// One that no other has. Below 2^53, which Lua holds exactly, and never 0.
fn new_epoch() -> u64 {
    rand::random_range(1..1 << 53)
}
