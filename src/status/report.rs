//! Reports of nodes and relays, whose fields `docs/openapi.json` describes.
//!
//! A report in the store may be of another version or of another program: [`Report::read`] reads it field by field and makes
//! its texts short and printable.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::node::Sample;
use crate::store::Loss;
use crate::telemetry::{Totals, totals};
use crate::text::beginning;

/// The longest text of a report, in characters.
const TEXT_CHARS_MAX: usize = 200;
/// The longest list of a report.
const LISTED_MAX: usize = 16;

/// The report of a node.
pub(crate) type NodeReport = Report<NodeDetails>;
/// The report of a relay.
pub(crate) type RelayReport = Report<RelayDetails>;

/// The report of a process, some kilobytes long at most.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report<R> {
    #[serde(flatten)]
    pub(crate) process: ProcessReport,
    #[serde(flatten)]
    pub(crate) details: R,
}

/// The fields that nodes and relays share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessReport {
    pub(crate) name: String,
    /// `name#number`.
    pub(crate) instance: String,
    pub(crate) version: String,
    /// RFC 3339, by the clock of the process.
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    /// Lines, over the last ten seconds.
    #[serde(deserialize_with = "rate")]
    pub(crate) received_per_second: f64,
    /// The period of the recent totals: five minutes, or less.
    pub(crate) recent_seconds: u64,
    pub(crate) sockets_failing: u64,
    /// Workers that make no progress.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stalled: Vec<String>,
    pub(crate) name_taken: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeDetails {
    pub(crate) store: String,
    /// Why the node cannot record.
    pub(crate) store_error: Option<String>,
    /// How its settings differ from the cluster-wide settings, which keeps it from closing minutes and sending.
    pub(crate) settings_error: Option<String>,
    #[serde(deserialize_with = "rate")]
    pub(crate) recorded_per_second: f64,
    #[serde(deserialize_with = "rate")]
    pub(crate) old_minutes_per_second: f64,
    pub(crate) totals: Totals,
    pub(crate) recent: Totals,
    /// Age of the lag; 0 if the node records all events.
    pub(crate) lag_seconds: u64,
    pub(crate) partitions_lagging: u64,
    pub(crate) queue: Queue,
    pub(crate) spool: Room,
    /// How far the store's clock is ahead of the node's; `None` until the store has told its time.
    pub(crate) clock_offset_ms: Option<i64>,
    /// Which timestamps are coarse, with an example.
    pub(crate) coarse_stamps: Option<String>,
    /// A sample of the lines without a timestamp. Only nodes read it.
    pub(crate) unstamped: Option<Sample>,
    /// A node that received the same lines without a timestamp within a second, in the last five minutes.
    pub(crate) unstamped_copies_at: Option<String>,
    /// Data of a former number of partitions in the store.
    pub(crate) leftovers: Option<String>,
    pub(crate) outputs: Vec<OutputReport>,
    /// The most frequent reasons of rejection in the recent period, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejected: Vec<RejectedReport>,
    /// Losses that the record does not have yet. Only the node itself knows them.
    #[serde(skip)]
    pub(crate) unrecorded: Vec<Loss>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RejectedReport {
    /// The label of the metric.
    pub(crate) reason: String,
    pub(crate) lines: u64,
    /// The beginning of a line, escaped.
    pub(crate) example: String,
}

/// Events on the way to the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Queue {
    pub(crate) events: u64,
    pub(crate) events_max: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
}

/// Events on disk; `bytes_max` is 0 without a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Room {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutputReport {
    pub(crate) name: String,
    /// Without secrets.
    pub(crate) url: String,
    pub(crate) up: bool,
    pub(crate) last_error: Option<String>,
    pub(crate) remedy: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RelayDetails {
    pub(crate) listen: Vec<String>,
    #[serde(deserialize_with = "rate")]
    pub(crate) events_per_second: f64,
    pub(crate) totals: RelayTotals,
    pub(crate) recent: RelayTotals,
    /// The nodes.
    pub(crate) to: Vec<TargetReport>,
    /// The destination of lines that are no events.
    pub(crate) rest: TargetReport,
    /// The last line of each reason that was sent nowhere.
    pub(crate) unsent: Vec<UnsentReport>,
}

totals! {
    /// Counts of lines by destination since a relay started.
    RelayTotals {
        received,
        events,
        /// Events that were sent to no node.
        nowhere,
        rejected,
        looped,
        rest_sent,
        /// Because `rest.url` is `none:`.
        rest_discarded,
        /// For another reason.
        rest_dropped,
        kernel_drops,
    }
    level rest_queued
    lost nowhere rest_dropped kernel_drops
}

/// A destination of a relay, with counts of lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TargetReport {
    /// Without secrets.
    pub(crate) to: String,
    pub(crate) up: bool,
    /// Whether its lines come back to this relay.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_loop: bool,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    pub(crate) queued: u64,
}

/// A line that was sent nowhere.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UnsentReport {
    /// The label of the metric.
    pub(crate) reason: String,
    pub(crate) source: Option<String>,
    /// Its beginning, escaped.
    pub(crate) line: String,
}

impl<R: Default + Serialize + DeserializeOwned> Report<R> {
    pub(crate) fn to_json(&self) -> String {
        let mut report = known(self);
        fit(&mut report);
        report.to_string()
    }

    /// Reads the report of another process. Fields that cannot be read keep their defaults. Returns whether all could be read.
    pub(crate) fn read(text: &str) -> (Self, bool) {
        let mut value: Value = serde_json::from_str(text).unwrap_or_default();
        fit(&mut value);
        match serde_json::from_value(value.clone()) {
            Ok(report) => (report, true),
            Err(_) => (Self::read_fields(value), false),
        }
    }

    fn read_fields(value: Value) -> Self {
        use serde_json::Value::Object;

        let mut report = Self::default();
        let Object(fields) = value else {
            return report;
        };
        for field in fields {
            let Ok(Object(mut known)) = serde_json::to_value(&report) else {
                break;
            };
            known.extend([field]);
            if let Ok(read) = serde_json::from_value(Object(known)) {
                report = read;
            }
        }
        report
    }
}

/// Returns the JSON of a value without unknown values, which are `None`.
pub(super) fn known(value: &impl Serialize) -> Value {
    fn remove_nulls(value: &mut Value) {
        match value {
            Value::Array(items) => items.iter_mut().for_each(remove_nulls),
            Value::Object(fields) => {
                fields.retain(|_, value| !value.is_null());
                fields.values_mut().for_each(remove_nulls);
            }
            _ => {}
        }
    }
    let mut value = serde_json::to_value(value).unwrap_or_default();
    remove_nulls(&mut value);
    value
}

/// Makes texts short and printable, and lists short.
fn fit(value: &mut Value) {
    match value {
        Value::String(text) => *text = beginning(text, TEXT_CHARS_MAX),
        Value::Array(items) => {
            items.truncate(LISTED_MAX);
            items.iter_mut().for_each(fit);
        }
        Value::Object(fields) => {
            // The sample has numbers only, and is of no use if it is cut.
            let fields = fields.iter_mut().filter(|(name, _)| *name != "unstamped");
            fields.for_each(|(_, value)| fit(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Reads a rate and bounds it.
fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(f64::deserialize(deserializer)?.clamp(0.0, 1e12))
}
