//! What the service reports of itself: metrics of the node and the process, as text. Nothing reads a metric to decide. A
//! relay makes its own of the same pieces.

mod exposition;
mod metrics;
mod points;
mod process;
mod status_line;
mod sums;

pub use exposition::Format;
pub use metrics::{Gauges, Metrics, OutputMetrics, of_output};
pub use points::points;
pub use process::open_files_max;
pub use status_line::{per_second, status_line};
pub use sums::Sums;

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// A registry with the metrics of the process.
#[must_use]
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(process::Process::default()));
    registry
}

/// All metrics of a registry as text.
pub fn encode(registry: &Registry, format: Format) -> Result<String, fmt::Error> {
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, registry)?;
    Ok(format.of_open_metrics(text))
}

/// Reports one metric that is made for this scrape.
pub fn one(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: &impl EncodeMetric,
) -> fmt::Result {
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// Reports a gauge, without a value while that is not known.
pub fn known(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: Option<f64>,
) -> fmt::Result {
    let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    value.map_or(Ok(()), |value| ConstGauge::new(value).encode(metric))
}

/// Reports one metric of several samples, each with its labels.
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
