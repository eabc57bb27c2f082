//! [`Exporter`]: the task that sends a process's metrics and spans to an OpenTelemetry collector. Those that
//! cannot be sent immediately are dropped, because counts must never wait for them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use futures_util::future::join_all;
use prost::Message;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use crate::config::Telemetry;
use crate::diagnosis::Cause;
use crate::node::{Node, Throttle};
use crate::output::OtlpClient;
use crate::telemetry::Process;

const LOG_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum time for the requests at the end of the process.
const LAST_EXPORT_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Exporter {
    metrics: OtlpClient,
    traces: OtlpClient,
    interval: Duration,
    process: Process,
}

impl Exporter {
    pub(super) fn new(
        settings: &Telemetry,
        service: &'static str,
        name: String,
    ) -> anyhow::Result<Self> {
        let client =
            |settings| OtlpClient::new(settings).context("telemetry.otlp_url or telemetry.ca_file");
        Ok(Self {
            metrics: client(&settings.metrics)?,
            traces: client(&settings.traces)?,
            interval: settings.interval,
            process: Process { service, name, started_nanos: now_nanos() },
        })
    }

    /// Exports until stopped, and once more then. `text` returns the metrics in the classic format of Prometheus.
    pub(super) async fn run(
        self,
        node: Option<Arc<Node>>,
        text: impl Fn() -> Option<String>,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut log_due = Throttle::new(LOG_INTERVAL);
        loop {
            let is_end = stop.run_until_cancelled(ticks.tick()).await.is_none();
            let metrics = text().map(|text| self.process.metrics(&text, now_nanos()));
            let (spans, dropped) = node.as_ref().map_or_else(Default::default, |node| {
                node.spans.take(node.clock.now_nanos(), is_end)
            });
            let traces = (!spans.is_empty()).then(|| self.process.traces(spans));
            let requests = [
                (&self.metrics, metrics.map(|request| request.encode_to_vec())),
                (&self.traces, traces.map(|request| request.encode_to_vec())),
            ];
            let limit = if is_end { LAST_EXPORT_MAX } else { Duration::MAX };
            let send = async |(client, request): (&OtlpClient, Option<Vec<u8>>)| {
                let error = timeout(limit, client.post(request?)).await.ok()?.err()?;
                Some((client.describe().to_owned(), error))
            };
            for (to, error) in join_all(requests.map(send)).await.into_iter().flatten() {
                if log_due.is_due() {
                    let (what, remedy) = (Cause::Collector.what(), Cause::Collector.remedy());
                    tracing::warn!(
                        to,
                        reason = error.found().why,
                        "the collector {what}; {remedy}"
                    );
                }
            }
            if dropped > 0 && log_due.is_due() {
                tracing::warn!(dropped, "dropped spans; lower telemetry.interval");
            }
            if is_end {
                return;
            }
        }
    }
}

fn now_nanos() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
