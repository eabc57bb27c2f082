//! [`Confirmed`]: how many events of each partition the store confirmed to this process, and how many of them can be given
//! again.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Partition;

/// What the recorders of a node tell its worker, for when the store forgets.
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
