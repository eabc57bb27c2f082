//! [`Relay`]: the parts of a running relay.
//!
//! [`Relay::start`] resolves the names of the nodes before it reads. The parts stop in the order of the data: first
//! the readers, which send their open datagrams; then the passthrough writer, once its queue is empty or the time is
//! up.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use async_trait::async_trait;
use chrono::Utc;
use futures_util::future::join_all;
use prometheus_client::metrics::gauge::Gauge;
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
use crate::node::Progress;
use crate::output::influxdb::LineWriter;
use crate::relay::{
    Forwarder, Ledger, Outlet, Passthrough, PassthroughSettings, Queue, READ_MAX, READ_TIMEOUT,
    Routes, Sorter, Stamps, follow_name, metrics, write_queue,
};
use crate::status::{History, LossReporter};
use crate::store::redis::Register;
use crate::telemetry::{Format, encode, per_second};

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
        let view = Arc::new(view(config, &parts, &opened, Arc::clone(&routes))?);
        let mut relay = Self { parts, view };
        if let (PassthroughSettings::Http(http), Passthrough::Server(queue)) =
            (&config.passthrough, &routes.passthrough)
        {
            let server = LineWriter::new(&http.server, &http.precision);
            let server = server.context("rest.url or rest.ca_file")?;
            let stop = relay.parts.intake_ended.clone();
            let (queue, routes) = (Arc::clone(queue), Arc::clone(&routes));
            relay.parts.outlet.spawn(write_queue(queue, server, routes, stop));
        }
        let connections = config.http.listen.map_or(0, |_| build::left_for_http_of_relay(config));
        let server =
            relay.parts.bind_http(config.http.listen, &config.http.hosts, connections).await?;
        if let Some(server) = server {
            relay.parts.side.spawn(server.serve_relay(Arc::clone(&relay.view)));
        }
        relay.parts.side.spawn(Arc::clone(&relay.view).run(relay.parts.stop_side.clone()));
        relay.follow_names(&routes).await?;
        relay.start_readers(config, opened, &routes);
        Ok(relay)
    }

    /// Resolves all names, and fails if one leads back to this relay. The wait is short, because the kernel's buffer is small.
    async fn follow_names(&mut self, routes: &Routes) -> anyhow::Result<()> {
        let outlets: Vec<_> = routes.nodes.iter().chain(routes.passthrough.outlet()).collect();
        let look_ups = join_all(outlets.iter().map(|outlet| outlet.look_up()));
        if tokio::time::timeout(UNREAD_MAX, look_ups).await.is_err() {
            tracing::warn!(
                "some names of relay.to and rest.url are not resolved yet; starting with the others"
            );
        }
        let keys = routes.nodes.iter().map(|_| "relay.to").chain(["rest.url"]);
        for (key, outlet) in keys.zip(outlets) {
            if let Some(address) = outlet.leads_back() {
                anyhow::bail!(
                    "{key} names {}, which resolves to {address}, where this relay itself listens: its lines would come back. Name \
                     the nodes, or a relay nearer to them",
                    outlet.name()
                );
            }
            self.parts.spawn_side(follow_name(Arc::clone(outlet)));
        }
        Ok(())
    }

    fn start_readers(&mut self, config: &RelayConfig, opened: Opened, routes: &Arc<Routes>) {
        for (index, receiver) in opened.receivers.into_iter().enumerate() {
            let sorter = Sorter::new(&config.rules, config.relay.events.clone());
            let (datagram_max, linger) = (config.relay.datagram_max, config.relay.linger);
            let forwarder = Forwarder::new(Arc::clone(routes), sorter, datagram_max);
            let heartbeat = routes.progress.watch(format!("reader {index}"));
            let stop = self.parts.stop.clone();
            (self.parts.intake)
                .spawn_blocking(move || forwarder.run(receiver, linger, &heartbeat, &stop));
        }
    }
}

fn view(
    config: &RelayConfig,
    parts: &Parts,
    opened: &Opened,
    routes: Arc<Routes>,
) -> anyhow::Result<RelayView> {
    let http_connections = Gauge::default();
    let register = config.store.as_ref().map(|(redis, prefix)| {
        let register = Register::new(redis.clone(), prefix, "relays", &config.name);
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
        registry: metrics(Arc::clone(&routes), opened, http_connections.clone()),
        http_connections,
        routes,
        history: Mutex::new(History::new(Utc::now())),
        name_taken: AtomicBool::new(false),
        register: register.transpose()?,
        draining: parts.stop.clone(),
    })
}

impl Running for Relay {
    fn progress(&self) -> Progress {
        self.view.routes.progress.clone()
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        status_line(Arc::clone(&self.view.routes))
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
        let totals = self.view.routes.totals().at_end();
        self.view.end(&totals).await;
        log_totals(&totals, &self.view.routes.nodes);
        totals.lost()
    }
}

fn status_line(routes: Arc<Routes>) -> impl FnMut(Duration) -> String + Send {
    let mut before = routes.totals();
    move |elapsed| {
        let now = routes.totals();
        let nodes = &routes.nodes;
        let mut line = format!(
            "{}/s received, {}/s of them events; {} of the rest queued",
            per_second(now.received(), before.received(), elapsed),
            per_second(now.events, before.events, elapsed),
            now.passthrough.queued(),
        );
        for (node, events) in nodes.iter().zip(&now.nodes) {
            if events.lost() > 0 {
                let _ = write!(line, ", {} dropped for {}", events.lost(), node.name());
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
fn log_totals(totals: &Ledger, nodes: &[Arc<Outlet>]) {
    let dropped: Vec<_> = nodes
        .iter()
        .zip(&totals.nodes)
        .filter(|(_, events)| events.lost() > 0)
        .map(|(node, events)| format!("{} of {}", events.lost(), node.name()))
        .collect();
    let (received, events) = (totals.received(), totals.events);
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
            let why = format!("{}: no address, refuses, or unreachable", node.name());
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
