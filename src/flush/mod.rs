//! From the store to the output.
//!
//! A [`Worker`] on every node goes round once an interval: it claims the minutes that are finished, whichever
//! node recorded them, compacts them to counts, and sends these. `held` keeps the leases of what it works on,
//! `delivery` finds out which counts the output refuses, `refused` puts these into the quarantine, `breaker` decides when
//! an output that fails is tried again, `settling` when minutes may be closed after the store was away, `witness` what is
//! handed back to a store that forgot it, `standing` whether this node agrees with the others, `late` what is logged of events that
//! came too late. A worker keeps nothing of a failed send: the claim lapses, and any node tries again.

mod asking;
mod backlog;
mod breaker;
mod delivery;
mod held;
mod late;
mod refused;
mod sender;
mod settling;
mod standing;
mod suspects;
mod watch;
mod witness;
mod worker;

use std::time::Duration;

pub use standing::{Agreed, look_for_leftovers};
pub use worker::Worker;

/// How a worker behaves.
#[derive(Debug, Clone, Copy)]
pub struct FlushSettings {
    /// How long a round takes at least.
    pub interval: Duration,
    /// How long a minute that is over must be idle before it is closed.
    pub grace: Duration,
    /// When it is closed in any case, counted from its end or its first event.
    pub max_hold: Duration,
    /// How long a claim holds unless it is renewed.
    pub lease: Duration,
    /// The most counts of a write; each is two points.
    pub write_counts_max: usize,
}
