//! [`RemoteWrite`]: writes counts by the protocols Prometheus remote write 1.0 and 2.0. A point consists of the same labels, value and
//! timestamp whenever it is written, so the server ignores a repetition.
//!
//! Prometheus only accepts points of a series in order, unless `storage.tsdb.out_of_order_time_window` is set, and drops some others although
//! it acknowledges them. Minutes are not always sent in order: after an outage, several nodes send the minutes of a series. The probe therefore
//! tests whether the server accepts a point that is out of order.

use std::collections::HashMap;
use std::fmt::Write as _;

use async_trait::async_trait;
use prost::Message;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::server::{RemoteWriteVersion, Settings, SettingsError, Writer};
use super::{Output, SealedCounts, WriteError, metrics};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, tags};

const VERSION: HeaderName = HeaderName::from_static("x-prometheus-remote-write-version");
const WRITTEN: &str = "x-prometheus-remote-write-samples-written";
const NAME: &str = "__name__";

/// An output that writes to a server by Prometheus remote write.
#[derive(Debug)]
pub(super) struct RemoteWrite {
    writer: Writer,
    version: RemoteWriteVersion,
    probe_measurement: String,
}

/// A point: its labels, sorted by name, its value and its timestamp in milliseconds since the epoch.
struct Point {
    labels: Vec<(String, String)>,
    value: f64,
    millis: i64,
}

impl Point {
    fn new(name: &str, tags: &[(String, String)], value: f64, minute: Minute) -> Self {
        let mut labels: Vec<_> =
            tags.iter().map(|(key, value)| (escaped(key, ""), value.clone())).collect();
        labels.push((NAME.to_owned(), escaped(name, ":")));
        labels.sort_unstable();
        Self { labels, value, millis: minute.start_nanos() / 1_000_000 }
    }

    fn samples(&self) -> Vec<Sample> {
        vec![Sample { value: self.value, timestamp: self.millis }]
    }
}

/// Returns a name of letters, digits and underscores that differs for different names: the name itself, if it is valid, or
/// else the form defined by Prometheus for such names (`U__`, with each other character as its code in hexadecimal).
/// Characters in `others` are also valid.
fn escaped(name: &str, others: &str) -> String {
    let is_valid = |at: usize, character: char| {
        character.is_ascii_alphabetic()
            || character == '_'
            || others.contains(character)
            || (at > 0 && character.is_ascii_digit())
    };
    // Names that begin with two underscores are reserved.
    let is_reserved = name.is_empty() || name.starts_with("__") || name.starts_with("U__");
    if !is_reserved && name.char_indices().all(|(at, character)| is_valid(at, character)) {
        return name.to_owned();
    }
    name.char_indices().fold("U__".to_owned(), |mut text, (at, character)| {
        match character {
            '_' => text.push_str("__"),
            valid if is_valid(at, valid) => text.push(valid),
            // Writing to a string cannot fail.
            other => drop(write!(text, "_{:x}_", u32::from(other))),
        }
        text
    })
}

impl RemoteWrite {
    pub(super) fn new(
        settings: &Settings,
        version: RemoteWriteVersion,
        probe_measurement: String,
    ) -> Result<Self, SettingsError> {
        Ok(Self { writer: Writer::new(settings, "ms")?, version, probe_measurement })
    }

    async fn post(&self, points: &[Point]) -> Result<(), WriteError> {
        let (bytes, protocol, content) = match self.version {
            RemoteWriteVersion::V1 => (v1(points), "0.1.0", "application/x-protobuf"),
            RemoteWriteVersion::V2 => {
                (v2(points), "2.0.0", "application/x-protobuf;proto=io.prometheus.write.v2.Request")
            }
        };
        let bytes = snap::raw::Encoder::new().compress_vec(&bytes).map_err(|error| {
            WriteError::Rejected(Diagnosis::new(Cause::OutputBug, error.to_string()))
        })?;
        let headers = [(CONTENT_TYPE, content), (CONTENT_ENCODING, "snappy"), (VERSION, protocol)];
        let headers = headers.map(|(name, value)| (name, HeaderValue::from_static(value)));
        let answer = self.writer.post(HeaderMap::from_iter(headers), bytes).await?;
        answer.judge(&String::from_utf8_lossy(&answer.body))?;
        // A server that does not know version 2.0 may accept a request and store nothing.
        let written = || answer.headers.get(WRITTEN)?.to_str().ok()?.parse::<usize>().ok();
        if self.version == RemoteWriteVersion::V1 || written() == Some(points.len()) {
            return Ok(());
        }
        let why = match written() {
            Some(written) => format!("the server stored {written} of {} points", points.len()),
            None => "the server did not return the number of points stored".to_owned(),
        };
        Err(WriteError::Misconfigured(Diagnosis::new(Cause::OutputNoApi, why)))
    }
}

#[async_trait]
impl Output for RemoteWrite {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        let points: Vec<_> = counts
            .iter()
            .flat_map(|counts| {
                let (tags, start) = (tags(&counts.series), counts.period.start);
                metrics(counts).map(move |(name, value)| Point::new(&name, &tags, value, start))
            })
            .collect();
        self.post(&points).await
    }

    /// Also writes a point that is older, because Prometheus may acknowledge counts out of order and drop them afterwards.
    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        let before = Minute::from_epoch_minutes(minute.epoch_minutes() - 1);
        for minute in std::iter::once(minute).chain(before) {
            self.post(&[Point::new(&self.probe_measurement, &[], 0.0, minute)]).await?;
        }
        Ok(())
    }

    fn describe(&self) -> String {
        self.writer.describe().to_owned()
    }
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(double, tag = "1")]
    value: f64,
    #[prost(int64, tag = "2")]
    timestamp: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
}

/// `prometheus.WriteRequest`.
#[derive(Clone, PartialEq, Message)]
struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    timeseries: Vec<TimeSeries>,
}

fn v1(points: &[Point]) -> Vec<u8> {
    let label =
        |(name, value): &(String, String)| Label { name: name.clone(), value: value.clone() };
    let series = |point: &Point| TimeSeries {
        labels: point.labels.iter().map(label).collect(),
        samples: point.samples(),
    };
    WriteRequest { timeseries: points.iter().map(series).collect() }.encode_to_vec()
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    /// The type of the metric; 2 is a gauge.
    #[prost(int32, tag = "1")]
    kind: i32,
}

#[derive(Clone, PartialEq, Message)]
struct TimeSeries2 {
    /// The indexes of the names and values of the labels, in turn.
    #[prost(uint32, repeated, tag = "1")]
    labels: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(message, optional, tag = "5")]
    metadata: Option<Metadata>,
}

/// `io.prometheus.write.v2.Request`.
#[derive(Clone, PartialEq, Message)]
struct Request {
    /// All names and values; the first is empty.
    #[prost(string, repeated, tag = "4")]
    symbols: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    timeseries: Vec<TimeSeries2>,
}

fn v2(points: &[Point]) -> Vec<u8> {
    let mut symbols = vec![""];
    let mut known = HashMap::from([("", 0)]);
    let mut timeseries = Vec::with_capacity(points.len());
    for point in points {
        let texts = point.labels.iter().flat_map(|(name, value)| [&**name, &**value]);
        let labels = texts
            .map(|text| {
                *known.entry(text).or_insert_with(|| {
                    symbols.push(text);
                    // A request has far fewer texts.
                    u32::try_from(symbols.len() - 1).unwrap_or(u32::MAX)
                })
            })
            .collect();
        let metadata = Some(Metadata { kind: 2 });
        timeseries.push(TimeSeries2 { labels, samples: point.samples(), metadata });
    }
    let symbols = symbols.into_iter().map(str::to_owned).collect();
    Request { symbols, timeseries }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_names_are_escaped_as_prometheus_defines() {
        for (name, expected) in [
            ("product", "product"),
            ("http_code2", "http_code2"),
            ("", "U__"),
            ("http.code", "U__http_2e_code"),
            ("a_b.c", "U__a__b_2e_c"),
            ("2xx", "U___32_xx"),
            ("ü", "U___fc_"),
            ("__name__", "U______name____"),
            ("U__a", "U__U____a"),
            ("a:b", "U__a_3a_b"),
        ] {
            assert_eq!(escaped(name, ""), expected, "{name}");
        }
        assert_eq!(escaped("a:b", ":"), "a:b");
    }

    /// Decodes an escaped name.
    fn decoded(name: &str) -> String {
        let Some(mut rest) = name.strip_prefix("U__") else {
            return name.to_owned();
        };
        let mut text = String::new();
        while let Some(character) = rest.chars().next() {
            rest = &rest[character.len_utf8()..];
            if character != '_' {
                text.push(character);
            } else if let Some(after) = rest.strip_prefix('_') {
                text.push('_');
                rest = after;
            } else {
                let (code, after) = rest.split_once('_').unwrap();
                text.push(char::from_u32(u32::from_str_radix(code, 16).unwrap()).unwrap());
                rest = after;
            }
        }
        text
    }

    proptest! {
        #[test]
        fn different_names_stay_different(name in "(U__|__|_|[a-z0-9.:ü_]|\\PC){0,8}") {
            let escaped = escaped(&name, "");
            prop_assert_eq!(decoded(&escaped), name);
            prop_assert!(!escaped.starts_with("__") && !escaped.is_empty());
            let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            prop_assert!(escaped.bytes().all(is_valid), "{}", escaped);
        }
    }

    #[test]
    fn version_2_contains_each_text_once() {
        let minute = Minute::from_epoch_minutes(2).unwrap();
        let tags = [("b".to_owned(), "x".to_owned()), ("a".to_owned(), "b".to_owned())];
        let points = [Point::new("x", &tags, 1.5, minute), Point::new("x", &tags, 2.5, minute)];
        let request = Request::decode(&*v2(&points)).unwrap();
        assert_eq!(request.symbols, ["", NAME, "x", "a", "b"]);
        assert_eq!(request.timeseries[0].labels, [1, 2, 3, 4, 4, 2]);
        assert_eq!(request.timeseries[1].samples, [Sample { value: 2.5, timestamp: 120_000 }]);
    }
}
