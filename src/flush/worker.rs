//! [`Worker`]: the task that claims and compacts, for all partitions.
//!
//! It owns the claims to seal that it holds and nothing else; it waits for the store, with time limits. A round seals the recent
//! minutes that it claims; old ones are sealed beside the rounds, a few at a time. What is to be sent it hands to the tasks of the
//! outputs. It stops after `stop` is cancelled, at the end of the step it is in or a little
//! later, and lets go of its claims so that any other node takes them up at once. Where the store ends with the process there
//! is no other: it goes on until all is recorded, closes every minute that was over at the stop, and goes on until nothing is left to
//! send or it is broken off.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::FlushSettings;
use super::held::Held;
use super::old::OldMinutes;
use super::outbox::Outbox;
use super::rest::Rest;
use super::sender::STEP_MAX;
use super::sending::log_claim_error;
use super::standing::Standing;
use super::watch::Watches;
use crate::diagnosis::Cause;
use crate::event::{Minute, Partitions};
use crate::node::{Heartbeat, Node, Throttle};
use crate::store::{Backlog, Claim, Draining, OutputBacklog, OutputName, StoreError, is_recent};
use crate::telemetry::{Gauges, Metrics, of_output};

/// The series of a step of compaction. Redis serves nobody else meanwhile: one to two ms.
const COMPACT_SERIES: usize = 200;
/// The partitions that are asked at the same time.
const CONCURRENT: usize = 8;
/// The old minutes that are sealed at the same time.
const OLD_CONCURRENT: usize = 4;
/// How often the backlog is looked at.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(2);
/// How often it looks at the store in a long rest.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How often it is logged that the clocks differ.
const OFFSET_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// How often it is logged what waits for an output that is gone.
const GONE_LOG_INTERVAL: Duration = Duration::from_secs(600);
/// How often partitions that rest are looked at.
const ALL_INTERVAL: Duration = Duration::from_secs(30);
/// How often it is logged that the store is away.
const AWAY_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The task that claims and compacts.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) store: Arc<dyn Draining>,
    /// What is sealed is sealed for these.
    pub(super) outputs: Vec<OutputName>,
    /// One for each.
    pub(super) outboxes: Vec<Arc<Outbox>>,
    pub(super) watches: Arc<Watches>,
    pub(super) partitions: Partitions,
    pub(super) settings: FlushSettings,
    pub(super) node: Arc<Node>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) heartbeat: Heartbeat,
    pub(super) stop: CancellationToken,
    /// Cancelled when nothing more comes into the outboxes.
    pub(super) finished: CancellationToken,
    /// Whether the store ends with the process.
    pub(super) is_alone: bool,
    /// Old minutes that it has claimed and not sealed.
    pub(super) old: OldMinutes,
}

impl Worker {
    /// Goes round until it is stopped.
    pub(super) async fn run(self) {
        let held = Held::default();
        let mut overview = Overview::default();
        let rounds = self.go_round(&held, &mut overview);
        self.sealing_old(rounds).await;
        if !self.is_alone {
            self.finished.cancel();
        }
        held.let_all_go(&*self.store).await;
        self.old.release(&*self.store).await;
        self.watches.late().report(true);
        if self.is_alone {
            self.close_all(&held, overview).await;
        }
    }

    async fn go_round(&self, held: &Held, overview: &mut Overview) {
        let mut standing = Standing::default();
        let mut backlog_seen = Throttle::new(BACKLOG_INTERVAL);
        let mut away_throttle = Throttle::new(AWAY_LOG_INTERVAL);
        let mut offset_throttle = Throttle::new(OFFSET_LOG_INTERVAL);
        while !self.stop.is_cancelled() {
            self.heartbeat.beat();
            let began = Instant::now();
            let look = standing.look(&*self.store, &self.metrics);
            self.heartbeat.during(look).await;
            let round = self.round(held, standing.agrees());
            let result = tokio::select! {
                biased;
                result = round => result,
                // What it had claimed is claimed again, by whoever takes it up.
                () = self.overdue() => break,
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
            self.log_rollbacks();
            self.watches.late().report(false);
            self.warn_of_clock(&mut offset_throttle);
            if backlog_seen.is_due() {
                overview.look(self, standing.agrees()).await;
            }
            let rest = self.settings.interval.saturating_sub(began.elapsed());
            tokio::select! {
                () = self.rest(rest) => {}
                () = self.stop.cancelled() => {}
            }
        }
    }

    /// Closes what was over at the stop, idle or not, for nothing more can come, and waits until it is sent.
    async fn close_all(mut self, held: &Held, mut overview: Overview) {
        self.stop = CancellationToken::new();
        self.settings.grace = Duration::ZERO;
        self.settings.max_hold = Duration::ZERO;
        // What answered before the last events came is asked again.
        for partition in self.partitions.iter() {
            self.watches.of(partition).rest = Rest::default();
        }
        let closing = async {
            loop {
                // What fails is claimed and not sent: it is found there.
                let claims = self.round(held, true).await;
                let is_left = overview.look(&self, true).await;
                if claims.is_ok_and(|claims| claims > 0) {
                    continue;
                }
                if !is_left {
                    break;
                }
                tokio::time::sleep(self.settings.interval.min(LOOK_INTERVAL)).await;
            }
        };
        self.sealing_old(closing).await;
        self.watches.late().report(true);
        self.finished.cancel();
    }

    /// Comes back when a round may not go on: a while after the stop.
    async fn overdue(&self) {
        self.stop.cancelled().await;
        tokio::time::sleep(STEP_MAX).await;
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

    /// Claims, compacts, and hands on what is to be sent. Answers how many minutes it claimed.
    async fn round(&self, held: &Held, agrees: bool) -> Result<usize, StoreError> {
        for outbox in &self.outboxes {
            outbox.agree(agrees);
        }
        let now = Instant::now();
        let wanting = self.outboxes.iter().filter(|it| it.wants_lapsed(now));
        let wanting: Vec<_> = wanting.map(|outbox| outbox.name.clone()).collect();
        let claiming = self.claim_all(agrees.then_some(&wanting));
        let (claims, error) = self.heartbeat.during(claiming).await;
        let count = claims.len();
        let (sealing, mut sending): (Vec<_>, Vec<_>) =
            claims.into_iter().partition(|claim| claim.output.is_none());
        for claim in &sending {
            self.hold(claim);
        }
        let (now_ms, grace) = (self.node.clock.store_now_ms(), self.settings.grace);
        let (mut sealing, old): (Vec<_>, Vec<_>) =
            sealing.into_iter().partition(|claim| is_recent(claim.minute, now_ms, grace));
        for claim in old {
            self.old.add(claim);
        }
        for claim in &sealing {
            held.take(claim);
        }
        if !sealing.is_empty() {
            sealing.sort_by_key(|claim| (claim.taken_over, claim.minute, claim.partition));
            let calls: Vec<_> = sealing.iter().map(|claim| self.compact(held, claim)).collect();
            let work = stream::iter(calls).buffer_unordered(CONCURRENT).collect::<Vec<_>>();
            let work = self.checking_in(self.heartbeat.during(work));
            let handed_out = held.renewing(&*self.store, self.settings.lease, work).await;
            sending.extend(handed_out.into_iter().flatten().flatten());
        }
        sending.extend(self.old.take_sealed());
        // All at once: an output is written few large pieces.
        let mut by_output: BTreeMap<Option<OutputName>, Vec<Claim>> = BTreeMap::new();
        for claim in sending {
            by_output.entry(claim.output.clone()).or_default().push(claim);
        }
        for outbox in &self.outboxes {
            let claims = by_output.remove(&Some(outbox.name.clone()));
            let is_wanted = wanting.contains(&outbox.name);
            outbox.deliver(claims.unwrap_or_default(), is_wanted);
        }
        error.map_or(Ok(count), Err)
    }

    /// Does the work, and seals old minutes beside it.
    async fn sealing_old<T>(&self, work: impl Future<Output = T>) -> T {
        let sealing = join_all([(); OLD_CONCURRENT].map(|()| self.seal_old()));
        let (held, lease) = (&self.old.held, self.settings.lease);
        tokio::select! {
            biased;
            result = work => result,
            _ = held.renewing(&*self.store, lease, sealing) => unreachable!("it goes on for ever"),
        }
    }

    async fn seal_old(&self) {
        loop {
            let claim = self.old.next().await;
            if let Some(sending) = self.compact(&self.old.held, &claim).await {
                self.metrics.old_seals.inc();
                self.old.sealed(sending);
            }
        }
    }

    /// From now on a claim to send is renewed.
    fn hold(&self, claim: &Claim) {
        let is_of = |outbox: &&Arc<Outbox>| Some(&outbox.name) == claim.output.as_ref();
        if let Some(outbox) = self.outboxes.iter().find(is_of) {
            outbox.held.take(claim);
        }
    }

    /// Claims what is finished or lapsed; a node that does not agree with the others only checks in. One partition's
    /// failure does not keep the others from it.
    async fn claim_all(
        &self,
        wanting: Option<&Vec<OutputName>>,
    ) -> (Vec<Claim>, Option<StoreError>) {
        let awake = self.awake().await;
        let calls: Vec<_> = awake
            .into_iter()
            .map(|partition| self.ask(partition, wanting.map(Vec::as_slice)))
            .collect();
        let answers: Vec<_> = stream::iter(calls).buffer_unordered(CONCURRENT).collect().await;
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
    async fn checking_in<T>(&self, work: impl Future<Output = T>) -> T {
        let checking_in = async {
            loop {
                tokio::time::sleep(self.settings.interval).await;
                let awake = self.partitions.iter();
                stream::iter(awake.filter(|&it| self.is_asked(it, false)))
                    .for_each_concurrent(CONCURRENT, async |partition| {
                        // What it finds, the next round finds, too.
                        let _ = self.ask(partition, None).await;
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

    /// Turns all sets of a claim into counts. Returns the claims to send them, or nothing where sets are left.
    async fn compact(&self, held: &Held, claim: &Claim) -> Option<Vec<Claim>> {
        let lease = self.settings.lease;
        while !self.stop.is_cancelled() {
            let compacted = self.store.compact(claim, COMPACT_SERIES, lease, &self.outputs);
            match compacted.await {
                Ok(done) => {
                    self.metrics.series_sealed.inc_by(done.sealed);
                    self.metrics.events_repeated.inc_by(done.repeated);
                    let mut watch = self.watches.of(claim.partition);
                    let late = watch.witness.found_late(done.late);
                    drop(watch);
                    self.found_late(claim.partition, Some(claim.minute), late);
                    if done.left == 0 {
                        held.let_go(claim);
                        for claim in &done.sending {
                            self.hold(claim);
                        }
                        return Some(done.sending);
                    }
                }
                Err(error) => {
                    log_claim_error(&self.metrics, claim, &error);
                    held.let_go(claim);
                    break;
                }
            }
        }
        None
    }
}

/// How much all nodes together have to do, for the metrics, and what waits for an output that is gone, as last seen.
#[derive(Debug)]
struct Overview {
    /// Outputs that are not configured, and that something waits for.
    gone: BTreeSet<OutputName>,
    throttle: Throttle,
    /// Of each partition.
    backlogs: Vec<Backlog>,
    /// When those are looked at, too, that rest: an operator may have changed something.
    all: Throttle,
}

impl Default for Overview {
    fn default() -> Self {
        Self {
            gone: BTreeSet::new(),
            throttle: Throttle::new(GONE_LOG_INTERVAL),
            backlogs: Vec::new(),
            all: Throttle::new(ALL_INTERVAL),
        }
    }
}

impl Overview {
    /// Looks. Returns whether any minute is claimed, to be sealed or sent. When the store does not answer, the metrics of the
    /// backlog are unknown, and a minute may be claimed.
    async fn look(&mut self, worker: &Worker, agrees: bool) -> bool {
        let (store, metrics) = (&worker.store, &worker.metrics);
        let (now, interval) = (Instant::now(), worker.settings.interval);
        let is_due = self.all.is_due() || self.backlogs.is_empty();
        let partitions = worker.partitions.iter();
        let looked_at =
            partitions.filter(|&it| is_due || !worker.watches.of(it).rest.rests(now, interval));
        let answers = looked_at.map(async |it| Ok::<_, StoreError>((it, store.backlog(it).await?)));
        let Ok(seen) = futures_util::future::try_join_all(answers).await else {
            self.all.reset();
            metrics.forget_backlog();
            return true;
        };
        let count = usize::from(worker.partitions.count());
        self.backlogs.resize_with(count, Backlog::default);
        for (partition, backlog) in seen {
            self.backlogs[partition.index()] = backlog;
        }
        let backlogs = &self.backlogs;
        let sum = |part: fn(&Backlog) -> u64| gauge(backlogs.iter().map(part).sum());
        (metrics.backlog_pending.get_or_create(&[])).set(sum(|backlog| backlog.waiting));
        (metrics.backlog_claimed.get_or_create(&[])).set(sum(|backlog| backlog.claimed));
        let (bytes, _) = store.memory();
        metrics.store_memory_bytes.set(gauge(bytes));
        let open = backlogs.iter().filter_map(|backlog| backlog.oldest).min();
        let of = |name: &OutputName| {
            let mut all = OutputBacklog::default();
            for backlog in backlogs {
                all += backlog.outputs.get(name).copied().unwrap_or_default();
            }
            all
        };
        let mut unsent = 0;
        for outbox in &worker.outboxes {
            let lacks = of(&outbox.name);
            unsent += lacks.unsent;
            worker.report(&outbox.name, lacks, lacks.oldest.into_iter().chain(open).min());
        }
        let seen: BTreeSet<_> = backlogs.iter().flat_map(|it| it.outputs.keys()).collect();
        let is_known = |name: &OutputName| worker.outboxes.iter().any(|it| it.name == *name);
        let mut gone = BTreeSet::new();
        for name in seen.into_iter().filter(|name| !is_known(name)) {
            let lacks = of(name);
            if lacks.unsent + lacks.quarantined > 0 {
                worker.report(name, lacks, lacks.oldest);
                gone.insert(name.clone());
            }
        }
        for name in self.gone.difference(&gone) {
            metrics.forget_output(name.as_str());
        }
        self.gone = gone;
        if !self.gone.is_empty() && agrees && self.throttle.is_due() {
            let names: Vec<_> = self.gone.iter().map(OutputName::as_str).collect();
            tracing::warn!(
                outputs = names.join(", "),
                "counts wait for outputs that this node does not have; {}",
                Cause::OutputGone.remedy()
            );
        }
        unsent > 0 || backlogs.iter().any(|backlog| backlog.claimed > 0)
    }
}

impl Worker {
    fn report(&self, output: &OutputName, lacks: OutputBacklog, oldest: Option<Minute>) {
        let clock = &self.node.clock;
        let age = oldest.map_or(0.0, |minute| {
            let offset = clock.store_ahead_seconds();
            age_seconds(minute.end_millis(), clock.now_nanos(), offset)
        });
        let (of, metrics) = (&of_output(output.as_str()), &self.metrics);
        let set = |family: &Gauges, number: u64| {
            family.get_or_create(of).set(gauge(number));
        };
        set(&metrics.backlog_unsent, lacks.unsent);
        set(&metrics.counts_quarantined, lacks.quarantined);
        let oldest = &metrics.oldest_unsent_minute_age_seconds;
        oldest.get_or_create(of).set(age);
    }
}

fn gauge(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// How long ago something ended, by a store's clock that is ahead of this node's by an offset; 0 when it has not ended.
#[expect(clippy::cast_precision_loss, reason = "milliseconds of centuries")]
fn age_seconds(end_ms: i64, now_nanos: i64, offset_seconds: f64) -> f64 {
    let age = (now_nanos / 1_000_000).saturating_sub(end_ms) as f64 / 1000.0;
    (age + offset_seconds).max(0.0)
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
