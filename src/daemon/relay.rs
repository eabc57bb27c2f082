//! [`Relay`] consists of the parts of a running relay, and [`RelayView`] reports its state to the page and the nodes' Redis.
//! On shutdown, the parts stop in the direction of data flow: first the readers, then the passthrough writer.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use chrono::{SecondsFormat, Utc};
use futures_util::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use super::exporter::Exporter;
use super::run::{Parts, Running};
use super::{UNREAD_MAX, build};
use crate::config::RelayConfig;
use crate::diagnosis::{Cause, Diagnosis};
use crate::http::{Forward, Readiness, RelayVitals, Vitals};
use crate::ingest::{Inherited, Opened};
use crate::node::{Example, Progress, Throttle, lock};
use crate::output::server::{Writer, http_client};
use crate::relay::{
    Destination, Forwarder, GATHERED_MAX, Ledger, Outlet, Passthrough, PassthroughSettings, Queue,
    READ_MAX, READ_TIMEOUT, Routes, Sorter, Stamps, follow_name, metrics, write_queue,
};
use crate::status::{
    History, LossReporter, ProcessReport, REPORT_INTERVAL, REPORTED_WITHIN, RelayDetails,
    RelayReport, RelayTotals, RequestsReport, STALLED_AFTER, TargetReport, UnsentReport,
    relay_page,
};
use crate::store::Registry as _;
use crate::store::redis::Register;
use crate::telemetry::{Format, WriteMetrics, encode, per_second};

/// The maximum time on shutdown for the readers to read the datagrams buffered by the kernel and send the lines in them.
const READ_OUT_MAX: Duration = Duration::from_secs(3);
const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Relay {
    parts: Parts,
    view: Arc<RelayView>,
}

impl Relay {
    pub(super) async fn start(
        config: &RelayConfig,
        inherited: Vec<Inherited>,
    ) -> anyhow::Result<Self> {
        let mut parts = Parts::default();
        let opened = parts.open(&config.input, inherited, READ_TIMEOUT, READ_MAX, "eds-relay")?;
        let outlet = |to: &String| Arc::new(Outlet::new(to, &parts.addresses));
        let nodes = config.relay.to.iter().map(outlet).collect();
        let passthrough = match &config.passthrough {
            PassthroughSettings::Nowhere => Passthrough::Nowhere,
            PassthroughSettings::Udp(to) => Passthrough::Udp(outlet(to)),
            PassthroughSettings::Http(http) => {
                Passthrough::Server(Arc::new(Queue::new(http.queue_bytes)))
            }
        };
        let number = match config.relay.number {
            0 => rand::random(),
            number => number,
        };
        let stamps = Stamps::new(number, config.rules.precision);
        let routes = Arc::new(Routes::new(nodes, passthrough, stamps));
        parts.progress = routes.progress.clone();
        let view = Arc::new(RelayView::new(config, &parts, &opened, Arc::clone(&routes))?);
        let mut relay = Self { parts, view };
        if let (PassthroughSettings::Http(http), Passthrough::Server(queue)) =
            (&config.passthrough, &routes.passthrough)
        {
            let server = Writer::new(&http.server, &http.precision);
            let server = server.context("passthrough.url or passthrough.ca_file")?;
            let stop = relay.parts.outlet.stop.clone();
            let (queue, routes) = (Arc::clone(queue), Arc::clone(&routes));
            relay.parts.outlet.tasks.spawn(write_queue(queue, server, routes, stop));
        }
        let connections = config.http.listen.map_or(0, |_| build::left_for_http_of_relay(config));
        if let Some(server) = relay.parts.bind_http(&config.http, &config.access, connections)? {
            relay.parts.side.tasks.spawn(server.serve_relay(Arc::clone(&relay.view)));
        }
        if let Some(requests) = &config.requests {
            let connections = build::left_for_http_of_relay(config);
            let writes = &relay.view.writes;
            let server = relay.parts.bind_requests(requests, connections, writes)?;
            let is_plain = config.relay.http_to.iter().all(|node| node.scheme() == "http");
            let client = http_client(requests.timeout, config.ca.as_deref(), is_plain);
            let client = client.context("relay.http_to or relay.ca_file")?;
            let sink = Forward::new(client, config.relay.http_to.clone(), requests.timeout);
            relay.parts.intake.tasks.spawn(server.serve(Arc::new(sink)));
        }
        let stop = relay.parts.side.stop.clone();
        if let Some(telemetry) = &config.telemetry {
            let exporter = Exporter::new(telemetry, "eds-relay", config.name.clone())?;
            let view = Arc::clone(&relay.view);
            let text = move || view.metrics(Format::Classic).ok();
            relay.parts.side.tasks.spawn(exporter.run(None, text, stop.clone()));
        }
        relay.parts.side.tasks.spawn(Arc::clone(&relay.view).run(stop));
        relay.follow_names(&routes).await?;
        relay.start_readers(config, opened, &routes);
        let (file, to) = (config.file.as_deref(), config.relay.to.join(", "));
        relay.parts.log_start(&config.name, file, None, &to, config.warnings());
        Ok(relay)
    }

    /// Resolves the names of all nodes and of the passthrough server, and keeps them up to date. Returns an error if one of
    /// them resolves to an address of this relay. Waits only briefly, because the sockets are not being read yet.
    async fn follow_names(&mut self, routes: &Routes) -> anyhow::Result<()> {
        let outlets: Vec<_> = routes.nodes.iter().chain(routes.passthrough.outlet()).collect();
        let look_ups = join_all(outlets.iter().map(|outlet| outlet.look_up()));
        if timeout(UNREAD_MAX, look_ups).await.is_err() {
            tracing::warn!(
                "some host names in relay.to or passthrough.url have not been resolved yet; starting without them"
            );
        }
        let keys = routes.nodes.iter().map(|_| "relay.to").chain(["passthrough.url"]);
        for (key, outlet) in keys.zip(outlets) {
            if let Some(address) = outlet.leads_back() {
                anyhow::bail!(
                    "{key} contains {}, which resolves to {address}, on which this relay itself listens, so every line would loop \
                     back; list only nodes, or relays that are closer to the nodes",
                    outlet.name()
                );
            }
            self.parts.side.spawn_cancelled(follow_name(Arc::clone(outlet)));
        }
        Ok(())
    }

    fn start_readers(&mut self, config: &RelayConfig, opened: Opened, routes: &Arc<Routes>) {
        for (index, receiver) in opened.receivers.into_iter().enumerate() {
            let sorter = Sorter::new(&config.rules, config.relay.events.clone());
            let forwarder = Forwarder::new(Arc::clone(routes), sorter, config.relay.datagram_max);
            let rest_max = config.relay.linger.min(READ_TIMEOUT);
            let receiver = receiver.resting_at_most(rest_max).gathering_at_most(GATHERED_MAX);
            let heartbeat = routes.progress.watch(format!("reader {index}"));
            let stop = self.parts.intake.stop.clone();
            (self.parts.intake.tasks)
                .spawn_blocking(move || forwarder.run(receiver, &heartbeat, &stop));
        }
    }
}

impl Running for Relay {
    fn parts(&mut self) -> &mut Parts {
        &mut self.parts
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        status_line(Arc::clone(&self.view.routes))
    }

    async fn drain(mut self, within: Duration, at_once: &CancellationToken) -> u64 {
        let deadline = Instant::now() + within;
        let read_out = Instant::now() + READ_OUT_MAX;
        if !self.parts.intake.end(read_out, at_once, READ_OUT_MAX).await {
            tracing::error!("a reader did not stop; abandoning it");
        }
        self.parts.end(deadline, at_once).await;
        let totals = self.view.routes.totals().at_end();
        self.view.record_losses(&RelayView::totals(&totals)).await;
        let dropped = dropped(&self.view.routes, &totals);
        let dropped: Vec<_> = dropped.map(|(lines, node)| format!("{lines} for {node}")).collect();
        let dropped = dropped.join(", ");
        let (received, events, nowhere) = (totals.received(), totals.events, totals.nowhere);
        let (passthrough, passthrough_dropped) =
            (totals.passthrough.sent, totals.passthrough.lost());
        let rejected: u64 = totals.rejected.iter().sum();
        if totals.lost() == 0 {
            tracing::info!(received, events, passthrough, rejected, dropped, "stopped");
        } else {
            tracing::warn!(
                received,
                events,
                passthrough,
                rejected,
                dropped,
                nowhere,
                passthrough_dropped,
                "stopped, but lines were lost: \"nowhere\" counts events that were not sent to any node, and \"passthrough_dropped\" \
                 counts lines that passthrough.url did not accept"
            );
        }
        totals.lost()
    }
}

fn dropped<'a>(routes: &'a Routes, totals: &'a Ledger) -> impl Iterator<Item = (u64, &'a str)> {
    let nodes = routes.nodes.iter().zip(&totals.nodes);
    nodes.filter(|(_, events)| events.lost() > 0).map(|(node, events)| (events.lost(), node.name()))
}

fn status_line(routes: Arc<Routes>) -> impl FnMut(Duration) -> String + Send {
    let mut before = routes.totals();
    move |elapsed| {
        let now = routes.totals();
        let mut line = format!(
            "{}/s received, {}/s events; {} passthrough lines queued",
            per_second(now.received(), before.received(), elapsed),
            per_second(now.events, before.events, elapsed),
            now.passthrough.queued(),
        );
        for (lines, node) in dropped(&routes, &now) {
            let _ = write!(line, ", {lines} dropped for {node}");
        }
        if now.passthrough.lost() > 0 {
            let _ = write!(line, ", {} passthrough lines dropped", now.passthrough.lost());
        }
        let down = routes.nodes.iter().filter(|node| !node.is_up());
        let down: Vec<_> = down.map(|node| node.name()).collect();
        if !down.is_empty() {
            let _ = write!(line, "; down: {}", down.join(", "));
        }
        before = now;
        line
    }
}

#[derive(Debug)]
pub(super) struct RelayView {
    name: String,
    listen: Vec<String>,
    passthrough: String,
    routes: Arc<Routes>,
    registry: Registry,
    http_connections: Gauge,
    writes: WriteMetrics,
    history: Mutex<History<RelayTotals>>,
    name_taken: AtomicBool,
    register: Option<(Arc<Register>, LossReporter)>,
    draining: CancellationToken,
}

impl RelayView {
    fn new(
        config: &RelayConfig,
        parts: &Parts,
        opened: &Opened,
        routes: Arc<Routes>,
    ) -> anyhow::Result<Self> {
        let (http_connections, writes) = (Gauge::default(), WriteMetrics::default());
        let register = config.store.as_ref().map(|(redis, prefix)| {
            let register = Register::new(redis.clone(), prefix, "relays", &config.name);
            let register = Arc::new(register.context(build::STORE_KEYS)?);
            let losses = LossReporter::new(register.clone(), Arc::default(), None);
            anyhow::Ok((register, losses))
        });
        Ok(Self {
            name: config.name.clone(),
            listen: parts.addresses.iter().map(ToString::to_string).collect(),
            passthrough: match &config.passthrough {
                PassthroughSettings::Nowhere => "none:".to_owned(),
                PassthroughSettings::Udp(to) => format!("udp://{to}"),
                PassthroughSettings::Http(http) => http.server.url.to_string(),
            },
            registry: metrics(Arc::clone(&routes), opened, http_connections.clone(), &writes),
            http_connections,
            writes,
            routes,
            history: Mutex::new(History::new(Utc::now())),
            name_taken: AtomicBool::new(false),
            register: register.transpose()?,
            draining: parts.intake.stop.clone(),
        })
    }

    /// Until stopped, logs losses and, with a register, reports the relay's state to Redis; then withdraws the report.
    async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(REPORT_INTERVAL);
        let [mut fails, mut taken] = [(); 2].map(|()| Throttle::new(LOG_INTERVAL));
        while stop.run_until_cancelled(ticks.tick()).await.is_some() {
            let report = self.report();
            let totals = report.details.totals;
            lock(&self.history).add(
                totals,
                totals.received,
                [totals.passthrough_queued, 0, 0, 0, 0],
            );
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
                Err(_elapsed) => "timeout".to_owned(),
            };
            if fails.is_due() {
                tracing::warn!(
                    error,
                    "cannot report the state of this relay to Redis, so eds status shows it as silent; lines are still relayed. \
                     Check store.url and the permissions of the Redis user"
                );
            }
        }
        if let Some((register, _)) = &self.register {
            // If the report cannot be withdrawn, Redis deletes it after a few minutes.
            let _ = timeout(REPORTED_WITHIN, register.withdraw()).await;
        }
    }

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

    fn totals(counts: &Ledger) -> RelayTotals {
        RelayTotals {
            received: counts.received(),
            events: counts.events,
            nowhere: counts.nowhere,
            rejected: counts.rejected.iter().sum(),
            looped: counts.looped,
            passthrough_sent: counts.passthrough.sent,
            passthrough_discarded: counts.passthrough.discarded(),
            passthrough_dropped: counts.passthrough.lost(),
            passthrough_queued: counts.passthrough.queued(),
            kernel_drops: counts.kernel_drops,
        }
    }

    fn report(&self) -> RelayReport {
        let counts = self.routes.totals();
        let totals = Self::totals(&counts);
        let history = lock(&self.history);
        let (before, recent_seconds) = history.recent();
        let identity =
            self.register.as_ref().map_or(&*self.name, |(register, _)| register.identity());
        let process = ProcessReport {
            received_per_second: history.rate(&totals, |totals| totals.received),
            recent_seconds,
            sockets_failing: self.routes.listeners_failing.load(Ordering::Relaxed) as u64,
            stalled: self.routes.progress.stalled(STALLED_AFTER),
            name_taken: self.name_taken.load(Ordering::Relaxed),
            requests: RequestsReport::of(&self.writes),
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
            passthrough: TargetReport {
                is_loop: passthrough.outlet().is_some_and(|outlet| outlet.is_loop()),
                ..target(&self.passthrough, passthrough.is_up(), &counts.passthrough)
            },
            unsent: self.routes.notices.examples().into_iter().map(unsent).collect(),
        };
        RelayReport::new(process, details, Duration::ZERO)
    }
}

impl RelayVitals for RelayView {
    fn page(&self) -> String {
        let now = Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true);
        relay_page(now, self.report())
    }
}

#[async_trait]
impl Vitals for RelayView {
    fn progress(&self) -> &Progress {
        &self.routes.progress
    }

    async fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::default();
        let nodes = &self.routes.nodes;
        let down: Vec<_> = nodes.iter().filter(|node| !node.is_up()).collect();
        let trouble = if down.len() == nodes.len() {
            &mut readiness.reasons
        } else {
            &mut readiness.warnings
        };
        trouble.extend(down.iter().map(|node| {
            let why =
                format!("{}: the name cannot be resolved, no process is listening, or the host is unreachable", node.name());
            Diagnosis::new(Cause::RelayNodeDown, why).to_string()
        }));
        if self.draining.is_cancelled() {
            readiness.reasons.push("the relay is shutting down".to_owned());
        }
        if self.routes.listeners_failing.load(Ordering::Relaxed) > 0 {
            readiness.reasons.push(Cause::SocketFails.to_string());
        }
        readiness
    }

    fn metrics(&self, format: Format) -> Result<String, std::fmt::Error> {
        encode(&self.registry, format)
    }

    fn connections(&self) -> Gauge {
        self.http_connections.clone()
    }
}
