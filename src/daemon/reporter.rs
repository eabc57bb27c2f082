//! [`Reporter`]: writes the metrics of a node to an output, if that is wanted (`output.self_metrics`).
//!
//! It owns a client of its own, so that no count waits for it, has one request under way at most, and keeps nothing: what
//! the output does not take at once is dropped and counted. While counts cannot be written it asks for nothing. It ends where
//! it stands.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::MissedTickBehavior;

use crate::node::Node;
use crate::output::influxdb::LineWriter;
use crate::store::OutputName;
use crate::telemetry::{Format, Metrics, of_output, points};

/// See the module.
#[derive(Debug)]
pub(super) struct Reporter {
    /// The output's name.
    pub(super) output: OutputName,
    pub(super) writer: LineWriter,
    pub(super) every: Duration,
}

impl Reporter {
    /// Writes the metrics of the node, which has this name, again and again.
    pub(super) async fn run(self, name: String, node: Arc<Node>, metrics: Arc<Metrics>) {
        let output = self.output.as_str();
        let dropped = metrics.self_metrics_dropped.get_or_create_owned(&of_output(output));
        let mut times = tokio::time::interval(self.every);
        times.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut is_failing = false;
        loop {
            times.tick().await;
            let Ok(text) = metrics.encode(Format::Classic) else {
                continue;
            };
            let points = points(&text, &name, SystemTime::now());
            if node.outputs_down.names().iter().any(|name| name == output) {
                dropped.inc_by(points.len() as u64);
                continue;
            }
            let written = self.writer.write(points.concat().into_bytes()).await;
            if let Err(error) = &written {
                dropped.inc_by(points.len() as u64);
                if !is_failing {
                    tracing::warn!(
                        %output, %error,
                        "cannot write the node's own metrics to the output; they are left out until it takes them again, \
                         and counts are not concerned"
                    );
                }
            }
            is_failing = written.is_err();
        }
    }
}
