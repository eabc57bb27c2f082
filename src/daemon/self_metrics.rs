//! [`SelfMetrics`]: writes the metrics of a node to an output (`output.self_metrics`).
//!
//! It has its own client, so that no count waits for it, and one request at a time. Points that the output does not accept at
//! once are dropped and counted. While the output is down it sends nothing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::MissedTickBehavior;

use crate::node::{Node, lock};
use crate::output::influxdb::LineWriter;
use crate::store::OutputName;
use crate::telemetry::{Format, Metrics, of_output, points};

/// Writes the node's metrics to an output.
#[derive(Debug)]
pub(super) struct SelfMetrics {
    pub(super) output: OutputName,
    pub(super) writer: LineWriter,
    pub(super) every: Duration,
}

impl SelfMetrics {
    /// Writes the metrics of the node of this name until the task is cancelled.
    pub(super) async fn run(self, name: String, node: Arc<Node>, metrics: Arc<Metrics>) {
        let output = self.output.as_str();
        let dropped = metrics.self_metrics_dropped.get_or_create_owned(&of_output(output));
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut is_failing = false;
        loop {
            ticks.tick().await;
            let Ok(text) = metrics.encode(Format::Classic) else {
                continue;
            };
            let points = points(&text, &name, SystemTime::now());
            if lock(&node.outputs_down).contains_key(output) {
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
