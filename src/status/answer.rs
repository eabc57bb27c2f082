//! [`Status`]: the answer, as `docs/openapi.json` describes it.

use std::time::Duration;

use serde::Serialize;
use serde_json::{Value, json};

use super::relay_report::RelayReport;
use super::report::NodeReport;
use crate::diagnosis::Diagnosis;
use crate::store::{Loss, ServerSeen};

/// A process that has not reported for so long is silent: seven reports are missing.
const SILENT_AFTER: Duration = Duration::from_secs(15);

/// How everything is.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Status {
    /// When it was looked (RFC 3339).
    pub at: String,
    /// Whether there is nothing that an operator should look at: no finding but notes.
    pub healthy: bool,
    /// The question that comes first.
    pub is_anything_lost: Lost,
    /// What is wrong, worst first.
    pub findings: Vec<Diagnosis>,
    /// The nodes, by name.
    pub nodes: Vec<NodeStatus>,
    /// The relays that report themselves, by name.
    pub relays: Vec<RelayStatus>,
    /// What is lost and not acknowledged, by cause; `None`: the record of losses could not be read.
    #[serde(skip_serializing_if = "is_nothing")]
    pub losses: Option<Vec<CauseStatus>>,
    /// The record of losses, for `/api/v1/losses`.
    #[serde(skip)]
    pub record: Vec<Loss>,
    /// What waits.
    pub partitions: PartitionsStatus,
    /// The outputs, by name, those that are gone and that something waits for included.
    pub outputs: Vec<OutputStatus>,
    /// The store; `None`: it is in the memory of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<RedisStatus>,
}

/// Whether anything is lost, as far as is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// In a word.
    pub answer: Answer,
    /// In a sentence.
    pub sentence: String,
}

/// An answer in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "they say what they are")]
pub enum Answer {
    No,
    Yes,
    #[default]
    Unknown,
    /// No, but many lines are rejected, or events may be missing from points.
    Attention,
}

#[expect(clippy::ref_option, reason = "serde calls it with the field")]
fn is_nothing(losses: &Option<Vec<CauseStatus>>) -> bool {
    losses.as_ref().is_none_or(Vec::is_empty)
}

/// What is lost for one cause and not acknowledged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CauseStatus {
    /// The cause, in the word of the metrics.
    pub cause: String,
    /// How many events, or datagrams.
    pub amount: u64,
    /// The first minute of them that is known (`20161204:1118`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first: Option<String>,
    /// The last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last: Option<String>,
    /// The nodes that lost them, as far as they are known.
    pub nodes: Vec<String>,
}

impl Status {
    /// The record of losses, by minute; `None`: it could not be read.
    #[must_use]
    pub fn losses(&self) -> Option<Value> {
        self.losses.as_ref()?;
        let entries = self.record.iter().map(|loss| {
            let mut entry = json!({
                "cause": loss.cause, "node": loss.node(), "instance": loss.process, "amount": loss.amount, "acknowledged": loss.acknowledged,
            });
            // Without one: of several, which are not known any more.
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
pub struct Process<R> {
    /// What it said last.
    #[serde(flatten)]
    pub report: R,
    /// How long ago it said so.
    pub last_seen_seconds: u64,
    /// Whether that is too long.
    pub silent: bool,
    /// Whether what it said could be read in full.
    pub readable: bool,
    /// What a node saw of the last minutes, as a share of what the node saw that saw most; `None`: not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coverage: Option<f64>,
}

/// A node.
pub type NodeStatus = Process<NodeReport>;
/// A relay.
pub type RelayStatus = Process<RelayReport>;

impl<R> Process<R> {
    /// A process that reported this so long ago.
    pub(super) fn new(report: R, ago: Duration, readable: bool) -> Self {
        Self {
            report,
            last_seen_seconds: ago.as_secs(),
            silent: ago >= SILENT_AFTER,
            readable,
            coverage: None,
        }
    }
}

/// What waits, over all partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PartitionsStatus {
    /// How many there are.
    pub count: usize,
    /// Minutes, each once for each partition; `None`: the store does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_state: Option<States>,
    /// Of all outputs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_unsent: Option<OldestUnsent>,
    /// Old minutes that wait to be sealed; `None`: there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old: Option<OldMinutes>,
}

/// Minutes that ended long ago, each once for each partition. They are sealed and sent after those that have just ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OldMinutes {
    /// They wait to be claimed; they are among the open ones.
    pub waiting: u64,
    /// How long until all are sealed at the present rate; `None`: none was sealed in the last ten seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub done_in_seconds: Option<u64>,
}

/// Minutes, each once for each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct States {
    /// They fill, or wait to be claimed.
    pub open: u64,
    /// They are being sealed.
    pub claimed: u64,
    /// An output lacks counts of them; once for each output.
    pub unsent: u64,
}

/// The oldest minute that an output lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OldestUnsent {
    /// Its name: `20161204:1118`.
    pub minute: String,
    /// How long ago it ended.
    pub age_seconds: u64,
    /// The output.
    pub output: String,
    /// Why it is not sent.
    pub why: String,
}

/// An output.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OutputStatus {
    /// What it is called.
    pub name: String,
    /// Where it is, without secrets, as this configuration has it; empty if no node has it any more.
    pub url: String,
    /// Whether it takes what nodes write, as the first node sees it that it is down for; `None`: no node tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// Minutes that it lacks, each once for each partition; `None`: the store does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsent: Option<u64>,
    /// Counts in its quarantine; `None`: the store does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantined: Option<u64>,
    /// The most that the quarantine keeps.
    pub quarantined_max: u64,
}

/// The store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RedisStatus {
    /// Each server.
    pub servers: Vec<ServerSeen>,
    /// The memory that it should need for what comes in, in bytes; `None`: that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_by_formula: Option<u64>,
}
