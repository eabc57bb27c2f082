//! What a relay does with lines: events go to every node, all others to the rest.
//!
//! ```text
//!                                              ┌──▶ Outlet: a node
//! datagrams ──▶ Reader ──▶ Forwarder ──▶ Pack ─┴──▶ Outlet: another node
//!               a thread        └──▶ Rest: a UDP address, or a server of lines
//! ```
//!
//! | file | what it is |
//! | --- | --- |
//! | `reader.rs` | the thread that reads a socket |
//! | `forwarder.rs` | splits datagrams into lines, and sends each kind where it belongs |
//! | `sorter.rs` | whether a line is an event |
//! | `pack.rs` | lines of many datagrams in few |
//! | `outlet.rs`, `names.rs` | a UDP address to send to, and where its name is |
//! | `rest_loop.rs` | whether lines of the rest come back from a UDP address |
//! | `rest_line.rs` | whether a server ends a line where it ends |
//! | `queue.rs`, `writer.rs` | what is no event: lines that wait, and the task that writes them to a server |
//! | `ledger.rs` | what became of every line |
//! | `metrics.rs` | the same as metrics |
//!
//! A copy of a line is the same bytes. A line without a timestamp gets one, since the nodes would give each copy another.
//! Nothing waits for a node: what the kernel does not take at once is dropped for that node, and counted.

mod forwarder;
mod ledger;
mod metrics;
mod names;
mod outlet;
mod pack;
mod queue;
mod reader;
mod rest_line;
mod rest_loop;
mod sorter;
mod writer;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

pub use forwarder::{Forwarder, Stamps, Unsent};
pub use ledger::{Ledger, LedgerTotals, Loss, Place};
pub use metrics::Metrics;
pub use names::follow_name;
pub use outlet::{Outlet, leads_to_any};
pub use pack::{HOPS_MAX, Pack, hops};
pub use queue::Queue;
pub use reader::{READ_TIMEOUT, Reader};
pub use rest_line::check_rest_line;
pub use sorter::{EventRule, Kind, Sorter};
pub use writer::Writer;

use crate::event::LineRules;
use crate::ingest::ListenAddress;
use crate::output::influxdb;

/// The longest datagram that is read: there are no longer ones.
pub const READ_MAX: usize = 65_536;

/// How a relay behaves.
#[derive(Debug, Clone)]
pub struct RelaySettings {
    /// Where lines come in.
    pub listen: Vec<ListenAddress>,
    /// The receive buffer of each UDP socket, in bytes.
    pub receive_buffer: u64,
    /// The permissions of the file of a Unix socket.
    pub socket_mode: u32,
    /// The threads that read each socket.
    pub threads: usize,
    /// What is a line of a node.
    pub rules: LineRules,
    /// Which lines are events; none: those that the rules take.
    pub events: Vec<EventRule>,
    /// The nodes, as `HOST:PORT`.
    pub to: Vec<String>,
    /// The longest datagram that lines are packed into, in bytes.
    pub datagram_max: usize,
    /// The longest that an event waits for others.
    pub linger: Duration,
    /// What the timestamps of this relay end in; `None`: by chance.
    pub number: Option<u16>,
    /// Where all other lines go.
    pub rest: RestSettings,
    /// Where its page, health and metrics are served.
    pub http: Option<SocketAddr>,
    /// The names by which they may be asked for.
    pub http_hosts: Vec<String>,
}

/// Where lines go that are no events.
#[derive(Debug, Clone)]
pub enum RestSettings {
    /// Nowhere: they are counted.
    Nowhere,
    /// To a UDP address, as `HOST:PORT`.
    Udp(String),
    /// To a server of line protocol.
    Http(Box<RestHttp>),
}

/// The way of the lines that are no events.
#[derive(Debug, Clone)]
pub enum Rest {
    /// Nowhere: they are discarded, and counted.
    Nowhere,
    /// To a UDP address, byte for byte.
    Udp(Arc<Outlet>),
    /// To a server, by a [`Writer`].
    Server(Arc<Queue>),
}

/// A server of line protocol, and what may wait for it.
#[derive(Debug, Clone)]
pub struct RestHttp {
    /// Where it is, and as whom to write.
    pub server: influxdb::Settings,
    /// The unit of the timestamps, as its API names it.
    pub precision: String,
    /// The most bytes of lines that wait.
    pub queue_bytes: usize,
}
