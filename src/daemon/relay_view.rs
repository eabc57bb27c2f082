//! [`RelayView`]: makes the report of a relay, for its page and for the Redis of the nodes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{SecondsFormat, Utc};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::diagnosis::Cause;
use crate::node::{Example, Throttle};
use crate::relay::{Destination, Ledger, Routes};
use crate::status::{
    History, LossReporter, ProcessReport, REPORT_INTERVAL, REPORTED_WITHIN, RelayDetails,
    RelayReport, RelayTotals, STALLED_AFTER, TargetReport, UnsentReport, relay_page,
};
use crate::store::Registry as _;
use crate::store::redis::Register;

/// The time between two log lines about a failed report or a name that is taken.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// The report of a relay.
#[derive(Debug)]
pub(super) struct RelayView {
    pub(super) name: String,
    pub(super) listen: Vec<String>,
    /// `rest.url` without secrets.
    pub(super) rest: String,
    pub(super) routes: Arc<Routes>,
    pub(super) registry: Registry,
    pub(super) http_connections: Gauge,
    pub(super) history: Mutex<History<RelayTotals>>,
    pub(super) name_taken: AtomicBool,
    /// Where it reports itself and its losses, if the configuration names a Redis.
    pub(super) register: Option<(Arc<Register>, LossReporter)>,
    /// Cancelled when the relay drains.
    pub(super) draining: CancellationToken,
}

impl RelayView {
    /// Reports every two seconds until it is stopped. Without a register it logs losses only.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        let [mut fails, mut taken] = [(); 2].map(|()| Throttle::new(LOG_INTERVAL));
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let report = self.report();
            self.history().add(report.details.totals);
            self.record_losses(&report.details.totals).await;
            let Some((register, _)) = &self.register else {
                continue;
            };
            let error = match timeout(REPORTED_WITHIN, register.report(&report.to_json())).await {
                Ok(Ok(is_taken)) => {
                    self.name_taken.store(is_taken, Ordering::Relaxed);
                    if is_taken && taken.is_due() {
                        tracing::warn!(name = self.name, "{}", Cause::NameTaken);
                    }
                    continue;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_elapsed) => "no answer in time".to_owned(),
            };
            if fails.is_due() {
                tracing::warn!(
                    error,
                    "this relay cannot report to the Redis of store.url. It relays lines as before, but eds status shows it as silent. Check \
                     store.url and the rights of its user"
                );
            }
        }
        if let Some((register, _)) = &self.register {
            // A Redis that does not answer forgets the report after some minutes.
            let _ = timeout(REPORTED_WITHIN, register.withdraw()).await;
        }
    }

    /// Logs the losses if it is time, and adds them to the record of losses.
    async fn record_losses(&self, totals: &RelayTotals) {
        let lost = totals.losses();
        for (cause, total) in lost {
            self.routes.notices.lost(cause, total);
        }
        if let Some((_, losses)) = &self.register {
            let now_nanos = Utc::now().timestamp_nanos_opt().unwrap_or_default();
            losses.count(now_nanos, lost);
            losses.deliver().await;
        }
    }

    /// Records the losses after the last line.
    pub(super) async fn end(&self, counts: &Ledger) {
        self.record_losses(&Self::totals(counts)).await;
    }

    pub(super) fn page(&self) -> String {
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        relay_page(now, self.report())
    }

    fn history(&self) -> MutexGuard<'_, History<RelayTotals>> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn totals(counts: &Ledger) -> RelayTotals {
        RelayTotals {
            received: counts.received(),
            events: counts.events,
            nowhere: counts.nowhere,
            rejected: counts.rejected.iter().sum(),
            looped: counts.looped,
            rest_sent: counts.passthrough.sent,
            rest_discarded: counts.passthrough.discarded(),
            rest_dropped: counts.passthrough.lost(),
            rest_queued: counts.passthrough.queued(),
            kernel_drops: counts.kernel_drops,
        }
    }

    fn report(&self) -> RelayReport {
        let counts = self.routes.totals();
        let totals = Self::totals(&counts);
        let history = self.history();
        let (before, recent_seconds) = history.recent();
        let identity =
            self.register.as_ref().map_or(&*self.name, |(register, _)| register.identity());
        let process = ProcessReport {
            received_per_second: history.rate(&totals, |totals| totals.received),
            recent_seconds,
            sockets_failing: self.routes.listeners_failing.load(Ordering::Relaxed) as u64,
            stalled: self.routes.progress.stalled(STALLED_AFTER),
            name_taken: self.name_taken.load(Ordering::Relaxed),
            ..history.process(identity)
        };
        let target = |to: &str, up: bool, lines: &Destination| TargetReport {
            to: to.to_owned(),
            up,
            is_loop: false,
            sent: lines.sent,
            dropped: lines.lost(),
            queued: lines.queued(),
        };
        let nodes = self.routes.nodes.iter().zip(&counts.nodes);
        let passthrough = &self.routes.passthrough;
        let unsent = |(reason, Example { source, line }): (&str, Example)| UnsentReport {
            reason: reason.to_owned(),
            source: source.map(|source| source.to_string()),
            line,
        };
        let details = RelayDetails {
            listen: self.listen.clone(),
            events_per_second: history.rate(&totals, |totals| totals.events),
            recent: totals.since(&before),
            totals,
            to: nodes.map(|(node, events)| target(node.name(), node.is_up(), events)).collect(),
            rest: TargetReport {
                is_loop: passthrough.outlet().is_some_and(|outlet| outlet.is_loop()),
                ..target(&self.rest, passthrough.is_up(), &counts.passthrough)
            },
            unsent: self.routes.notices.examples().into_iter().map(unsent).collect(),
        };
        RelayReport::new(process, details, Duration::ZERO)
    }
}
