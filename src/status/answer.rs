//! [`Status`]: the body of `/api/v1/status` and the output of `eds status --json`. `docs/openapi.json` documents its fields.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::report::{NodeReport, RelayReport, known};
use crate::diagnosis::Diagnosis;
use crate::event::{Partition, Rollup};
use crate::store::{Loss, ServerSeen};

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Status {
    pub(crate) at: String,
    /// Whether all findings are notes, or there are no findings.
    pub(crate) healthy: bool,
    pub(crate) is_anything_lost: Lost,
    pub(crate) findings: Vec<Diagnosis>,
    pub(crate) nodes: Vec<NodeReport>,
    pub(crate) relays: Vec<RelayReport>,
    /// Unacknowledged losses by cause; `None` if the record cannot be read.
    #[serde(skip_serializing_if = "is_none_or_empty")]
    pub(crate) losses: Option<Vec<CauseStatus>>,
    #[serde(skip)]
    pub(crate) record: Vec<Loss>,
    pub(crate) partitions: PartitionsStatus,
    /// All outputs, sorted by name, including those that are no longer configured but still have unsent counts.
    pub(crate) outputs: Vec<OutputStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) rollups: Vec<RollupStatus>,
    /// `None` if the store is in the node's memory.
    pub(crate) redis: Option<RedisStatus>,
    #[serde(skip)]
    pub(super) expected: Expected,
    #[serde(skip)]
    pub(super) difference: Option<Diagnosis>,
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
    /// Nothing is known to have been lost, but nodes have rejected many lines, or late events may be missing from points.
    Attention,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct CauseStatus {
    pub(crate) cause: String,
    pub(crate) amount: u64,
    /// The first and last known minute, such as `20161204:1118`.
    pub(crate) first: Option<String>,
    pub(crate) last: Option<String>,
    pub(crate) nodes: Vec<String>,
}

impl Status {
    pub(super) fn is_far_off(&self, offset_ms: i64) -> bool {
        u128::from(offset_ms.unsigned_abs()) > (self.expected.grace.as_millis() / 2).max(1)
    }

    pub(crate) fn to_json(&self) -> Value {
        known(self)
    }

    /// Returns the response for `/api/v1/losses`; `None` if the record cannot be read.
    pub(crate) fn losses(&self) -> Option<Value> {
        self.losses.as_ref()?;
        let entries = self.record.iter().map(|loss| {
            known(&json!({
                "cause": loss.cause, "node": loss.node(), "instance": loss.process, "amount": loss.amount,
                "acknowledged": loss.acknowledged, "minute": loss.minute.map(|minute| minute.to_string()),
            }))
        });
        Some(json!({ "losses": entries.collect::<Vec<_>>() }))
    }
}

/// The backlog of all partitions. While the store is not responding, all values except `count` are unknown, i.e. `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct PartitionsStatus {
    pub(crate) count: usize,
    pub(crate) by_state: Option<States>,
    pub(crate) oldest_unsent: Option<OldestUnsent>,
    pub(crate) old: Option<OldMinutes>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct States {
    pub(crate) open: u64,
    pub(crate) claimed: u64,
    /// Minutes with unsent counts, each counted once per output.
    pub(crate) unsent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct OldestUnsent {
    pub(crate) minute: String,
    pub(crate) age_seconds: u64,
    pub(crate) output: String,
    pub(crate) why: String,
}

/// Open minutes that ended long ago, counted per partition. They are sealed after recent minutes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OldMinutes {
    pub(crate) waiting: u64,
    /// The estimated time until all old minutes have been sealed; `None` if none have been sealed in the last ten seconds.
    pub(crate) done_in_seconds: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct OutputStatus {
    pub(crate) name: String,
    /// The URL without secrets; empty if no node has this output.
    pub(crate) url: String,
    /// Whether the output is up for every node; `None` if no node reports its state.
    pub(crate) up: Option<bool>,
    pub(crate) last_error: Option<String>,
    pub(crate) remedy: Option<String>,
    /// Minutes with unsent counts, counted per partition. Like `quarantined`, `None` while the store is not responding.
    pub(crate) unsent: Option<u64>,
    pub(crate) quarantined: Option<u64>,
    pub(crate) quarantined_max: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RollupStatus {
    pub(crate) name: String,
    /// The length of a window, such as `1h` or `1d`.
    pub(crate) every: String,
    pub(crate) minutes: i64,
    pub(crate) time_zone: String,
    pub(crate) suffix: String,
    /// The newest open windows, newest first; `None` while the store is not responding.
    pub(crate) open: Option<Vec<WindowStatus>>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WindowStatus {
    pub(crate) start: String,
    pub(crate) end: String,
    /// The approximate memory that the users of the window take.
    pub(crate) bytes: u64,
    pub(crate) waits_for: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RedisStatus {
    pub(crate) servers: Vec<ServerSeen>,
    /// The bytes needed for the current input according to the formula in `docs/limits.md`; `None` if unknown.
    pub(crate) memory_by_formula: Option<u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Expected {
    pub(crate) grace: Duration,
    pub(crate) max_hold: Duration,
    /// `input.linger_max`, or half of the grace period if that is shorter.
    pub(crate) linger: Duration,
    pub(crate) retention: Duration,
    pub(crate) outputs: Vec<(String, String)>,
    pub(crate) partitions: usize,
    /// The rollups, each with the partition of its windows.
    pub(crate) rollups: Vec<(Partition, Rollup)>,
}

pub(super) fn percent(part: u64, all: u64) -> u64 {
    part.saturating_mul(100) / all.max(1)
}
