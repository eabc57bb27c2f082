//! [`Worker`]: the task that claims minutes and seals their counts, for all partitions.
//!
//! It owns the claims to seal and waits for the store, with timeouts. A round checks in at the partitions, claims finished and
//! lapsed minutes, and seals the recent ones; old ones are sealed concurrently with the rounds, a few at a time. It hands claims
//! to send to the outboxes. After `stop` is cancelled it ends after the current step, or a little later, and releases its claims
//! so that another node takes them over at once. Where the store ends with the process there is no other node: it continues
//! until everything is recorded, closes every minute that had ended at the stop, and waits until all counts are sent or the
//! process is killed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::FlushSettings;
use super::agreement::Agreement;
use super::backlog::BacklogReport;
use super::claims::{Held, OldMinutes, Outbox, alongside};
use super::partitions::PartitionStates;
use super::schedule::{AskTimes, looked_within};
use super::sender::{STEP_MAX, log_claim_error};
use crate::diagnosis::{Cause, LossCause};
use crate::event::{Minute, Partition, Partitions};
use crate::node::{Heartbeat, Node, PartitionState, Throttle};
use crate::store::{
    self, Claim, ClaimRequest, Draining, OutputName, SealRequest, StoreError, is_recent,
};
use crate::telemetry::Metrics;

/// The series of a step of compaction, which blocks Redis for one to two ms.
const COMPACT_SERIES: usize = 200;
/// The number of concurrent check-ins.
const CONCURRENT: usize = 8;
/// The number of old minutes that are sealed at the same time.
const OLD_CONCURRENT: usize = 4;
/// The most claims of a kind that a round takes of a partition.
const CLAIMS_MAX: usize = 16;
/// The interval of backlog reports.
const BACKLOG_INTERVAL: Duration = Duration::from_secs(2);
/// The interval of checks of the store in a long pause.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The interval of log lines about clocks that differ.
const OFFSET_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of log lines about a store that is down.
const AWAY_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// A minute that looks finished after a jump of the clock is finished after this long.
const MINUTE: Duration = Duration::from_secs(60);

/// The task that claims and seals.
#[derive(Debug)]
pub(super) struct Worker {
    pub(super) store: Arc<dyn Draining>,
    /// Counts are sealed for these outputs.
    pub(super) outputs: Vec<OutputName>,
    /// One for each output.
    pub(super) outboxes: Vec<Arc<Outbox>>,
    pub(super) states: Arc<PartitionStates>,
    pub(super) partitions: Partitions,
    pub(super) settings: FlushSettings,
    pub(super) node: Arc<Node>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) heartbeat: Heartbeat,
    pub(super) stop: CancellationToken,
    /// Cancelled when the worker delivers no more.
    pub(super) finished: CancellationToken,
    /// Whether the store ends with the process.
    pub(super) is_alone: bool,
    /// Recent minutes that are being sealed.
    pub(super) held: Held,
    pub(super) old: OldMinutes,
}

impl Worker {
    pub(super) async fn run(mut self, mut backlog: BacklogReport) {
        self.sealing_old(self.rounds(&mut backlog)).await;
        if !self.is_alone {
            self.finished.cancel();
        }
        self.held.release_all(&*self.store).await;
        self.old.release(&*self.store).await;
        self.states.late().report(true);
        if self.is_alone {
            self.stop = CancellationToken::new();
            self.settings.grace = Duration::ZERO;
            self.settings.max_hold = Duration::ZERO;
            self.sealing_old(self.close_all(&mut backlog)).await;
            self.states.late().report(true);
            self.finished.cancel();
        }
    }

    async fn rounds(&self, backlog: &mut BacklogReport) {
        let mut agreement = Agreement::default();
        let mut backlog_throttle = Throttle::new(BACKLOG_INTERVAL);
        let mut away_throttle = Throttle::new(AWAY_LOG_INTERVAL);
        let mut offset_throttle = Throttle::new(OFFSET_LOG_INTERVAL);
        while !self.stop.is_cancelled() {
            self.heartbeat.beat();
            let began = Instant::now();
            let look = agreement.look(&*self.store, &self.metrics);
            self.heartbeat.during(look).await;
            let overdue = async {
                self.stop.cancelled().await;
                tokio::time::sleep(STEP_MAX).await;
            };
            let result = tokio::select! {
                biased;
                result = self.round(agreement.agrees) => result,
                // Another node takes the claims over.
                () = overdue => break,
            };
            match result {
                Ok(_) => {
                    self.metrics.store_up.set(agreement.has_room.into());
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
            self.states.late().report(false);
            self.warn_of_clock(&mut offset_throttle);
            if backlog_throttle.is_due() {
                backlog.update(agreement.agrees).await;
            }
            let pause = self.pause(self.settings.interval.saturating_sub(began.elapsed()));
            self.stop.run_until_cancelled(pause).await;
        }
    }

    /// Pauses between rounds. A long pause checks the store: the recorders have to know in time that it may have lost
    /// something.
    async fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            tokio::time::sleep(left.min(LOOK_INTERVAL)).await;
            if left <= LOOK_INTERVAL {
                return;
            }
            // The next call finds the same error.
            let _ = self.heartbeat.during(self.store.check()).await;
        }
    }

    /// Closes all minutes that had ended at the stop, idle or not, because no more events can arrive, and waits until their
    /// counts are sent.
    async fn close_all(&self, backlog: &mut BacklogReport) {
        // The last answers may be older than the last events.
        for partition in self.partitions.iter() {
            self.states.of(partition).ask_times = AskTimes::default();
        }
        loop {
            // A claim that cannot be sent is found in the backlog.
            let claims = self.round(true).await;
            let is_left = backlog.update(true).await;
            if claims.is_ok_and(|claims| claims > 0) {
                continue;
            }
            if !is_left {
                return;
            }
            tokio::time::sleep(self.settings.interval.min(LOOK_INTERVAL)).await;
        }
    }

    /// Claims minutes, seals them, and delivers the claims to send. Returns the number of claims.
    async fn round(&self, agrees: bool) -> Result<usize, StoreError> {
        let now = Instant::now();
        let wanting = self.outboxes.iter().filter(|outbox| outbox.wants_lapsed(now, agrees));
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
            self.held.add(claim);
        }
        if !sealing.is_empty() {
            sealing.sort_by_key(|claim| (claim.taken_over, claim.minute, claim.partition));
            let calls = sealing.iter().map(|claim| self.compact(&self.held, claim));
            let calls: Vec<_> = calls.collect();
            let work = stream::iter(calls).buffer_unordered(CONCURRENT).collect::<Vec<_>>();
            let work = self.checking_in(self.heartbeat.during(work));
            let sealed = self.held.renewing(&*self.store, self.settings.lease, work).await;
            sending.extend(sealed.into_iter().flatten().flatten());
        }
        sending.extend(self.old.take_sealed());
        // All at once, so that an output is written few large batches.
        let mut by_output: BTreeMap<Option<OutputName>, Vec<Claim>> = BTreeMap::new();
        for claim in sending {
            by_output.entry(claim.output.clone()).or_default().push(claim);
        }
        for outbox in &self.outboxes {
            let claims = by_output.remove(&Some(outbox.name.clone()));
            outbox.deliver(claims.unwrap_or_default(), wanting.contains(&outbox.name));
        }
        error.map_or(Ok(count), Err)
    }

    /// Starts to renew a claim to send.
    fn hold(&self, claim: &Claim) {
        let outbox =
            self.outboxes.iter().find(|outbox| Some(&outbox.name) == claim.output.as_ref());
        if let Some(outbox) = outbox {
            outbox.held.add(claim);
        }
    }

    /// Does the work and seals old minutes concurrently.
    async fn sealing_old<T>(&self, work: impl Future<Output = T>) -> T {
        let sealing = join_all([(); OLD_CONCURRENT].map(|()| self.seal_old()));
        let (held, lease) = (&self.old.held, self.settings.lease);
        tokio::select! {
            biased;
            result = work => result,
            _ = held.renewing(&*self.store, lease, sealing) => unreachable!("it never ends"),
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

    /// Does the work and checks in concurrently: a report of lag expires, a store may go back, and a round may take long.
    async fn checking_in<T>(&self, work: impl Future<Output = T>) -> T {
        alongside(work, self.settings.interval, || async {
            let due = self.partitions.iter().filter(|&partition| self.is_due(partition, false));
            let calls = stream::iter(due).for_each_concurrent(CONCURRENT, async |partition| {
                // The next round finds the same error.
                let _ = self.ask(partition, None).await;
            });
            calls.await;
        })
        .await
    }

    /// Seals all counts of a claim. Returns the claims to send them, or nothing if some are not sealed.
    async fn compact(&self, held: &Held, claim: &Claim) -> Option<Vec<Claim>> {
        let lease = self.settings.lease;
        while !self.stop.is_cancelled() {
            let request = SealRequest { series_max: COMPACT_SERIES, lease, outputs: &self.outputs };
            match self.store.compact(claim, &request).await {
                Ok(done) => {
                    self.metrics.series_sealed.inc_by(done.sealed);
                    self.metrics.events_repeated.inc_by(done.repeated);
                    let late = self.states.of(claim.partition).witness.found_late(done.late);
                    self.found_late(claim.partition, Some(claim.minute), late);
                    if done.left == 0 {
                        held.remove(claim);
                        for claim in &done.sending {
                            self.hold(claim);
                        }
                        return Some(done.sending);
                    }
                }
                Err(error) => {
                    log_claim_error(&self.metrics, claim, &error);
                    held.remove(claim);
                    break;
                }
            }
        }
        None
    }

    /// Claims finished and lapsed minutes, or only checks in if `wanting` is `None`. The failure of one partition does not
    /// affect the others.
    async fn claim_all(
        &self,
        wanting: Option<&Vec<OutputName>>,
    ) -> (Vec<Claim>, Option<StoreError>) {
        let due = self.due_partitions().await.into_iter();
        let calls: Vec<_> =
            due.map(|partition| self.ask(partition, wanting.map(Vec::as_slice))).collect();
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

    async fn due_partitions(&self) -> Vec<Partition> {
        let mut filling = Vec::new();
        let mut others = Vec::new();
        for partition in self.partitions.iter() {
            let (generation, now) = (self.store.generation(partition), Instant::now());
            let mut state = self.states.of(partition);
            state.settling.look(generation, now);
            let list = if state.ask_times.fills(now) { &mut filling } else { &mut others };
            list.push(partition);
        }
        let have_work = self.store.have_work(&others, &self.outputs).await;
        // The error of a store is found by the next call.
        let have_work = have_work.unwrap_or_else(|_| vec![true; others.len()]);
        let filling = filling.into_iter().map(|partition| (partition, false));
        let all = others.into_iter().zip(have_work).chain(filling);
        let due = all.filter(|&(partition, has_work)| self.is_due(partition, has_work));
        due.map(|(partition, _)| partition).collect()
    }

    /// Returns whether a partition has work, or this node has to check in there.
    fn is_due(&self, partition: Partition, has_work: bool) -> bool {
        let FlushSettings { interval, grace, .. } = self.settings;
        let lags = self.node.partitions.of(partition).lags;
        let generation = self.store.generation(partition);
        let now = Instant::now();
        let mut state = self.states.of(partition);
        let settling = &mut state.settling;
        let lags = settling.reports_lag(lags, now, grace);
        let has_settled = settling.may_close(now, grace) && settling.may_take_over(now, interval);
        let must = lags || !state.witness.has_attested(generation);
        state.ask_times.is_due(must, has_work || !has_settled, now, interval)
    }

    /// Checks in at a partition and, if the store allows it, claims finished and lapsed minutes there; to send, for the `wanting`
    /// outputs only. Before that it attests the closed minutes.
    async fn ask(
        &self,
        partition: Partition,
        wanting: Option<&[OutputName]>,
    ) -> Result<Vec<Claim>, StoreError> {
        let result = self.check_in_and_claim(partition, wanting).await;
        if let Err(error) = &result {
            let mut state = self.states.of(partition);
            state.settling.failed(Instant::now());
            if matches!(error, StoreError::Forgot) {
                state.witness.forgotten();
            }
        }
        result
    }

    async fn check_in_and_claim(
        &self,
        partition: Partition,
        wanting: Option<&[OutputName]>,
    ) -> Result<Vec<Claim>, StoreError> {
        let generation = self.store.generation(partition);
        self.attest(partition, generation).await?;
        let mut answer = self.check_in(partition).await?;
        if answer.is_announced {
            // The node that announced a minute waits until this node has confirmed that it knows.
            answer = self.check_in(partition).await?;
        }
        // A server that does not know that this node lags may have taken over.
        let is_another = self.store.generation(partition) != generation;
        let began_to_lag = !answer.lags && self.node.partitions.of(partition).lags;
        match wanting {
            Some(wanting) if answer.is_due && !is_another && !began_to_lag => {
                self.claim(partition, generation, wanting).await
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Tells the store the closed minutes, if it may have forgotten them.
    async fn attest(&self, partition: Partition, generation: u64) -> Result<(), StoreError> {
        let testimony = {
            let mut state = self.states.of(partition);
            state.settling.look(generation, Instant::now());
            state.witness.testimony(generation)
        };
        let Some(testimony) = testimony else {
            return Ok(());
        };
        let attested = self.store.attest(partition, &testimony).await?;
        let PartitionState { recorded, kept, .. } = self.node.partitions.of(partition);
        let mut state = self.states.of(partition);
        if let Some(mut rollback) = state.witness.attested(generation, attested, recorded) {
            state.settling.went_back(Instant::now());
            rollback.events = rollback.events.saturating_sub(kept);
            self.states.forgot(rollback);
        }
        Ok(())
    }

    /// Reports whether this node lags, and records the answer of the store.
    async fn check_in(&self, partition: Partition) -> Result<CheckIn, StoreError> {
        let FlushSettings { interval, grace, max_hold, lease } = self.settings;
        let recorded = self.node.partitions.of(partition).recorded;
        let asked = Instant::now();
        let (lags, known) = {
            let mut state = self.states.of(partition);
            let lags = self.node.partitions.of(partition).lags;
            (state.settling.reports_lag(lags, asked, grace), state.witness.known(asked))
        };
        let asked_nanos = self.node.clock.now_nanos();
        let alive = looked_within(interval);
        let check_in = store::CheckIn { known, lags, lease, alive };
        let news = self.store.check_in(partition, &check_in).await?;
        let now = Instant::now();
        let mut state = self.states.of(partition);
        let jumped_ms = state.witness.heard(&news, recorded, asked, now);
        state.ask_times.heard(&news, now, interval, grace);
        let late = state.witness.found_late(news.late);
        if jumped_ms > 0 {
            let hold_max = max_hold.max(MINUTE + grace);
            let ahead = Duration::from_millis(jumped_ms.unsigned_abs());
            state.settling.jumped(ahead, hold_max, now);
        }
        drop(state);
        self.found_late(partition, None, late);
        // As of the middle of the call.
        let nanos = i64::midpoint(asked_nanos, self.node.clock.now_nanos());
        self.node.clock.set_store_ahead_ms(news.now_ms.saturating_sub(nanos / 1_000_000));
        Ok(CheckIn { lags, is_due: news.is_due, is_announced: !news.announced.is_empty() })
    }

    /// Claims minutes of a store that has settled.
    async fn claim(
        &self,
        partition: Partition,
        generation: u64,
        wanting: &[OutputName],
    ) -> Result<Vec<Claim>, StoreError> {
        let FlushSettings { interval, grace, max_hold, lease } = self.settings;
        let now = Instant::now();
        // Old minutes that are claimed already are sealed first.
        let room = CLAIMS_MAX.saturating_sub(self.old.held.count(partition));
        let most = |may: bool| if may { CLAIMS_MAX } else { 0 };
        let (request, lapsed_max) = {
            let state = self.states.of(partition);
            let lapsed_max = most(state.settling.may_take_over(now, interval));
            let request = ClaimRequest {
                generation,
                grace,
                max_hold,
                lease,
                lapsed_max: lapsed_max.min(room),
                finished_max: most(state.settling.may_close(now, grace)),
                old_max: room,
                known: state.witness.known(now),
            };
            (request, lapsed_max)
        };
        if lapsed_max + request.finished_max == 0 {
            return Ok(Vec::new());
        }
        let sending = wanting.iter().map(|name| (name.clone(), lapsed_max));
        let sending: Vec<_> = sending.collect();
        self.store.claim(partition, &request, &sending).await
    }

    /// Counts late events, in this minute if it is known.
    fn found_late(&self, partition: Partition, minute: Option<Minute>, events: u64) {
        if events == 0 {
            return;
        }
        self.metrics.events_late.inc_by(events);
        let now = self.node.clock.now_nanos();
        self.states.late().add(partition, minute, events, now);
        let minute = minute.unwrap_or(Minute::of_nanos(now));
        self.node.losses.add(LossCause::Late, minute, events);
        let partition = partition.index();
        tracing::debug!(partition, events, "events came after their counts were sealed");
    }

    fn log_rollbacks(&self) {
        let Some((rollback, partitions)) = self.states.take_rollbacks() else {
            return;
        };
        self.metrics.store_rollbacks.inc();
        self.metrics.events_forgotten.inc_by(rollback.events);
        let minute = Minute::of_nanos(rollback.to_ms.saturating_mul(1_000_000));
        self.node.losses.add(LossCause::Forgotten, minute, rollback.events);
        // No node will write their counts.
        let unconfirmed = &rollback.unconfirmed;
        (self.metrics.publications_unconfirmed).inc_by(unconfirmed.len() as u64);
        for minute in unconfirmed {
            self.node.losses.add(LossCause::Unconfirmed, *minute, 1);
        }
        tracing::error!(
            store = self.store.describe(),
            partitions,
            from = time_text(rollback.from_ms),
            to = time_text(rollback.to_ms),
            events = rollback.events,
            "the store forgot what it had confirmed in this time; so many events of this node were recorded in it and \
             cannot be recorded again; minutes that were published keep their values; `eds loss` has the minutes"
        );
    }

    /// Warns of clocks whose difference may make events late.
    fn warn_of_clock(&self, throttle: &mut Throttle) {
        let offset_seconds = self.node.clock.store_ahead_seconds();
        let warns = offset_seconds.abs() > self.settings.grace.as_secs_f64() / 2.0;
        if warns && throttle.is_due() {
            tracing::warn!(
                offset_seconds,
                grace = %humantime::format_duration(self.settings.grace),
                "the store's clock, which closes minutes, is not this node's; {}",
                Cause::Clock.remedy()
            );
        }
    }
}

/// The result of a check-in.
struct CheckIn {
    /// Whether this node reported lag.
    lags: bool,
    /// Whether there may be something to claim.
    is_due: bool,
    /// Whether another node waits until this one knows its announcement.
    is_announced: bool,
}

/// Returns an instant in ms since the epoch as text.
fn time_text(ms: i64) -> String {
    match DateTime::from_timestamp_millis(ms) {
        Some(time) if ms > 0 => time.to_rfc3339_opts(SecondsFormat::Millis, true),
        _ => "the beginning".to_owned(),
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
