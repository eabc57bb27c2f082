//! The metrics of a relay. Each scrape reads the ledger at one moment, so that the numbers add up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Ledger, LedgerTotals, Loss, Outlet, Place};
use crate::event::Rejection;
use crate::node::Notices;
use crate::telemetry::{Format, encode, family, one, registry};

/// The metrics of a relay that are not in its ledger.
#[derive(Debug)]
pub struct Metrics {
    /// Datagrams read from the sockets.
    pub datagrams_received: Counter,
    /// Datagrams that the kernel dropped before they were read.
    pub kernel_drops: Counter,
    /// The same, of inherited sockets, before this process started.
    pub kernel_drops_inherited: Gauge,
    /// The sum of the receive buffers.
    pub receive_buffer_bytes: Gauge,
    /// Open HTTP connections.
    pub http_connections: Gauge,
    /// 1 while the server of passthrough lines accepts lines.
    pub passthrough_up: Gauge,
    /// The number of threads that cannot read their socket.
    pub listeners_failing: Arc<AtomicUsize>,
    /// Rejected and lost lines, for the log and the report.
    pub notices: Notices,
    registry: Registry,
}

impl Metrics {
    /// Returns the metrics of a relay to these nodes, all zero, and of its process.
    #[must_use]
    pub fn new(ledger: Arc<Ledger>, nodes: Vec<Arc<Outlet>>) -> Self {
        let mut registry = registry();
        let ours = registry.sub_registry_with_prefix("eds_relay");
        let listeners_failing = Arc::new(AtomicUsize::new(0));
        let failing = Arc::clone(&listeners_failing);
        ours.register_collector(Box::new(LedgerCollector { ledger, nodes, failing }));
        let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
        ours.register("build", "What this relay was built from", Info::new(build));
        let metrics = Self {
            datagrams_received: Counter::default(),
            kernel_drops: Counter::default(),
            kernel_drops_inherited: Gauge::default(),
            receive_buffer_bytes: Gauge::default(),
            http_connections: Gauge::default(),
            passthrough_up: Gauge::default(),
            listeners_failing,
            notices: Notices::default(),
            registry: Registry::default(),
        };
        metrics.passthrough_up.set(1);
        for (name, help, counter) in [
            ("datagrams_received", "Datagrams read from the sockets", &metrics.datagrams_received),
            (
                "kernel_drops",
                "Datagrams that the kernel dropped because a receive buffer was full, or their checksum was wrong",
                &metrics.kernel_drops,
            ),
        ] {
            ours.register(name, help, counter.clone());
        }
        for (name, help, gauge) in [
            (
                "kernel_drops_inherited",
                "Datagrams that the kernel had dropped from inherited sockets before this process looked",
                &metrics.kernel_drops_inherited,
            ),
            (
                "receive_buffer_bytes",
                "What the kernel gives the receive buffers of the sockets together",
                &metrics.receive_buffer_bytes,
            ),
            ("http_connections", "HTTP connections that are open", &metrics.http_connections),
            (
                "rest_up",
                "1 while the server of the rest takes lines, as far as is known",
                &metrics.passthrough_up,
            ),
        ] {
            ours.register(name, help, gauge.clone());
        }
        Self { registry, ..metrics }
    }

    /// Returns the number of datagrams that the kernel dropped at the sockets.
    #[must_use]
    pub fn kernel_drops(&self) -> u64 {
        self.kernel_drops.get()
    }

    /// Returns whether the server of passthrough lines accepts lines.
    #[must_use]
    pub fn is_passthrough_up(&self) -> bool {
        self.passthrough_up.get() == 1
    }

    /// Returns the number of threads that cannot read their socket.
    #[must_use]
    pub fn sockets_failing(&self) -> u64 {
        self.listeners_failing.load(Ordering::Relaxed) as u64
    }

    /// Returns all metrics as text.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Reads the ledger and the outlets once a scrape.
#[derive(Debug)]
struct LedgerCollector {
    ledger: Arc<Ledger>,
    nodes: Vec<Arc<Outlet>>,
    failing: Arc<AtomicUsize>,
}

/// Returns the number of lines by the reason of their loss.
fn by_loss(place: &Place) -> impl Iterator<Item = (&'static str, ConstCounter<u64>)> {
    let reasons = Loss::ALL.iter().zip(place.dropped);
    reasons.map(|(loss, lines)| (loss.label(), ConstCounter::new(lines)))
}

impl Collector for LedgerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.ledger.totals();
        let to = &mut encoder;
        let failing = self.failing.load(Ordering::Relaxed) as u64;
        for (name, help, count) in [
            ("lines_received", "Lines read from the sockets", totals.received),
            ("lines_looped", "Lines that came back by other relays too often", totals.looped),
            ("events", "Lines for the nodes, each once", totals.events),
            ("events_nowhere", "Lines for the nodes that no node was sent", totals.nowhere),
            ("rest_sent", "Other lines that the rest took", totals.passthrough.sent),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("rest_queued", "Other lines that wait", totals.passthrough.queued),
            (
                "listeners_failing",
                "Receiving threads whose socket cannot be read at the moment",
                failing,
            ),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let rejected = Rejection::ALL.iter().zip(totals.rejected);
        let rejected = rejected
            .map(|(reason, lines)| ([("reason", reason.label())], ConstCounter::new(lines)));
        family(to, "lines_rejected", "Lines that are for nobody", rejected)?;
        let dropped = by_loss(&totals.passthrough).map(|(loss, lines)| ([("reason", loss)], lines));
        family(to, "rest_dropped", "Other lines that were not kept", dropped)?;
        self.encode_nodes(to, &totals)
    }
}

impl LedgerCollector {
    fn encode_nodes(&self, to: &mut DescriptorEncoder<'_>, totals: &LedgerTotals) -> fmt::Result {
        type Value = fn(&Outlet, &Place) -> u64;
        let nodes = || self.nodes.iter().zip(&totals.nodes);
        let values = |value: Value| {
            nodes().map(move |(node, place)| ([("to", node.name())], value(node, place)))
        };
        let counters: [(&str, &str, Value); 3] = [
            ("datagrams_sent", "Datagrams that the kernel took for a node", |node, _| {
                node.datagrams()
            }),
            (
                "refusals",
                "How often the kernel reported that nobody listens at a node's address",
                |node, _| node.refusals(),
            ),
            ("events_sent", "Lines that the kernel took for a node", |_, place| place.sent),
        ];
        for (name, help, value) in counters {
            let samples = values(value).map(|(to, count)| (to, ConstCounter::new(count)));
            family(to, name, help, samples)?;
        }
        let gauges: [(&str, &str, Value); 2] = [
            ("events_queued", "Lines that wait for others to be sent with", |_, place| {
                place.queued
            }),
            ("node_up", "1 while the kernel reports no trouble on the way to a node", |node, _| {
                node.is_up().into()
            }),
        ];
        for (name, help, value) in gauges {
            let samples = values(value).map(|(to, level)| (to, ConstGauge::new(level)));
            family(to, name, help, samples)?;
        }
        let dropped = nodes().flat_map(|(node, place)| {
            by_loss(place).map(|(loss, lines)| ([("to", node.name()), ("reason", loss)], lines))
        });
        family(to, "events_dropped", "Lines that a node was not sent", dropped)
    }
}
