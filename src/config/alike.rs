//! What must be alike on all nodes that share one Redis.
//!
//! The store keeps these values for all nodes, under the keys and in the words of the configuration, and compares each
//! node's with them. What names the store itself (`store.url`, `store.prefix`) is not among them: nodes that differ in
//! it meet nowhere.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};

use super::{Api, Config, Layout, OutputUrl, Precision};

impl Config {
    /// Key and value of everything that must be alike on all nodes. Values that mean the same are written the same.
    /// Without secrets.
    #[must_use]
    pub fn alike(&self) -> Vec<(&'static str, String)> {
        let span = |span: Duration| humantime::format_duration(span).to_string();
        let (input, flush) = (&self.input, &self.flush);
        let layout = match self.store.layout {
            Layout::Sets => "sets",
        };
        let precision = match input.timestamp_precision {
            Precision::Nanoseconds => "ns",
            Precision::Microseconds => "us",
            Precision::Milliseconds => "ms",
            Precision::Seconds => "s",
        };
        let [before, from] = match self.store.partitions_before {
            None => <[String; 2]>::default(),
            Some((before, from)) => {
                let from = DateTime::from_timestamp(from * 60, 0).unwrap_or_default();
                let from = from.to_rfc3339_opts(SecondsFormat::Secs, true);
                [before.to_string(), from]
            }
        };
        let [url, api, org, bucket, database] = output(&self.output.url).map(str::to_owned);
        vec![
            ("store.partitions", self.store.partitions.to_string()),
            ("store.partitions_before", before),
            ("store.partitions_from", from),
            ("store.layout", layout.to_owned()),
            ("input.max_age", span(input.max_age)),
            ("input.timestamp_precision", precision.to_owned()),
            (
                "input.measurement_tag",
                input.measurement_tag.clone().unwrap_or_default(),
            ),
            ("input.user_field", input.user_field.clone()),
            (
                "input.max_series_per_minute",
                input.max_series_per_minute.to_string(),
            ),
            (
                "input.max_users_per_series",
                input.max_users_per_series.to_string(),
            ),
            ("flush.grace", span(flush.grace)),
            ("flush.max_hold", span(flush.max_hold)),
            ("output.url", url),
            ("output.api", api),
            ("output.org", org),
            ("output.bucket", bucket),
            ("output.database", database),
        ]
    }
}

/// URL, API, organization, bucket and database; empty where the output has none.
fn output(url: &OutputUrl) -> [&str; 5] {
    match url {
        OutputUrl::Stdout => ["stdout:", "", "", "", ""],
        OutputUrl::InfluxDb(server) => match &server.api {
            Api::V2 { org, bucket, .. } => [&server.base_url, "v2", org, bucket, ""],
            Api::V1 { database, .. } => [&server.base_url, "v1", "", "", database],
        },
    }
}
