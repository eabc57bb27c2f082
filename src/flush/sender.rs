//! [`Sender`]: the task that sends to one output, and when it does so.
//!
//! It owns the claims that the worker put into its outbox, and renews them; it waits for the store and for its output, each
//! with its own time limits, and for no other output. It stops after `stop` is cancelled, at the end of the step it is in or a
//! little later, and lets go of its claims when nothing more comes into the outbox.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::FlushSettings;
use super::breaker::{Advice, Breaker};
use super::delivery::Delivery;
use super::outbox::Outbox;
use super::standing::Agreed;
use super::watch::Watches;
use crate::diagnosis::Diagnosis;
use crate::node::{Heartbeat, Node};
use crate::output::{Output, WriteError};
use crate::store::{Claim, Draining, OutputName, is_recent};
use crate::telemetry::{Metrics, OutputMetrics};
use coordination::{ArbiterError, Mutex};

/// How long a round may go on after the stop.
pub(super) const STEP_MAX: Duration = Duration::from_secs(2);

/// The task that sends to one output.
#[derive(Debug)]
pub(super) struct Sender {
    pub(super) store: Arc<dyn Draining>,
    pub(super) name: OutputName,
    pub(super) output: Agreed,
    pub(super) write_counts_max: usize,
    /// Held by the one node that probes the output when it is down.
    pub(super) probing: Mutex,
    pub(super) outbox: Arc<Outbox>,
    pub(super) watches: Arc<Watches>,
    /// Of all outputs.
    pub(super) totals: Arc<Metrics>,
    pub(super) metrics: OutputMetrics,
    pub(super) settings: FlushSettings,
    pub(super) node: Arc<Node>,
    pub(super) breaker: Breaker,
    pub(super) stop: CancellationToken,
    /// Cancelled when nothing more comes into the outbox.
    pub(super) finished: CancellationToken,
}

impl Sender {
    /// Sends until it is stopped.
    pub(super) async fn run(mut self, heartbeat: Heartbeat) {
        let (store, outbox) = (Arc::clone(&self.store), Arc::clone(&self.outbox));
        let (lease, stop, finished) =
            (self.settings.lease, self.stop.clone(), self.finished.clone());
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(STEP_MAX).await;
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
            // What it was about to write is written again, by whoever takes the claims up.
            () = overdue => {}
        }
        finished.cancelled().await;
        outbox.held.let_all_go(&*store).await;
    }

    /// Waits for something to send, and sends it.
    async fn round(&mut self) {
        let claims = tokio::select! {
            biased;
            claims = self.outbox.next(|claim| self.is_recent(claim)) => claims,
            () = self.stop.cancelled() => return,
        };
        // At the start, so that a wrong token is found before the first minute is over; and when another node has sent what
        // this one could not.
        let away_until = if claims.is_empty() && self.breaker.is_known_well() {
            None
        } else {
            self.send(&claims).await
        };
        self.outbox.sent(away_until);
    }

    pub(super) fn is_recent(&self, claim: &Claim) -> bool {
        let now_ms = self.node.clock.store_now_ms();
        is_recent(claim.minute, now_ms, self.settings.grace)
    }

    /// Sends what is unsent of these claims, and lets go of all of them: those with nothing left are done,
    /// the others lapse, at once or when the output may be tried again. Without claims it looks whether an output that
    /// failed, or that nothing was written to, takes points. Answers until when the output is to be left alone.
    async fn send(&mut self, claims: &[Claim]) -> Option<Instant> {
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
            Err(wait) => return self.leave(claims, wait).await,
        };
        // Large, and held for as long as the task lives.
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
        self.leave(claims, delay).await
    }

    /// Lets those of these claims lapse that are left, after a while in which the output is to be left alone.
    async fn leave(&self, claims: &[Claim], delay: Duration) -> Option<Instant> {
        let held = &self.outbox.held;
        held.let_lapse(&*self.store, claims, delay).await;
        (!delay.is_zero()).then(|| Instant::now() + delay)
    }

    pub(super) fn note_health(&mut self, delivery: &Delivery<'_>) {
        if !delivery.has_accepted {
            return;
        }
        self.set_down(None);
        if self.breaker.succeeded() {
            tracing::info!(
                name = %self.name,
                output = self.output.describe(),
                "the output takes points again"
            );
        }
    }

    fn set_down(&self, trouble: Option<Diagnosis>) {
        self.metrics.output_up.set(trouble.is_none().into());
        let name = self.name.as_str();
        self.node.outputs_down.set(name, trouble);
    }

    pub(super) fn write_failed(&mut self, error: &WriteError) {
        self.metrics.write_failures.inc();
        let found = error.found().clone().at(format_args!("output {}", self.name));
        self.set_down(Some(found.clone()));
        let asked = match error {
            WriteError::Unavailable { retry_after, .. } => *retry_after,
            _ => None,
        };
        let pause = self.breaker.failed(Instant::now(), asked, self.node.rng.jitter());
        let output = self.output.describe();
        let failures = self.breaker.failures();
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
