//! The relay, which forwards every event to all nodes, and all other lines to the destination in `passthrough.url`.
//!
//! ```text
//!                                  ┌──▶ Outlet: a node
//! datagrams ──▶ Forwarder ──▶ Pack ┴──▶ Outlet: another node
//!               a thread └──▶ Passthrough: a UDP address, or a line-protocol server
//! ```
//!
//! All nodes receive the same bytes. The relay adds a timestamp to each line that has none, because every node would add a
//! different one. Sends never block: a datagram that the kernel does not accept immediately is dropped for that node.

mod forwarder;
mod ledger;
mod metrics;
mod outlet;
mod pack;
mod passthrough_line;
mod passthrough_loop;
mod sorter;
mod writer;

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

pub(crate) use forwarder::{Forwarder, GATHERED_MAX, READ_TIMEOUT, Stamps};
pub(crate) use ledger::{Destination, Ledger, Loss};
pub(crate) use metrics::metrics;
pub(crate) use outlet::{Outlet, follow_name, leads_to_any};
pub use pack::{Pack, hops};
pub use passthrough_line::check_passthrough_line;
pub use sorter::{EventRule, Kind, Sorter};
pub(crate) use writer::{Queue, write_queue};

use crate::node::{Notices, Progress, lock};
use crate::output::server;

/// Maximum length of a datagram that is read, in bytes. No UDP datagram is longer.
pub(crate) const READ_MAX: usize = 65_536;

/// The destination for passthrough lines, as configured in `passthrough.url`.
#[derive(Debug, Clone, Default)]
pub(crate) enum PassthroughSettings {
    /// Lines are discarded and counted.
    #[default]
    Nowhere,
    /// A UDP address, as `HOST:PORT`.
    Udp(String),
    Http(Box<PassthroughHttp>),
}

/// A line-protocol server, and the settings of its queue.
#[derive(Debug, Clone)]
pub(crate) struct PassthroughHttp {
    pub(crate) server: server::Settings,
    /// The precision of the timestamps, as a value of the `precision` parameter in the server's API.
    pub(crate) precision: String,
    pub(crate) queue_bytes: usize,
}

/// The destination for passthrough lines while the relay is running.
#[derive(Debug, Clone, Default)]
pub(crate) enum Passthrough {
    #[default]
    Nowhere,
    /// A UDP address, to which lines are sent verbatim.
    Udp(Arc<Outlet>),
    /// A line-protocol server, to which [`write_queue`] writes the lines in this queue.
    Server(Arc<Queue>),
}

impl Passthrough {
    /// Returns whether the destination is accepting lines.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::Nowhere => true,
            Self::Udp(outlet) => outlet.is_up(),
            Self::Server(queue) => queue.is_up(),
        }
    }

    pub(crate) const fn outlet(&self) -> Option<&Arc<Outlet>> {
        match self {
            Self::Udp(outlet) => Some(outlet),
            Self::Nowhere | Self::Server(_) => None,
        }
    }
}

/// A relay's destinations, and the state shared by its parts.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    /// The nodes, all of which receive every event.
    pub(crate) nodes: Vec<Arc<Outlet>>,
    /// The destination for all other lines.
    pub(crate) passthrough: Passthrough,
    pub(crate) stamps: Stamps,
    pub(crate) ledger: Mutex<Ledger>,
    pub(crate) notices: Notices,
    pub(crate) progress: Progress,
    pub(crate) listeners_failing: AtomicUsize,
}

impl Routes {
    pub(crate) fn new(nodes: Vec<Arc<Outlet>>, passthrough: Passthrough, stamps: Stamps) -> Self {
        let ledger = Mutex::new(Ledger::new(nodes.len()));
        Self { nodes, passthrough, stamps, ledger, ..Self::default() }
    }

    pub(crate) fn totals(&self) -> Ledger {
        lock(&self.ledger).clone()
    }
}
