//! From counts to points: reads what is unsent, writes it in large pieces, and acknowledges.
//!
//! A round writes all that it has once, the minutes that are claimed for the first time before those that lapsed, and
//! acknowledges what the output accepts. Only then it searches what was not accepted ([`Delivery`]), for a limited time:
//! the next minutes must not wait. What it has not come to lapses with its claim, and is taken up again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;

use super::FlushSettings;
use super::breaker::{Advice, Breaker};
use super::delivery::{Delivery, Refusal};
use super::held::Held;
use super::suspects::Body;
use super::watch::Watches;
use crate::event::Minute;
use crate::node::Node;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{Claim, Draining, StoreError};
use crate::telemetry::Metrics;
use coordination::{ArbiterError, Mutex};

/// How long a round searches at most, and how long it writes what lapsed: a third of the lease, and no more than this.
const TURN_MAX: Duration = Duration::from_secs(4);

/// What sending works with.
pub(super) struct Sender<'a> {
    pub(super) store: &'a dyn Draining,
    pub(super) output: &'a dyn Output,
    pub(super) probing: &'a Mutex,
    pub(super) held: &'a Held,
    pub(super) watches: &'a Watches,
    pub(super) metrics: &'a Metrics,
    pub(super) settings: &'a FlushSettings,
    pub(super) node: &'a Node,
    pub(super) breaker: &'a mut Breaker,
}

impl Sender<'_> {
    /// Sends what is unsent of these claims, and lets go of all of them: those with nothing left are done,
    /// the others lapse, at once or when the output may be tried again. Without claims it looks whether an output that
    /// failed takes points again.
    pub(super) async fn send(&mut self, claims: &[Claim]) {
        let advice = self.breaker.advice(Instant::now());
        let turn = match advice {
            Advice::Write => Ok(None),
            Advice::Wait(wait) => Err(wait),
            Advice::Probe => match self.probing.try_acquire().await {
                Ok(Some(turn)) => Ok(Some(turn)),
                // Where nothing has room but what drains, counts that are sent make some.
                Err(ArbiterError::Full(_)) => Ok(None),
                // Another node probes: when it finds the output well, this one will, too.
                Ok(None) => Err(self.settings.interval),
                Err(error) => {
                    tracing::debug!(%error, "cannot ask for the turn to probe; trying again");
                    Err(self.settings.interval)
                }
            },
        };
        let turn = match turn {
            Ok(turn) => turn,
            Err(wait) => {
                self.held.let_all_go(self.store, wait).await;
                return;
            }
        };
        // Large, and held for as long as the worker lives.
        let stopped = Box::pin(self.send_all(claims)).await;
        if let Some(turn) = turn
            && let Err(error) = turn.release().await
        {
            tracing::debug!(%error, "cannot end the turn to probe; it ends by itself");
        }
        let delay = match self.breaker.advice(Instant::now()) {
            Advice::Wait(wait) if stopped.is_err() => wait,
            _ => Duration::ZERO,
        };
        self.held.let_all_go(self.store, delay).await;
    }

    async fn send_all(&mut self, claims: &[Claim]) -> Result<(), WriteError> {
        let now = Minute::of_nanos(self.node.clock.now_nanos());
        let last = self.breaker.accepted.take();
        let mut delivery = Delivery::new(self.output, self.metrics, last, now);
        let turn = TURN_MAX.min(self.settings.lease / 3);
        let mut result = self.write_all(&mut delivery, claims, turn).await;
        if claims.is_empty() {
            result = delivery.probe().await;
        } else if result.is_ok() {
            let until = Instant::now() + turn;
            // From 0 to 1.
            let shift = 2.0 * self.node.rng.jitter() - 1.0;
            result = delivery.search(until, shift).await;
        }
        self.note_health(&delivery);
        self.breaker.accepted = delivery.last.take();
        self.quarantine(claims, delivery.refused()).await;
        self.acknowledge_all(claims, &delivery.written).await;
        self.finish(claims, &delivery).await;
        if let Err(error) = &result {
            self.write_failed(error);
        }
        result
    }

    /// Writes everything once. What lapsed goes last, and only as long as its turn lasts.
    async fn write_all(
        &mut self,
        delivery: &mut Delivery<'_>,
        claims: &[Claim],
        turn: Duration,
    ) -> Result<(), WriteError> {
        let began = Instant::now();
        let mut pending = Body::default();
        let mut is_lapsed = false;
        for (index, claim) in claims.iter().enumerate() {
            if !self.held.has(claim) {
                continue;
            }
            if claim.taken_over && !is_lapsed {
                is_lapsed = true;
                // Old suspects would make suspects of the new counts beside them.
                self.write(delivery, claims, std::mem::take(&mut pending))
                    .await?;
            }
            if is_lapsed && began.elapsed() >= turn {
                // Sooner than those that were tried in this round, so that these come first in the next.
                self.held
                    .let_lapse(self.store, &claims[index..], Duration::ZERO)
                    .await;
                break;
            }
            match self.read(claim).await {
                Ok(counts) if counts.is_empty() => self.acknowledge(claim, &[]).await,
                Ok(counts) => pending.push(index, counts),
                Err(error) => self.failed(claim, &error),
            }
            while pending.len() >= self.settings.write_counts_max {
                let rest = pending.split_off(self.settings.write_counts_max);
                let full = std::mem::replace(&mut pending, rest);
                self.write(delivery, claims, full).await?;
            }
        }
        self.write(delivery, claims, pending).await
    }

    /// All unsent counts of a claim, before any of them is acknowledged, which would move the pages.
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
        // Kin beside each other, so that they share a body; a series may be there twice.
        counts.sort_unstable_by(|a, b| a.series.cmp(&b.series));
        counts.dedup_by(|a, b| a.series == b.series);
        Ok(counts)
    }

    async fn write(
        &mut self,
        delivery: &mut Delivery<'_>,
        claims: &[Claim],
        body: Body,
    ) -> Result<(), WriteError> {
        if body.len() == 0 {
            return Ok(());
        }
        let minutes = body.claims.iter().map(|&index| &claims[index]);
        let minutes = minutes.map(|claim| (claim.partition, claim.minute));
        self.watches.publishes(minutes).await;
        if let Some(accepted) = delivery.write(body).await? {
            self.note_health(delivery);
            self.acknowledge_all(claims, &accepted).await;
        }
        Ok(())
    }

    fn note_health(&mut self, delivery: &Delivery<'_>) {
        if !delivery.has_accepted {
            return;
        }
        self.node.output_down.store(false, Ordering::Relaxed);
        if self.breaker.succeeded() {
            tracing::info!(
                output = self.output.describe(),
                "the output takes points again"
            );
        }
    }

    fn write_failed(&mut self, error: &WriteError) {
        self.metrics.write_failures.inc();
        self.node.output_down.store(true, Ordering::Relaxed);
        let asked = match error {
            WriteError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = self
            .breaker
            .failed(Instant::now(), asked, self.node.rng.jitter());
        let output = self.output.describe();
        let failures = self.breaker.failures();
        let pause = humantime::format_duration(Duration::from_millis(
            u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        ));
        if matches!(error, WriteError::Misconfigured { .. }) {
            tracing::error!(
                output, %error, failures, %pause,
                "the output refuses this node's configuration; counts are kept and sent when that is fixed"
            );
        } else {
            tracing::warn!(
                output, %error, failures, %pause,
                "cannot write to the output; counts are kept and sent again"
            );
        }
    }

    /// Ends the claims of which counts were refused and nothing is left, and lets those rest at whose counts the
    /// output fails.
    async fn finish(&self, claims: &[Claim], delivery: &Delivery<'_>) {
        let of = |refusals: &[Refusal]| -> BTreeSet<usize> {
            let places = refusals.iter().flat_map(|refusal| &refusal.body.claims);
            places.copied().collect()
        };
        for index in of(delivery.refused()) {
            if self.held.has(&claims[index]) {
                self.acknowledge(&claims[index], &[]).await;
            }
        }
        let Some(first) = delivery.failing.first() else {
            return;
        };
        tracing::warn!(
            output = self.output.describe(),
            counts = delivery.failing.len(),
            minute = %first.body.counts[0].minute,
            series = first.body.counts[0].series,
            message = first.message,
            "the output fails at these counts alone; they stay unsent and are tried again, all others are written"
        );
        if delivery.is_complete() {
            let failing = of(&delivery.failing).into_iter();
            let failing: Vec<Claim> = failing.map(|index| claims[index].clone()).collect();
            self.held
                .let_lapse(self.store, &failing, self.settings.lease)
                .await;
        }
    }

    async fn acknowledge_all(&self, claims: &[Claim], body: &Body) {
        let mut by_claim: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (&index, counts) in body.claims.iter().zip(&body.counts) {
            by_claim.entry(index).or_default().push(&counts.series);
        }
        for (index, series) in by_claim {
            self.metrics.points_sent.inc_by(2 * series.len() as u64);
            if self.held.has(&claims[index]) {
                self.acknowledge(&claims[index], &series).await;
            }
        }
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str]) {
        match self
            .store
            .acknowledge(claim, series, self.settings.lease)
            .await
        {
            Ok(false) => {}
            Ok(true) => {
                self.held.let_go(claim);
                let now_ms = self.node.clock.now_nanos() / 1_000_000;
                let delay_ms = now_ms - claim.minute.end_millis();
                #[expect(
                    clippy::cast_precision_loss,
                    reason = "a delay in ms is far below 2^52"
                )]
                self.metrics
                    .publish_delay_seconds
                    .observe(delay_ms as f64 / 1000.0);
            }
            Err(error) => self.failed(claim, &error),
        }
    }

    pub(super) fn failed(&self, claim: &Claim, error: &StoreError) {
        log_claim_error(self.metrics, claim, error);
        self.held.let_go(claim);
    }
}

/// Tells that a claim is left as it is. It lapses, and is taken up again.
pub(super) fn log_claim_error(metrics: &Metrics, claim: &Claim, error: &StoreError) {
    let minute = claim.minute;
    let partition = claim.partition.index();
    if matches!(error, StoreError::ClaimLost) {
        metrics.claims_lost.inc();
        tracing::warn!(%minute, partition, "another node took the claim over: the lease had run out");
    } else {
        tracing::warn!(%minute, partition, %error, "cannot work on a claim; it is taken up again");
    }
}
