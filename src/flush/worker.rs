//! [`Worker`]: the task that claims, compacts and sends, for all partitions.
//!
//! It owns the claims that it holds and nothing else; it waits for the store and the output, each with its own
//! time limits. It stops after `stop` is cancelled, at the end of the step it is in, and lets go of its claims
//! so that any other node takes them up at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::FlushSettings;
use super::breaker::Breaker;
use super::held::Held;
use super::sender::{Sender, log_claim_error};
use super::settling::Settling;
use crate::event::{Partition, Partitions};
use crate::output::Output;
use crate::store::{Backlog, Claim, ClaimRequest, Store, StoreError};
use crate::surroundings::Surroundings;
use crate::telemetry::{Heartbeat, Metrics};

/// The most claims of a kind that a round takes of a partition.
const CLAIMS_MAX: usize = 16;
/// The series of a step of compaction. Redis serves nobody else meanwhile: one to two ms.
const COMPACT_SERIES: usize = 200;
/// The partitions that are asked at the same time.
const CONCURRENT: usize = 8;
/// How often the backlog is looked at.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(2);
/// How often it looks at the store in a long rest.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is said that the store is away.
const AWAY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The task that claims, compacts and sends.
#[derive(Debug)]
pub struct Worker {
    /// The shared memory.
    pub store: Arc<dyn Store>,
    /// Where the points go.
    pub output: Arc<dyn Output>,
    /// The partitions to look after: all there are.
    pub partitions: Partitions,
    /// How it behaves.
    pub settings: FlushSettings,
    /// Its clock and its dice.
    pub surroundings: Arc<Surroundings>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Its sign of life.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

impl Worker {
    /// Goes round until it is stopped.
    pub async fn run(self) {
        let held = Held::default();
        let mut breaker = Breaker::default();
        let mut settling: Vec<Settling> = self
            .partitions
            .iter()
            .map(|_| Settling::default())
            .collect();
        let mut backlog_seen: Option<Instant> = None;
        let mut away_told: Option<Instant> = None;
        while !self.stop.is_cancelled() {
            self.heartbeat.beat();
            let began = Instant::now();
            match self.round(&held, &mut breaker, &mut settling).await {
                Ok(()) => {
                    self.metrics.store_up.set(1);
                    away_told = None;
                }
                Err(error) => {
                    self.metrics.store_up.set(0);
                    if away_told.is_none_or(|at| at.elapsed() >= AWAY_LOG_INTERVAL) {
                        away_told = Some(Instant::now());
                        tracing::warn!(%error, "cannot claim minutes; trying again");
                    }
                }
            }
            if backlog_seen.is_none_or(|at| at.elapsed() >= BACKLOG_INTERVAL) {
                backlog_seen = Some(Instant::now());
                self.look_at_backlog().await;
            }
            let rest = self.settings.interval.saturating_sub(began.elapsed());
            tokio::select! {
                () = self.rest(rest) => {}
                () = self.stop.cancelled() => {}
            }
        }
        held.let_all_go(&*self.store, Duration::ZERO).await;
    }

    /// Rests until the next round. In a long rest it looks at the store: who recorded into it has to know in time that
    /// it may have lost something.
    async fn rest(&self, rest: Duration) {
        let until = Instant::now() + rest;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
            if left <= LOOK_INTERVAL {
                return;
            }
            // What it finds, the next call finds, too.
            let _ = self.heartbeat.during(self.store.check()).await;
        }
    }

    async fn round(
        &self,
        held: &Held,
        breaker: &mut Breaker,
        settling: &mut [Settling],
    ) -> Result<(), StoreError> {
        let (mut claims, error) = self.heartbeat.during(self.claim_all(settling)).await;
        for claim in &claims {
            held.take(claim);
        }
        if !claims.is_empty() {
            claims.sort_unstable_by_key(|claim| (claim.minute, claim.partition));
            let work = async {
                stream::iter(&claims)
                    .for_each_concurrent(CONCURRENT, |claim| self.compact(held, claim))
                    .await;
                self.heartbeat.beat();
                if self.stop.is_cancelled() {
                    return;
                }
                let mut sender = Sender {
                    store: &*self.store,
                    output: &*self.output,
                    held,
                    metrics: &self.metrics,
                    settings: &self.settings,
                    surroundings: &self.surroundings,
                    breaker,
                };
                sender.send(&claims).await;
            };
            let work = self.while_telling(settling, self.heartbeat.during(work));
            held.renewing(&*self.store, self.settings.lease, work).await;
        }
        error.map_or(Ok(()), Err)
    }

    /// Claims what is finished or lapsed. One partition's failure does not keep the others from it.
    async fn claim_all(&self, settling: &mut [Settling]) -> (Vec<Claim>, Option<StoreError>) {
        let each = self.partitions.iter().zip(settling);
        let calls: Vec<_> = each
            .map(|(partition, settling)| self.claim(partition, settling))
            .collect();
        let answers: Vec<_> = stream::iter(calls)
            .buffer_unordered(CONCURRENT)
            .collect()
            .await;
        let mut claims = Vec::new();
        let mut failure = None;
        for answer in answers {
            match answer {
                Ok(claimed) => claims.extend(claimed),
                Err(error) => failure = Some(error),
            }
        }
        self.metrics.claims.inc_by(claims.len() as u64);
        let taken_over = claims.iter().filter(|claim| claim.taken_over).count();
        self.metrics.claims_taken_over.inc_by(taken_over as u64);
        (claims, failure)
    }

    async fn claim(
        &self,
        partition: Partition,
        settling: &mut Settling,
    ) -> Result<Vec<Claim>, StoreError> {
        settling.look(self.store.generation(partition), Instant::now());
        let behind = self.is_behind(partition, settling);
        let may_close = settling.may_close(Instant::now(), self.settings.grace);
        let request = ClaimRequest {
            lapsed_max: CLAIMS_MAX,
            finished_max: if may_close { CLAIMS_MAX } else { 0 },
            behind,
            ..self.asking_for_nothing()
        };
        let claimed = self.store.claim(partition, &request).await;
        if claimed.is_err() {
            settling.failed(Instant::now());
        }
        claimed
    }

    fn is_behind(&self, partition: Partition, settling: &mut Settling) -> bool {
        let behind = self.metrics.behind.is(partition);
        settling.is_behind(behind, Instant::now(), self.settings.grace)
    }

    const fn asking_for_nothing(&self) -> ClaimRequest {
        ClaimRequest {
            grace: self.settings.grace,
            max_hold: self.settings.max_hold,
            lease: self.settings.lease,
            lapsed_max: 0,
            finished_max: 0,
            behind: true,
        }
    }

    /// Does the work, and says meanwhile with what this node is behind: what a claim has said lapses, and a round may
    /// take longer.
    async fn while_telling<T>(
        &self,
        settling: &mut [Settling],
        work: impl Future<Output = T>,
    ) -> T {
        let telling = async {
            loop {
                tokio::time::sleep(self.settings.interval).await;
                stream::iter(self.partitions.iter().zip(&mut *settling))
                    .for_each_concurrent(CONCURRENT, |(partition, settling)| {
                        self.tell(partition, settling)
                    })
                    .await;
            }
        };
        tokio::select! {
            biased;
            result = work => result,
            () = telling => unreachable!("it goes on for ever"),
        }
    }

    async fn tell(&self, partition: Partition, settling: &mut Settling) {
        if !self.is_behind(partition, settling) {
            return;
        }
        let request = self.asking_for_nothing();
        if self.store.claim(partition, &request).await.is_err() {
            settling.failed(Instant::now());
        }
    }

    /// Turns all sets of a claim into counts.
    async fn compact(&self, held: &Held, claim: &Claim) {
        while !self.stop.is_cancelled() {
            match self
                .store
                .compact(claim, COMPACT_SERIES, self.settings.lease)
                .await
            {
                Ok(done) => {
                    self.metrics.series_counted.inc_by(done.counted);
                    if done.late > 0 {
                        self.metrics.events_late.inc_by(done.late);
                        tracing::debug!(
                            minute = %claim.minute,
                            partition = claim.partition.index(),
                            events = done.late,
                            "events came after their counts were fixed"
                        );
                    }
                    if done.left == 0 {
                        return;
                    }
                }
                Err(error) => {
                    log_claim_error(&self.metrics, claim, &error);
                    held.let_go(claim);
                    return;
                }
            }
        }
    }

    async fn look_at_backlog(&self) {
        let ask = |partition: Partition| self.store.backlog(partition);
        let answers = futures_util::future::join_all(self.partitions.iter().map(ask)).await;
        let Ok(backlogs) = answers.into_iter().collect::<Result<Vec<Backlog>, _>>() else {
            return;
        };
        let sum = |part: fn(&Backlog) -> u64| {
            i64::try_from(backlogs.iter().map(part).sum::<u64>()).unwrap_or(i64::MAX)
        };
        self.metrics
            .minutes_waiting
            .set(sum(|backlog| backlog.waiting));
        self.metrics
            .minutes_claimed
            .set(sum(|backlog| backlog.claimed));
        self.metrics
            .counts_set_aside
            .set(sum(|backlog| backlog.set_aside));
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
