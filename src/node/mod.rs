//! [`Node`]: what the parts of one node share and decide by. `telemetry` reads it to report it; nothing is decided by a
//! metric.

mod clock;
pub mod files;
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
pub use rounded::{COINCIDING_MIN, Found, ROUNDED_MIN, Rounded};
pub use unstamped::{Sample, Unstamped, WINDOW_MS};

use crate::diagnosis::{Diagnosis, LossCause};
use crate::event::Partition;

/// See the module. The default is a node on this machine's clock, with nothing known against it yet.
#[derive(Debug, Default)]
pub struct Node {
    /// Its wall clock.
    pub clock: Clock,
    /// Its random numbers.
    pub rng: Rng,
    /// What became of every event.
    pub ledger: Ledger,
    /// What it lost, for the record of losses.
    pub losses: Arc<Losses>,
    /// What it rejected and dropped, for the log and the status.
    pub notices: Notices,
    /// The partitions whose events it cannot record at the moment.
    pub lag: Lag,
    /// What the store has confirmed.
    pub confirmed: Confirmed,
    /// The heartbeats of its workers.
    pub progress: Progress,
    /// Events whose timestamps are too coarse.
    pub rounded: Rounded,
    /// Lines without a timestamp.
    pub unstamped: Unstamped,
    /// The receiving threads whose socket cannot be read at the moment.
    pub listeners_failing: AtomicUsize,
    /// The outputs that refuse what this node writes, or do not answer.
    pub outputs_down: OutputsDown,
    /// Whether another process uses this node's name.
    pub name_taken: AtomicBool,
}

impl Node {
    /// Logs what is lost for certain, each cause once a minute at most.
    pub fn log_losses(&self) {
        let totals = LossCause::ALL.into_iter().zip(self.losses.totals());
        for (cause, total) in totals.filter(|(cause, _)| cause.is_certain()) {
            self.notices.lost(cause, total);
        }
    }
}

/// The outputs that refuse what this node writes, or do not answer.
#[derive(Debug, Default)]
pub struct OutputsDown(Mutex<BTreeMap<String, Diagnosis>>);

impl OutputsDown {
    /// Reports whether an output does so.
    pub fn set(&self, name: &str, trouble: Option<Diagnosis>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match trouble {
            Some(trouble) => all.insert(name.to_owned(), trouble),
            None => all.remove(name),
        };
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.all().into_keys().collect()
    }

    /// Their names, and why.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, Diagnosis> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.clone()
    }
}

/// The partitions that lag: the store has refused or missed events that wait in this node, so no minute that looks idle
/// there is.
#[derive(Debug, Default)]
pub struct Lag {
    /// Events of any partition lie on disk.
    on_disk: AtomicBool,
    partitions: Mutex<BTreeSet<usize>>,
}

impl Lag {
    /// Reports whether events of this partition wait.
    pub fn set(&self, partition: Partition, is_lagging: bool) {
        let mut partitions = self.lock();
        if is_lagging {
            partitions.insert(partition.index());
        } else {
            partitions.remove(&partition.index());
        }
    }

    /// Reports whether events are on disk. They may be of every partition.
    pub fn set_on_disk(&self, on_disk: bool) {
        self.on_disk.store(on_disk, Ordering::Relaxed);
    }

    /// Whether events of this partition wait, in memory or on disk.
    #[must_use]
    pub fn is_lagging(&self, partition: Partition) -> bool {
        self.on_disk.load(Ordering::Relaxed) || self.lock().contains(&partition.index())
    }

    /// The number of partitions whose events wait in memory.
    #[must_use]
    pub fn partitions(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<usize>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many events of each partition the store has confirmed to this process, and how many of them it can record again
/// when the store forgets.
#[derive(Debug, Default)]
pub struct Confirmed(Mutex<BTreeMap<usize, Events>>);

#[derive(Debug, Clone, Copy, Default)]
struct Events {
    recorded: u64,
    kept: u64,
}

impl Confirmed {
    /// So many more events of the partition were recorded.
    pub fn record(&self, partition: Partition, events: u64) {
        self.lock().entry(partition.index()).or_default().recorded += events;
    }

    /// So many events of the partition are kept to be recorded again.
    pub fn keep(&self, partition: Partition, events: u64) {
        self.lock().entry(partition.index()).or_default().kept = events;
    }

    /// How many events of the partition were recorded.
    #[must_use]
    pub fn recorded(&self, partition: Partition) -> u64 {
        self.of(partition).recorded
    }

    /// How many of them are kept.
    #[must_use]
    pub fn kept(&self, partition: Partition) -> u64 {
        self.of(partition).kept
    }

    fn of(&self, partition: Partition) -> Events {
        let all = self.lock();
        all.get(&partition.index()).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Events>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
