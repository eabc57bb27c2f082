//! [`Sender`]: the task that sends sealed counts to one output.
//!
//! It owns the claims that the worker put into its outbox and renews them. It waits for the store and for its output, each
//! with its own timeouts, and for no other output. After `stop` is cancelled it ends after the current step, or a
//! little later, and releases its claims once the worker delivers no more.
//!
//! A round reads the unsent counts, announces their minutes, writes them in large batches and acknowledges them. It writes
//! everything once, recent minutes before old ones and new claims before lapsed ones. Only then it searches the
//! batches that were not accepted ([`Delivery`]), for a limited time, because the next minutes must not wait. The claims of
//! counts that were not searched lapse, and any node takes them over.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use coordination::Mutex;
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::FlushSettings;
use super::breaker::{Advice, Breaker};
use super::claims::{Outbox, by_partition};
use super::counts::{Counts, CountsTarget, accepts_nothing};
use super::partitions::PartitionStates;
use super::schedule::{SETTLE_MIN, looked_within};
use crate::diagnosis::{Cause, Diagnosis, LossCause};
use crate::event::{Minute, Partition};
use crate::node::{Heartbeat, Node, lock};
use crate::output::delivery::{Batch, Delivery, Refusal};
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{Announced, Claim, Draining, OutputName, Store, StoreError, is_recent};
use crate::telemetry::{Metrics, OutputMetrics};

/// The longest time that a round continues after the stop.
pub(super) const STEP_MAX: Duration = Duration::from_secs(2);
/// The longest time that a round searches, and that it writes old or lapsed minutes: at most a third of the lease.
const TURN_MAX: Duration = Duration::from_secs(4);
/// The counts that are in memory before any of them is announced.
const READ_FIRST_MAX: usize = 20_000;
/// The shortest pause between two questions whether all nodes know an announcement; otherwise a tenth of the interval.
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// The counts that are moved to the quarantine by one call.
const QUARANTINE_STEP: usize = 200;
/// The counts that a log line shows.
const EXAMPLES_MAX: usize = 3;

/// The task that sends to one output.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) store: Arc<dyn Draining>,
    pub(super) name: OutputName,
    pub(super) output: Arc<dyn Output>,
    pub(super) write_counts_max: usize,
    /// Held by the one node that probes the output when it is down.
    pub(super) probing: Mutex,
    pub(super) outbox: Arc<Outbox>,
    pub(super) states: Arc<PartitionStates>,
    /// The metrics of all outputs.
    pub(super) totals: Arc<Metrics>,
    pub(super) metrics: OutputMetrics,
    pub(super) settings: FlushSettings,
    pub(super) node: Arc<Node>,
    pub(super) breaker: Breaker,
    /// The count that the output accepted last: writing it again shows whether it accepts counts, and changes nothing.
    pub(super) last: Option<Counts>,
    pub(super) stop: CancellationToken,
    /// Cancelled when the worker delivers no more.
    pub(super) finished: CancellationToken,
}

impl Sender {
    pub(super) async fn run(mut self, heartbeat: Heartbeat) {
        let (store, outbox) = (Arc::clone(&self.store), Arc::clone(&self.outbox));
        let (lease, stop, finished) =
            (self.settings.lease, self.stop.clone(), self.finished.clone());
        let overdue = async {
            stop.cancelled().await;
            sleep(STEP_MAX).await;
        };
        let sending = async {
            while !stop.is_cancelled() {
                heartbeat.during(self.round()).await;
            }
        };
        let sending = outbox.held.renewing(&*store, lease, sending);
        tokio::select! {
            biased;
            () = sending => {}
            // The node that takes the claims over writes the counts again.
            () = overdue => {}
        }
        finished.cancelled().await;
        outbox.held.release_all(&*store).await;
    }

    /// Waits for claims and sends their counts.
    async fn round(&mut self) {
        let claims = tokio::select! {
            biased;
            claims = self.outbox.next(|claim| self.is_recent(claim)) => claims,
            () = self.stop.cancelled() => return,
        };
        // Without claims it probes at the start, so that a wrong token is found before the first minute ends, and after
        // another node has sent the counts that this one could not send.
        let away_until = if claims.is_empty() && self.breaker.is_known_well() {
            None
        } else {
            self.send(&claims).await
        };
        self.outbox.sent(away_until);
    }

    fn is_recent(&self, claim: &Claim) -> bool {
        is_recent(claim.minute, self.node.clock.store_now_ms(), self.settings.grace)
    }

    /// Sends the unsent counts of these claims and releases all claims: complete ones end, the others lapse at once or when
    /// the output may be tried again. Without claims it probes the output. Returns the end of the pause of the output.
    async fn send(&mut self, claims: &[Claim]) -> Option<Instant> {
        let turn = match self.breaker.advice(Instant::now()) {
            Advice::Write => None,
            Advice::Wait(wait) => return self.release(claims, wait).await,
            Advice::Probe => match self.probing.try_acquire().await {
                Ok(Some(turn)) => Some(turn),
                // Where Redis has no room, counts that are sent make some.
                Err(coordination::Error::Full(_)) => None,
                // Another node probes: when it finds the output well, this one will, too.
                Ok(None) => return self.release(claims, self.settings.interval).await,
                Err(error) => {
                    tracing::debug!(%error, "cannot ask for the turn to probe; trying again");
                    return self.release(claims, self.settings.interval).await;
                }
            },
        };
        // The future is large and lives as long as the task.
        let sent = Box::pin(self.send_all(claims)).await;
        if let Some(turn) = turn
            && let Err(error) = turn.release().await
        {
            tracing::debug!(%error, "cannot end the turn to probe; it ends by itself");
        }
        let delay = match self.breaker.advice(Instant::now()) {
            Advice::Wait(wait) if sent.is_err() => wait,
            _ => Duration::ZERO,
        };
        self.release(claims, delay).await
    }

    /// Lets the claims lapse that are still held, after a delay in which the output is left alone.
    async fn release(&self, claims: &[Claim], delay: Duration) -> Option<Instant> {
        self.outbox.held.let_lapse(&*self.store, claims, delay).await;
        (!delay.is_zero()).then(|| Instant::now() + delay)
    }

    async fn send_all(&mut self, claims: &[Claim]) -> Result<(), WriteError> {
        let now = Minute::of_nanos(self.node.clock.now_nanos());
        let target = CountsTarget {
            store: Arc::clone(&self.store) as Arc<dyn Store>,
            output: Arc::clone(&self.output),
            metrics: self.metrics.clone(),
            newest: claims.iter().map(|claim| claim.minute).fold(now, Minute::max),
        };
        let mut delivery = Delivery::new(&target, self.last.take());
        let turn = TURN_MAX.min(self.settings.lease / 3);
        let mut result = if claims.is_empty() {
            delivery.prove().await.map_err(accepts_nothing)
        } else {
            self.write_all(&mut delivery, claims, turn).await
        };
        if result.is_ok() && !claims.is_empty() {
            // From 0 to 1.
            let shift = 2.0 * self.node.rng.jitter() - 1.0;
            let searched = delivery.search(Instant::now() + turn, shift).await;
            result = searched.map_err(accepts_nothing);
        }
        self.note_health(&delivery);
        self.last = delivery.last.take();
        self.quarantine(claims, delivery.refused()).await;
        self.acknowledge_all(claims, &delivery.written).await;
        self.finish(claims, &delivery).await;
        if let Err(error) = &result {
            self.write_failed(error);
        }
        result
    }

    /// Writes everything once. Old and lapsed minutes go last, and only for the time of their turn. They are written apart:
    /// old suspects would make suspects of new counts in the same batch, and recent counts wait for no old ones.
    async fn write_all(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        claims: &[Claim],
        turn: Duration,
    ) -> Result<(), WriteError> {
        let began = Instant::now();
        let kind = |claim: &Claim| (self.is_recent(claim), claim.taken_over);
        let groups = claims.chunk_by(|a, b| kind(a) == kind(b));
        let groups: Vec<_> = groups.map(|group| (kind(&group[0]), group.len())).collect();
        let mut from = 0;
        for (kind, length) in groups {
            let until = (kind != (true, false)).then_some(began + turn);
            self.write_group(delivery, claims, from..from + length, until).await?;
            from += length;
        }
        Ok(())
    }

    /// Writes the counts of some of the claims until an instant. All of these claims are announced before the first
    /// write, and many of their counts are read before that: these can be written even if the store forgets them.
    async fn write_group(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        claims: &[Claim],
        places: Range<usize>,
        until: Option<Instant>,
    ) -> Result<(), WriteError> {
        let group = &claims[places.clone()];
        let mut pending = Counts::default();
        let mut is_announced = false;
        for index in places.clone() {
            let claim = &claims[index];
            if !self.outbox.held.has(claim) {
                continue;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                // They lapse before the claims of this round, and so come first in the next.
                self.release(&claims[index..places.end], Duration::ZERO).await;
                break;
            }
            match self.read(claim).await {
                Ok(counts) if counts.is_empty() => self.acknowledge(claim, &[]).await,
                Ok(counts) => pending.push(index, counts),
                Err(error) => self.claim_failed(claim, &error),
            }
            if !is_announced && pending.len() >= READ_FIRST_MAX {
                is_announced = true;
                self.announce(claims, group, &mut pending).await;
            }
            while is_announced && pending.len() >= self.write_counts_max {
                self.write(delivery, claims, &mut pending).await?;
            }
        }
        if !is_announced && pending.len() > 0 {
            self.announce(claims, group, &mut pending).await;
        }
        while pending.len() > 0 {
            self.write(delivery, claims, &mut pending).await?;
        }
        Ok(())
    }

    /// Reads all unsent counts of a claim. An acknowledgement between two pages would move them.
    async fn read(&self, claim: &Claim) -> Result<Vec<SealedCounts>, StoreError> {
        let mut counts = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.store.unsent(claim, at).await?;
            counts.extend(page.items.into_iter().map(|unsent| SealedCounts {
                minute: claim.minute,
                series: unsent.series,
                unique: unsent.unique,
                cumulative: unsent.cumulative,
            }));
            cursor = page.next;
        }
        // Similar series share a batch; a page may repeat a series.
        counts.sort_unstable_by(|a, b| a.series.cmp(&b.series));
        counts.dedup_by(|a, b| a.series == b.series);
        Ok(counts)
    }

    /// Writes the first pending counts, at most a batch.
    async fn write(
        &mut self,
        delivery: &mut Delivery<'_, CountsTarget>,
        claims: &[Claim],
        pending: &mut Counts,
    ) -> Result<(), WriteError> {
        let later = pending.split_off(self.write_counts_max.min(pending.len()));
        let batch = std::mem::replace(pending, later).sorted();
        if let Some(accepted) = delivery.write(batch).await? {
            self.note_health(delivery);
            self.acknowledge_all(claims, &accepted).await;
        }
        Ok(())
    }

    /// Announces a group of claims and returns when every node that is alive knows it. Drops the pending counts of claims
    /// that are lost: they must not be written.
    ///
    /// A node that is killed after a write, before its acknowledgement, takes the only knowledge of it along unless
    /// others have it. So no write starts before they do, and they hand it back to a store that forgets it. A node that is dead or
    /// hangs delays a write only as long as it counts as alive, which it says whenever it checks in.
    async fn announce(&self, claims: &[Claim], group: &[Claim], pending: &mut Counts) {
        let held = &self.outbox.held;
        let calls = by_partition(group.iter().filter(|claim| held.has(claim))).into_iter();
        join_all(calls.map(|(partition, claims)| self.announce_in(partition, claims))).await;
        self.states.save().await;
        pending.retain(|index| held.has(&claims[index]));
    }

    async fn announce_in(&self, partition: Partition, mut claims: Vec<&Claim>) {
        let interval = self.settings.interval;
        let pause = (interval / 10).max(PAUSE_MIN);
        // The store's clock ends the wait for a node that is gone. If that clock stops, this does.
        let mut waits_left = 2 * looked_within(interval).as_millis() / pause.as_millis();
        // When the store last had everything that this node knows; `None`: it was never told of these claims.
        let mut known_at: Option<Instant> = None;
        while !claims.is_empty() {
            let asked = Instant::now();
            let known = self.states.of(partition).witness.known(asked);
            let answer = self.store.announce(&known, &claims).await;
            // No node claims from a store for this long after a rollback. If this node has attested again by then, no node
            // has counted the minutes again, and the counts in memory stay the only ones.
            let is_in_time = known_at.is_some_and(|at| at.elapsed() < SETTLE_MIN);
            let error = match answer {
                Ok(states) if known_at.is_none() || is_in_time => {
                    known_at = Some(asked);
                    let is_heard = !states.contains(&Announced::Unheard);
                    let mut left = Vec::new();
                    for (claim, state) in claims.into_iter().zip(states) {
                        if state == Announced::ClaimLost {
                            self.claim_failed(claim, &StoreError::ClaimLost);
                        } else {
                            self.states.of(partition).witness.publishes(claim.minute);
                            left.push(claim);
                        }
                    }
                    claims = left;
                    if is_heard || waits_left == 0 {
                        return;
                    }
                    waits_left -= 1;
                    None
                }
                Err(_) if is_in_time => None,
                Ok(_) => Some(StoreError::Forgot),
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                return claims.iter().for_each(|claim| self.claim_failed(claim, &error));
            }
            sleep(pause).await;
        }
    }

    async fn acknowledge_all(&self, claims: &[Claim], written: &Counts) {
        let mut by_claim: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (&index, counts) in written.claims.iter().zip(&written.counts) {
            by_claim.entry(index).or_default().push(&counts.series);
        }
        for (index, series) in by_claim {
            self.metrics.points_sent.inc_by(2 * series.len() as u64);
            if self.outbox.held.has(&claims[index]) {
                self.acknowledge(&claims[index], &series).await;
            }
        }
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str]) {
        match self.store.acknowledge(claim, series, self.settings.lease).await {
            Ok(false) => {}
            Ok(true) => {
                self.outbox.held.remove(claim);
                let now_ms = self.node.clock.now_nanos() / 1_000_000;
                let delay_ms = now_ms - claim.minute.end_millis();
                #[expect(clippy::cast_precision_loss, reason = "a delay in ms is far below 2^52")]
                self.metrics.publish_delay_seconds.observe(delay_ms as f64 / 1000.0);
            }
            Err(error) => self.claim_failed(claim, &error),
        }
    }

    /// Moves refused counts from the unsent counts to the quarantine, and logs them together.
    async fn quarantine(&self, claims: &[Claim], refused: &[Refusal<Counts>]) {
        let mut by_claim: BTreeMap<usize, Vec<(&SealedCounts, &str)>> = BTreeMap::new();
        for Refusal { item, message } in refused {
            by_claim.entry(item.claims[0]).or_default().push((&item.counts[0], message));
        }
        let (mut kept, mut discarded) = (Tally::default(), Tally::default());
        for (index, refused) in by_claim {
            let claim = &claims[index];
            for refused in refused.chunks(QUARANTINE_STEP) {
                if !self.outbox.held.has(claim) {
                    break;
                }
                let series = refused.iter().map(|(counts, message)| (&*counts.series, *message));
                let series: Vec<_> = series.collect();
                match self.store.quarantine(claim, &series).await {
                    Ok(fates) => {
                        for (&(counts, message), is_kept) in refused.iter().zip(fates) {
                            let tally = if is_kept { &mut kept } else { &mut discarded };
                            tally.add(counts, message);
                            if !is_kept {
                                let (cause, events) = (LossCause::Discarded, counts.cumulative);
                                self.node.losses.add(cause, counts.minute, events);
                            }
                        }
                    }
                    Err(error) => self.claim_failed(claim, &error),
                }
            }
        }
        self.metrics.points_quarantined.inc_by(2 * kept.counts);
        self.metrics.points_discarded.inc_by(2 * discarded.counts);
        for (cause, tally) in [(Cause::Quarantine, kept), (Cause::Discarded, discarded)] {
            if let Some((first, last)) = tally.minutes {
                let found = Diagnosis::new(cause, tally.examples.join("; "));
                let found = found.at(format_args!("output {}", self.name));
                let found = found.named(self.name.as_str());
                tracing::error!(counts = tally.counts, %first, %last, "{found}");
            }
        }
    }

    /// Ends the claims whose last counts were refused. Lets those at whose counts the output fails lapse after a lease.
    async fn finish(&self, claims: &[Claim], delivery: &Delivery<'_, CountsTarget>) {
        let places = |refusals: &[Refusal<Counts>]| -> BTreeSet<usize> {
            refusals.iter().map(|refusal| refusal.item.claims[0]).collect()
        };
        for index in places(delivery.refused()) {
            if self.outbox.held.has(&claims[index]) {
                self.acknowledge(&claims[index], &[]).await;
            }
        }
        let Some(first) = delivery.failing.first().filter(|_| delivery.has_accepted) else {
            return;
        };
        tracing::warn!(
            name = %self.name,
            output = self.output.describe(),
            counts = delivery.failing.len(),
            minute = %first.item.counts[0].minute.shown(),
            series = first.item.counts[0].series,
            message = first.message,
            "the output fails at these counts alone; they stay unsent and are tried again, all others are written"
        );
        if delivery.is_complete() {
            let failing = places(&delivery.failing).into_iter();
            let failing: Vec<Claim> = failing.map(|index| claims[index].clone()).collect();
            self.outbox.held.let_lapse(&*self.store, &failing, self.settings.lease).await;
        }
    }

    fn claim_failed(&self, claim: &Claim, error: &StoreError) {
        log_claim_error(&self.totals, claim, error);
        self.outbox.held.remove(claim);
    }

    fn note_health(&mut self, delivery: &Delivery<'_, CountsTarget>) {
        if !delivery.has_accepted {
            return;
        }
        self.set_trouble(None);
        if self.breaker.succeeded() {
            tracing::info!(
                name = %self.name,
                output = self.output.describe(),
                "the output takes points again"
            );
        }
    }

    fn set_trouble(&self, trouble: Option<Diagnosis>) {
        self.metrics.output_up.set(trouble.is_none().into());
        let mut down = lock(&self.node.outputs_down);
        match trouble {
            Some(trouble) => down.insert(self.name.to_string(), trouble),
            None => down.remove(self.name.as_str()),
        };
    }

    fn write_failed(&mut self, error: &WriteError) {
        self.metrics.write_failures.inc();
        let found = error.found().clone().at(format_args!("output {}", self.name));
        self.set_trouble(Some(found.clone()));
        let wanted = match error {
            WriteError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = self.breaker.failed(Instant::now(), wanted, self.node.rng.jitter());
        let output = self.output.describe();
        let failures = self.breaker.failures;
        let pause = humantime::format_duration(Duration::from_millis(
            u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        ));
        if matches!(error, WriteError::Misconfigured(_)) {
            tracing::error!(output, failures, %pause, "{found}");
        } else {
            tracing::warn!(output, failures, %pause, "{found}");
        }
    }
}

/// Logs that a claim is left as it is. It lapses, and any node takes it over.
pub(super) fn log_claim_error(metrics: &Metrics, claim: &Claim, error: &StoreError) {
    let minute = claim.minute;
    let partition = claim.partition.index();
    if matches!(error, StoreError::ClaimLost) {
        metrics.claims_lost.inc();
        tracing::warn!(minute = %minute.shown(), partition, "another node took the claim over: the lease had run out");
    } else {
        tracing::warn!(minute = %minute.shown(), partition, %error, "cannot work on a claim; it is taken up again");
    }
}

/// Refused counts of a round, for the log.
#[derive(Debug, Default)]
struct Tally {
    counts: u64,
    /// The first and the last minute.
    minutes: Option<(Minute, Minute)>,
    examples: Vec<String>,
}

impl Tally {
    fn add(&mut self, counts: &SealedCounts, message: &str) {
        self.counts += 1;
        let minute = counts.minute;
        let (first, last) = self.minutes.unwrap_or((minute, minute));
        self.minutes = Some((first.min(minute), last.max(minute)));
        if self.examples.len() < EXAMPLES_MAX {
            let (series, unique, cumulative) = (&counts.series, counts.unique, counts.cumulative);
            let minute = minute.shown();
            self.examples.push(format!("{minute} {series} {unique}:{cumulative} ({message})"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_log_tells_of_all_counts_and_shows_a_few() {
        let mut tally = Tally::default();
        for number in [5, 4, 3, 6] {
            let counts = SealedCounts {
                minute: Minute::from_epoch_minutes(number).unwrap(),
                series: format!("a={number}"),
                unique: 1,
                cumulative: 2,
            };
            tally.add(&counts, "no");
        }
        assert_eq!(tally.counts, 4);
        let minutes = [3, 6].map(|number| Minute::from_epoch_minutes(number).unwrap());
        assert_eq!(tally.minutes, Some((minutes[0], minutes[1])));
        let examples = ["19700101:0005 a=5 1:2 (no)", "19700101:0004 a=4 1:2 (no)"];
        assert_eq!(tally.examples[..2], examples);
        assert_eq!(tally.examples.len(), EXAMPLES_MAX);
    }
}
