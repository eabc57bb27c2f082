//! The metrics of a relay. Each scrape reads the ledger at one moment, so that the figures add up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Ledger, LedgerTotals, Loss, Outlet};
use crate::event::Rejection;
use crate::node::Notices;
use crate::telemetry::{Format, encode, family, one, registry};

/// What a relay counts beside its ledger.
#[derive(Debug)]
pub struct Metrics {
    /// Datagrams read from the sockets.
    pub datagrams_received: Counter,
    /// Datagrams that the kernel dropped before they were read.
    pub kernel_drops: Counter,
    /// The same, of inherited sockets, before this process looked.
    pub kernel_drops_inherited: Gauge,
    /// What the kernel gives the receive buffers together.
    pub receive_buffer_bytes: Gauge,
    /// HTTP connections that are open.
    pub http_connections: Gauge,
    /// 1 while the server of the rest takes lines.
    pub rest_up: Gauge,
    /// The sockets that cannot be read at the moment.
    pub listeners_failing: Arc<AtomicUsize>,
    /// What it refused and lost, for the log and the report.
    pub notices: Notices,
    registry: Registry,
}

impl Metrics {
    /// Metrics of a relay to these nodes, all zero, and of its process.
    #[must_use]
    pub fn new(ledger: Arc<Ledger>, nodes: Vec<Arc<Outlet>>) -> Self {
        let mut registry = registry();
        let ours = registry.sub_registry_with_prefix("eds_relay");
        let listeners_failing = Arc::new(AtomicUsize::new(0));
        ours.register_collector(Box::new(Lines {
            ledger,
            nodes,
            listeners_failing: Arc::clone(&listeners_failing),
        }));
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            ours.register(name, help, counter.clone());
            counter
        };
        let datagrams_received = counter("datagrams_received", "Datagrams read from the sockets");
        let kernel_drops = counter(
            "kernel_drops",
            "Datagrams that the kernel dropped because a receive buffer was full, or their checksum was wrong",
        );
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            ours.register(name, help, gauge.clone());
            gauge
        };
        let kernel_drops_inherited = gauge(
            "kernel_drops_inherited",
            "Datagrams that the kernel had dropped from inherited sockets before this process looked",
        );
        let receive_buffer_bytes = gauge(
            "receive_buffer_bytes",
            "What the kernel gives the receive buffers of the sockets together",
        );
        let http_connections = gauge("http_connections", "HTTP connections that are open");
        let rest_up =
            gauge("rest_up", "1 while the server of the rest takes lines, as far as is known");
        rest_up.set(1);
        let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
        ours.register("build", "What this relay was built from", Info::new(build));
        Self {
            datagrams_received,
            kernel_drops,
            kernel_drops_inherited,
            receive_buffer_bytes,
            http_connections,
            rest_up,
            listeners_failing,
            notices: Notices::default(),
            registry,
        }
    }

    /// Returns the number of datagrams that the kernel dropped at the sockets.
    #[must_use]
    pub fn kernel_drops(&self) -> u64 {
        self.kernel_drops.get()
    }

    /// Returns whether the server of the rest takes lines.
    #[must_use]
    pub fn is_rest_up(&self) -> bool {
        self.rest_up.get() == 1
    }

    /// Returns how many threads cannot read their socket at the moment.
    #[must_use]
    pub fn sockets_failing(&self) -> u64 {
        self.listeners_failing.load(Ordering::Relaxed) as u64
    }

    /// All metrics as text.
    pub fn encode(&self, format: Format) -> Result<String, fmt::Error> {
        encode(&self.registry, format)
    }
}

/// Reads the ledger and the outlets once a scrape.
#[derive(Debug)]
struct Lines {
    ledger: Arc<Ledger>,
    nodes: Vec<Arc<Outlet>>,
    listeners_failing: Arc<AtomicUsize>,
}

impl Collector for Lines {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let totals = self.ledger.totals();
        let to = &mut encoder;
        let failing = self.listeners_failing.load(Ordering::Relaxed) as u64;
        let [received, events, nowhere] = [totals.received, totals.events, totals.nowhere];
        for (name, help, count) in [
            ("lines_received", "Lines read from the sockets", received),
            ("lines_looped", "Lines that came back by other relays too often", totals.looped),
            ("events", "Lines for the nodes, each once", events),
            ("events_nowhere", "Lines for the nodes that no node was sent", nowhere),
            ("rest_sent", "Other lines that the rest took", totals.rest.sent),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("rest_queued", "Other lines that wait", totals.rest.queued),
            (
                "listeners_failing",
                "Receiving threads whose socket cannot be read at the moment",
                failing,
            ),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let reasons = Rejection::ALL.iter().zip(totals.rejected);
        let rejected =
            reasons.map(|(reason, lines)| ([("reason", reason.label())], ConstCounter::new(lines)));
        family(to, "lines_rejected", "Lines that are for nobody", rejected)?;
        let dropped = Loss::ALL.iter().zip(totals.rest.dropped);
        let dropped =
            dropped.map(|(loss, lines)| ([("reason", loss.label())], ConstCounter::new(lines)));
        family(to, "rest_dropped", "Other lines that were not kept", dropped)?;
        self.of_nodes(to, &totals)
    }
}

impl Lines {
    fn of_nodes(&self, to: &mut DescriptorEncoder<'_>, totals: &LedgerTotals) -> fmt::Result {
        let nodes = || self.nodes.iter().zip(&totals.nodes);
        let counter = |value: fn(&Outlet) -> u64| {
            nodes().map(move |(node, _)| ([("to", node.name())], ConstCounter::new(value(node))))
        };
        let help = "Datagrams that the kernel took for a node";
        family(to, "datagrams_sent", help, counter(Outlet::datagrams))?;
        let help = "How often the kernel reported that nobody listens at a node's address";
        family(to, "refusals", help, counter(Outlet::refusals))?;
        let sent =
            nodes().map(|(node, place)| ([("to", node.name())], ConstCounter::new(place.sent)));
        family(to, "events_sent", "Lines that the kernel took for a node", sent)?;
        let queued =
            nodes().map(|(node, place)| ([("to", node.name())], ConstGauge::new(place.queued)));
        family(to, "events_queued", "Lines that wait for others to be sent with", queued)?;
        let up = nodes()
            .map(|(node, _)| ([("to", node.name())], ConstGauge::new(u64::from(node.is_up()))));
        let help = "1 while the kernel reports no trouble on the way to a node";
        family(to, "node_up", help, up)?;
        let dropped = nodes().flat_map(|(node, place)| {
            let reasons = Loss::ALL.iter().zip(place.dropped);
            reasons.map(|(loss, lines)| {
                let labels = [("to", node.name()), ("reason", loss.label())];
                (labels, ConstCounter::new(lines))
            })
        });
        family(to, "events_dropped", "Lines that a node was not sent", dropped)
    }
}
