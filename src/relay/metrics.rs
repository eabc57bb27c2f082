//! The relay's metrics. Each scrape takes a single snapshot of the ledger, so that the numbers add up.

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
use crate::telemetry::{WriteMetrics, family, gauge, metric, registry};

pub(crate) fn metrics(
    routes: Arc<Routes>,
    opened: &Opened,
    http_connections: Gauge,
    writes: &WriteMetrics,
) -> Registry {
    let mut registry = registry();
    let relay = registry.sub_registry_with_prefix("eds_relay");
    relay.register_collector(Box::new(RoutesCollector(routes)));
    let build = vec![("version", crate::VERSION), ("commit", crate::COMMIT)];
    relay.register("build", "Version and commit of this relay", Info::new(build));
    relay.register("http_connections", "Open HTTP connections", http_connections);
    writes.register(relay);
    for (name, help, value) in [
        (
            "kernel_drops_inherited",
            "Datagrams dropped by the kernel on inherited sockets before this process started",
            opened.drops_before,
        ),
        ("receive_buffer_bytes", "Total size of the sockets' receive buffers", opened.buffer_bytes),
    ] {
        let level: Gauge = Gauge::default();
        level.set(gauge(value));
        relay.register(name, help, level);
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
                "Datagrams dropped by the kernel because a receive buffer was full or a checksum was wrong",
                totals.kernel_drops,
            ),
            ("lines_received", "Lines read from the sockets", totals.received()),
            (
                "lines_looped",
                "Lines dropped because they had passed through too many relays",
                totals.looped,
            ),
            (
                "events",
                "Events received, each counted once no matter how many nodes it is sent to",
                totals.events,
            ),
            ("events_nowhere", "Events not sent to any node", totals.nowhere),
            ("passthrough_sent", "Passthrough lines sent to `passthrough.url`", passthrough.sent),
        ] {
            metric(to, name, help, &ConstCounter::new(count))?;
        }
        for (name, help, level) in [
            ("passthrough_queued", "Passthrough lines waiting to be sent", passthrough.queued()),
            (
                "passthrough_up",
                "1 while the server in `passthrough.url` is accepting lines",
                routes.passthrough.is_up().into(),
            ),
            ("listeners_failing", "Receiving threads that cannot read their socket", failing),
        ] {
            metric(to, name, help, &ConstGauge::new(level))?;
        }
        let rejected = Rejection::ALL.iter().map(|reason| reason.label()).zip(totals.rejected);
        let by_reason = |(reason, lines)| ([("reason", reason)], ConstCounter::new(lines));
        family(to, "lines_rejected", "Lines rejected, by reason", rejected.map(by_reason))?;
        let dropped = Loss::LABELS.into_iter().zip(passthrough.dropped);
        family(
            to,
            "passthrough_dropped",
            "Passthrough lines dropped, by reason",
            dropped.map(by_reason),
        )?;

        let nodes = || routes.nodes.iter().zip(&totals.nodes);
        let counts = |count: fn(&Destination) -> u64| {
            nodes().map(move |(node, events)| {
                ([("to", node.name())], ConstCounter::new(count(events)))
            })
        };
        let help = "Datagrams sent to a node";
        family(to, "datagrams_sent", help, counts(|events| events.datagrams))?;
        let help = "Port-unreachable errors for a node's address";
        family(to, "refusals", help, counts(|events| events.refusals))?;
        family(to, "events_sent", "Events sent to a node", counts(|events| events.sent))?;
        let queued =
            nodes().map(|(node, events)| ([("to", node.name())], ConstGauge::new(events.queued())));
        family(
            to,
            "events_queued",
            "Events not yet sent to a node because their datagram is not full yet",
            queued,
        )?;
        let up = nodes()
            .map(|(node, _)| ([("to", node.name())], ConstGauge::new(u64::from(node.is_up()))));
        family(
            to,
            "node_up",
            "1 while the address of a node is known and the kernel reports no errors for it",
            up,
        )?;
        let dropped = nodes().flat_map(|(node, events)| {
            let dropped = Loss::LABELS.into_iter().zip(events.dropped.map(ConstCounter::new));
            dropped.map(|(reason, lines)| ([("to", node.name()), ("reason", reason)], lines))
        });
        family(to, "events_dropped", "Events dropped for a node, by reason", dropped)
    }
}
