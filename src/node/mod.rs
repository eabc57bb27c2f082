//! [`Node`]: the state shared by all parts of a node. `telemetry` exports it as metrics, but no decision depends on them.

mod clock;
pub(crate) mod files;
mod ledger;
mod losses;
mod notices;
mod progress;
mod rounded;
mod spans;
mod unstamped;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use clock::Throttle;
pub use clock::{Clock, Rng};
pub use ledger::{Intake, Ledger, LedgerTotals};
pub(crate) use losses::Losses;
pub use notices::Example;
pub(crate) use notices::{Notices, beginning};
pub use progress::{Heartbeat, Progress};
pub(crate) use rounded::{COINCIDING_MIN, Found, ROUNDED_MIN, Rounded};
pub(crate) use spans::{Attribute, Span, Spans, log_span, number, sampled};
pub(crate) use unstamped::{Sample, Unstamped, WINDOW_MS};

use crate::diagnosis::{Diagnosis, LossCause};
use crate::event::Partition;

/// The shared state of a node. The default uses this machine's clock.
#[derive(Debug, Default)]
pub struct Node {
    /// The wall clock, and its difference from the store's clock.
    pub clock: Clock,
    /// The random number generator.
    pub rng: Rng,
    /// The number of events in each state.
    pub ledger: Ledger,
    pub(crate) losses: Arc<Losses>,
    pub(crate) notices: Notices,
    pub(crate) partitions: PartitionStates,
    /// The heartbeats of the workers.
    pub progress: Progress,
    pub(crate) rounded: Rounded,
    pub(crate) unstamped: Unstamped,
    pub(crate) listeners_failing: AtomicUsize,
    pub(crate) outputs_down: Mutex<BTreeMap<String, Diagnosis>>,
    pub(crate) store_errors: Mutex<StoreErrors>,
    pub(crate) name_taken: AtomicBool,
    pub(crate) peaks: Peaks,
    pub(crate) spans: Spans,
}

/// What the flush worker found wrong when it last checked the store.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreErrors {
    /// Why the store is unavailable or not usable.
    pub(crate) store: Option<String>,
    /// How this node's settings differ from the cluster-wide ones.
    pub(crate) settings: Option<String>,
}

/// The highest numbers since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Peaks {
    /// The number of series of a sealed minute of a partition.
    pub(crate) series: AtomicU64,
    /// The number of users of a series in a minute that was sent.
    pub(crate) users: AtomicU64,
    /// The time from the end of a recent minute until it was sealed, in seconds.
    pub(crate) seal_seconds: AtomicU64,
}

impl Peaks {
    /// Returns the numbers in the order of the fields, and starts again with zero.
    pub(crate) fn take(&self) -> [u64; 3] {
        [&self.series, &self.users, &self.seal_seconds].map(|peak| peak.swap(0, Ordering::Relaxed))
    }
}

impl Node {
    /// Creates a node with this clock and this random number generator.
    #[must_use]
    pub fn new(clock: Clock, rng: Rng) -> Self {
        Self { clock, rng, ..Self::default() }
    }

    /// Logs the losses that are certainly missing from the counts, at most once a minute per cause.
    pub(crate) fn log_losses(&self) {
        let totals = LossCause::ALL.into_iter().zip(self.losses.totals());
        for (cause, total) in totals.filter(|(cause, _)| cause.is_certain()) {
            self.notices.lost(cause, total);
        }
    }
}

/// Locks a mutex even if it is poisoned. Use this only for state that is valid between any two statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PartitionState {
    /// Whether this node may have events that the store is missing, so that none of the partition's minutes counts as idle.
    pub(crate) lags: bool,
    /// The number of events that the store has acknowledged to this process.
    pub(crate) recorded: u64,
    /// The number of recorded events that this process can re-record.
    pub(crate) kept: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PartitionStates {
    /// Whether there are events on disk, which may belong to any partition.
    is_spooling: AtomicBool,
    states: Mutex<BTreeMap<usize, PartitionState>>,
}

impl PartitionStates {
    pub(crate) fn of(&self, partition: Partition) -> PartitionState {
        let mut state = lock(&self.states).get(&partition.index()).copied().unwrap_or_default();
        state.lags |= self.is_spooling.load(Ordering::Relaxed);
        state
    }

    pub(crate) fn change(&self, partition: Partition, change: impl FnOnce(&mut PartitionState)) {
        change(lock(&self.states).entry(partition.index()).or_default());
    }

    pub(crate) fn set_spooling(&self, is_spooling: bool) {
        self.is_spooling.store(is_spooling, Ordering::Relaxed);
    }

    /// Returns the number of partitions that lag because of events in memory.
    pub(crate) fn lagging(&self) -> usize {
        lock(&self.states).values().filter(|state| state.lags).count()
    }
}
