//! The Event Data Service: exact counts of events and of distinct users, per minute and series. Any number of nodes receive
//! lines, record their events in a shared Redis, and flush the counts to outputs once each minute has ended. `ARCHITECTURE.md`
//! describes the modules, which import only downwards, the keys in Redis and the invariants.

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

/// The released version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit of the build, or "unknown".
pub const COMMIT: &str = env!("BUILT_FROM");
/// Version and commit, as printed by `eds --version`.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILT_FROM"), ")");
