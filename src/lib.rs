//! The Event Data Service: exact counts of events and of distinct users, per minute and series, from UDP lines
//! that reach any number of nodes.
//!
//! Every node does two things. It **records**: a UDP line becomes a member of a set in a Redis that all nodes share. It
//! **flushes**: it claims minutes that are over, turns their sets into counts, and writes these to InfluxDB. An event
//! passes through these modules:
//!
//! ```text
//! datagram ─▶ ingest::Listener ─▶ ingest::Recorder ─▶ store::Store ─▶ flush::Worker ─▶ output::Output
//! ```
//!
//! - [`event`] says what an event is: a line, its series, its minute, its partition. It is pure.
//! - [`ingest`] takes datagrams from the sockets, parses them into batches, and records these until the store confirms.
//!   What finds no room in memory goes to the [`spool`], which keeps it on disk.
//! - [`store`] is the memory of a minute that all nodes share, in Redis or within the process. Its scripts decide who may
//!   change what.
//! - [`flush`] claims a minute, seals its counts, sends them, and acknowledges them or puts them into the quarantine.
//! - [`output`] writes points to InfluxDB or to standard output, and says whether to try again when that fails.
//!
//! Before all that stands [`relay`], a program of its own: it sends every event to all nodes, and all other lines elsewhere.
//!
//! The rest serves these:
//!
//! - [`diagnosis`] is the catalogue of what may be wrong, with the remedies, and the form in which every part says it.
//! - [`node`] is what the parts of one node share and decide by: clock, ledger, lag, heartbeats.
//! - [`telemetry`] reports metrics of all that; nothing reads them to decide. `status` reports how nodes, store and outputs are, all
//!   together, with a remedy for whatever is wrong.
//! - [`http`] answers `/healthz`, `/readyz`, `/metrics` and the queries of `/api/v1`, and serves the page at `/`.
//! - [`config`] reads file, environment and flags into checked values.
//! - `daemon` builds the parts, runs them and drains them; [`cli`] has the commands, among them `quarantine` and
//!   `eds send` of the crate [`loadgen`].
//! - [`secret`] hides passwords, and [`text`] makes messages of others fit for one line of the log.
//!
//! Modules import downwards only; `ARCHITECTURE.md` has the table, the keys in Redis and the invariants. The connections to
//! Redis are the crate [`redis_link`]; locks and lists that are computed once are [`coordination`].

pub mod cli;
pub mod config;
mod daemon;
pub mod diagnosis;
pub mod event;
pub mod flush;
pub mod http;
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
/// The commit that this was built from; "unknown" where that could not be seen.
pub const COMMIT: &str = env!("BUILT_FROM");
/// Both, as `eds --version` says them.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILT_FROM"), ")");
