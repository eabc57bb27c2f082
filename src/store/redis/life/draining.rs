//! Draining: from claims on open minutes to counts that every output has. Every step except reading counts is a script.

use std::time::Duration;

use ::redis::cmd;
use async_trait::async_trait;
use futures_util::future::try_join_all;

use super::{Acknowledge, Announce, Attest, CheckInAt, Extend, Refuse, TakeClaims, series_counts};
use crate::event::{Minute, Partition};
use crate::store::redis::gateway::{ANY, At, DRAINING};
use crate::store::redis::keys::Scope;
use crate::store::redis::layout::{held, pieces};
use crate::store::redis::survey::{ask_backlog, read_backlog};
use crate::store::redis::windows::lacks;
use crate::store::redis::{RedisStore, millis};
use crate::store::{
    Announced, Attested, Backlog, Bucket, CheckIn, Claim, ClaimRequest, Compaction, Draining,
    Known, News, OutputName, Page, QUARANTINE_MAX, Result, SealRequest, SeriesCounts, StoreError,
    Testimony, recent_for,
};

/// A granted claim: the minute's name, the token, whether the claim was taken over, the output.
type Granted = (String, String, bool, String);
/// The reply to a check-in: stamp, clock in ms, last closing, closed, announced and empty minutes, since, is due, late events.
type Heard = (u64, i64, u64, Vec<i64>, Vec<i64>, Vec<i64>, String, bool, u64);

#[async_trait]
impl Draining for RedisStore {
    async fn attest(&self, partition: Partition, testimony: &Testimony) -> Result<Attested> {
        let at = self.gateway.at(partition, DRAINING);
        let since = testimony.since.map(|since| since.epoch_minutes().to_string());
        let mut attested = Attested::default();
        for (kind, minutes) in testimony.parts() {
            let mut script = Attest {
                known_epoch: testimony.epoch,
                known_stamp: testimony.stamp,
                new_epoch: new_epoch(),
                known_since: since.as_deref().unwrap_or_default(),
                kind,
            }
            .at(&at.place);
            script.arg(minutes);
            let (epoch, stamp, forgot_from, forgot_from_ms) = at.ask(script).await?;
            attested = Attested { epoch, stamp, forgot_from, forgot_from_ms };
        }
        Ok(attested)
    }

    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News> {
        let at = self.gateway.at(partition, DRAINING);
        let CheckIn { known, lags, lease, alive } = *check_in;
        let script = CheckInAt {
            lags: i32::from(lags),
            lease_ms: millis(lease),
            known_epoch: known.epoch,
            known_stamp: known.stamp,
            heard: known.sequence,
            alive_ms: millis(alive),
        };
        let answer: Option<Heard> = at.ask(script.at(&at.place)).await?;
        let (stamp, now_ms, sequence, closed, announced, empty, since, is_due, late) =
            answer.ok_or_else(|| self.gateway.forgot(partition))?;
        let minute = |number: &i64| Minute::from_epoch_minutes(*number);
        Ok(News {
            stamp,
            now_ms,
            sequence,
            closed: closed.iter().filter_map(minute).collect(),
            announced: announced.iter().filter_map(minute).collect(),
            empty: empty.iter().filter_map(minute).collect(),
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
        let at = self.gateway.at(partition, DRAINING).bound_to(request.generation);
        let known = &request.known;
        let mut script = TakeClaims {
            grace_ms: millis(request.grace),
            max_hold_ms: millis(request.max_hold),
            lease_ms: millis(request.lease),
            lapsed_max: request.lapsed_max,
            finished_max: request.finished_max,
            known_epoch: known.epoch,
            known_stamp: known.stamp,
            expected_ms: known.expected_ms.unwrap_or_default(),
            old_max: request.old_max,
            recent_ms: millis(recent_for(request.grace)),
        }
        .at(&at.place);
        for (output, most) in sending {
            script.arg(output.as_str()).arg(most);
        }
        let granted: Option<Vec<Granted>> = at.ask(script).await?;
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
                tracing::error!(key = at.place.key(Scope::Partition, "claims"), %error, "ignoring an unrecognized member of the claims set");
                None
            }
        };
        Ok(granted.into_iter().filter_map(claim).collect())
    }

    async fn compact(&self, claim: &Claim, request: &SealRequest<'_>) -> Result<Compaction> {
        if claim.output.is_some() {
            return Err(StoreError::ClaimLost);
        }
        self.layout_of(claim.partition)
            .seal(self.at(claim).bound_to(claim.generation), claim, request)
            .await
    }

    async fn sealed_users(
        &self,
        claim: &Claim,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()> {
        self.layout.sealed_users(self.at(claim), series, take).await
    }

    async fn contribute(&self, window: Bucket, source: Bucket, frames: &[Vec<u8>]) -> Result<bool> {
        self.add_to_window(window, source, frames).await
    }

    async fn lacks(
        &self,
        window: Bucket,
        partition: Partition,
        minutes: &[Minute],
    ) -> Result<Vec<Minute>> {
        let at = self.gateway.at(window.partition, DRAINING).minute(window.minute);
        lacks(at, partition, minutes).await
    }

    async fn settle(
        &self,
        partition: Partition,
        window: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>> {
        self.close_window(partition, window, request).await
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>> {
        let at = self.at(claim);
        let (unsent, counts) = (at.place.key(Scope::OutputOfMinute, "unsent"), at.key("counts"));
        let page = at.page("SSCAN", (&unsent, Some(&counts)), cursor);
        let Page { items, next } = page.await?;
        let counts = items.into_iter();
        // A series that is unsent but has no counts is just about to be sealed.
        let counts = counts.filter_map(|(series, counts): (String, Option<String>)| {
            series_counts(&series, &counts?)
        });
        Ok(Page { items: counts.collect(), next })
    }

    async fn announce(&self, known: &Known, claims: &[&Claim]) -> Result<Vec<Announced>> {
        let Some(first) = claims.first() else {
            return Ok(Vec::new());
        };
        let at = self.sending(first)?;
        let script = Announce { known_epoch: known.epoch, known_stamp: known.stamp };
        let mut script = script.at(&at.place);
        for claim in claims {
            script
                .arg(claim.minute.to_string())
                .arg(&claim.token)
                .arg(claim.minute.epoch_minutes());
        }
        let states: Option<Vec<u8>> = at.ask(script).await?;
        let states = states.ok_or_else(|| self.gateway.forgot(first.partition))?.into_iter();
        let announced = states.map(|state| match state {
            0 => Announced::ClaimLost,
            1 => Announced::Unheard,
            _ => Announced::Heard,
        });
        Ok(announced.collect())
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool> {
        let at = self.sending(claim)?;
        let mut pieces = pieces(series, |series| series.len()).peekable();
        loop {
            let mut script = Acknowledge {
                to_seal: at.key(self.layout_of(claim.partition).to_seal()),
                token: &claim.token,
                lease_ms: millis(lease),
            }
            .at(&at.place);
            script.arg(pieces.next().unwrap_or_default());
            let has_all = held(at.ask(script).await?)?;
            if has_all || pieces.peek().is_none() {
                return Ok(has_all);
            }
        }
    }

    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>> {
        let at = self.sending(claim)?;
        let script = Refuse { token: &claim.token, entries_max: QUARANTINE_MAX };
        let mut script = script.at(&at.place);
        for (series, message) in refused {
            script.arg(series).arg(message);
        }
        held(at.ask(script).await?)
    }

    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize> {
        let Some(first) = claims.first() else {
            return Ok(0);
        };
        let at = self.at(first);
        let mut script = Extend { lease_ms: millis(lease) }.at(&at.place);
        for claim in claims {
            script.arg(claim.minute.to_string()).arg(&claim.token);
        }
        at.ask(script).await
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog> {
        let at = self.gateway.at(partition, DRAINING);
        Ok(read_backlog(at.ask(ask_backlog(&at.place, Minute::MIN)).await?))
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>> {
        // In a Redis Cluster, all keys of a command must be in the same slot, so no command can cover all partitions.
        if !self.is_cluster && !self.has_work(partitions, outputs).await? {
            return Ok(vec![false; partitions.len()]);
        }
        try_join_all(partitions.chunks(1).map(|only| self.has_work(only, outputs))).await
    }
}

impl RedisStore {
    /// Returns whether any of these partitions, all on one server, has work, i.e. a non-empty key. Redis deletes empty keys.
    async fn has_work(&self, partitions: &[Partition], outputs: &[OutputName]) -> Result<bool> {
        let Some(&first) = partitions.first() else {
            return Ok(false);
        };
        let mut exists = cmd("EXISTS");
        for partition in partitions {
            let At { place, .. } = self.gateway.at(*partition, DRAINING);
            exists.arg(place.key(Scope::Partition, "minutes"));
            for output in [None].into_iter().chain(outputs.iter().map(Some)) {
                exists.arg(place.of(output).key(Scope::Output, "claims"));
            }
        }
        self.gateway.at(first, DRAINING).ask(exists).await
    }

    fn at<'a>(&'a self, claim: &'a Claim) -> At<'a> {
        self.gateway.at(claim.partition, DRAINING).minute(claim.minute).of(claim.output.as_ref())
    }

    /// Returns the place of a claim to send, or [`StoreError::ClaimLost`] for a claim to seal.
    fn sending<'a>(&'a self, claim: &'a Claim) -> Result<At<'a>> {
        claim.output.as_ref().map(|_| self.at(claim)).ok_or(StoreError::ClaimLost)
    }
}

/// Returns a random epoch, which no other store has. It is never 0, and below 2^53, so that Lua represents it exactly.
fn new_epoch() -> u64 {
    rand::random_range(1..1 << 53)
}
