//! The [`Survey`] role: what operators see of a store and its nodes, even if nodes disagree or the store is unusable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Serialize, Serializer};

use super::{Backlog, Bucket, Coverage, Result, Store, StoreError};
use crate::diagnosis::Diagnosis;
use crate::event::Minute;

/// The maximum number of open windows of a rollup that are surveyed, starting with the newest.
pub(super) const OPEN_WINDOWS_MAX: usize = 60;

/// The time to live of a node's last report. During this time, a node that died, hangs or is cut off is shown as silent.
pub const REPORT_KEPT: Duration = Duration::from_secs(300);
pub(super) const REPORT_BYTES_MAX: usize = 32_768;
/// The maximum number of reports that are read, starting with the latest.
pub(super) const REPORTS_MAX: usize = 256;

/// The last report of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    pub(crate) name: String,
    /// The node's name, a `#` and the number of the process.
    pub(crate) identity: String,
    pub(crate) version: String,
    /// The age of the report, according to the store's clock.
    pub(crate) ago: Duration,
    /// The report as the process wrote it, at most 32 KiB. Its contents have not been checked.
    pub(crate) text: String,
}

/// The time to live of a loss after its last increase, acknowledged or not.
pub const LOSS_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// The maximum number of losses that are recorded separately. If there are more, the oldest are added up by cause.
pub const LOSSES_MAX: usize = 1024;
/// Used in place of the minute for losses that have been added up.
const EARLIER: &str = "earlier";

/// The events or datagrams of a minute that a process lost due to one cause.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// The minute; `None` if losses in several minutes have been added up.
    pub minute: Option<Minute>,
    /// The cause, as in the metrics.
    pub cause: String,
    /// The process's name and number; empty if the losses of several processes have been added up.
    pub process: String,
    /// The number of events or datagrams.
    pub amount: u64,
    /// The part of the amount that an operator has acknowledged.
    pub acknowledged: u64,
}

impl Loss {
    /// Returns the key of this loss in the loss record, which is unique per minute, cause and process.
    #[must_use]
    pub fn key(&self) -> String {
        let minute = self.minute.map(|minute| minute.to_string());
        let minute = minute.as_deref().unwrap_or(EARLIER);
        format!("{minute}|{}|{}", self.cause, self.process)
    }

    /// Returns an unacknowledged loss of this amount from a key in the loss record, or None if the key is malformed.
    #[must_use]
    pub fn of_key(key: &str, amount: u64) -> Option<Self> {
        let mut parts = key.splitn(3, '|');
        let (minute, cause, process) = (parts.next()?, parts.next()?, parts.next()?);
        let minute = match minute {
            EARLIER => None,
            minute => Some(minute.parse().ok()?),
        };
        Some(Self {
            minute,
            cause: cause.to_owned(),
            process: process.to_owned(),
            amount,
            acknowledged: 0,
        })
    }

    /// Returns the part of the amount that has not been acknowledged.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.amount.saturating_sub(self.acknowledged)
    }

    /// Returns the name of the node or relay; empty if the losses of several processes have been added up.
    #[must_use]
    pub fn node(&self) -> &str {
        let name = self.process.rsplit_once('#').map(|(name, _)| name);
        name.unwrap_or(&self.process)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ServerSeen {
    pub(crate) address: String,
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Diagnosis>,
    #[serde(flatten)]
    pub(crate) found: Option<ServerFound>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ServerFound {
    /// The name and version of the server, such as `Redis 7.4.1`.
    pub(crate) version: String,
    /// The role as Redis reports it: `master` or `slave`.
    pub(crate) role: String,
    /// The memory in use that Redis compares with `maxmemory`, in bytes.
    pub(crate) used_memory: u64,
    /// The memory limit in bytes; 0 if there is none.
    pub(crate) maxmemory: u64,
    /// The `maxmemory-policy`.
    pub(crate) policy: String,
    pub(crate) persistence: Persistence,
    /// How far the server's clock is ahead of this host's clock, in ms.
    pub(crate) clock_offset_ms: i64,
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub(crate) refuses_writes: Option<Diagnosis>,
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub(crate) unfit: Option<Diagnosis>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Persistence {
    pub(crate) aof: bool,
    pub(crate) unsaved_changes: u64,
    /// Whether the last snapshot and the last write to the append-only file succeeded.
    pub(crate) last_save_ok: bool,
}

#[expect(clippy::ref_option, reason = "serde calls it with the field")]
fn why<S: Serializer>(found: &Option<Diagnosis>, serializer: S) -> Result<S::Ok, S::Error> {
    found.as_ref().map(|found| &found.why).serialize(serializer)
}

/// The result of a survey.
#[derive(Debug, Clone)]
pub struct Surveyed {
    /// The servers of the store; empty if the store is in this process's memory.
    pub(crate) servers: Vec<ServerSeen>,
    pub(crate) reports: Result<Vec<Reported>>,
    pub(crate) relays: Result<Vec<Reported>>,
    pub(crate) backlogs: Result<Vec<Backlog>>,
    /// The number of events that each process (`name#number`) has seen of each requested minute.
    pub(crate) seen: Result<BTreeMap<Minute, Coverage>>,
    pub(crate) windows: Result<Vec<(Bucket, u64)>>,
    pub(crate) losses: Result<Vec<Loss>>,
    /// How the caller's settings differ from the cluster-wide settings, or why this version cannot read the keys.
    pub(crate) difference: Option<Diagnosis>,
    pub(crate) counts_max: u64,
    pub(crate) in_logs: bool,
}

impl Surveyed {
    pub(crate) fn nothing(address: String, why: &StoreError) -> Self {
        let mut error = Diagnosis::from(why.clone());
        if error.r#where.is_empty() {
            error = error.at(&address);
        }
        Self {
            servers: vec![ServerSeen { address, error: Some(error), found: None }],
            reports: Err(why.clone()),
            relays: Err(why.clone()),
            backlogs: Err(why.clone()),
            seen: Err(why.clone()),
            windows: Err(why.clone()),
            losses: Err(why.clone()),
            ..Self::empty()
        }
    }

    /// Returns the survey of a store that has no servers and is not shared with other processes.
    pub(super) const fn empty() -> Self {
        Self {
            servers: Vec::new(),
            reports: Ok(Vec::new()),
            relays: Ok(Vec::new()),
            backlogs: Ok(Vec::new()),
            seen: Ok(BTreeMap::new()),
            windows: Ok(Vec::new()),
            losses: Ok(Vec::new()),
            difference: None,
            counts_max: 0,
            in_logs: false,
        }
    }
}

/// The reports and losses of all processes that share a store. The default methods are for a store that is not shared.
#[async_trait]
pub trait Registry: Send + Sync + std::fmt::Debug {
    /// Returns the name of this process in the store: `name#number`.
    fn identity(&self) -> &str;

    /// Stores this process's report for [`REPORT_KEPT`]. Returns whether another process reports under the same name.
    async fn report(&self, _report: &str) -> Result<bool> {
        Ok(false)
    }

    /// Removes this process's report. Called when the process exits in an orderly way.
    async fn withdraw(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the last reports of all processes of this kind.
    async fn reports(&self) -> Result<Vec<Reported>> {
        Ok(Vec::new())
    }

    /// Adds these losses to the loss record; repeating this has no effect. Returns false if the store has no loss record.
    async fn lose(&self, _losses: &[Loss]) -> Result<bool> {
        Ok(false)
    }

    /// Reads the loss record.
    async fn losses(&self) -> Result<Vec<Loss>> {
        Ok(Vec::new())
    }
}

/// The role of operators: surveys of a store as a whole.
#[async_trait]
pub trait Survey: Store {
    /// Returns the registry of the processes that share the store.
    fn registry(&self) -> Arc<dyn Registry>;

    /// Surveys the whole store, with the coverage of these minutes and how many minutes before `old_before` are waiting.
    async fn survey(&self, minutes: &[Minute], old_before: Minute) -> Surveyed;

    /// Returns the open windows of each rollup, newest first, with the approximate size of their users in bytes.
    async fn open_windows(&self) -> Result<Vec<(Bucket, u64)>>;
}
