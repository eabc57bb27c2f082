//! The Event Data Service counts events and distinct users exactly, per minute per series. Any number of nodes receive
//! lines, record their events in a shared Redis server, and flush the counts of each minute to outputs after it has ended.
//! `ARCHITECTURE.md` describes the modules (a module imports only from lower layers), the keys in Redis, and the invariants.

pub mod cli;
pub mod config;
pub(crate) mod count;
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
pub mod spool;
pub(crate) mod status;
pub mod store;
pub mod telemetry;
pub mod text;

/// The version from `Cargo.toml`, such as `1.2.3`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The git commit from which this binary was built, or "unknown".
pub const COMMIT: &str = env!("BUILT_FROM");
/// The version and the commit, as printed by `eds --version`.
pub const BUILD: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("BUILT_FROM"), ")");
