//! Events on disk: what does not fit into memory while the store is away.
//!
//! A [`Keeper`] is a thread that owns the directory: it appends batches to segment files ([`segment`]), counts
//! what it cannot keep, and hands out the segments again, oldest first. A [`Spool`] is what all others hold of
//! it. A segment is deleted when everything in it is recorded, and not before; so what a node leaves behind,
//! however it ends, the next one that starts on the directory takes up.

mod directory;
mod keeper;
pub mod segment;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

pub use directory::SpoolError;
pub(crate) use directory::is_gone;
pub use keeper::{Keeper, Spool, Taken};

/// Where events go that do not fit into memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolSettings {
    /// The directory, of this node alone.
    pub directory: PathBuf,
    /// The most bytes of all segments in it.
    pub bytes_max: u64,
}

/// What all threads may know of the spool without asking the keeper.
#[derive(Debug, Default)]
struct State {
    /// New events go behind those on disk.
    spilling: AtomicBool,
    /// Something was to be written.
    arrived: Notify,
}

impl State {
    fn spilling(&self) -> bool {
        self.spilling.load(Ordering::Relaxed)
    }

    fn spill(&self, spilling: bool) {
        self.spilling.store(spilling, Ordering::Relaxed);
    }
}
