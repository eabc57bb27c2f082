//! A node's status line, shown by `systemctl status`.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use super::metrics::{Metrics, of_output};
use crate::node::{Node, lock};

/// Returns the growth per second of a total that has changed from `before` to `now` in the elapsed time.
#[must_use]
pub fn per_second(now: u64, before: u64, elapsed: Duration) -> u128 {
    let growth = u128::from(now.saturating_sub(before));
    growth * 1000 / elapsed.as_millis().max(1)
}

/// Returns a function that produces the status line of a node. Its argument is the time since the last call, for rates.
pub fn status_line(
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
            let _ = write!(line, ", {dropped} dropped since startup");
        }
        if let Some(pending) = metrics.backlog_pending.get(&[]) {
            let _ = write!(line, "; {} open", pending.get());
            for output in &outputs {
                if let Some(unsent) = metrics.backlog_unsent.get(&of_output(output)) {
                    let _ = write!(line, ", {} unsent to {output}", unsent.get());
                }
            }
            line.push_str(" (minutes, counted per partition)");
        }
        if metrics.store_up.get() == 0 {
            line.push_str("; the store is unavailable");
        } else if node.partitions.lagging() > 0 {
            let _ = write!(line, "; lagging in {} partitions", node.partitions.lagging());
        }
        let down = lock(&node.outputs_down);
        if !down.is_empty() {
            let names: Vec<_> = down.keys().map(String::as_str).collect();
            let _ = write!(line, "; down: {}", names.join(", "));
        }
        before = now;
        line
    }
}
