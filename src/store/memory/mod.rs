//! The store of a single node: sets in this process.
//!
//! It is the default, for which nothing has to be installed, and the model that tests hold the Redis store
//! against. What it holds is lost with the process. [`State`] is the data; [`MemoryStore`] lends it a lock and a clock.

mod claiming;
mod draining;
mod quarantine;
mod reading;
mod recording;
mod sets;
mod state;
mod survey;
mod users;
mod witness;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::{Store, StoreError};
use crate::event::{Minute, Partition, Partitions};

pub use sets::{OpenSets, Sets};
pub use state::{Held, Idle, MinuteState, PartitionState, Stamp, State, Witness};
pub use users::Users;

/// A clock that answers microseconds since the epoch.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// The clock of this machine.
#[must_use]
pub fn system_clock() -> Clock {
    Arc::new(|| chrono::Utc::now().timestamp_micros())
}

/// Sets in this process.
pub struct MemoryStore {
    node: String,
    partitions: Partitions,
    clock: Clock,
    /// When it was told that nothing is received any more.
    stopped_ms: OnceLock<i64>,
    state: Arc<Mutex<State>>,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store for this node. `retention` is how long the counts of a minute are kept after it is
    /// done; `bytes_max` is when recording is refused, roughly.
    #[must_use]
    pub fn new(
        node: &str,
        partitions: &Partitions,
        retention: Duration,
        bytes_max: u64,
        clock: Clock,
    ) -> Self {
        let state = State::new(partitions, retention, bytes_max);
        Self {
            node: node.to_owned(),
            partitions: partitions.clone(),
            clock,
            stopped_ms: OnceLock::new(),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// The same, but it keeps only so many counts after they are sent.
    #[must_use]
    pub fn keeping(self, counts_max: u64) -> Self {
        {
            let mut state = self.lock();
            state.counts_max = counts_max / (state.partitions.len() as u64).max(1);
        }
        self
    }

    /// The same sets for another node of this process, by the clock that is given: for tests, in which several
    /// nodes share a store.
    #[must_use]
    pub fn shared_with(&self, node: &str, clock: Clock) -> Self {
        Self {
            node: node.to_owned(),
            partitions: self.partitions.clone(),
            clock,
            stopped_ms: OnceLock::new(),
            state: Arc::clone(&self.state),
        }
    }

    /// The sets of a minute that are not compacted yet, members in order.
    #[must_use]
    pub fn open_sets(&self, minute: Minute) -> Vec<OpenSets> {
        self.lock().open_sets(minute)
    }

    /// Looks into what the store holds, and may change it: for tests, which also break its rules.
    pub fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.lock())
    }

    /// The data, without what has expired.
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held is a bug elsewhere; the counts are better served than refused.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.forget_expired(self.now_ms());
        state
    }

    fn now_ms(&self) -> i64 {
        (self.clock)().div_euclid(1000)
    }

    /// Minutes that end later are not closed now.
    fn closes_until_ms(&self, now_ms: i64) -> i64 {
        self.stopped_ms.get().map_or(now_ms, |at| now_ms.min(*at))
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn check(&self) -> Result<(), StoreError> {
        self.lock().check_room()
    }

    fn generation(&self, _partition: Partition) -> u64 {
        0
    }

    fn memory(&self) -> Option<(u64, u64)> {
        let state = self.lock();
        Some((state.bytes, state.bytes_max))
    }

    fn ends_with_process(&self) -> Option<u64> {
        Some(self.lock().unpublished())
    }

    fn stopping(&self) {
        self.stopped_ms.get_or_init(|| self.now_ms());
    }

    fn describe(&self) -> String {
        "this process' memory (single node)".to_owned()
    }
}
