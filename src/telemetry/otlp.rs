//! Converts metrics and spans to OTLP requests. Metrics have the same names as for Prometheus.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint,
    ResourceMetrics, ScopeMetrics, Sum, metric, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as OtlpSpan, Status, span::SpanKind, status::StatusCode,
};

use crate::node::{Attribute, Span};

/// Identifies a process in OTLP.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// `eds` or `eds-relay`.
    pub(crate) service: &'static str,
    /// The name of the node or relay.
    pub(crate) name: String,
    pub(crate) started_nanos: u64,
}

fn attribute(key: &str, text: &str) -> KeyValue {
    typed(key, text.into())
}

fn typed(key: &str, value: Attribute) -> KeyValue {
    let value = Some(match value {
        Attribute::Text(text) => any_value::Value::StringValue(text),
        Attribute::Number(number) => any_value::Value::IntValue(number),
    });
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }), ..KeyValue::default() }
}

impl Process {
    fn resource(&self) -> Resource {
        let attributes = [
            ("service.name", self.service),
            ("service.instance.id", &self.name),
            ("service.version", crate::VERSION),
        ];
        let attributes = attributes.iter().map(|(key, value)| attribute(key, value)).collect();
        Resource { attributes, ..Resource::default() }
    }

    /// Converts metrics in Prometheus' classic text format.
    pub(crate) fn metrics(&self, text: &str, now_nanos: u64) -> ExportMetricsServiceRequest {
        let mut metrics: Vec<Metric> = Vec::new();
        let mut help = "";
        let mut buckets = Buckets::default();
        for line in text.lines() {
            if let Some(line) = line.strip_prefix("# HELP ") {
                help = line.split_once(' ').map_or("", |(_, help)| help);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' '))
            {
                buckets = Buckets::default();
                let data = match kind {
                    "counter" => metric::Data::Sum(Sum {
                        aggregation_temporality: AggregationTemporality::Cumulative.into(),
                        is_monotonic: true,
                        ..Sum::default()
                    }),
                    "histogram" => metric::Data::Histogram(Histogram {
                        aggregation_temporality: AggregationTemporality::Cumulative.into(),
                        ..Histogram::default()
                    }),
                    _ => metric::Data::Gauge(Gauge::default()),
                };
                let (name, description) = (name.to_owned(), help.to_owned());
                metrics.push(Metric { name, description, data: Some(data), ..Metric::default() });
            } else if let Some((sample, value)) = line.rsplit_once(' ')
                && let Ok(value) = value.parse::<f64>()
                && let Some(Metric { name, data: Some(data), .. }) = metrics.last_mut()
            {
                let (sample, labels) = sample.split_once('{').unwrap_or((sample, ""));
                let labels = labels.strip_suffix('}').unwrap_or(labels);
                match data {
                    metric::Data::Histogram(histogram) => {
                        let part = sample.strip_prefix(name.as_str()).unwrap_or_default();
                        if let Some(point) = buckets.add(part, labels, value) {
                            histogram.data_points.push(HistogramDataPoint {
                                start_time_unix_nano: self.started_nanos,
                                time_unix_nano: now_nanos,
                                ..point
                            });
                        }
                    }
                    metric::Data::Sum(Sum { data_points, .. })
                    | metric::Data::Gauge(Gauge { data_points }) => {
                        data_points.push(NumberDataPoint {
                            attributes: attributes(labels),
                            start_time_unix_nano: self.started_nanos,
                            time_unix_nano: now_nanos,
                            value: Some(number_data_point::Value::AsDouble(value)),
                            ..NumberDataPoint::default()
                        });
                    }
                    _ => {}
                }
            }
        }
        let scope_metrics = vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource());
        let of_process = ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() };
        ExportMetricsServiceRequest { resource_metrics: vec![of_process] }
    }

    pub(crate) fn traces(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let nanos = |nanos| u64::try_from(nanos).unwrap_or(0);
        let span = |span: Span| OtlpSpan {
            trace_id: span.trace.to_be_bytes().to_vec(),
            // Zero is not a valid ID.
            span_id: rand::random_range(1..=u64::MAX).to_be_bytes().to_vec(),
            parent_span_id: span.parent.map_or_else(Vec::new, |id| id.to_be_bytes().to_vec()),
            name: span.name.to_owned(),
            kind: if span.parent.is_some() { SpanKind::Server } else { SpanKind::Internal }.into(),
            start_time_unix_nano: nanos(span.start_nanos),
            end_time_unix_nano: nanos(span.end_nanos),
            attributes: span.attributes.into_iter().map(|(key, value)| typed(key, value)).collect(),
            status: span.error.map(|message| Status { message, code: StatusCode::Error.into() }),
            ..OtlpSpan::default()
        };
        let spans = spans.into_iter().map(span).collect();
        let scope_spans = vec![ScopeSpans { spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource());
        let of_process = ResourceSpans { resource, scope_spans, ..ResourceSpans::default() };
        ExportTraceServiceRequest { resource_spans: vec![of_process] }
    }
}

/// Returns the labels, which are separated by commas.
fn labels(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = text.split("\",").filter_map(|label| label.split_once("=\""));
    all.map(|(key, value)| (key, value.strip_suffix('"').unwrap_or(value)))
}

fn attributes(text: &str) -> Vec<KeyValue> {
    labels(text).map(|(key, value)| attribute(key, value)).collect()
}

/// The parts of a histogram that have been read, by the labels other than `le`.
#[derive(Default)]
struct Buckets(BTreeMap<String, HistogramDataPoint>);

impl Buckets {
    /// Adds a sample, such as `_bucket`. Returns the point of these labels once it is complete: at `_bucket` of infinity, if the
    /// sum and the count came first.
    fn add(&mut self, part: &str, text: &str, value: f64) -> Option<HistogramDataPoint> {
        let others = labels(text).filter(|(key, _)| *key != "le");
        let key = others.map(|(key, value)| format!("{key}=\"{value}\"")).collect::<Vec<_>>();
        let key = key.join(",");
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
        let count = value as u64;
        let point = self.0.entry(key.clone()).or_default();
        match part {
            "_sum" => point.sum = Some(value),
            "_count" => point.count = count,
            _ => {
                let before: u64 = point.bucket_counts.iter().sum();
                point.bucket_counts.push(count.saturating_sub(before));
                let bound = labels(text).find(|(key, _)| *key == "le");
                match bound.and_then(|(_, bound)| bound.parse::<f64>().ok()) {
                    Some(bound) if bound.is_finite() => point.explicit_bounds.push(bound),
                    _ => {
                        let mut point = self.0.remove(&key)?;
                        point.attributes = attributes(&key);
                        return Some(point);
                    }
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::number;

    fn process() -> Process {
        Process { service: "eds", name: "one".to_owned(), started_nanos: 5 }
    }

    fn data(text: &str) -> Vec<(String, metric::Data)> {
        let mut request = process().metrics(text, 9);
        let metrics = request.resource_metrics.remove(0).scope_metrics.remove(0).metrics;
        metrics.into_iter().map(|metric| (metric.name, metric.data.unwrap())).collect()
    }

    #[test]
    fn counters_and_gauges_keep_their_names_and_labels() {
        let found = data(
            "# HELP a_total Some help.\n# TYPE a_total counter\na_total{output=\"x\",why=\"y z\"} 7\n\
             # HELP b B.\n# TYPE b gauge\nb -0.5\n",
        );
        let [(a, metric::Data::Sum(sum)), (b, metric::Data::Gauge(gauge))] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!([&**a, b], ["a_total", "b"]);
        assert!(sum.is_monotonic);
        let point = &sum.data_points[0];
        assert_eq!(point.attributes, [attribute("output", "x"), attribute("why", "y z")]);
        assert_eq!([point.start_time_unix_nano, point.time_unix_nano], [5, 9]);
        assert_eq!(gauge.data_points[0].value, Some(number_data_point::Value::AsDouble(-0.5)));
    }

    #[test]
    fn histograms_have_counts_per_bucket() {
        let found = data(
            "# HELP h H.\n# TYPE h histogram\nh_sum{o=\"x\"} 1.5\nh_count{o=\"x\"} 6\nh_bucket{le=\"0.1\",o=\"x\"} 2\n\
             h_bucket{le=\"1.0\",o=\"x\"} 5\nh_bucket{le=\"+Inf\",o=\"x\"} 6\n",
        );
        let [(_, metric::Data::Histogram(histogram))] = &found[..] else { panic!("{found:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (6, Some(1.5)));
        assert_eq!(point.bucket_counts, [2, 3, 1]);
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        assert_eq!(point.attributes, [attribute("o", "x")]);
    }

    #[test]
    fn spans_keep_their_ids_times_and_errors() {
        let span = Span {
            name: "request",
            trace: 0x0102 << 112,
            parent: Some(3),
            start_nanos: 10,
            end_nanos: 20,
            attributes: vec![("k", "v".into()), ("n", number(7))],
            error: Some("503".to_owned()),
        };
        let mut request = process().traces(vec![span]);
        let found = request.resource_spans.remove(0).scope_spans.remove(0).spans.remove(0);
        assert_eq!(found.trace_id[..3], [1, 2, 0]);
        assert_eq!(found.parent_span_id, [0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!([found.start_time_unix_nano, found.end_time_unix_nano], [10, 20]);
        assert_eq!(found.attributes, [attribute("k", "v"), typed("n", Attribute::Number(7))]);
        assert_eq!(found.status.unwrap().message, "503");
    }
}
