//! One round of sending: from counts to points. It reads what is unsent, announces it, writes it in large pieces, and acknowledges.
//!
//! It writes all that it has once, recent minutes before old ones and those that are claimed for the first time before those that
//! lapsed, and acknowledges what the output accepts. Only then it searches what was not accepted ([`Delivery`]), for a limited time:
//! the next minutes must not wait. What it has not come to lapses with its claim, and is taken up again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::delivery::{Delivery, Refusal};
use super::sender::Sender;
use super::suspects::Body;
use crate::event::Minute;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{Claim, StoreError};
use crate::telemetry::Metrics;

/// How long a round searches at most, and how long it writes what is old or lapsed: a third of the lease, and no more than this.
const TURN_MAX: Duration = Duration::from_secs(4);
/// The counts that are in memory before any of them is announced.
const READ_FIRST_MAX: usize = 20_000;

impl Sender {
    pub(super) async fn send_all(&mut self, claims: &[Claim]) -> Result<(), WriteError> {
        let now = Minute::of_nanos(self.node.clock.now_nanos());
        let last = self.breaker.accepted.take();
        let output = self.output.clone();
        let metrics = self.metrics.clone();
        let mut delivery = Delivery::new(&output, &metrics, last, now);
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

    /// Writes everything once. What is old or lapsed goes last, and only as long as its turn lasts. It stands apart:
    /// old suspects would make suspects of the new counts beside them, and recent counts wait for no old ones.
    async fn write_all(
        &mut self,
        delivery: &mut Delivery<'_>,
        claims: &[Claim],
        turn: Duration,
    ) -> Result<(), WriteError> {
        let began = Instant::now();
        let kind = |claim: &Claim| (self.is_recent(claim), claim.taken_over);
        let groups = claims.chunk_by(|a, b| kind(a) == kind(b));
        let groups: Vec<_> = groups.map(|it| (kind(&it[0]), it.len())).collect();
        let mut from = 0;
        for (kind, length) in groups {
            let until = (kind != (true, false)).then_some(began + turn);
            let places = from..from + length;
            self.write_some(delivery, claims, places, until).await?;
            from += length;
        }
        Ok(())
    }

    /// Writes the counts of some of the claims, as far as it comes until an instant. All of these claims are announced before the first
    /// write, and many of their counts are read by then: they can be written whatever the store forgets from then on.
    async fn write_some(
        &mut self,
        delivery: &mut Delivery<'_>,
        claims: &[Claim],
        places: Range<usize>,
        until: Option<Instant>,
    ) -> Result<(), WriteError> {
        let some = &claims[places.clone()];
        let (first, most) = (places.start, self.write_counts_max);
        let mut pending = Body::default();
        let mut is_announced = false;
        for (index, claim) in places.zip(some) {
            if !self.outbox.held.has(claim) {
                continue;
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                // Sooner than those that were tried in this round, so that these come first in the next.
                let (held, rest) = (&self.outbox.held, &some[index - first..]);
                held.let_lapse(&*self.store, rest, Duration::ZERO).await;
                break;
            }
            match self.read(claim).await {
                Ok(counts) if counts.is_empty() => self.acknowledge(claim, &[]).await,
                Ok(counts) => pending.push(index, counts),
                Err(error) => self.failed(claim, &error),
            }
            if !is_announced && pending.len() >= READ_FIRST_MAX {
                is_announced = true;
                self.announce(some).await;
                pending.retain(|index| self.outbox.held.has(&claims[index]));
            }
            while is_announced && pending.len() >= most {
                self.write(delivery, claims, &mut pending).await?;
            }
        }
        if !is_announced && pending.len() > 0 {
            self.announce(some).await;
            pending.retain(|index| self.outbox.held.has(&claims[index]));
        }
        while pending.len() > 0 {
            self.write(delivery, claims, &mut pending).await?;
        }
        Ok(())
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

    /// Writes the first of what is pending, as much as a body holds.
    async fn write(
        &mut self,
        delivery: &mut Delivery<'_>,
        claims: &[Claim],
        pending: &mut Body,
    ) -> Result<(), WriteError> {
        let rest = pending.split_off(self.write_counts_max.min(pending.len()));
        let body = std::mem::replace(pending, rest);
        if let Some(accepted) = delivery.write(body).await? {
            self.note_health(delivery);
            self.acknowledge_all(claims, &accepted).await;
        }
        Ok(())
    }

    /// Ends the claims of which counts were refused and nothing is left, and lets those rest at whose counts the
    /// output fails.
    async fn finish(&self, claims: &[Claim], delivery: &Delivery<'_>) {
        let of = |refusals: &[Refusal]| -> BTreeSet<usize> {
            let places = refusals.iter().flat_map(|refusal| &refusal.body.claims);
            places.copied().collect()
        };
        for index in of(delivery.refused()) {
            if self.outbox.held.has(&claims[index]) {
                self.acknowledge(&claims[index], &[]).await;
            }
        }
        let Some(first) = delivery.failing.first() else {
            return;
        };
        tracing::warn!(
            name = %self.name,
            output = self.output.describe(),
            counts = delivery.failing.len(),
            minute = %first.body.counts[0].minute.shown(),
            series = first.body.counts[0].series,
            message = first.message,
            "the output fails at these counts alone; they stay unsent and are tried again, all others are written"
        );
        if delivery.is_complete() {
            let failing = of(&delivery.failing).into_iter();
            let failing: Vec<Claim> = failing.map(|index| claims[index].clone()).collect();
            self.outbox.held.let_lapse(&*self.store, &failing, self.settings.lease).await;
        }
    }

    async fn acknowledge_all(&self, claims: &[Claim], body: &Body) {
        let mut by_claim: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (&index, counts) in body.claims.iter().zip(&body.counts) {
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
                self.outbox.held.let_go(claim);
                let now_ms = self.node.clock.now_nanos() / 1_000_000;
                let delay_ms = now_ms - claim.minute.end_millis();
                #[expect(clippy::cast_precision_loss, reason = "a delay in ms is far below 2^52")]
                self.metrics.publish_delay_seconds.observe(delay_ms as f64 / 1000.0);
            }
            Err(error) => self.failed(claim, &error),
        }
    }

    pub(super) fn failed(&self, claim: &Claim, error: &StoreError) {
        log_claim_error(&self.totals, claim, error);
        self.outbox.held.let_go(claim);
    }
}

/// Logs that a claim is left as it is. It lapses, and is taken up again.
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
