//! The stores for open minutes and their counts, with a trait for each role of the caller.
//!
//! Recorders use [`Recording`], workers [`Draining`], queries [`CountReader`], and operators [`Survey`] and the
//! [`Registry`]. With [`RedisStore`](redis::RedisStore), operators can also read, requeue and drop quarantined counts.
//!
//! The states of a series in a minute. After `sealed`, there is a separate state for each output:
//!
//! ```text
//!         record      finished        compact        acknowledge
//! absent ───────▶ open ──────────▶ claimed ──────▶ sealed ───────────▶ sent ◀───╮
//!                                                   ▲ │ quarantine              │ discard
//!                                           requeue │ ╰────────────▶ quarantined┤
//!                                                   ╰───────────────────────────╯
//! ```
//!
//! In any state, a lapsed claim can be taken over. An event is late if the counts of its series are already sealed: its
//! minute is claimed again, but no count changes. `tests/store_contract/life.rs` tests every transition in every state.
//!
//! A minute of a partition goes through these steps, each of which any node may perform:
//!
//! 1. [`admit`](Recording::admit) decides which series are recorded under their own names; those beyond the cap share the
//!    overflow series. [`record`](Recording::record) adds users and events; repeating the call does not change anything.
//! 2. [`claim`](Draining::claim) takes minutes that are finished and idle, and lapsed claims, with a new token and a lease.
//! 3. [`compact`](Draining::compact) seals the counts and drops the users and events. Once the last series is sealed, the
//!    claim ends, and the node gets a claim for each output to send the counts.
//! 4. [`unsent`](Draining::unsent) reads the counts that the output of such a claim has not acknowledged yet.
//! 5. [`announce`](Draining::announce) tells other nodes that the counts are about to be written, closing the minute.
//! 6. [`acknowledge`](Draining::acknowledge) marks counts as acknowledged by the output. With the last of these counts, the
//!    claim ends. Until then, [`extend`](Draining::extend) renews the lease, or lets it lapse sooner.
//!
//! All nodes learn from [check-ins](Draining::check_in) which minutes are closed, and [attest](Draining::attest) this after
//! a store has lost data. Every step after a claim checks the token, so a node that slept through its lease changes nothing.

mod draining;
mod leb128;
pub mod memory;
mod reading;
mod recording;
pub mod redis;
mod survey;
mod union;

use async_trait::async_trait;

pub(crate) use self::draining::is_recent;
use self::draining::{
    ACTIVE_MAX, LOOKED_AT_MAX, closed_minutes, kept_counts, kept_for, recent_for, retention_of,
};
pub use self::draining::{
    Announced, Attested, Backlog, CLOCK_TOLERANCE_MS, CheckIn, Claim, ClaimRequest, Compaction,
    Draining, Known, News, NotAName, OutputBacklog, OutputName, QUARANTINE_MAX, SealRequest,
    Testimony,
};
pub use self::reading::{CountReader, Coverage, Page, SeriesCounts};
pub use self::recording::{
    Admission, AdmitRequest, Admitted, REQUEST_BYTES_MAX, RecordRequest, Recording, Records, Seen,
    SeriesUsers,
};
pub use self::redis::{Dropped, Quarantined};
pub use self::survey::{
    LOSS_KEPT, LOSSES_MAX, Loss, REPORT_KEPT, Registry, Reported, Survey, Surveyed,
};
pub(crate) use self::survey::{Persistence, ServerFound, ServerSeen};
pub use self::union::{Malformed, Union};
pub(crate) use self::union::{WindowCost, sort_distinct, window_cost};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};

/// The reason why a call to a store failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is unreachable, slow or not ready. The call may have taken effect even so.
    #[error("store is unavailable: {}", .0.reason())]
    Unavailable(Diagnosis),
    /// The store is out of memory, so nothing can be recorded. Draining still works, and frees memory.
    #[error("store is full: {}", .0.reason())]
    Full(Diagnosis),
    /// The store does not serve this node until an operator intervenes.
    #[error("store cannot be used: {}", .0.reason())]
    Refused(Diagnosis),
    /// The store has lost data. The call had no effect; the node must [`attest`](Draining::attest) first.
    #[error("the store lost data or was replaced")]
    Forgot,
    /// This node no longer holds the claim. The call had no effect.
    #[error("the claim was taken over by another node")]
    ClaimLost,
}

/// The result of a call to a store.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    /// Returns an [`Unavailable`](Self::Unavailable) error, for failures without a more specific cause.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable(Diagnosis::new(Cause::RedisDown, why))
    }
}

impl From<StoreError> for Diagnosis {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(found)
            | StoreError::Full(found)
            | StoreError::Refused(found) => found,
            StoreError::Forgot | StoreError::ClaimLost => {
                Self::new(Cause::RedisDown, error.to_string())
            }
        }
    }
}

/// A minute of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Bucket {
    pub partition: Partition,
    pub minute: Minute,
}

/// Runs work on a blocking thread, since sorting millions of numbers takes tens of ms.
pub(crate) async fn off_runtime<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The properties in which stores differ from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether nodes share the store, which is then slow and may lose acknowledged events. If not, it ends with the process.
    pub is_remote: bool,
    /// Whether the store detects new users itself, so that recorders need not list them.
    pub finds_new_users: bool,
}

impl Capabilities {
    /// The capabilities of a store that nodes share, and that relies on recorders to list new users.
    pub const SHARED: Self = Self { is_remote: true, finds_new_users: false };
    /// The capabilities of a store in the memory of this process.
    pub const IN_PROCESS: Self = Self { is_remote: false, finds_new_users: true };
}

/// The methods that the roles of a node have in common.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Fails if the store is unavailable, full or not usable for this node. Other calls rely on a check for a short time.
    async fn check(&self) -> Result<()>;

    /// Returns how this node's settings differ from the cluster-wide ones, if they do; the node may then only record events.
    async fn difference(&self) -> Result<Option<Diagnosis>> {
        Ok(None)
    }

    /// Returns a number that changes whenever the store may have lost acknowledged events, i.e. with each new connection.
    /// It is 0 before the first connection, and for a store that never loses events.
    fn generation(&self, _partition: Partition) -> u64 {
        0
    }

    /// Returns how this store differs from other kinds.
    fn capabilities(&self) -> Capabilities {
        Capabilities::SHARED
    }

    /// Returns how many bytes open minutes and unsent counts use in this process, and the limit; both 0 for a shared store.
    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Returns the number of distinct events in open minutes and unsent counts that would be lost if the process exited now.
    fn unpublished(&self) -> u64 {
        0
    }

    /// Notes that no more events will be received. A store that ends with the process then leaves unfinished minutes open.
    fn stopping(&self) {}

    /// Returns warnings for operators about problems found by the last calls, none of which has caused a loss of events yet.
    fn warnings(&self) -> Vec<Diagnosis> {
        Vec::new()
    }

    /// Searches for leftovers in partitions that this node does not use, and adds them to [`Store::warnings`]. This is slow.
    async fn look_for_leftovers(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the store's address without secrets, for the log.
    fn describe(&self) -> String;
}

/// A store in all the roles that a node uses.
pub trait NodeStore: Recording + Draining + Survey {}

impl<T: Recording + Draining + Survey> NodeStore for T {}
