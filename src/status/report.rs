//! [`NodeReport`]: what a node says of itself. Others may be of another version, or no nodes at all: what they say is read field by
//! field, and every text of theirs is made fit for a terminal.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::node::Sample;
use crate::store::Loss;
use crate::text::beginning;

/// The longest text of a report, in characters.
const TEXT_CHARS_MAX: usize = 200;
/// The longest list of a report.
const LISTED_MAX: usize = 16;

/// What a node says of itself. It is at most some kilobytes long.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// Name and number of the process.
    pub instance: String,
    /// Its version.
    pub version: String,
    /// When it started, by its own clock (RFC 3339).
    pub started: String,
    /// How long ago that is.
    pub uptime_seconds: u64,
    /// Where it records.
    pub store: String,
    /// Why it cannot record at the moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store_error: Option<String>,
    /// Why it closes no minute and sends nothing: how its settings differ from those of the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settings_error: Option<String>,
    /// Lines read, over the last ten seconds.
    #[serde(deserialize_with = "rate")]
    pub received_per_second: f64,
    /// Events confirmed by the store, over the last ten seconds.
    #[serde(deserialize_with = "rate")]
    pub recorded_per_second: f64,
    /// Old minutes of partitions sealed, over the last ten seconds.
    #[serde(deserialize_with = "rate")]
    pub old_minutes_per_second: f64,
    /// What became of everything since the process started.
    pub totals: Totals,
    /// The same of the last five minutes, or less.
    pub recent: Totals,
    /// How long `recent` is.
    pub recent_seconds: u64,
    /// For how long it has had events that it cannot record; 0: it records all that comes.
    pub lag_seconds: u64,
    /// The partitions of such events.
    pub partitions_lagging: u64,
    /// Events on the way to the store.
    pub queue: Queue,
    /// Events on disk.
    pub spool: Room,
    /// How far the store's clock is ahead of the node's; `None` until the store has told its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_offset_ms: Option<i64>,
    /// Threads whose socket cannot be read.
    pub sockets_failing: u64,
    /// Workers that make no progress.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stalled: Vec<String>,
    /// Whether another process uses its name.
    pub name_taken: bool,
    /// Which timestamps were found to be coarse, and in which series.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coarse_stamps: Option<String>,
    /// A sample of the lines without a timestamp that it gets. Only nodes look at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unstamped: Option<Sample>,
    /// A node that got the same lines without a timestamp, within a second, in the last five minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unstamped_copies_at: Option<String>,
    /// What another number of partitions left in the store, where no node works on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leftovers: Option<String>,
    /// Its outputs.
    pub outputs: Vec<OutputReport>,
    /// The reasons for which it rejected lines in the last five minutes, or less: the most frequent ones, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectedReport>,
    /// What the record of losses does not have of it yet; only the node itself knows.
    #[serde(skip)]
    pub unrecorded: Vec<Loss>,
}

/// Lines that a node rejected for one reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RejectedReport {
    /// The reason's label in the metrics.
    pub reason: String,
    /// How many there were in the last five minutes, or less.
    pub lines: u64,
    /// The beginning of one of the last, escaped.
    pub example: String,
}

/// What became of what a node received. All but `queued` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "each has the name of its metric")]
pub struct Totals {
    pub received: u64,
    pub recorded: u64,
    /// Recorded ones that the store had already.
    pub repeated: u64,
    pub overflowed: u64,
    pub rejected: u64,
    /// For whatever reason; those that follow are among them.
    pub dropped: u64,
    pub dropped_queue_full: u64,
    pub dropped_spool_full: u64,
    pub dropped_spool_failed: u64,
    pub queued: u64,
    pub kernel_drops: u64,
    pub forgotten: u64,
    /// Minutes of partitions.
    pub unconfirmed: u64,
    pub late: u64,
    pub rounded: u64,
    pub coinciding: u64,
    /// Series of a minute.
    pub sealed: u64,
    /// Minutes of partitions, sealed long after their end.
    pub old_minutes_sealed: u64,
    /// Points.
    pub sent: u64,
    /// Points.
    pub quarantined: u64,
    /// Points.
    pub discarded: u64,
}

/// What waits in memory, and the most that may.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the type explains them")]
pub struct Queue {
    pub events: u64,
    pub events_max: u64,
    pub bytes: u64,
    pub bytes_max: u64,
}

/// What waits on disk, and the most that may; 0: there is no such directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(missing_docs, reason = "the type explains them")]
pub struct Room {
    pub events: u64,
    pub bytes: u64,
    pub bytes_max: u64,
}

/// An output, as a node sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputReport {
    /// What it is called.
    pub name: String,
    /// Where it is, without secrets.
    pub url: String,
    /// Whether it takes what the node writes, as far as the node knows.
    pub up: bool,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Totals {
    /// What came since then.
    #[must_use]
    pub fn since(&self, then: &Self) -> Self {
        macro_rules! less {
            ($($field:ident)*) => {
                Self { $($field: self.$field.saturating_sub(then.$field),)* queued: self.queued }
            };
        }
        less!(received recorded repeated overflowed rejected dropped dropped_queue_full dropped_spool_full
            dropped_spool_failed kernel_drops forgotten unconfirmed late rounded coinciding sealed old_minutes_sealed
            sent quarantined discarded)
    }

    /// Events, points and minutes that a node or Redis had, or should have had, and that nobody is known to have any more. Late events
    /// are not among them: copies of published ones may be.
    #[must_use]
    pub fn lost(&self) -> u64 {
        [self.dropped, self.kernel_drops, self.forgotten, self.unconfirmed, self.discarded]
            .iter()
            .fold(0, |sum, each| sum.saturating_add(*each))
    }
}

impl Report for NodeReport {
    fn identity(&mut self) -> [&mut String; 3] {
        [&mut self.name, &mut self.instance, &mut self.version]
    }
}

/// What a process says of itself.
pub trait Report: Default + Serialize + DeserializeOwned {
    /// Returns its name, the name with the number of the process, and the version.
    fn identity(&mut self) -> [&mut String; 3];

    /// Returns the report as it is sent.
    #[must_use]
    fn to_json(&self) -> String {
        let mut report = serde_json::to_value(self).unwrap_or_default();
        fit(&mut report);
        report.to_string()
    }

    /// Reads what another process sent: what cannot be understood is as if it were not there. Returns whether all could be.
    #[must_use]
    fn read(text: &str) -> (Self, bool) {
        let mut report: Value = serde_json::from_str(text).unwrap_or_default();
        fit(&mut report);
        match serde_json::from_value(report.clone()) {
            Ok(report) => (report, true),
            Err(_) => (read_parts(report), false),
        }
    }
}

/// Makes every text short and printable, and every list short.
fn fit(value: &mut Value) {
    match value {
        Value::String(text) => *text = beginning(text, TEXT_CHARS_MAX),
        Value::Array(items) => {
            items.truncate(LISTED_MAX);
            items.iter_mut().for_each(fit);
        }
        Value::Object(fields) => {
            // Of numbers only, and as long as it is of use.
            let fields = fields.iter_mut().filter(|(name, _)| *name != "unstamped");
            fields.for_each(|(_, value)| fit(value));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Reads a rate that makes sense.
pub(super) fn rate<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(f64::deserialize(deserializer)?.clamp(0.0, 1e12))
}

fn read_parts<T: Default + Serialize + DeserializeOwned>(theirs: Value) -> T {
    use serde_json::Value::Object;

    let mut report = T::default();
    let Object(theirs) = theirs else {
        return report;
    };
    for field in theirs {
        let Ok(Object(mut ours)) = serde_json::to_value(&report) else {
            break;
        };
        ours.extend([field]);
        if let Ok(read) = serde_json::from_value(Object(ours)) {
            report = read;
        }
    }
    report
}
