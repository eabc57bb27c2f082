//! [`Node`]: the state that the parts of one node share and use for decisions. `telemetry` reports it; no decision depends on a
//! metric.

mod clock;
pub(crate) mod files;
mod ledger;
mod losses;
mod notices;
mod progress;
mod rounded;
mod unstamped;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use clock::{Clock, Rng, Throttle};
pub use ledger::{Intake, Ledger, LedgerTotals};
pub use losses::{Losses, Lost};
pub use notices::{Example, Notices, Refusal, RefusedLine, Samples};
pub use progress::{Heartbeat, Progress};
pub(crate) use rounded::{COINCIDING_MIN, Found, ROUNDED_MIN, Rounded};
pub use unstamped::Sample;
pub(crate) use unstamped::{Unstamped, WINDOW_MS};

use crate::diagnosis::{Diagnosis, LossCause};
use crate::event::Partition;

/// The shared state of a node. The default uses this machine's clock.
#[derive(Debug, Default)]
pub struct Node {
    /// The wall clock.
    pub clock: Clock,
    /// The random numbers.
    pub rng: Rng,
    /// The number of events in each state.
    pub ledger: Ledger,
    /// The losses, for the record of losses.
    pub losses: Arc<Losses>,
    /// Refused lines and losses, for the log and the status.
    pub notices: Notices,
    pub(crate) lag: Lag,
    pub(crate) confirmed: Confirmed,
    /// The heartbeats of the workers.
    pub progress: Progress,
    pub(crate) rounded: Rounded,
    pub(crate) unstamped: Unstamped,
    /// The number of receiving threads whose socket cannot be read.
    pub(crate) listeners_failing: AtomicUsize,
    pub(crate) outputs_down: OutputsDown,
    /// Whether another process uses this node's name.
    pub(crate) name_taken: AtomicBool,
}

impl Node {
    /// Creates a node with this clock and these random numbers.
    #[must_use]
    pub fn new(clock: Clock, rng: Rng) -> Self {
        Self { clock, rng, ..Self::default() }
    }

    /// Logs certain losses, each cause at most once a minute.
    pub(crate) fn log_losses(&self) {
        let totals = LossCause::ALL.into_iter().zip(self.losses.totals());
        for (cause, total) in totals.filter(|(cause, _)| cause.is_certain()) {
            self.notices.lost(cause, total);
        }
    }
}

/// Locks a mutex, also after a panic: all state in this module is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The outputs that refuse writes or do not answer.
#[derive(Debug, Default)]
pub(crate) struct OutputsDown(Mutex<BTreeMap<String, Diagnosis>>);

impl OutputsDown {
    /// Sets the state of an output; `None`: it accepts writes.
    pub(crate) fn set(&self, name: &str, trouble: Option<Diagnosis>) {
        let mut all = lock(&self.0);
        match trouble {
            Some(trouble) => all.insert(name.to_owned(), trouble),
            None => all.remove(name),
        };
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.all().into_keys().collect()
    }

    pub(crate) fn all(&self) -> BTreeMap<String, Diagnosis> {
        lock(&self.0).clone()
    }
}

/// The partitions that lag: this node has events that are not in the store, so no minute of the partition is idle.
#[derive(Debug, Default)]
pub(crate) struct Lag {
    is_on_disk: AtomicBool,
    partitions: Mutex<BTreeSet<usize>>,
}

impl Lag {
    /// Sets whether a partition lags because of events in memory.
    pub(crate) fn set(&self, partition: Partition, is_lagging: bool) {
        let mut partitions = lock(&self.partitions);
        if is_lagging {
            partitions.insert(partition.index());
        } else {
            partitions.remove(&partition.index());
        }
    }

    /// Sets whether there are events on disk, which may be of every partition.
    pub(crate) fn set_on_disk(&self, is_on_disk: bool) {
        self.is_on_disk.store(is_on_disk, Ordering::Relaxed);
    }

    /// Returns whether a partition lags because of events in memory or on disk.
    pub(crate) fn is_lagging(&self, partition: Partition) -> bool {
        self.is_on_disk.load(Ordering::Relaxed)
            || lock(&self.partitions).contains(&partition.index())
    }

    /// Returns the number of partitions that lag because of events in memory.
    pub(crate) fn partitions(&self) -> usize {
        lock(&self.partitions).len()
    }
}

/// For each partition, the number of events that the store has confirmed to this process, and the number of events that this
/// process can record again.
#[derive(Debug, Default)]
pub(crate) struct Confirmed(Mutex<BTreeMap<usize, (u64, u64)>>);

impl Confirmed {
    /// Adds events that were recorded.
    pub(crate) fn record(&self, partition: Partition, events: u64) {
        lock(&self.0).entry(partition.index()).or_default().0 += events;
    }

    /// Sets the number of events that are kept to be recorded again.
    pub(crate) fn keep(&self, partition: Partition, events: u64) {
        lock(&self.0).entry(partition.index()).or_default().1 = events;
    }

    /// Returns the number of recorded events.
    pub(crate) fn recorded(&self, partition: Partition) -> u64 {
        lock(&self.0).get(&partition.index()).map_or(0, |events| events.0)
    }

    /// Returns the number of kept events.
    pub(crate) fn kept(&self, partition: Partition) -> u64 {
        lock(&self.0).get(&partition.index()).map_or(0, |events| events.1)
    }
}
