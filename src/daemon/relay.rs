//! [`Relay`]: the parts of a relay, running.
//!
//! Nothing is read before [`Relay::start`] has asked where the nodes are. They stop in the order of the data: first the
//! readers, which send what waits; then the writer of the rest, when it has written what they left, or time is up.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use chrono::Utc;
use prometheus_client::metrics::gauge::Gauge;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::relay_view::RelayView;
use super::service::{SIDE_MAX, all_end, next_failure, until};
use super::{PartFailed, Running, UNREAD_MAX, build};
use crate::config::RelayConfig;
use crate::diagnosis::{Cause, Diagnosis};
use crate::http::{self, Readiness, RelayVitals, Vitals};
use crate::ingest::{BindSettings, Inherited, ListenAddress, Opened, Sockets, Table, explained};
use crate::node::{Clock, Progress};
use crate::output::influxdb::LineWriter;
use crate::relay::{
    Forwarder, Ledger, LedgerTotals, Metrics, Outlet, Passthrough, PassthroughSettings, Queue,
    READ_MAX, READ_TIMEOUT, Reader, RelaySettings, Sorter, Stamps, Writer, follow_name,
};
use crate::status::{History, LossReporter};
use crate::store::redis::RelayRegister;
use crate::telemetry::{Format, per_second};

/// How long the readers may take to read what the kernel holds, and to send it.
const READ_OUT_MAX: Duration = Duration::from_secs(3);

/// See the module.
#[derive(Debug)]
pub(super) struct Relay {
    /// Where it receives, with the ports that the system chose.
    pub(super) addresses: Vec<ListenAddress>,
    /// Where it answers by HTTP.
    pub(super) http: Option<SocketAddr>,
    view: Arc<RelayView>,
    readers: JoinSet<()>,
    writer: JoinSet<()>,
    /// The HTTP server, and those who follow the names.
    side: JoinSet<()>,
    stop: CancellationToken,
    read_out: CancellationToken,
    stop_side: CancellationToken,
}

impl Relay {
    /// Takes the inherited sockets, binds the others, and begins to read. Must be called inside a tokio runtime.
    pub(super) async fn start(
        config: &RelayConfig,
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Self> {
        let settings = &config.settings;
        let sockets = Sockets {
            listen: &settings.listen,
            how: BindSettings {
                receive_buffer: settings.receive_buffer,
                socket_mode: settings.socket_mode,
                read_timeout: READ_TIMEOUT,
            },
            threads: settings.threads,
            datagram_max: READ_MAX,
            unit: "eds-relay",
        };
        let opened = sockets.open(inherited)?;
        let addresses = opened.addresses.clone();
        let outlet = |to: &String| Arc::new(Outlet::new(to, &addresses));
        let rest_outlet = match &settings.passthrough {
            PassthroughSettings::Udp(to) => Some(outlet(to)),
            PassthroughSettings::Nowhere | PassthroughSettings::Http(_) => None,
        };
        let nodes = settings.to.iter().map(outlet).collect();
        let view = Arc::new(view(config, &addresses, nodes, rest_outlet)?);
        let mut relay = Self {
            addresses,
            http: None,
            view,
            readers: JoinSet::new(),
            writer: JoinSet::new(),
            side: JoinSet::new(),
            stop: CancellationToken::new(),
            read_out: CancellationToken::new(),
            stop_side: CancellationToken::new(),
        };
        let passthrough = relay.start_passthrough(&settings.passthrough)?;
        relay.start_http(config).await?;
        let view = Arc::clone(&relay.view);
        relay.side.spawn(view.run(relay.stop_side.clone()));
        relay.follow_names().await?;
        relay.start_readers(settings, opened, &passthrough);
        Ok(relay)
    }

    /// The way of the rest, and the task that writes it to a server.
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
            self.read_out.clone(),
        );
        self.writer.spawn(writer.run());
        Ok(Passthrough::Server(queue))
    }

    async fn start_http(&mut self, config: &RelayConfig) -> anyhow::Result<()> {
        let settings = &config.settings;
        let Some(address) = settings.http else {
            return Ok(());
        };
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|error| explained(error, Table::Tcp, address));
        let listener =
            listener.with_context(|| format!("cannot listen on {address} (http.listen)"))?;
        self.http = Some(listener.local_addr()?);
        let health =
            Arc::new(RelayHealth { draining: self.stop.clone(), view: Arc::clone(&self.view) });
        let server = http::Server {
            listener,
            connections: build::left_for_http_of_relay(config),
            hosts: settings.http_hosts.clone(),
            stop: self.stop_side.clone(),
        };
        self.side.spawn(server.serve_relay(health));
        Ok(())
    }

    /// Looks all names up, and fails if one leads back to this relay. Does not wait for long: the kernel's room for what
    /// arrives meanwhile is small.
    async fn follow_names(&mut self) -> anyhow::Result<()> {
        let (nodes, rest) = (&self.view.nodes, &self.view.rest_outlet);
        let all: Vec<_> = nodes.iter().chain(rest).cloned().collect();
        let (first, mut known) = mpsc::channel(1);
        for outlet in all.clone() {
            let (first, stop) = (first.clone(), self.stop_side.clone());
            let following = follow_name(outlet, move || drop(first));
            self.side.spawn(async move {
                stop.run_until_cancelled(following).await;
            });
        }
        drop::<mpsc::Sender<()>>(first);
        // It ends when the last of them has dropped its sender.
        let all_known = known.recv();
        if tokio::time::timeout(UNREAD_MAX, all_known).await.is_err() {
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

    fn start_readers(
        &mut self,
        settings: &RelaySettings,
        opened: Opened,
        passthrough: &Passthrough,
    ) {
        let gauge = |value| i64::try_from(value).unwrap_or(i64::MAX);
        let metrics = &self.view.metrics;
        metrics.receive_buffer_bytes.set(gauge(opened.buffer_bytes));
        (metrics.kernel_drops_inherited).set(gauge(opened.drops_before));
        let number = settings.number.unwrap_or_else(rand::random);
        let stamps = Arc::new(Stamps::new(number, settings.rules.precision));
        let clock = Arc::new(Clock::default());
        for (index, receiver) in opened.receivers.into_iter().enumerate() {
            let forwarder = Forwarder::new(
                Sorter::new(&settings.rules, settings.events.clone()),
                settings.datagram_max,
                Arc::clone(&stamps),
                self.view.nodes.clone(),
                passthrough.clone(),
                Arc::clone(&self.view.ledger),
            );
            let reader = Reader {
                receiver: receiver.with_sources(),
                forwarder,
                linger: settings.linger,
                clock: Arc::clone(&clock),
                metrics: Arc::clone(metrics),
                heartbeat: self.view.progress.watch(format!("reader {index}")),
                stop: self.stop.clone(),
            };
            self.readers.spawn_blocking(move || reader.run());
        }
    }
}

/// The report of a relay to these nodes. Connects nowhere.
fn view(
    config: &RelayConfig,
    addresses: &[ListenAddress],
    nodes: Vec<Arc<Outlet>>,
    rest_outlet: Option<Arc<Outlet>>,
) -> anyhow::Result<RelayView> {
    let ledger = Arc::new(Ledger::new(nodes.len()));
    let register = config.store.as_ref().map(|store| {
        let register = RelayRegister::new(store.redis.clone(), &store.prefix, &config.name);
        let register =
            register.context("store.url, store.ca_file, store.cert_file or store.key_file");
        register.map(|register| {
            let register = Arc::new(register);
            let losses = LossReporter::new(register.clone(), Arc::default(), None);
            (register, losses)
        })
    });
    Ok(RelayView {
        name: config.name.clone(),
        listen: addresses.iter().map(ToString::to_string).collect(),
        rest: match &config.settings.passthrough {
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
    })
}

impl Running for Relay {
    fn progress(&self) -> Progress {
        self.view.progress.clone()
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        status_line(Arc::clone(&self.view.ledger), self.view.nodes.clone())
    }

    async fn failed(&mut self) -> PartFailed {
        next_failure([&mut self.readers, &mut self.writer]).await
    }

    async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> u64 {
        let deadline = Instant::now() + within;
        self.stop.cancel();
        let read_out = Instant::now() + READ_OUT_MAX;
        if !all_end(&mut self.readers, until(read_out, at_once, READ_OUT_MAX)).await {
            tracing::error!("a reader does not end; leaving it");
        }
        self.read_out.cancel();
        all_end(&mut self.writer, until(deadline, at_once, Duration::ZERO)).await;
        self.writer.abort_all();
        self.stop_side.cancel();
        let side_max = Instant::now() + SIDE_MAX;
        all_end(&mut self.side, until(side_max, at_once, Duration::ZERO)).await;
        let totals = self.view.ledger.totals().at_end();
        self.view.end(&totals).await;
        log_totals(&totals, &self.view.nodes);
        totals.lost()
    }
}

/// How a relay to these nodes is, in one line. It is asked again and again, with the time that has passed since.
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

/// The last line of the log: what became of every line.
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

/// What health and metrics of a relay are answered from.
#[derive(Debug)]
struct RelayHealth {
    draining: CancellationToken,
    view: Arc<RelayView>,
}

impl RelayVitals for RelayHealth {
    fn page(&self) -> String {
        self.view.page()
    }
}

#[async_trait]
impl Vitals for RelayHealth {
    fn progress(&self) -> &Progress {
        &self.view.progress
    }

    async fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::default();
        let nodes = &self.view.nodes;
        let down: Vec<_> = nodes.iter().filter(|node| !node.is_up()).collect();
        let trouble = if down.len() == nodes.len() {
            &mut readiness.reasons
        } else {
            &mut readiness.warnings
        };
        trouble.extend(down.iter().map(|node| {
            let why = "it has no address, refuses them, or cannot be reached";
            let found = Diagnosis::new(Cause::RelayNodeDown, why);
            found.what(format!("events for {} may get lost", node.name())).to_string()
        }));
        if self.draining.is_cancelled() {
            readiness.reasons.push("the relay is shutting down".to_owned());
        }
        if self.view.metrics.sockets_failing() > 0 {
            readiness.reasons.push(Cause::SocketFails.to_string());
        }
        readiness
    }

    fn metrics(&self, format: Format) -> Result<String, std::fmt::Error> {
        self.view.metrics.encode(format)
    }

    fn connections(&self) -> Gauge {
        self.view.metrics.http_connections.clone()
    }
}
