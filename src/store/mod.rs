//! The shared memory of a minute, by the roles of those who use it.
//!
//! [`Store`] is what whoever has one may ask of it. Recorders see [`Recording`], workers [`Draining`], queries
//! [`CountReader`], and operators [`Quarantine`] and [`Survey`].
//!
//! The life of a series in a minute; what comes after `sealed` goes on for each output by itself:
//!
//! ```text
//!         record       over, idle        compact        acknowledge
//! absent ───────▶ open ──────────▶ claimed ──────▶ sealed ───────────▶ sent ◀───╮
//!                                                   ▲ │ quarantine              │ discard
//!                                           requeue │ ╰────────────▶ quarantined┤
//!                                                   ╰───────────────────────────╯
//! ```
//!
//! A claim that lapses is taken over, in the state that it is in. An event that comes when there are counts is late: its
//! minute is claimed once more, and no count changes. `tests/store_contract/life.rs` has every event in every state.
//!
//! A minute of a partition goes through these steps, and every node may do any of them:
//!
//! 1. [`admit`](Recording::admit) says which series get sets of their own; those beyond the cap share the overflow series.
//!    [`record`](Recording::record) adds users and events to sets. Idempotent: doing it again changes nothing.
//! 2. [`claim`](Draining::claim) takes minutes that are over and idle, each with a token and for the length of a
//!    lease. A claim that lapses is taken over with a new token.
//! 3. [`compact`](Draining::compact) turns the sets into counts, once for good, and drops the sets. With the last set the
//!    claim ends, and the node gets a claim for each output, to send the counts to it.
//! 4. [`unsent`](Draining::unsent) reads the counts that the output of such a claim has not confirmed.
//! 5. [`announce`](Draining::announce) tells the other nodes that they are about to be written, which closes the minute.
//! 6. [`acknowledge`](Draining::acknowledge) marks them confirmed, and with the last one ends the claim.
//!    [`extend`](Draining::extend) keeps a claim, or lets it lapse sooner.
//!
//! Which minutes are closed is known to all nodes: each hears it when it [checks in](Draining::check_in), and hands it back
//! ([`attest`](Draining::attest)) to a store that forgets.
//!
//! All that is done after a claim checks its token, so a node that slept through its lease changes nothing.

mod draining;
pub mod memory;
mod quarantine;
mod reading;
mod recording;
pub mod redis;
mod survey;
mod witness;

use async_trait::async_trait;

pub(crate) use self::draining::is_recent;
pub use self::draining::{
    Backlog, Claim, ClaimRequest, Compaction, Draining, NotAName, OutputBacklog, OutputName,
};
use self::draining::{LOOKED_AT_MAX, recent_for};
pub use self::quarantine::{Dropped, QUARANTINE_MAX, Quarantine, Quarantined};
pub use self::reading::{CountReader, Coverage, Page, SeriesCounts};
pub use self::recording::{
    Admission, AdmitRequest, Admitted, REQUEST_BYTES_MAX, RecordRequest, Recording, Seen,
    SeriesUsers,
};
pub use self::survey::{
    LOSS_KEPT, LOSSES_MAX, Loss, LossRecord, Persistence, REPORT_KEPT, Reported, ServerFound,
    ServerSeen, Survey, Surveyed,
};
pub use self::witness::{Announced, Attested, CLOCK_TOLERANCE_MS, Known, News, Testimony};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Partition;

/// Why the store did not do what it was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// Away, slow, or not ready. What was asked may have been done.
    #[error("store is unavailable: {}", .0.reason())]
    Unavailable(Diagnosis),
    /// Out of memory. Minutes can be drained all the same, which makes room.
    #[error("store is full: {}", .0.reason())]
    Full(Diagnosis),
    /// It will not serve this node until somebody fixes something.
    #[error("store cannot be used: {}", .0.reason())]
    Refused(Diagnosis),
    /// The store lacks what this node has seen in it; nothing was done. Hand back what is closed first.
    #[error("the store went back to what it was before, or is another one")]
    Forgot,
    /// The claim is no longer this node's; nothing was changed.
    #[error("the claim was taken over by another node")]
    ClaimLost,
}

impl StoreError {
    /// Away, for a reason that says all that is known.
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

/// What differs between stores, for whoever has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether it is elsewhere: other nodes share it, it may forget what it confirmed, and each call takes a while. One that is not
    /// ends with the process.
    pub is_remote: bool,
    /// Whether it finds out by itself which users are new: what it is told of them is a waste.
    pub finds_new_users: bool,
}

impl Capabilities {
    /// Of a store that nodes share, which is told the users that are new.
    pub const SHARED: Self = Self { is_remote: true, finds_new_users: false };
    /// Of this process' memory.
    pub const IN_PROCESS: Self = Self { is_remote: false, finds_new_users: true };
}

/// What whoever has a store may ask of it, whatever the role.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Looks whether the store is there and fit for this node. Every later call does so by itself where it
    /// has to; this is for start-up and readiness.
    async fn check(&self) -> Result<(), StoreError>;

    /// How this node's settings differ from those that all nodes must have alike. A node
    /// that differs may record what it receives, but neither close minutes nor send.
    async fn difference(&self) -> Result<Option<Diagnosis>, StoreError> {
        Ok(None)
    }

    /// A number that changes whenever the store may have forgotten what it confirmed: with the connection. 0 as
    /// long as there was none, and where none is needed.
    fn generation(&self, partition: Partition) -> u64;

    /// How it differs from other stores.
    fn capabilities(&self) -> Capabilities {
        Capabilities::SHARED
    }

    /// The memory that open minutes, and counts that outputs lack, take in this process and the most that they may take, in
    /// bytes; 0 where they are elsewhere.
    fn memory(&self) -> (u64, u64) {
        (0, 0)
    }

    /// How many different events would be lost if the process ended now: those of minutes that are not counted, and of
    /// counts that an output lacks.
    fn unpublished(&self) -> u64 {
        0
    }

    /// Nothing is received from now on. Where the store ends with the process, a minute that is not over yet is never closed:
    /// a part of its events would be published as if it were all.
    fn stopping(&self) {}

    /// What an operator should fix although nothing is lost yet, as far as the last calls have shown it.
    fn warnings(&self) -> Vec<Diagnosis> {
        Vec::new()
    }

    /// Looks whether something waits in the store that no partition of this node's has, for [`Store::warnings`]. Takes its
    /// time.
    async fn look_for_leftovers(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Where the events are kept, in words for the log, without secrets.
    fn describe(&self) -> String;
}

/// What the parts of a node ask of a store, all together.
pub trait NodeStore: Recording + Draining + Survey {}

impl<T: Recording + Draining + Survey> NodeStore for T {}
