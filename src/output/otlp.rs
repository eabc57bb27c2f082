//! [`Otlp`]: writes counts as OTLP metrics, in protobuf over HTTP. All metrics are gauges, because many servers do not accept sums per
//! minute. A point is the same whenever and by whichever node it is written, so nothing identifies the node. There is no resource either,
//! because servers may make labels of its attributes, which replace tags with the same name.

use std::collections::BTreeMap;

use async_trait::async_trait;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, metric, number_data_point,
};
use prost::Message;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use super::server::{Settings, SettingsError, Writer};
use super::{Output, SealedCounts, WriteError, metrics};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, tags};
use crate::text::on_one_line;

const PROTOBUF: &str = "application/x-protobuf";

/// An output that writes to a server by OTLP.
#[derive(Debug)]
pub(super) struct Otlp {
    client: OtlpClient,
    probe_measurement: String,
}

/// Sends OTLP requests to one URL.
#[derive(Debug)]
pub(crate) struct OtlpClient(Writer);

/// The body of a response that reports an error: `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(string, tag = "2")]
    message: String,
}

impl OtlpClient {
    /// Creates the client without connecting.
    pub(crate) fn new(settings: &Settings) -> Result<Self, SettingsError> {
        Ok(Self(Writer::new(settings, "ns")?))
    }

    /// Sends a request for the server to store points or spans. Returns `Ok` only if it has stored all of them.
    pub(crate) async fn post(&self, request: Vec<u8>) -> Result<(), WriteError> {
        let content = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF))]);
        let answer = self.0.post(content, request).await?;
        let is_protobuf = answer.headers.get(CONTENT_TYPE).is_some_and(|value| value == PROTOBUF);
        let body = &*answer.body;
        if !is_protobuf {
            return answer.judge(&String::from_utf8_lossy(body));
        }
        if answer.status != 200 {
            let message = Status::decode(body).unwrap_or_default().message;
            return answer.judge(&message);
        }
        // The response for spans has the same fields.
        let rejected = match ExportMetricsServiceResponse::decode(body) {
            Ok(response) => response.partial_success.filter(|part| part.rejected_data_points > 0),
            Err(error) => return answer.judge(&error.to_string()),
        };
        rejected.map_or(Ok(()), |rejected| {
            let why = on_one_line(&rejected.error_message);
            Err(WriteError::Rejected(Diagnosis::new(Cause::OutputRejectsAll, why)))
        })
    }

    pub(crate) fn describe(&self) -> &str {
        self.0.describe()
    }
}

impl Otlp {
    pub(super) fn new(
        settings: &Settings,
        probe_measurement: String,
    ) -> Result<Self, SettingsError> {
        Ok(Self { client: OtlpClient::new(settings)?, probe_measurement })
    }
}

#[async_trait]
impl Output for Otlp {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let mut points: BTreeMap<String, Vec<NumberDataPoint>> = BTreeMap::new();
        for counts in counts {
            let tags = tags(&counts.series);
            for (name, value) in metrics(counts) {
                let point = point(&tags, value, counts.period.start)?;
                points.entry(name).or_default().push(point);
            }
        }
        self.client.post(request(points).encode_to_vec()).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        let points = vec![point(&[], 0.0, minute)?];
        let request = request([(self.probe_measurement.clone(), points)]);
        self.client.post(request.encode_to_vec()).await
    }

    fn describe(&self) -> String {
        self.client.describe().to_owned()
    }
}

fn attribute(key: &str, value: &str) -> KeyValue {
    let value = Some(any_value::Value::StringValue(value.to_owned()));
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value }), ..KeyValue::default() }
}

fn point(
    tags: &[(String, String)],
    value: f64,
    minute: Minute,
) -> Result<NumberDataPoint, WriteError> {
    let early = "not sent: OTLP has no times before 1970";
    let early = |_| WriteError::Rejected(Diagnosis::new(Cause::OutputRejectsAll, early));
    Ok(NumberDataPoint {
        attributes: tags.iter().map(|(key, value)| attribute(key, value)).collect(),
        time_unix_nano: u64::try_from(minute.start_nanos()).map_err(early)?,
        value: Some(number_data_point::Value::AsDouble(value)),
        ..NumberDataPoint::default()
    })
}

fn request(
    points: impl IntoIterator<Item = (String, Vec<NumberDataPoint>)>,
) -> ExportMetricsServiceRequest {
    let metric = |(name, data_points): (String, Vec<NumberDataPoint>)| Metric {
        name,
        data: Some(metric::Data::Gauge(Gauge { data_points })),
        ..Metric::default()
    };
    let metrics = points.into_iter().map(metric).collect();
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            scope_metrics: vec![ScopeMetrics { metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }],
    }
}
