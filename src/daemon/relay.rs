//! [`Relay`]: the parts of a running relay.
//!
//! [`Relay::start`] resolves the names of the nodes before it reads. The parts stop in the order of the data: first
//! the readers, which send their open datagrams; then the passthrough writer, once its queue is empty or the time is
//! up.

use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use chrono::Utc;
use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::parts::Parts;
use super::relay_view::RelayView;
use super::run::Running;
use super::{UNREAD_MAX, build};
use crate::config::RelayConfig;
use crate::diagnosis::{Cause, Diagnosis};
use crate::http::{Readiness, RelayVitals, Vitals};
use crate::ingest::{Inherited, Opened, Sockets};
use crate::node::{Clock, Progress};
use crate::output::influxdb::LineWriter;
use crate::relay::{
    Forwarder, Ledger, LedgerTotals, Metrics, Outlet, Passthrough, PassthroughSettings, Queue,
    READ_MAX, READ_TIMEOUT, Reader, Sorter, Stamps, Writer, follow_name,
};
use crate::status::{History, LossReporter};
use crate::store::redis::Register;
use crate::telemetry::{Format, gauge, per_second};

/// The time limit for the readers to read the data that the kernel holds, and to send it.
const READ_OUT_MAX: Duration = Duration::from_secs(3);

/// The parts of a running relay.
#[derive(Debug)]
pub(super) struct Relay {
    pub(super) parts: Parts,
    view: Arc<RelayView>,
}

impl Relay {
    /// Starts all parts. Must be called inside a tokio runtime.
    pub(super) async fn start(
        config: &RelayConfig,
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Self> {
        let input = &config.input;
        let sockets = Sockets {
            listen: &input.listen,
            receive_buffer: input.receive_buffer,
            socket_mode: input.socket_mode,
            read_timeout: READ_TIMEOUT,
            threads: input.threads,
            datagram_max: READ_MAX,
            unit: "eds-relay",
        };
        let opened = sockets.open(inherited)?;
        let parts = Parts { addresses: opened.addresses.clone(), ..Parts::default() };
        let outlet = |to: &String| Arc::new(Outlet::new(to, &parts.addresses));
        let rest_outlet = match &config.passthrough {
            PassthroughSettings::Udp(to) => Some(outlet(to)),
            PassthroughSettings::Nowhere | PassthroughSettings::Http(_) => None,
        };
        let nodes = config.relay.to.iter().map(outlet).collect();
        let view = Arc::new(view(config, &parts, nodes, rest_outlet)?);
        let mut relay = Self { parts, view };
        let passthrough = relay.start_passthrough(&config.passthrough)?;
        let connections = config.http.listen.map_or(0, |_| build::left_for_http_of_relay(config));
        let server =
            relay.parts.bind_http(config.http.listen, &config.http.hosts, connections).await?;
        if let Some(server) = server {
            relay.parts.side.spawn(server.serve_relay(Arc::clone(&relay.view)));
        }
        relay.parts.side.spawn(Arc::clone(&relay.view).run(relay.parts.stop_side.clone()));
        relay.follow_names().await?;
        relay.start_readers(config, opened, &passthrough);
        Ok(relay)
    }

    /// Starts the task that writes passthrough lines to a server, if there is one.
    fn start_passthrough(&mut self, settings: &PassthroughSettings) -> anyhow::Result<Passthrough> {
        let PassthroughSettings::Http(http) = settings else {
            let outlet = self.view.rest_outlet.clone();
            return Ok(outlet.map_or(Passthrough::Nowhere, Passthrough::Udp));
        };
        let queue = Arc::new(Queue::new(http.queue_bytes));
        let server = LineWriter::new(&http.server, &http.precision);
        let writer = Writer::new(
            Arc::clone(&queue),
            server.context("rest.url or rest.ca_file")?,
            Arc::clone(&self.view.ledger),
            self.view.metrics.passthrough_up.clone(),
            self.view.progress.watch("the writer of the rest"),
            self.parts.intake_ended.clone(),
        );
        self.parts.outlet.spawn(writer.run());
        Ok(Passthrough::Server(queue))
    }

    /// Resolves all names, and fails if one leads back to this relay. The wait is short, because the kernel's buffer is small.
    async fn follow_names(&mut self) -> anyhow::Result<()> {
        let (nodes, rest) = (&self.view.nodes, &self.view.rest_outlet);
        let all: Vec<_> = nodes.iter().chain(rest).cloned().collect();
        let (first, mut known) = mpsc::channel(1);
        for outlet in all.clone() {
            let first = first.clone();
            self.parts.spawn_side(follow_name(outlet, move || drop(first)));
        }
        drop::<mpsc::Sender<()>>(first);
        // The channel closes when the last task has dropped its sender.
        if tokio::time::timeout(UNREAD_MAX, known.recv()).await.is_err() {
            tracing::warn!(
                "not all names of relay.to and rest.url could be looked up yet; going on with the others"
            );
        }
        let keys = nodes.iter().map(|_| "relay.to").chain(["rest.url"]);
        for (key, outlet) in keys.zip(&all) {
            if let Some(address) = outlet.leads_back() {
                anyhow::bail!(
                    "{key} names {}, which is {address}, where this relay itself listens: whatever it sends there would come back. Name \
                     the nodes, or a relay nearer to them",
                    outlet.name()
                );
            }
        }
        Ok(())
    }

    fn start_readers(&mut self, config: &RelayConfig, opened: Opened, passthrough: &Passthrough) {
        let metrics = &self.view.metrics;
        metrics.receive_buffer_bytes.set(gauge(opened.buffer_bytes));
        metrics.kernel_drops_inherited.set(gauge(opened.drops_before));
        let number = match config.relay.number {
            0 => rand::random(),
            number => number,
        };
        let stamps = Arc::new(Stamps::new(number, config.rules.precision));
        let clock = Arc::new(Clock::default());
        for (index, receiver) in opened.receivers.into_iter().enumerate() {
            let forwarder = Forwarder::new(
                Sorter::new(&config.rules, config.relay.events.clone()),
                config.relay.datagram_max,
                Arc::clone(&stamps),
                self.view.nodes.clone(),
                passthrough.clone(),
                Arc::clone(&self.view.ledger),
            );
            let reader = Reader {
                receiver,
                forwarder,
                linger: config.relay.linger,
                clock: Arc::clone(&clock),
                metrics: Arc::clone(metrics),
                heartbeat: self.view.progress.watch(format!("reader {index}")),
                stop: self.parts.stop.clone(),
            };
            self.parts.intake.spawn_blocking(move || reader.run());
        }
    }
}

fn view(
    config: &RelayConfig,
    parts: &Parts,
    nodes: Vec<Arc<Outlet>>,
    rest_outlet: Option<Arc<Outlet>>,
) -> anyhow::Result<RelayView> {
    let ledger = Arc::new(Ledger::new(nodes.len()));
    let register = config.store.as_ref().map(|(redis, prefix)| {
        let register = Register::of_relay(redis.clone(), prefix, &config.name);
        let register = Arc::new(register.context(build::STORE_KEYS)?);
        let losses = LossReporter::new(register.clone(), Arc::default(), None);
        anyhow::Ok((register, losses))
    });
    Ok(RelayView {
        name: config.name.clone(),
        listen: parts.addresses.iter().map(ToString::to_string).collect(),
        rest: match &config.passthrough {
            PassthroughSettings::Nowhere => "none:".to_owned(),
            PassthroughSettings::Udp(to) => format!("udp://{to}"),
            PassthroughSettings::Http(http) => http.server.url.to_string(),
        },
        metrics: Arc::new(Metrics::new(Arc::clone(&ledger), nodes.clone())),
        nodes,
        rest_outlet,
        ledger,
        progress: Progress::default(),
        history: Mutex::new(History::new(Utc::now())),
        name_taken: AtomicBool::new(false),
        register: register.transpose()?,
        draining: parts.stop.clone(),
    })
}

impl Running for Relay {
    fn progress(&self) -> Progress {
        self.view.progress.clone()
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        status_line(Arc::clone(&self.view.ledger), self.view.nodes.clone())
    }

    fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> u64 {
        let deadline = Instant::now() + within;
        self.parts.stop.cancel();
        let read_out = Instant::now() + READ_OUT_MAX;
        if !self.parts.end_intake(read_out, at_once, READ_OUT_MAX).await {
            tracing::error!("a reader does not end; leaving it");
        }
        self.parts.end(deadline, at_once).await;
        let totals = self.view.ledger.totals().at_end();
        self.view.end(&totals).await;
        log_totals(&totals, &self.view.nodes);
        totals.lost()
    }
}

fn status_line(
    ledger: Arc<Ledger>,
    nodes: Vec<Arc<Outlet>>,
) -> impl FnMut(Duration) -> String + Send {
    let mut before = ledger.totals();
    move |elapsed| {
        let now = ledger.totals();
        let mut line = format!(
            "{}/s received, {}/s of them events; {} of the rest queued",
            per_second(now.received, before.received, elapsed),
            per_second(now.events, before.events, elapsed),
            now.passthrough.queued,
        );
        for (node, place) in nodes.iter().zip(&now.nodes) {
            if place.lost() > 0 {
                let _ = write!(line, ", {} dropped for {}", place.lost(), node.name());
            }
        }
        if now.passthrough.lost() > 0 {
            let _ = write!(line, ", {} of the rest dropped", now.passthrough.lost());
        }
        let down = nodes.iter().filter(|node| !node.is_up());
        let down: Vec<_> = down.map(|node| node.name()).collect();
        if !down.is_empty() {
            let _ = write!(line, "; down: {}", down.join(", "));
        }
        before = now;
        line
    }
}

/// Writes the last line of the log.
fn log_totals(totals: &LedgerTotals, nodes: &[Arc<Outlet>]) {
    let dropped: Vec<_> = nodes
        .iter()
        .zip(&totals.nodes)
        .filter(|(_, place)| place.lost() > 0)
        .map(|(node, place)| format!("{} of {}", place.lost(), node.name()))
        .collect();
    let (received, events) = (totals.received, totals.events);
    let (rest, rest_dropped) = (totals.passthrough.sent, totals.passthrough.lost());
    let rejected: u64 = totals.rejected.iter().sum();
    let dropped = dropped.join(", ");
    let nowhere = totals.nowhere;
    if totals.lost() == 0 {
        tracing::info!(received, events, rest, rejected, dropped, "stopped");
    } else {
        tracing::warn!(
            received,
            events,
            rest,
            rejected,
            dropped,
            nowhere,
            rest_dropped,
            "stopped, and lines are lost: those nowhere are events that no node was sent, and rest_dropped what rest.url \
             did not take"
        );
    }
}

impl RelayVitals for RelayView {
    fn page(&self) -> String {
        self.page()
    }
}

#[async_trait]
impl Vitals for RelayView {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    async fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::default();
        let down: Vec<_> = self.nodes.iter().filter(|node| !node.is_up()).collect();
        let trouble = if down.len() == self.nodes.len() {
            &mut readiness.reasons
        } else {
            &mut readiness.warnings
        };
        trouble.extend(down.iter().map(|node| {
            let why = format!("{}: no address, refuses, or unreachable", node.name());
            Diagnosis::new(Cause::RelayNodeDown, why).to_string()
        }));
        if self.draining.is_cancelled() {
            readiness.reasons.push("the relay is shutting down".to_owned());
        }
        if self.metrics.sockets_failing() > 0 {
            readiness.reasons.push(Cause::SocketFails.to_string());
        }
        readiness
    }

    fn metrics(&self, format: Format) -> Result<String, std::fmt::Error> {
        self.metrics.encode(format)
    }

    fn connections(&self) -> Gauge {
        self.metrics.http_connections.clone()
    }
}
