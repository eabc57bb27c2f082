//! [`Status`]: the answer of `/api/v1/status` and `eds status --json`, whose fields `docs/openapi.json` describes.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::report::{NodeDetails, ProcessReport, RelayDetails, Report, known};
use crate::diagnosis::Diagnosis;
use crate::store::{Loss, ServerSeen};

/// The age of a report from which its process counts as silent: it missed seven.
const SILENT_AFTER: Duration = Duration::from_secs(15);

/// The status of nodes, relays, store and outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Status {
    pub(crate) at: String,
    /// Whether all findings are notes.
    pub(crate) healthy: bool,
    pub(crate) is_anything_lost: Lost,
    /// Worst first.
    pub(crate) findings: Vec<Diagnosis>,
    /// By name.
    pub(crate) nodes: Vec<NodeStatus>,
    pub(crate) relays: Vec<RelayStatus>,
    /// Unacknowledged losses by cause; `None` if the record cannot be read.
    #[serde(skip_serializing_if = "is_none_or_empty")]
    pub(crate) losses: Option<Vec<CauseStatus>>,
    /// The record of losses, for `/api/v1/losses`.
    #[serde(skip)]
    pub(crate) record: Vec<Loss>,
    pub(crate) partitions: PartitionsStatus,
    /// By name, with outputs that are no longer configured but have unsent counts.
    pub(crate) outputs: Vec<OutputStatus>,
    /// `None` if the store is the memory of the node.
    pub(crate) redis: Option<RedisStatus>,
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn is_none_or_empty(losses: &Option<Vec<CauseStatus>>) -> bool {
    losses.as_ref().is_none_or(Vec::is_empty)
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Lost {
    pub(crate) answer: Answer,
    pub(crate) sentence: String,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Answer {
    No,
    Yes,
    #[default]
    Unknown,
    /// No, but many lines are rejected, or events may be missing from points.
    Attention,
}

/// The unacknowledged losses of one cause.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CauseStatus {
    pub(crate) cause: String,
    pub(crate) amount: u64,
    /// The first known minute of them (`20161204:1118`).
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    /// The known nodes, or relays, that lost them.
    pub(crate) nodes: Vec<String>,
}

impl Status {
    /// Returns the answer of `/api/v1/status`, without unknown values.
    pub(crate) fn to_json(&self) -> Value {
        known(self)
    }

    /// Returns the answer of `/api/v1/losses`; `None` if the record cannot be read.
    pub(crate) fn losses(&self) -> Option<Value> {
        self.losses.as_ref()?;
        let entries = self.record.iter().map(|loss| {
            let mut entry = json!({
                "cause": loss.cause, "node": loss.node(), "instance": loss.process, "amount": loss.amount, "acknowledged": loss.acknowledged,
            });
            if let Some(minute) = loss.minute {
                entry["minute"] = json!(minute.to_string());
            }
            entry
        });
        Some(json!({ "losses": entries.collect::<Vec<_>>() }))
    }
}

/// A node or a relay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ProcessStatus<R> {
    #[serde(flatten)]
    pub(crate) process: ProcessReport,
    #[serde(flatten)]
    pub(crate) details: R,
    pub(crate) last_seen_seconds: u64,
    pub(crate) silent: bool,
    /// Whether its whole report could be read.
    pub(crate) readable: bool,
    /// The share of recent events that a node saw, relative to the node that saw most; `None` if unknown.
    pub(crate) coverage: Option<f64>,
}

pub(crate) type NodeStatus = ProcessStatus<NodeDetails>;
pub(crate) type RelayStatus = ProcessStatus<RelayDetails>;

impl<R> ProcessStatus<R> {
    pub(super) fn new(report: Report<R>, age: Duration, readable: bool) -> Self {
        let Report { process, details } = report;
        let (last_seen_seconds, silent) = (age.as_secs(), age >= SILENT_AFTER);
        Self { process, details, last_seen_seconds, silent, readable, coverage: None }
    }
}

/// The backlog of all partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PartitionsStatus {
    pub(crate) count: usize,
    /// `None` if the store does not answer.
    pub(crate) by_state: Option<States>,
    pub(crate) oldest_unsent: Option<OldestUnsent>,
    pub(crate) old: Option<OldMinutes>,
}

/// Minutes of partitions that ended long ago and are not sealed. They are sealed after the recent ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OldMinutes {
    /// They are among the open ones.
    pub(crate) waiting: u64,
    /// An estimate; `None` if none was sealed in the last ten seconds.
    pub(crate) done_in_seconds: Option<u64>,
}

/// Counts of minutes of partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct States {
    pub(crate) open: u64,
    pub(crate) claimed: u64,
    /// Once for each output.
    pub(crate) unsent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OldestUnsent {
    pub(crate) minute: String,
    /// Since its end.
    pub(crate) age_seconds: u64,
    pub(crate) output: String,
    pub(crate) why: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OutputStatus {
    pub(crate) name: String,
    /// Without secrets; empty if no node has this output.
    pub(crate) url: String,
    /// Whether it is up for every node; `None` if no node reports it.
    pub(crate) up: Option<bool>,
    pub(crate) last_error: Option<String>,
    pub(crate) remedy: Option<String>,
    /// Minutes of partitions; `None` if the store does not answer, like `quarantined`.
    pub(crate) unsent: Option<u64>,
    pub(crate) quarantined: Option<u64>,
    pub(crate) quarantined_max: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RedisStatus {
    pub(crate) servers: Vec<ServerSeen>,
    /// Bytes needed for the present input by the formula of `docs/limits.md`; `None` if unknown.
    pub(crate) memory_by_formula: Option<u64>,
}

/// Values of the observer's configuration.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    pub(crate) grace: Duration,
    pub(crate) max_hold: Duration,
    /// `input.linger_max`, bounded by the grace.
    pub(crate) linger: Duration,
    /// How long counts are kept.
    pub(crate) retention: Duration,
    /// Names and URLs of the outputs.
    pub(crate) outputs: Vec<(String, String)>,
    pub(crate) partitions: usize,
}

/// The input of the findings.
pub(super) struct Scene<'a> {
    pub(super) status: &'a Status,
    pub(super) expected: &'a Expected,
    /// How the configuration differs from the cluster-wide settings.
    pub(super) difference: Option<&'a Diagnosis>,
}

impl Scene<'_> {
    /// Returns whether a clock differs by more than half of the grace.
    pub(super) fn is_far_off(&self, offset_ms: i64) -> bool {
        u128::from(offset_ms.unsigned_abs()) > (self.expected.grace.as_millis() / 2).max(1)
    }
}

/// Returns the percentage, rounded down.
pub(super) fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100) / all.max(1)
}
