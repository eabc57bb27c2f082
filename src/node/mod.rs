//! [`Node`]: what the parts of one node share and decide by. `telemetry` reads it to report it; nothing is decided by a
//! metric.

mod clock;
mod lag;
mod ledger;
mod progress;
mod rounded;

use std::sync::atomic::{AtomicBool, AtomicUsize};

pub use clock::{Clock, Rng, Throttle};
pub use lag::{Confirmed, Lag};
pub use ledger::{DropReason, Intake, Ledger, LedgerTotals};
pub use progress::{Heartbeat, Progress};
pub use rounded::Rounded;

/// See the module. The default is a node on this machine's clock, with nothing known against it yet.
#[derive(Debug, Default)]
pub struct Node {
    /// Its wall clock.
    pub clock: Clock,
    /// Its random numbers.
    pub rng: Rng,
    /// What became of every event.
    pub ledger: Ledger,
    /// The partitions whose events it cannot record at the moment.
    pub lag: Lag,
    /// What the store has confirmed.
    pub confirmed: Confirmed,
    /// The heartbeats of its workers.
    pub progress: Progress,
    /// Events whose timestamps are whole seconds.
    pub rounded: Rounded,
    /// The receiving threads whose socket cannot be read at the moment.
    pub listeners_failing: AtomicUsize,
    /// Whether the output refuses what this node writes, or does not answer.
    pub output_down: AtomicBool,
    /// Whether another process uses this node's name.
    pub name_taken: AtomicBool,
}
