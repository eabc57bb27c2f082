//! [`Exporter`]: the task that sends a process's metrics and spans to an OpenTelemetry collector. Those that
//! cannot be sent immediately are dropped, because counts must never wait for them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use futures_util::future::join;
use prometheus_client::metrics::counter::Counter;
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

    /// Exports until stopped, and then once more. `node` has the spans, and the counter of those that are dropped. `text`
    /// returns the metrics in the classic format of Prometheus.
    pub(super) async fn run(
        self,
        node: Option<(Arc<Node>, Counter)>,
        text: impl Fn() -> Option<String>,
        stop: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut log_due = Throttle::new(LOG_INTERVAL);
        loop {
            let is_end = stop.run_until_cancelled(ticks.tick()).await.is_none();
            let metrics = text().map(|text| self.process.metrics(&text, now_nanos()));
            let (spans, dropped) = node.as_ref().map_or_else(Default::default, |(node, _)| {
                node.spans.take(node.clock.now_nanos(), is_end)
            });
            let taken = spans.len() as u64;
            let traces = (!spans.is_empty()).then(|| self.process.traces(spans));
            let limit = if is_end { LAST_EXPORT_MAX } else { Duration::MAX };
            let send = async |client: &OtlpClient, request: Option<Vec<u8>>| {
                let error = timeout(limit, client.post(request?)).await.ok()?.err()?;
                Some((client.describe().to_owned(), error))
            };
            let (failed_metrics, failed_traces) = join(
                send(&self.metrics, metrics.map(|request| request.encode_to_vec())),
                send(&self.traces, traces.map(|request| request.encode_to_vec())),
            )
            .await;
            let spans_dropped = node.as_ref().map(|(_, counter)| {
                counter.inc_by(dropped + failed_traces.as_ref().map_or(0, |_| taken));
                counter.get()
            });
            for (to, error) in failed_metrics.into_iter().chain(failed_traces) {
                if log_due.is_due() {
                    let (what, remedy) = (Cause::Collector.what(), Cause::Collector.remedy());
                    tracing::warn!(
                        to,
                        reason = error.found().why,
                        spans_dropped,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Minute;
    use crate::output::server::{Api, Settings};

    #[tokio::test]
    async fn spans_beyond_the_limit_or_without_a_collector_are_counted() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let settings = Settings {
            url: format!("http://{free}").parse().unwrap(),
            api: Api::Otlp { login: None, tenant: None },
            timeout: Duration::from_secs(5),
            ca: None,
            gzip: false,
        };
        let (metrics, traces) = (settings.clone(), settings);
        let telemetry = Telemetry { metrics, traces, interval: Duration::from_secs(1) };
        let exporter = Exporter::new(&telemetry, "eds", "one".to_owned()).unwrap();
        let (node, counter) = (Arc::new(Node::default()), Counter::default());
        node.spans.enable(1);
        for _ in 0..10_003 {
            node.spans.add_step("seal", Minute::MIN, [0, 1], Vec::new, None);
        }
        let (spans, stop) = (Some((node, counter.clone())), CancellationToken::new());
        stop.cancel();
        exporter.run(spans, || None, stop).await;
        assert_eq!(counter.get(), 10_003);
    }
}
