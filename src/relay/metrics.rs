//! The relay's metrics. Each scrape reads the ledger at a single moment, so the numbers add up.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::{Destination, Loss, Routes};
use crate::event::Rejection;
use crate::ingest::Opened;
use crate::telemetry::{family, gauge, one, registry};

pub(crate) fn metrics(routes: Arc<Routes>, opened: &Opened, http_connections: Gauge) -> Registry {
    let mut registry = registry();
    let ours = registry.sub_registry_with_prefix("eds_relay");
    ours.register_collector(Box::new(RoutesCollector(routes)));
    let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
    ours.register("build", "Version and commit of this relay", Info::new(build));
    ours.register("http_connections", "Open HTTP connections", http_connections);
    for (name, help, value) in [
        (
            "kernel_drops_inherited",
            "Datagrams that the kernel dropped from inherited sockets before this process started",
            opened.drops_before,
        ),
        ("receive_buffer_bytes", "Sum of the receive buffers of the sockets", opened.buffer_bytes),
    ] {
        let level: Gauge = Gauge::default();
        level.set(gauge(value));
        ours.register(name, help, level);
    }
    registry
}

#[derive(Debug)]
struct RoutesCollector(Arc<Routes>);

impl Collector for RoutesCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (routes, to) = (&self.0, &mut encoder);
        let totals = routes.totals();
        let passthrough = &totals.passthrough;
        let failing = routes.listeners_failing.load(Ordering::Relaxed) as u64;
        for (name, help, count) in [
            ("datagrams_received", "Datagrams read from the sockets", totals.datagrams),
            (
                "kernel_drops",
                "Datagrams that the kernel dropped because a receive buffer was full or their checksum was wrong",
                totals.kernel_drops,
            ),
            ("lines_received", "Lines read from the sockets", totals.received()),
            ("lines_looped", "Lines that have passed too many relays", totals.looped),
            ("events", "Events, each once", totals.events),
            ("events_nowhere", "Events that were sent to no node", totals.nowhere),
            ("passthrough_sent", "Passthrough lines sent", passthrough.sent),
        ] {
            one(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("passthrough_queued", "Queued passthrough lines", passthrough.queued()),
            (
                "passthrough_up",
                "1 while the passthrough server accepts lines",
                routes.passthrough.is_up().into(),
            ),
            ("listeners_failing", "Receiving threads that cannot read their socket", failing),
        ] {
            one(to, name, help, &ConstGauge::new(level))?;
        }
        let rejected = Rejection::ALL.iter().map(|reason| reason.label()).zip(totals.rejected);
        let by_reason = |(reason, lines)| ([("reason", reason)], ConstCounter::new(lines));
        family(to, "lines_rejected", "Rejected lines", rejected.map(by_reason))?;
        let dropped = Loss::LABELS.into_iter().zip(passthrough.dropped);
        family(to, "passthrough_dropped", "Dropped passthrough lines", dropped.map(by_reason))?;

        let nodes = || routes.nodes.iter().zip(&totals.nodes);
        let counts = |count: fn(&Destination) -> u64| {
            nodes().map(move |(node, events)| {
                ([("to", node.name())], ConstCounter::new(count(events)))
            })
        };
        let help = "Datagrams sent to a node";
        family(to, "datagrams_sent", help, counts(|events| events.datagrams))?;
        let help = "Reports of the kernel that no process listens at a node's address";
        family(to, "refusals", help, counts(|events| events.refusals))?;
        family(to, "events_sent", "Events sent to a node", counts(|events| events.sent))?;
        let queued =
            nodes().map(|(node, events)| ([("to", node.name())], ConstGauge::new(events.queued())));
        family(to, "events_queued", "Events that wait to fill a datagram", queued)?;
        let up = nodes()
            .map(|(node, _)| ([("to", node.name())], ConstGauge::new(u64::from(node.is_up()))));
        family(to, "node_up", "1 while the kernel reports no error for a node", up)?;
        let dropped = nodes().flat_map(|(node, events)| {
            let dropped = Loss::LABELS.into_iter().zip(events.dropped.map(ConstCounter::new));
            dropped.map(|(reason, lines)| ([("to", node.name()), ("reason", reason)], lines))
        });
        family(to, "events_dropped", "Events not sent to a node", dropped)
    }
}
