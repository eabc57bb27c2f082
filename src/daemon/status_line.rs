//! How a node or a relay is, in one line: `systemctl status` shows it.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use crate::node::Node;
use crate::relay::{self, Outlet};
use crate::telemetry::{Metrics, of_output};

/// Events per second, rounded.
fn per_second(now: u64, before: u64, elapsed: Duration) -> u64 {
    let events = now.saturating_sub(before) as f64;
    (events / elapsed.as_secs_f64().max(f64::EPSILON)).round() as u64
}

/// That of a node with these outputs. It is asked again and again, with the time that has passed since.
pub(super) fn of_node(
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    outputs: Vec<String>,
) -> impl FnMut(Duration) -> String + Send {
    let mut before = node.ledger.totals();
    move |elapsed| {
        let now = node.ledger.totals();
        let mut line = format!(
            "{}/s received, {}/s recorded, {} queued",
            per_second(now.received, before.received, elapsed),
            per_second(now.recorded, before.recorded, elapsed),
            now.queued,
        );
        if now.spooled > 0 {
            let _ = write!(line, " ({} on disk)", now.spooled);
        }
        let dropped: u64 = now.dropped.iter().sum();
        if dropped > 0 {
            let _ = write!(line, ", {dropped} dropped in all");
        }
        let _ = write!(line, "; {} minutes open", metrics.backlog_pending.get());
        for output in &outputs {
            let unsent = metrics.backlog_unsent.get_or_create(&of_output(output));
            let _ = write!(line, ", {} wait for {output}", unsent.get());
        }
        if metrics.store_up.get() == 0 {
            line.push_str("; the store takes nothing");
        } else if node.lag.partitions() > 0 {
            let _ = write!(line, "; lags in {} partitions", node.lag.partitions());
        }
        let down = node.outputs_down.names();
        if !down.is_empty() {
            let _ = write!(line, "; down: {}", down.join(", "));
        }
        before = now;
        line
    }
}

/// The same of a relay to these nodes.
pub(super) fn of_relay(
    ledger: Arc<relay::Ledger>,
    nodes: Vec<Arc<Outlet>>,
) -> impl FnMut(Duration) -> String + Send {
    let mut before = ledger.totals();
    move |elapsed| {
        let now = ledger.totals();
        let mut line = format!(
            "{}/s received, {}/s of them events; {} of the rest queued",
            per_second(now.received, before.received, elapsed),
            per_second(now.events, before.events, elapsed),
            now.rest.queued,
        );
        for (node, place) in nodes.iter().zip(&now.nodes) {
            if place.lost() > 0 {
                let _ = write!(line, ", {} dropped for {}", place.lost(), node.name());
            }
        }
        if now.rest.lost() > 0 {
            let _ = write!(line, ", {} of the rest dropped", now.rest.lost());
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
