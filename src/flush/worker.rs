//! [`Worker`]: the task that claims, compacts and sends, for all partitions.
//!
//! It owns the claims that it holds and nothing else; it waits for the store and the output, each with its own
//! time limits. It stops after `stop` is cancelled, at the end of the step it is in or a little later, and lets go of its
//! claims so that any other node takes them up at once. Where the store ends with the process there is no other: it goes
//! on until all is `recorded`, closes every minute that is over, and sends until nothing is left or it is broken off.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::breaker::Breaker;
use super::held::Held;
use super::sender::{Sender, log_claim_error};
use super::standing::Standing;
use super::watch::Watches;
use super::{FlushSettings, look_at_backlog};
use crate::event::Partitions;
use crate::node::{Heartbeat, Node, Throttle};
use crate::output::Output;
use crate::store::{Claim, Draining, StoreError};
use crate::telemetry::Metrics;
use coordination::Mutex;

/// The series of a step of compaction. Redis serves nobody else meanwhile: one to two ms.
const COMPACT_SERIES: usize = 200;
/// The partitions that are asked at the same time.
const CONCURRENT: usize = 8;
/// How often the backlog is looked at.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(2);
/// How often it looks at the store in a long rest.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a round may go on after the stop.
const STEP_MAX: Duration = Duration::from_secs(2);
/// How often it is logged that the clocks differ.
const OFFSET_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is logged that the store is away.
const AWAY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The task that claims, compacts and sends.
#[derive(Debug)]
pub struct Worker {
    /// The shared memory.
    pub store: Arc<dyn Draining>,
    /// Where the points go.
    pub output: Arc<dyn Output>,
    /// Held by the one node that probes an output which is down.
    pub probing: Mutex,
    /// The partitions to look after: all there are.
    pub partitions: Partitions,
    /// How it behaves.
    pub settings: FlushSettings,
    /// Where it writes down which minutes are published, to know it after a power cut; `None`: nowhere.
    pub witness_file: Option<PathBuf>,
    /// What it shares with the other parts of the node.
    pub node: Arc<Node>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Its sign of life.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
    /// Cancelled when nothing more is recorded.
    pub recorded: CancellationToken,
}

impl Worker {
    /// Goes round until it is stopped.
    pub async fn run(mut self) {
        let is_alone = self.store.ends_with_process().is_some();
        if is_alone {
            self.stop = self.recorded.clone();
        }
        let held = Held::default();
        let mut breaker = Breaker::default();
        let watches = Watches::open(&self.partitions, self.witness_file.clone());
        let mut standing = Standing::default();
        let mut backlog_seen = Throttle::new(BACKLOG_INTERVAL);
        let mut away_throttle = Throttle::new(AWAY_LOG_INTERVAL);
        let mut offset_throttle = Throttle::new(OFFSET_LOG_INTERVAL);
        while !self.stop.is_cancelled() {
            self.heartbeat.beat();
            let began = Instant::now();
            let look = standing.look(&*self.store, &self.node, &self.metrics);
            self.heartbeat.during(look).await;
            let round = self.round(&held, &mut breaker, &watches, standing.agrees());
            let result = tokio::select! {
                biased;
                result = round => result,
                () = self.overdue() => {
                    // What it was about to write is written again, by whoever takes the claims up.
                    break;
                }
            };
            match result {
                Ok(_) => {
                    self.metrics.store_up.set(standing.has_room().into());
                    if away_throttle.reset() {
                        tracing::info!(store = self.store.describe(), "the store answers again");
                    }
                }
                Err(error) => {
                    self.metrics.store_up.set(0);
                    if away_throttle.is_due() {
                        tracing::warn!(%error, "cannot claim minutes; trying again");
                    }
                }
            }
            self.log_rollbacks(&watches);
            watches.late().report(false);
            self.warn_of_clock(&mut offset_throttle);
            if backlog_seen.is_due() {
                self.look_at_backlog().await;
            }
            let rest = self.settings.interval.saturating_sub(began.elapsed());
            tokio::select! {
                () = self.rest(rest) => {}
                () = self.stop.cancelled() => {}
            }
        }
        held.let_all_go(&*self.store, Duration::ZERO).await;
        if is_alone {
            self.close_all(&held, &mut breaker, &watches).await;
        }
        watches.late().report(true);
    }

    /// Closes what is over, idle or not, for nothing more can come, and sends it. A minute that still fills stays: a part
    /// of its events would be published as if it were all.
    async fn close_all(mut self, held: &Held, breaker: &mut Breaker, watches: &Watches) {
        self.stop = CancellationToken::new();
        self.settings.grace = Duration::ZERO;
        self.settings.max_hold = Duration::ZERO;
        loop {
            // What fails is claimed and not sent: it is found there.
            let claims = self.round(held, breaker, watches, true).await;
            let is_left = self.look_at_backlog().await;
            if claims.is_ok_and(|claims| claims > 0) {
                continue;
            }
            if !is_left {
                return;
            }
            tokio::time::sleep(self.settings.interval.min(LOOK_INTERVAL)).await;
        }
    }

    /// Comes back when a round may not go on: a while after the stop.
    async fn overdue(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(STEP_MAX).await;
    }

    async fn look_at_backlog(&self) -> bool {
        let clock = &self.node.clock;
        look_at_backlog(&*self.store, &self.partitions, &self.metrics, clock).await
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

    /// Claims, compacts and sends. Answers how many minutes it claimed.
    async fn round(
        &self,
        held: &Held,
        breaker: &mut Breaker,
        watches: &Watches,
        agrees: bool,
    ) -> Result<usize, StoreError> {
        let claiming = self.claim_all(watches, agrees);
        let (mut claims, error) = self.heartbeat.during(claiming).await;
        for claim in &claims {
            held.take(claim);
        }
        if !claims.is_empty() {
            // What is claimed for the first time is written first; what lapsed may have been refused before, and
            // stays in the order in which it lapsed.
            claims.sort_by_key(|claim| {
                let is_new = !claim.taken_over;
                (!is_new, is_new.then_some((claim.minute, claim.partition)))
            });
            let work = async {
                stream::iter(&claims)
                    .for_each_concurrent(CONCURRENT, |claim| self.compact(held, watches, claim))
                    .await;
                self.heartbeat.beat();
                if self.stop.is_cancelled() {
                    return;
                }
                self.sender(held, watches, breaker).send(&claims).await;
            };
            let work = self.checking_in(watches, self.heartbeat.during(work));
            held.renewing(&*self.store, self.settings.lease, work).await;
        } else if agrees && breaker.is_open() {
            // Another node may have sent what this one could not: it has to find out by itself.
            self.heartbeat
                .during(self.sender(held, watches, breaker).send(&[]))
                .await;
        }
        error.map_or(Ok(claims.len()), Err)
    }

    fn sender<'a>(
        &'a self,
        held: &'a Held,
        watches: &'a Watches,
        breaker: &'a mut Breaker,
    ) -> Sender<'a> {
        Sender {
            store: &*self.store,
            output: &*self.output,
            probing: &self.probing,
            held,
            watches,
            metrics: &self.metrics,
            settings: &self.settings,
            node: &self.node,
            breaker,
        }
    }

    /// Claims what is finished or lapsed; a node that does not agree with the others only checks in. One partition's
    /// failure does not keep the others from it.
    async fn claim_all(&self, watches: &Watches, agrees: bool) -> (Vec<Claim>, Option<StoreError>) {
        let calls: Vec<_> = self
            .partitions
            .iter()
            .map(|partition| self.ask(partition, watches, agrees))
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

    /// Does the work, and goes on checking in meanwhile: a report lapses, a store may go back, and a round may take long.
    async fn checking_in<T>(&self, watches: &Watches, work: impl Future<Output = T>) -> T {
        let checking_in = async {
            loop {
                tokio::time::sleep(self.settings.interval).await;
                stream::iter(self.partitions.iter())
                    .for_each_concurrent(CONCURRENT, async |partition| {
                        // What it finds, the next round finds, too.
                        let _ = self.ask(partition, watches, false).await;
                    })
                    .await;
            }
        };
        tokio::select! {
            biased;
            result = work => result,
            () = checking_in => unreachable!("it goes on for ever"),
        }
    }

    /// Turns all sets of a claim into counts.
    async fn compact(&self, held: &Held, watches: &Watches, claim: &Claim) {
        while !self.stop.is_cancelled() {
            match self
                .store
                .compact(claim, COMPACT_SERIES, self.settings.lease)
                .await
            {
                Ok(done) => {
                    self.metrics.series_sealed.inc_by(done.sealed);
                    if done.late > 0 {
                        self.metrics.events_late.inc_by(done.late);
                        let now = self.node.clock.now_nanos();
                        watches.late().add(claim, done.late, now);
                        tracing::debug!(
                            minute = %claim.minute,
                            partition = claim.partition.index(),
                            events = done.late,
                            "events came after their counts were sealed"
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
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
