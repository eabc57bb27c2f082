//! Draining: claims, and from open minutes to counts that every output has. Each step but reading counts is a script.

use std::time::Duration;

use ::redis::cmd;
use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::reading::series_counts;
use super::{Acknowledge, Announce, Attest, CheckIn, Extend, Refuse, TakeClaims};
use crate::event::{Minute, Partition};
use crate::store::redis::gateway::{ANY, DRAINING};
use crate::store::redis::keys::{Place, Scope};
use crate::store::redis::layout::{held, pieces};
use crate::store::redis::survey::{ask_backlog, read_backlog};
use crate::store::redis::{RedisStore, millis};
use crate::store::witness::closed_minutes;
use crate::store::{
    Announced, Attested, Backlog, CLOCK_TOLERANCE_MS, Claim, ClaimRequest, Compaction, Draining,
    Known, LOOKED_AT_MAX, News, OutputName, Page, QUARANTINE_MAX, Result, SeriesCounts, StoreError,
    Testimony, recent_for,
};

/// Minute's name, token, whether it was taken over, output.
type Granted = (String, String, bool, String);
/// Stamp, clock in ms, the number of the last closing, closed and announced minutes, since, whether anything is due, late in all.
type Heard = (u64, i64, u64, Vec<i64>, Vec<i64>, String, bool, u64);

#[async_trait]
impl Draining for RedisStore {
    async fn attest(&self, partition: Partition, testimony: &Testimony) -> Result<Attested> {
        let place = self.gateway.keys(partition).place();
        let since = testimony.since.map(|since| since.epoch_minutes().to_string());
        let mut attested = Attested::default();
        for (is_announced, minutes) in testimony.parts() {
            let mut script = Attest {
                node: &self.gateway.node,
                known_epoch: testimony.epoch,
                known_stamp: testimony.stamp,
                new_epoch: new_epoch(),
                known_since: since.as_deref().unwrap_or_default(),
                is_announced: i32::from(is_announced),
            }
            .at(&place);
            script.arg(minutes);
            let (epoch, stamp, forgot_from, forgot_from_ms) =
                self.gateway.drain(partition, script).await?;
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
    ) -> Result<News> {
        let script = CheckIn {
            node: &self.gateway.node,
            lags: i32::from(lags),
            lease_ms: millis(lease),
            known_epoch: known.epoch,
            known_stamp: known.stamp,
            heard: known.sequence,
            tolerance_ms: CLOCK_TOLERANCE_MS,
            alive_ms: millis(alive),
        };
        let script = script.at(&self.gateway.keys(partition).place());
        let answer: Option<Heard> = self.gateway.drain(partition, script).await?;
        let (stamp, now_ms, sequence, closed, announced, since, is_due, late) =
            answer.ok_or_else(|| self.gateway.forgot(partition))?;
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
    ) -> Result<Vec<Claim>> {
        let (keys, known) = (self.gateway.keys(partition), &request.known);
        let mut script = TakeClaims {
            node: &self.gateway.node,
            grace_ms: millis(request.grace),
            max_hold_ms: millis(request.max_hold),
            lease_ms: millis(request.lease),
            lapsed_max: request.lapsed_max,
            finished_max: request.finished_max,
            looked_max: LOOKED_AT_MAX,
            known_epoch: known.epoch,
            known_stamp: known.stamp,
            expected_ms: known.expected_ms.unwrap_or_default(),
            tolerance_ms: CLOCK_TOLERANCE_MS,
            old_max: request.old_max,
            recent_ms: millis(recent_for(request.grace)),
        }
        .at(&keys.place());
        for (output, most) in sending {
            script.arg(output.as_str()).arg(most);
        }
        let granted: Option<Vec<Granted>> =
            self.gateway.ask(partition, DRAINING, request.generation, script).await?;
        let granted = granted.ok_or_else(|| self.gateway.forgot(partition))?;
        let generation = match request.generation {
            ANY => self.gateway.generation(partition),
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
                tracing::error!(key = keys.key("claims"), %error, "a foreign member in the claims");
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
    ) -> Result<Compaction> {
        if claim.output.is_some() {
            return Err(StoreError::ClaimLost);
        }
        let at = self.gateway.at(claim.partition, claim.minute);
        self.layout.seal(at, claim, series_max, lease, outputs).await
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>> {
        let place = self.place(claim).of(claim.output.as_ref());
        let unsent = place.key(Scope::OutputOfMinute, "unsent");
        let counts = place.key(Scope::Minute, "counts");
        let keys = (&*unsent, Some(&*counts));
        let page = self.gateway.page(claim.partition, DRAINING, "SSCAN", keys, cursor);
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
    ) -> Result<Vec<Announced>> {
        let Some(first) = claims.first() else {
            return Ok(Vec::new());
        };
        let mut script = Announce {
            node: &self.gateway.node,
            known_epoch: known.epoch,
            known_stamp: known.stamp,
        }
        .at(&self.sending(first)?.1);
        for claim in claims {
            script
                .arg(claim.minute.to_string())
                .arg(&claim.token)
                .arg(claim.minute.epoch_minutes());
        }
        let states: Option<Vec<u8>> = self.gateway.drain(partition, script).await?;
        let states = states.ok_or_else(|| self.gateway.forgot(partition))?.into_iter();
        let announced = states.map(|state| match state {
            0 => Announced::ClaimLost,
            1 => Announced::Unheard,
            _ => Announced::Heard,
        });
        Ok(announced.collect())
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool> {
        let (_, place) = self.sending(claim)?;
        let mut pieces = pieces(series, |series| series.len()).peekable();
        loop {
            let mut script = Acknowledge {
                to_seal: place.key(Scope::Minute, self.layout.to_seal()),
                name: claim.minute.to_string(),
                minute: claim.minute.epoch_minutes(),
                token: &claim.token,
                lease_ms: millis(lease),
                kept_ms: millis(self.gateway.retention),
                kept_counts: self.gateway.counts_max,
                listed_minutes: closed_minutes(self.gateway.retention),
            }
            .at(&place);
            script.arg(pieces.next().unwrap_or_default());
            let has_all = held(self.gateway.drain(claim.partition, script).await?)?;
            if has_all || pieces.peek().is_none() {
                return Ok(has_all);
            }
        }
    }

    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>> {
        let (output, place) = self.sending(claim)?;
        let mut script = Refuse {
            quarantine: self.quarantine_of(claim.partition, output),
            name: claim.minute.to_string(),
            token: &claim.token,
            entries_max: QUARANTINE_MAX,
        }
        .at(&place);
        for (series, message) in refused {
            script.arg(series).arg(message);
        }
        held(self.gateway.drain(claim.partition, script).await?)
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize> {
        let output = claims.first().and_then(|claim| claim.output.as_ref());
        let place = self.gateway.keys(partition).place().of(output);
        let mut script = Extend { lease_ms: millis(lease) }.at(&place);
        for claim in claims {
            script.arg(claim.minute.to_string()).arg(&claim.token);
        }
        self.gateway.drain(partition, script).await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog> {
        let ask = ask_backlog(self.gateway.keys(partition), Minute::MIN);
        Ok(read_backlog(self.gateway.drain(partition, ask).await?))
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>> {
        // A Redis Cluster takes one command for the keys of one slot only.
        if !self.is_cluster && !self.has_work(partitions, outputs).await? {
            return Ok(vec![false; partitions.len()]);
        }
        try_join_all(partitions.chunks(1).map(|only| self.has_work(only, outputs))).await
    }
}

impl RedisStore {
    /// Whether any of these partitions, which are on one server, has anything to do. An empty key does not exist.
    async fn has_work(&self, partitions: &[Partition], outputs: &[OutputName]) -> Result<bool> {
        let Some(&first) = partitions.first() else {
            return Ok(false);
        };
        let mut exists = cmd("EXISTS");
        for partition in partitions {
            let place = self.gateway.keys(*partition).place();
            exists.arg(place.key(Scope::Partition, "minutes"));
            for output in [None].into_iter().chain(outputs.iter().map(Some)) {
                exists.arg(place.of(output).key(Scope::Output, "claims"));
            }
        }
        self.gateway.drain(first, exists).await
    }

    fn place(&self, claim: &Claim) -> Place<'_> {
        self.gateway.at(claim.partition, claim.minute).place
    }

    /// The output of a claim to send, and its place; a claim to seal is none.
    fn sending<'a>(&'a self, claim: &'a Claim) -> Result<(&'a OutputName, Place<'a>)> {
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        Ok((output, self.place(claim).of(output)))
    }
}

/// An epoch that no other store has. Below 2^53, which Lua holds exactly, and never 0.
fn new_epoch() -> u64 {
    rand::random_range(1..1 << 53)
}
