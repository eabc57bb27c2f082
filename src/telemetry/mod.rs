//! The metrics of a node, and functions for encoding metrics as text. No decision in the program depends on a metric.

mod exposition;
mod metrics;
mod otlp;
mod points;
mod process;
mod status_line;
mod writes;

pub use exposition::Format;
pub(crate) use metrics::OfOutput;
pub use metrics::{Gauges, Metrics, OutputMetrics, of_output};
pub(crate) use otlp::Process;
pub use points::points;
pub use process::open_files_max;
pub use status_line::{per_second, status_line};
pub use writes::WriteMetrics;

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

/// Creates a registry that contains the metrics of this process.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process::default()));
    registry
}

/// Returns all metrics in a registry as text in this format.
pub fn encode(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(format.convert(text))
}

pub(crate) fn gauge(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Encodes a metric with one sample.
pub fn metric(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Encodes a metric with several samples, each with its own labels.
pub fn family<'a, const LABELS: usize, M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = ([(&'a str, &'a str); LABELS], M)>,
) -> fmt::Result {
    let mut samples = samples.into_iter().peekable();
    let kind = samples.peek().map(|(_, metric)| metric.metric_type());
    let kind = kind.unwrap_or(MetricType::Unknown);
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, metric) in samples {
        metric.encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}
