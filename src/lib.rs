//! The Event Data Service: exact counts of events and of distinct users, per minute and series, from UDP lines
//! that reach any number of nodes.
//!
//! Every node does two things. It **records**: a UDP line becomes a member of a set in a Redis that all nodes share. It
//! **flushes**: it claims finished minutes, turns their sets into counts, and writes these to InfluxDB. An event
//! passes through these modules:
//!
//! ```text
//! datagram ─▶ ingest::Listener ─▶ ingest::Recorder ─▶ store::Store ─▶ flush::Worker ─▶ output::Output
//! ```
//!
//! - [`event`] defines an event: a line, its series, its minute, its partition. It is pure.
//! - [`ingest`] reads datagrams from the sockets, parses them into batches, and records these until the store confirms. The
//!   [`spool`] keeps events on disk that do not fit into memory.
//! - [`store`] is the shared memory of a minute, in Redis or within the process. Its scripts check every change.
//! - [`flush`] claims a minute, seals its counts, sends them, and acknowledges them or puts them into the quarantine.
//! - [`output`] writes points to InfluxDB or to standard output, and classifies its errors.
//!
//! [`relay`] is a separate program in front of the nodes: it sends every event to all nodes, and all other lines elsewhere.
//!
//! The other modules serve these:
//!
//! - [`diagnosis`] is the catalogue of causes and remedies.
//! - [`node`] is the state that the parts of one node share and use for decisions: clock, ledger, lag, heartbeats.
//! - [`telemetry`] reports metrics; no decision depends on them. `status` reports the state of nodes, store and outputs, with a
//!   remedy for every problem.
//! - `http` serves `/healthz`, `/readyz`, `/metrics`, the queries of `/api/v1`, and the page at `/`.
//! - [`config`] reads file, environment and flags into checked values.
//! - `daemon` builds the parts, runs them and drains them; [`cli`] has the commands, among them `quarantine` and
//!   `eds send` of the crate [`loadgen`].
//! - [`secret`] hides passwords, and [`text`] fits messages of other programs into one line of the log.
//!
//! Modules import downwards only; `ARCHITECTURE.md` has the table, the keys in Redis and the invariants. The connections to
//! Redis are the crate [`redis_link`]; locks and shared lists are [`coordination`].

pub mod cli;
pub mod config;
mod daemon;
pub mod diagnosis;
pub mod event;
pub mod flush;
pub(crate) mod http;
pub mod ingest;
pub mod node;
pub mod output;
pub(crate) mod quarantine;
pub mod relay;
pub mod secret;
pub mod spool;
pub(crate) mod status;
pub mod store;
pub mod telemetry;
pub mod text;

/// The version, as released.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of the build, or "unknown".
pub const COMMIT: &str = env!("BUILT_FROM");
/// Version and commit, as `eds --version` prints them.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILT_FROM"), ")");
