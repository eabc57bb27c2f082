//! What the service reports of itself: metrics of the node and the process, as text. Nothing reads a metric to decide.

mod exposition;
mod metrics;
mod process;

pub use exposition::Format;
pub use metrics::{Gauges, Metrics, OutputMetrics, of_output};
pub use process::open_files_max;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};

/// Reports one metric that is made for this scrape.
fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> std::fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}
