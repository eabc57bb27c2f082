//! The Event Data Service: exact counts of events and of distinct users, per minute and series, from UDP lines
//! that reach any number of nodes.

pub mod cli;
pub mod config;
pub mod daemon;
pub mod demo;
pub mod event;
pub mod flush;
pub mod http;
pub mod ingest;
pub mod node;
pub mod output;
pub mod quarantine;
pub mod secret;
pub mod send;
pub mod spool;
pub mod store;

pub mod telemetry;
pub mod text;

/// The version, as released.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that this was built from; "unknown" where that could not be seen.
pub const COMMIT: &str = env!("BUILT_FROM");
/// Both, as `eds --version` says them.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILT_FROM"), ")");
