//! The Event Data Service: exact counts of events and of distinct users, per minute and series, from UDP lines that any number of
//! nodes receive.
//!
//! Every node **records**: a UDP line becomes a member of a set in a Redis that all nodes share. And it **flushes**: it claims minutes
//! that have ended, turns their sets into counts, and writes these to InfluxDB. An event passes through these modules:
//!
//! ```text
//! datagram ─▶ ingest::Listener ─▶ ingest::Recorder ─▶ store::Store ─▶ flush::Worker ─▶ output::Output
//! ```
//!
//! - [`event`] defines an event: a line, its series, its minute, its partition. It is pure.
//! - [`ingest`] reads datagrams, parses them into batches, and records these until the store confirms. The [`spool`] keeps events
//!   that do not fit into memory on disk.
//! - [`store`] holds the minutes, in Redis or within the process. Its scripts check every change.
//! - [`flush`] claims a minute, seals its counts, sends them, and acknowledges or quarantines them.
//! - [`output`] writes points to InfluxDB or to standard output, and classifies its errors.
//! - [`relay`] is a separate program in front of the nodes: it sends every event to all nodes, and all other lines elsewhere.
//!
//! `daemon` builds the parts from the [`config`], runs and drains them; [`node`] is the state that they share. [`telemetry`],
//! `status` and `http` report; [`diagnosis`] is the catalogue of causes and remedies. Modules import downwards only;
//! `ARCHITECTURE.md` has the table, the keys in Redis and the invariants. The crates are [`redis_link`] (connections to Redis),
//! [`coordination`] (locks and shared lists) and [`loadgen`] (`eds send`).

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
