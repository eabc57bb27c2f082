//! The Event Data Service: exact counts of events and of distinct users, per minute and series, from lines that any number of
//! nodes receive, record in a Redis that all share, and flush to outputs when their minute has ended. `ARCHITECTURE.md` has the
//! modules, which import downwards only, the keys in Redis and the invariants.

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
