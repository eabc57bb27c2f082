//! The stores of open minutes and of their counts, by the role of the caller.
//!
//! Recorders use [`Recording`], workers [`Draining`], queries [`CountReader`], and operators [`Survey`] and the [`Registry`].
//! With [`RedisStore`](redis::RedisStore), operators can also read, requeue and drop quarantined counts.
//!
//! The life of a series in a minute. After `sealed`, each output has its own state:
//!
//! ```text
//!         record      finished        compact        acknowledge
//! absent ───────▶ open ──────────▶ claimed ──────▶ sealed ───────────▶ sent ◀───╮
//!                                                   ▲ │ quarantine              │ discard
//!                                           requeue │ ╰────────────▶ quarantined┤
//!                                                   ╰───────────────────────────╯
//! ```
//!
//! A lapsed claim is taken over in any state. An event is late if its series has sealed counts: its minute is claimed once more,
//! but no count changes. `tests/store_contract/life.rs` tests every transition in every state.
//!
//! A minute of a partition goes through these steps, each of which any node may perform:
//!
//! 1. [`admit`](Recording::admit) decides which series are recorded under their own names; those beyond the cap share the
//!    overflow series. [`record`](Recording::record) adds users and events; repeating the call does not change anything.
//! 2. [`claim`](Draining::claim) takes minutes that are finished and idle, each with a token and a lease. A lapsed claim is taken
//!    over with a new token.
//! 3. [`compact`](Draining::compact) seals the counts and drops the users and events. With the last series, the claim ends, and
//!    the node gets a claim per output to send the counts.
//! 4. [`unsent`](Draining::unsent) reads the counts that the output of such a claim has not acknowledged.
//! 5. [`announce`](Draining::announce) tells the other nodes that the counts are about to be written, which closes the minute.
//! 6. [`acknowledge`](Draining::acknowledge) marks counts as acknowledged, and ends the claim with the last of them.
//!    [`extend`](Draining::extend) renews a lease, or lets it lapse sooner.
//!
//! All nodes know which minutes are closed: they learn it from their [check-ins](Draining::check_in), and
//! [attest](Draining::attest) to it if a store has lost data. Every step after a claim checks the token, so a node that slept
//! through its lease cannot change anything.

mod draining;
pub mod memory;
mod reading;
mod recording;
pub mod redis;
mod survey;

use async_trait::async_trait;

pub(crate) use self::draining::is_recent;
pub use self::draining::{
    Announced, Attested, Backlog, CLOCK_TOLERANCE_MS, CheckIn, Claim, ClaimRequest, Compaction,
    Draining, Known, News, NotAName, OutputBacklog, OutputName, QUARANTINE_MAX, SealRequest,
    Testimony,
};
use self::draining::{LOOKED_AT_MAX, closed_minutes, kept_for, recent_for};
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
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is unreachable, slow, or not ready. The call may have taken effect.
    #[error("store is unavailable: {}", .0.reason())]
    Unavailable(Diagnosis),
    /// The store is out of memory. Draining still works, and frees memory.
    #[error("store is full: {}", .0.reason())]
    Full(Diagnosis),
    /// The store does not serve this node until an operator intervenes.
    #[error("store cannot be used: {}", .0.reason())]
    Refused(Diagnosis),
    /// The store has lost something this node has seen; the call had no effect. The node must [`attest`](Draining::attest) first.
    #[error("the store lost data or was replaced")]
    Forgot,
    /// This node no longer holds the claim. The call had no effect.
    #[error("the claim was taken over by another node")]
    ClaimLost,
}

/// The result of a call.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

impl StoreError {
    /// Creates an error without a known cause.
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
pub struct Bucket {
    /// The partition.
    pub partition: Partition,
    /// The minute.
    pub minute: Minute,
}

/// How stores differ from each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether nodes share the store. If so, it may lose acknowledged events, and each call takes a while; otherwise the
    /// store ends with the process.
    pub is_remote: bool,
    /// Whether the store detects new users itself, so that recorders need not list them.
    pub finds_new_users: bool,
}

impl Capabilities {
    /// The capabilities of a store that nodes share, and that recorders tell about new users.
    pub const SHARED: Self = Self { is_remote: true, finds_new_users: false };
    /// The capabilities of this process's own memory.
    pub const IN_PROCESS: Self = Self { is_remote: false, finds_new_users: true };
}

/// What the roles of a node have in common.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Checks that the store is available and usable for this node, for startup and readiness. Calls make their own checks.
    async fn check(&self) -> Result<()>;

    /// Returns how this node's settings differ from the cluster-wide settings. If they do, the node may record events, but
    /// must neither close minutes nor send counts.
    async fn difference(&self) -> Result<Option<Diagnosis>> {
        Ok(None)
    }

    /// Returns a number that changes whenever the store may have lost acknowledged events, that is, with each connection. It
    /// is 0 before the first connection, and for a store that never loses any.
    fn generation(&self, _partition: Partition) -> u64 {
        0
    }

    /// Returns how this store differs from other kinds.
    fn capabilities(&self) -> Capabilities {
        Capabilities::SHARED
    }

    /// Returns the memory used by open minutes and unsent counts in this process, and its limit, in bytes; both 0 if shared.
    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Returns the number of distinct events in open minutes and unsent counts that would be lost if the process exited now.
    fn unpublished(&self) -> u64 {
        0
    }

    /// Notes that no more events will be received. A store that ends with the process then stops closing unfinished minutes,
    /// since their counts would be incomplete.
    fn stopping(&self) {}

    /// Returns warnings for operators from the last calls. No events have been lost yet.
    fn warnings(&self) -> Vec<Diagnosis> {
        Vec::new()
    }

    /// Searches for minutes and counts outside this node's partitions, for [`Store::warnings`]. Slow.
    async fn look_for_leftovers(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the store's address for the log, without secrets.
    fn describe(&self) -> String;
}

/// All roles that a node uses.
pub trait NodeStore: Recording + Draining + Survey {}

impl<T: Recording + Draining + Survey> NodeStore for T {}
