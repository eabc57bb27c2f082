//! Reports from nodes and relays, whose fields are described in `docs/openapi.json`. As a report in the store may have any
//! content, [`Report::read`] tolerates invalid fields and makes all texts short and printable.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::diagnosis::LossCause;
use crate::node::{LedgerTotals, Sample};
use crate::store::Loss;
use crate::telemetry::{Metrics, OfOutput, WriteMetrics, of_output};
use crate::text::beginning;

const TEXT_CHARS_MAX: usize = 200;
const LISTED_MAX: usize = 16;
/// The number of minutes in [`Hour`].
const HOUR_MINUTES: usize = 60;
/// The age of the last report at which a process counts as silent. By then, it has missed seven reports.
const SILENT_AFTER: Duration = Duration::from_secs(15);

pub(crate) type NodeReport = Report<NodeDetails>;
pub(crate) type RelayReport = Report<RelayDetails>;

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report<R> {
    #[serde(flatten)]
    pub(crate) process: ProcessReport,
    #[serde(flatten)]
    pub(crate) details: R,
    #[serde(flatten, skip_deserializing)]
    pub(crate) seen: Seen,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Seen {
    pub(crate) last_seen_seconds: u64,
    pub(crate) silent: bool,
    pub(crate) readable: bool,
    /// The share of recent events that a node saw, relative to the node that saw the most.
    pub(crate) coverage: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ProcessReport {
    pub(crate) name: String,
    /// The name and number of the process, as `name#number`.
    pub(crate) instance: String,
    pub(crate) version: String,
    /// The start time according to the process's own clock, in RFC 3339 format.
    pub(crate) started: String,
    pub(crate) uptime_seconds: u64,
    #[serde(deserialize_with = "rate")]
    pub(crate) received_per_second: f64,
    /// The length of the period covered by the recent totals: at most five minutes.
    pub(crate) recent_seconds: u64,
    pub(crate) sockets_failing: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) stalled: Vec<String>,
    pub(crate) name_taken: bool,
    /// Events by HTTP; `None` if there have been no requests.
    pub(crate) requests: Option<RequestsReport>,
    pub(crate) hour: Hour,
}

/// The last hour, by minute, oldest first. The last one is the current minute.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Hour {
    #[serde(deserialize_with = "minutes")]
    pub(crate) received_per_second: Vec<u64>,
    /// The highest number of queued events of a node, or of queued passthrough lines of a relay.
    #[serde(deserialize_with = "minutes")]
    pub(crate) queued: Vec<u64>,
    /// The longest lag of a node.
    #[serde(deserialize_with = "minutes")]
    pub(crate) lag_seconds: Vec<u64>,
    /// The highest number of series of a partition in a minute that the node sealed.
    #[serde(deserialize_with = "minutes")]
    pub(crate) series: Vec<u64>,
    /// The highest number of users of a series in a minute that the node sent.
    #[serde(deserialize_with = "minutes")]
    pub(crate) users: Vec<u64>,
    /// The longest time from the end of a recent minute until the node had sealed it.
    #[serde(deserialize_with = "minutes")]
    pub(crate) seal_seconds: Vec<u64>,
}

impl Hour {
    pub(super) fn push(&mut self, numbers: [u64; 6]) {
        let all = [
            &mut self.received_per_second,
            &mut self.queued,
            &mut self.lag_seconds,
            &mut self.series,
            &mut self.users,
            &mut self.seal_seconds,
        ];
        for (minutes, number) in all.into_iter().zip(numbers) {
            minutes.drain(..(minutes.len() + 1).saturating_sub(HOUR_MINUTES));
            minutes.push(number);
        }
    }
}

/// Requests to write events since startup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RequestsReport {
    pub(crate) recorded: u64,
    /// Requests that the client must repeat.
    pub(crate) deferred: u64,
    pub(crate) rejected: u64,
}

impl RequestsReport {
    pub(crate) fn of(metrics: &WriteMetrics) -> Option<Self> {
        let [recorded, deferred, rejected] = metrics.outcomes();
        let report = Self { recorded, deferred, rejected };
        (report != Self::default()).then_some(report)
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct NodeDetails {
    pub(crate) store: String,
    pub(crate) store_error: Option<String>,
    pub(crate) settings_error: Option<String>,
    #[serde(deserialize_with = "rate")]
    pub(crate) recorded_per_second: f64,
    #[serde(deserialize_with = "rate")]
    pub(crate) old_minutes_per_second: f64,
    pub(crate) totals: Totals,
    pub(crate) recent: Totals,
    /// The time the node has been lagging; 0 if it records all events.
    pub(crate) lag_seconds: u64,
    pub(crate) partitions_lagging: u64,
    pub(crate) queue: Queue,
    pub(crate) limits: MinuteLimits,
    pub(crate) spool: Spooled,
    /// How far the store's clock is ahead of the node's.
    pub(crate) clock_offset_ms: Option<i64>,
    pub(crate) coarse_stamps: Option<String>,
    /// A sample of lines without a timestamp, which other nodes compare with their own. It is not part of the status.
    pub(crate) unstamped: Option<Sample>,
    pub(crate) unstamped_copies_at: Option<String>,
    pub(crate) leftovers: Option<String>,
    pub(crate) outputs: Vec<OutputReport>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejected: Vec<RejectedReport>,
    #[serde(skip)]
    pub(crate) unrecorded: Vec<Loss>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct RejectedReport {
    pub(crate) reason: String,
    pub(crate) lines: u64,
    pub(crate) example: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Queue {
    pub(crate) events: u64,
    pub(crate) events_max: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
}

/// The limits of a minute; 0 means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MinuteLimits {
    /// The maximum number of series per partition.
    pub(crate) series_max: u64,
    /// The maximum number of users per series.
    pub(crate) users_max: u64,
}

/// Events on disk; `bytes_max` is 0 without a spool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Spooled {
    pub(crate) events: u64,
    pub(crate) bytes: u64,
    pub(crate) bytes_max: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OutputReport {
    pub(crate) name: String,
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
    pub(crate) to: Vec<TargetReport>,
    pub(crate) passthrough: TargetReport,
    pub(crate) unsent: Vec<UnsentReport>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct TargetReport {
    pub(crate) to: String,
    pub(crate) up: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_loop: bool,
    pub(crate) sent: u64,
    pub(crate) dropped: u64,
    pub(crate) queued: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UnsentReport {
    pub(crate) reason: String,
    pub(crate) source: Option<String>,
    pub(crate) line: String,
}

/// Declares a struct with totals, which only grow, and one gauge, `level`. The totals listed after `lost` count losses.
macro_rules! totals {
    ($name:ident { $($(#[doc = $doc:literal])* $count:ident,)* } level $level:ident lost $($lost:ident)*) => {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub(crate) struct $name {
            $($(#[doc = $doc])* pub(crate) $count: u64,)*
            pub(crate) $level: u64,
        }

        impl $name {
            pub(crate) const fn since(&self, then: &Self) -> Self {
                Self { $($count: self.$count.saturating_sub(then.$count),)* $level: self.$level }
            }

            pub(crate) fn lost(&self) -> u64 {
                [$(self.$lost),*].into_iter().fold(0, u64::saturating_add)
            }
        }
    };
}

totals! {
    Totals {
        received,
        recorded,
        /// Recorded events that the store already had.
        repeated,
        overflowed,
        rejected,
        dropped,
        kernel_drops,
        forgotten,
        /// Minutes, counted per partition.
        unconfirmed,
        late,
        rounded,
        coinciding,
        /// Counts that have been sealed, one per series per minute.
        sealed,
        /// Minutes that were sealed long after they ended, counted per partition.
        old_minutes_sealed,
        /// Points, like `quarantined` and `discarded`.
        sent,
        quarantined,
        discarded,
    }
    level queued
    lost dropped kernel_drops forgotten unconfirmed discarded
}

totals! {
    RelayTotals {
        received,
        events,
        /// Events that could not be sent to any node.
        nowhere,
        rejected,
        looped,
        passthrough_sent,
        /// Lines dropped because `passthrough.url` is `none:`.
        passthrough_discarded,
        passthrough_dropped,
        kernel_drops,
    }
    level passthrough_queued
    lost nowhere passthrough_dropped kernel_drops
}

impl RelayTotals {
    pub(crate) const fn losses(&self) -> [(LossCause, u64); 3] {
        [
            (LossCause::RelayNowhere, self.nowhere),
            (LossCause::RelayPassthrough, self.passthrough_dropped),
            (LossCause::RelayKernelDrops, self.kernel_drops),
        ]
    }
}

impl Totals {
    pub(super) fn of<'a>(
        metrics: &Metrics,
        ledger: &LedgerTotals,
        outputs: impl Iterator<Item = &'a str>,
    ) -> Self {
        let outputs: Vec<_> = outputs.map(of_output).collect();
        let sum = |family: &Family<OfOutput, Counter>| {
            let counters = outputs.iter().filter_map(|output| family.get(output));
            counters.map(|counter| counter.get()).sum()
        };
        Self {
            received: ledger.received,
            recorded: ledger.recorded,
            repeated: metrics.events_repeated.get(),
            overflowed: ledger.overflowed,
            rejected: ledger.rejected.iter().sum(),
            dropped: ledger.dropped.iter().sum(),
            queued: ledger.queued,
            kernel_drops: metrics.kernel_drops.get(),
            forgotten: metrics.events_forgotten.get(),
            unconfirmed: metrics.publications_unconfirmed.get(),
            late: metrics.events_late.get(),
            rounded: metrics.events_rounded.get(),
            coinciding: metrics.events_coinciding.get(),
            sealed: metrics.series_sealed.get(),
            old_minutes_sealed: metrics.old_seals.get(),
            sent: sum(&metrics.points_sent),
            quarantined: sum(&metrics.points_quarantined),
            discarded: sum(&metrics.points_discarded),
        }
    }
}

impl<R> Report<R> {
    pub(crate) fn new(process: ProcessReport, details: R, age: Duration) -> Self {
        let (last_seen_seconds, silent) = (age.as_secs(), age >= SILENT_AFTER);
        let seen = Seen { last_seen_seconds, silent, readable: true, coverage: None };
        Self { process, details, seen }
    }
}

impl<R: Default + Serialize + DeserializeOwned> Report<R> {
    pub(crate) fn to_json(&self) -> String {
        let mut report = known(self);
        fit(&mut report);
        report.to_string()
    }

    /// Parses a report from a different process. Fields that cannot be parsed keep their defaults.
    pub(crate) fn read(text: &str, age: Duration) -> Self {
        let mut value: Value = serde_json::from_str(text).unwrap_or_default();
        fit(&mut value);
        let whole = serde_json::from_value::<Self>(value.clone());
        let readable = whole.is_ok();
        let Self { process, details, .. } = whole.unwrap_or_else(|_| Self::read_fields(value));
        let mut report = Self::new(process, details, age);
        report.seen.readable = readable;
        report
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

/// Converts a value to JSON. Fields that are `None` are left out, because their values are unknown.
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

fn fit(value: &mut Value) {
    match value {
        Value::String(text) => *text = beginning(text, TEXT_CHARS_MAX),
        Value::Array(items) => {
            items.truncate(LISTED_MAX);
            items.iter_mut().for_each(fit);
        }
        Value::Object(fields) => {
            // The sample of unstamped lines and the hour must stay complete; they contain only numbers.
            let fields = fields.iter_mut();
            let fields = fields.filter(|(name, _)| !["unstamped", "hour"].contains(&name.as_str()));
            fields.for_each(|(_, value)| fit(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn minutes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u64>, D::Error> {
    let mut minutes = Vec::deserialize(deserializer)?;
    minutes.truncate(HOUR_MINUTES);
    Ok(minutes)
}

fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(f64::deserialize(deserializer)?.clamp(0.0, 1e12))
}
