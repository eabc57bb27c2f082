//! The relay: sends events to every node, and passes all other lines through.
//!
//! ```text
//!                                              ┌──▶ Outlet: a node
//! datagrams ──▶ Reader ──▶ Forwarder ──▶ Pack ─┴──▶ Outlet: another node
//!               a thread        └──▶ Passthrough: a UDP address, or a server of lines
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `reader.rs` | the thread that reads a socket |
//! | `forwarder.rs` | splits datagrams into lines, and sends each kind where it belongs |
//! | `sorter.rs` | whether a line is an event |
//! | `pack.rs` | joins the lines of many datagrams |
//! | `outlet.rs` | a UDP address to send to, and the look-up of its name |
//! | `passthrough_line.rs` | whether a server ends a line where it ends |
//! | `passthrough_loop.rs` | whether passthrough lines come back from a UDP address |
//! | `writer.rs` | the queue of passthrough lines, and the task that writes them to a server |
//! | `ledger.rs`, `metrics.rs` | the fate of every line |
//!
//! A copy of a line is the same bytes. A line without a timestamp gets one, since the nodes would give each copy another.
//! No send waits for a node: a datagram that the kernel does not take at once is dropped for that node, and counted.

mod forwarder;
mod ledger;
mod metrics;
mod outlet;
mod pack;
mod passthrough_line;
mod passthrough_loop;
mod reader;
mod sorter;
mod writer;

use std::sync::Arc;

pub use forwarder::{Forwarder, Stamps, Unsent};
pub use ledger::{Ledger, LedgerTotals, Loss, Place};
pub use metrics::Metrics;
pub use outlet::{Outlet, follow_name, leads_to_any};
pub use pack::{HOPS_MAX, Pack, hops};
pub use passthrough_line::check_passthrough_line;
pub use reader::{READ_TIMEOUT, Reader};
pub use sorter::{EventRule, Kind, Sorter};
pub use writer::{Queue, Writer};

use crate::output::influxdb;

/// The longest datagram that is read; UDP has no longer ones.
pub const READ_MAX: usize = 65_536;

/// Where lines go that are no events.
#[derive(Debug, Clone, Default)]
pub enum PassthroughSettings {
    /// Nowhere: they are counted.
    #[default]
    Nowhere,
    /// To a UDP address, as `HOST:PORT`.
    Udp(String),
    /// To a server of line protocol.
    Http(Box<PassthroughHttp>),
}

/// A server of line protocol, and its queue.
#[derive(Debug, Clone)]
pub struct PassthroughHttp {
    /// The address and the credentials.
    pub server: influxdb::Settings,
    /// The unit of the timestamps, as its API names it.
    pub precision: String,
    /// The most bytes of lines that wait.
    pub queue_bytes: usize,
}

/// The way of the lines that are no events.
#[derive(Debug, Clone)]
pub enum Passthrough {
    /// Nowhere: they are discarded, and counted.
    Nowhere,
    /// To a UDP address, byte for byte.
    Udp(Arc<Outlet>),
    /// To a server, by a [`Writer`].
    Server(Arc<Queue>),
}
