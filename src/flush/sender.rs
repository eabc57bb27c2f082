//! From counts to points: reads what is unsent, writes it in large pieces, and acknowledges.

use std::time::Duration;

use tokio::time::Instant;

use super::FlushSettings;
use super::breaker::{Advice, Breaker};
use super::held::Held;
use super::watch::Watches;
use crate::output::{Output, SealedCounts, WriteError};
use crate::store::{Claim, Store, StoreError};
use crate::surroundings::Surroundings;
use crate::telemetry::Metrics;

/// What sending works with.
pub(super) struct Sender<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) output: &'a dyn Output,
    pub(super) held: &'a Held,
    pub(super) watches: &'a Watches,
    pub(super) metrics: &'a Metrics,
    pub(super) settings: &'a FlushSettings,
    pub(super) surroundings: &'a Surroundings,
    pub(super) breaker: &'a mut Breaker,
}

/// Counts on their way out, with the place of their claim.
#[derive(Default)]
struct Pending {
    claims: Vec<usize>,
    counts: Vec<SealedCounts>,
}

/// Sending cannot go on in this round.
struct Stopped;

impl Sender<'_> {
    /// Sends what is unsent of these claims, and lets go of all of them: those with nothing left are done,
    /// the others lapse, at once or when the output may be tried again.
    pub(super) async fn send(&mut self, claims: &[Claim]) {
        let advice = self.breaker.advice(Instant::now());
        let probing = advice == Advice::Probe;
        let wait = match advice {
            Advice::Wait(wait) => Some(wait),
            // Another node probes: when it finds the output well, this one will, too.
            Advice::Probe if !self.may_probe().await => Some(self.settings.interval),
            Advice::Probe | Advice::Write => None,
        };
        if let Some(wait) = wait {
            self.held.let_all_go(self.store, wait).await;
            return;
        }
        let stopped = self.send_all(claims).await.is_err();
        if probing && let Err(error) = self.store.end_probe().await {
            tracing::debug!(%error, "cannot end the turn to probe; it ends by itself");
        }
        let delay = match self.breaker.advice(Instant::now()) {
            Advice::Wait(wait) if stopped => wait,
            _ => Duration::ZERO,
        };
        self.held.let_all_go(self.store, delay).await;
    }

    async fn may_probe(&self) -> bool {
        self.store
            .try_probe(self.settings.lease)
            .await
            .unwrap_or(false)
    }

    async fn send_all(&mut self, claims: &[Claim]) -> Result<(), Stopped> {
        let mut pending = Pending::default();
        for (index, claim) in claims.iter().enumerate() {
            if !self.held.has(claim) {
                continue;
            }
            match self.read(claim).await {
                Ok(counts) if counts.is_empty() => self.acknowledge(claim, &[]).await,
                Ok(counts) => {
                    pending
                        .claims
                        .extend(std::iter::repeat_n(index, counts.len()));
                    pending.counts.extend(counts);
                }
                Err(error) => self.failed(claim, &error),
            }
            while pending.counts.len() >= self.settings.write_counts_max {
                let rest = pending.split_off(self.settings.write_counts_max);
                let full = std::mem::replace(&mut pending, rest);
                self.write(claims, &full).await?;
            }
        }
        if pending.counts.is_empty() {
            Ok(())
        } else {
            self.write(claims, &pending).await
        }
    }

    /// All unsent counts of a claim, before any of them is acknowledged, which would move the pages.
    async fn read(&self, claim: &Claim) -> Result<Vec<SealedCounts>, StoreError> {
        let mut counts = Vec::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.store.unsent(claim, at).await?;
            counts.extend(page.counts.into_iter().map(|unsent| SealedCounts {
                minute: claim.minute,
                series: unsent.series,
                unique: unsent.unique,
                cumulative: unsent.cumulative,
            }));
            cursor = page.next;
        }
        Ok(counts)
    }

    async fn write(&mut self, claims: &[Claim], pending: &Pending) -> Result<(), Stopped> {
        let minutes = pending.claims.iter().map(|&index| &claims[index]);
        let minutes = minutes.map(|claim| (claim.partition, claim.minute));
        self.watches.publishes(minutes).await;
        let began = Instant::now();
        let result = self.output.write(&pending.counts).await;
        self.metrics
            .write_seconds
            .observe(began.elapsed().as_secs_f64());
        let written = match result {
            Ok(written) => written,
            Err(error) => {
                self.write_failed(&error);
                return Err(Stopped);
            }
        };
        self.metrics.output_up.set(1);
        if self.breaker.succeeded() {
            tracing::info!(
                output = self.output.describe(),
                "the output takes points again"
            );
        }
        let mut confirmed = vec![true; pending.counts.len()];
        for refused in &written.refused {
            if let Some(confirmed) = confirmed.get_mut(refused.index) {
                *confirmed = false;
            }
        }
        for (index, claim) in claims.iter().enumerate() {
            let of_claim = || (0..pending.counts.len()).filter(|&at| pending.claims[at] == index);
            if of_claim().next().is_none() || !self.held.has(claim) {
                continue;
            }
            for refused in &written.refused {
                if pending.claims.get(refused.index) == Some(&index) {
                    self.set_aside(claim, &pending.counts[refused.index], &refused.words)
                        .await;
                }
            }
            let series: Vec<&str> = of_claim()
                .filter(|&at| confirmed[at])
                .map(|at| pending.counts[at].series.as_str())
                .collect();
            self.metrics.points_sent.inc_by(2 * series.len() as u64);
            self.acknowledge(claim, &series).await;
        }
        Ok(())
    }

    fn write_failed(&mut self, error: &WriteError) {
        self.metrics.write_failures.inc();
        self.metrics.output_up.set(0);
        let asked = match error {
            WriteError::Unavailable { retry_after, .. } => *retry_after,
            WriteError::Misconfigured { .. } => None,
        };
        let pause = self
            .breaker
            .failed(Instant::now(), asked, self.surroundings.jitter());
        let output = self.output.describe();
        let failures = self.breaker.failures();
        let pause = humantime::format_duration(Duration::from_millis(
            u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        ));
        match error {
            WriteError::Misconfigured { .. } => tracing::error!(
                output, %error, failures, %pause,
                "the output refuses this node's configuration; counts are kept and sent when it is mended"
            ),
            WriteError::Unavailable { .. } => tracing::warn!(
                output, %error, failures, %pause,
                "cannot write to the output; counts are kept and sent again"
            ),
        }
    }

    async fn set_aside(&self, claim: &Claim, counts: &SealedCounts, words: &str) {
        let SealedCounts {
            minute,
            series,
            unique,
            cumulative,
        } = counts;
        match self.store.set_aside(claim, series, words).await {
            Ok(true) => {
                self.metrics.points_set_aside.inc_by(2);
                tracing::error!(
                    %minute, series, unique, cumulative, words,
                    "the output refuses these counts; set aside"
                );
            }
            Ok(false) => {
                self.metrics.points_discarded.inc_by(2);
                tracing::error!(
                    %minute, series, unique, cumulative, words,
                    "the output refuses these counts, and there is no room to set them aside: they are in this \
                     line only"
                );
            }
            Err(error) => self.failed(claim, &error),
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
                let now_ms = self.surroundings.now_nanos() / 1_000_000;
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

    fn failed(&self, claim: &Claim, error: &StoreError) {
        log_claim_error(self.metrics, claim, error);
        self.held.let_go(claim);
    }
}

impl Pending {
    fn split_off(&mut self, at: usize) -> Self {
        Self {
            claims: self.claims.split_off(at),
            counts: self.counts.split_off(at),
        }
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
