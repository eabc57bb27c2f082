//! What operators see of a store, and of the nodes that share it: the [`Survey`] trait.
//!
//! Apart from the other roles, because it has to answer when these do not: it neither asks whether the nodes agree nor whether the
//! store is fit for events.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Serialize, Serializer};

use super::{Backlog, Coverage, StoreError};
use crate::diagnosis::Diagnosis;
use crate::event::Minute;

/// How long the report of a node is kept after its last one: a node that died, hangs or is cut off is seen as silent until then.
pub const REPORT_KEPT: Duration = Duration::from_secs(300);
/// The most bytes of a report that are read.
pub(super) const REPORT_BYTES_MAX: usize = 32_768;
/// The most nodes whose reports are read, the latest first.
pub(super) const REPORTS_MAX: usize = 256;

/// What a process last reported of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The node's name.
    pub name: String,
    /// Name and number of the process.
    pub identity: String,
    /// What it says that its version is.
    pub version: String,
    /// How long ago that was, by the store's clock.
    pub ago: Duration,
    /// The report, whatever it is, at most 32 KiB.
    pub text: String,
}

/// How long a loss is kept in the record after it grew last, acknowledged or not.
pub const LOSS_KEPT: Duration = Duration::from_secs(30 * 86_400);
/// The most losses that the record keeps one by one. Beyond it the oldest ones are added up by cause.
pub const LOSSES_MAX: usize = 1024;
/// The name of the minute of losses that are added up.
const EARLIER: &str = "earlier";

/// What a process lost of a minute for one cause.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loss {
    /// The minute; `None`: several, which are not known any more.
    pub minute: Option<Minute>,
    /// Why, in the word of the metrics.
    pub cause: String,
    /// Name and number of the process; empty: several.
    pub process: String,
    /// How many events, or datagrams.
    pub amount: u64,
    /// How many of them an operator has acknowledged.
    pub acknowledged: u64,
}

impl Loss {
    /// What it is called in the record: one for each minute, cause and process.
    #[must_use]
    pub fn key(&self) -> String {
        let minute = self.minute.map(|minute| minute.to_string());
        let minute = minute.as_deref().unwrap_or(EARLIER);
        format!("{minute}|{}|{}", self.cause, self.process)
    }

    /// A loss that is called so, nothing of which is acknowledged; `None`: nothing is called so.
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

    /// How many nobody has acknowledged.
    #[must_use]
    pub const fn left(&self) -> u64 {
        self.amount.saturating_sub(self.acknowledged)
    }

    /// The name of the node or relay; empty: several.
    #[must_use]
    pub fn node(&self) -> &str {
        let name = self.process.rsplit_once('#').map(|(name, _)| name);
        name.unwrap_or(&self.process)
    }
}

/// A server of the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServerSeen {
    /// Where it is.
    pub address: String,
    /// Why nothing more is known of it.
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub error: Option<Diagnosis>,
    /// What it says of itself.
    #[serde(flatten)]
    pub found: Option<ServerFound>,
}

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ServerFound {
    /// Its name and version.
    pub version: String,
    /// `master` or `slave`.
    pub role: String,
    /// Bytes in use, as they are held against `maxmemory`.
    pub used_memory: u64,
    /// The most; 0: no limit.
    pub maxmemory: u64,
    /// What it does beyond.
    pub policy: String,
    /// What it writes down.
    pub persistence: Persistence,
    /// How far its clock is ahead of this host's.
    pub clock_offset_ms: i64,
    /// Why it refuses a write that would change nothing; `None`: it takes writes.
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub refuses_writes: Option<Diagnosis>,
    /// Why no node can use it.
    #[serde(serialize_with = "why", skip_serializing_if = "Option::is_none")]
    pub unfit: Option<Diagnosis>,
}

/// What a server writes down.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Persistence {
    /// Whether it has an append-only file.
    pub aof: bool,
    /// Changes since its last snapshot.
    pub unsaved_changes: u64,
    /// Whether the last snapshot and the last write to the append-only file succeeded.
    pub last_save_ok: bool,
}

#[expect(clippy::ref_option, reason = "serde calls it with the field")]
fn why<S: Serializer>(found: &Option<Diagnosis>, serializer: S) -> Result<S::Ok, S::Error> {
    found.as_ref().map(|it| &it.why).serialize(serializer)
}

/// All that was seen at once.
#[derive(Debug, Clone)]
pub struct Surveyed {
    /// The servers; empty where the store is this process' memory.
    pub servers: Vec<ServerSeen>,
    /// What the nodes reported.
    pub reports: Result<Vec<Reported>, StoreError>,
    /// What the relays reported.
    pub relays: Result<Vec<Reported>, StoreError>,
    /// What the partitions have to do.
    pub backlogs: Result<Vec<Backlog>, StoreError>,
    /// How many events of each of the minutes that were asked for every process, `name#number`, saw.
    pub seen: Result<BTreeMap<Minute, Coverage>, StoreError>,
    /// What the record of losses has.
    pub losses: Result<Vec<Loss>, StoreError>,
    /// How the settings of who asks differ from those of all nodes, or why this version cannot read what is there.
    pub difference: Option<Diagnosis>,
    /// How many counts are kept at most after they are sent.
    pub counts_max: u64,
    /// Whether events are kept as fingerprints, by each node for itself.
    pub in_logs: bool,
}

impl Surveyed {
    /// Nothing was seen, for this reason.
    #[must_use]
    pub fn nothing(address: String, why: &StoreError) -> Self {
        Self {
            servers: vec![ServerSeen { address, error: Some(why.clone().into()), found: None }],
            reports: Err(why.clone()),
            relays: Err(why.clone()),
            backlogs: Err(why.clone()),
            seen: Err(why.clone()),
            losses: Err(why.clone()),
            difference: None,
            counts_max: 0,
            in_logs: false,
        }
    }
}

/// The record of losses, as a process that loses something sees it.
#[async_trait]
pub trait LossRecord: Send + Sync + std::fmt::Debug {
    /// What this process is called in the store: `name#number`.
    fn identity(&self) -> &str;

    /// Takes these into the record; doing it again changes nothing. Returns whether there is a record:
    /// the losses of a store that ends with the process end with it, too.
    async fn lose(&self, _losses: &[Loss]) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Reads the record.
    async fn losses(&self) -> Result<Vec<Loss>, StoreError> {
        Ok(Vec::new())
    }
}

/// Looking at a store as a whole, and reporting to those who do.
#[async_trait]
pub trait Survey: LossRecord {
    /// Where the store is, in words, without secrets.
    fn place(&self) -> String;

    /// Keeps what this node says of itself for [`REPORT_KEPT`], in the place of what it said before. Answers whether another
    /// process does so under its name.
    async fn report(&self, report: &str) -> Result<bool, StoreError>;

    /// Takes the report back: the node ends as it should.
    async fn withdraw(&self) -> Result<(), StoreError>;

    /// What the processes reported last, this one included.
    async fn reports(&self) -> Result<Vec<Reported>, StoreError>;

    /// Looks at everything, at the coverage of these minutes, and how many of the waiting minutes are before another one. What
    /// cannot be had says why.
    async fn survey(&self, minutes: &[Minute], old_before: Minute) -> Surveyed;
}
