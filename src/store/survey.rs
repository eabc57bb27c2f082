//! What operators see of a store, and of the nodes that share it: the [`Survey`] trait.
//!
//! Apart from the other roles, because it has to answer when these do not: it neither asks whether the nodes agree nor whether the
//! store is fit for events.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use super::{Backlog, Coverage, StoreError};
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

/// A server of the store.
#[derive(Debug, Clone)]
pub struct ServerSeen {
    /// Where it is.
    pub address: String,
    /// What it says of itself.
    pub found: Result<ServerFound, StoreError>,
}

/// What a server says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
    /// Whether it has an append-only file.
    pub aof: bool,
    /// Changes since its last snapshot.
    pub unsaved_changes: u64,
    /// Whether the last snapshot and the last write to the append-only file succeeded.
    pub last_save_ok: bool,
    /// How far its clock is ahead of this host's.
    pub clock_offset_ms: i64,
    /// What it answers to a write that would change nothing; `None`: it takes writes.
    pub refuses_writes: Option<String>,
    /// Why no node can use it.
    pub unfit: Option<String>,
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
    /// How many events of each of the minutes that were asked for every node saw.
    pub seen: Result<BTreeMap<Minute, Coverage>, StoreError>,
    /// How the settings of who asks differ from those of all nodes, or why this version cannot read what is there.
    pub difference: Option<StoreError>,
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
            servers: vec![ServerSeen {
                address,
                found: Err(why.clone()),
            }],
            reports: Err(why.clone()),
            relays: Err(why.clone()),
            backlogs: Err(why.clone()),
            seen: Err(why.clone()),
            difference: None,
            counts_max: 0,
            in_logs: false,
        }
    }
}

/// Looking at a store as a whole, and reporting to those who do.
#[async_trait]
pub trait Survey: Send + Sync + std::fmt::Debug {
    /// What this process is called in the store: `name#number`.
    fn identity(&self) -> &str;

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
