//! [`State`]: what all threads may know of the spool without asking the keeper.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Shared by the keeper and every [`super::Spool`].
#[derive(Debug, Default)]
pub(super) struct State {
    /// New events go behind those on disk.
    spilling: AtomicBool,
    /// Something was to be written.
    pub(super) arrived: Notify,
}

impl State {
    pub(super) fn spilling(&self) -> bool {
        self.spilling.load(Ordering::Relaxed)
    }

    pub(super) fn spill(&self, spilling: bool) {
        self.spilling.store(spilling, Ordering::Relaxed);
    }
}
