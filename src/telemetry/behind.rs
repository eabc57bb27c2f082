//! [`Behind`]: the partitions whose events this node could not bring to the store in time, and has still to bring.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;

use crate::event::Partition;

/// What the recorders of a node tell its worker: where events wait that the store has refused or missed, a minute
/// that looks quiet is not.
#[derive(Debug, Default)]
pub struct Behind {
    /// Events of any partition lie on disk.
    on_disk: AtomicBool,
    partitions: Mutex<BTreeSet<usize>>,
    /// How many there are.
    pub(super) gauge: Gauge,
}

impl Behind {
    /// Enters a partition, or strikes it out.
    pub fn set(&self, partition: Partition, behind: bool) {
        let mut partitions = self.lock();
        if behind {
            partitions.insert(partition.index());
        } else {
            partitions.remove(&partition.index());
        }
        self.gauge
            .set(i64::try_from(partitions.len()).unwrap_or(i64::MAX));
    }

    /// Says whether events are on disk. They may be of every partition.
    pub fn set_on_disk(&self, on_disk: bool) {
        self.on_disk.store(on_disk, Ordering::Relaxed);
    }

    /// Whether events of this partition wait although they were to be recorded.
    #[must_use]
    pub fn is(&self, partition: Partition) -> bool {
        self.on_disk.load(Ordering::Relaxed) || self.lock().contains(&partition.index())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeSet<usize>> {
        self.partitions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
