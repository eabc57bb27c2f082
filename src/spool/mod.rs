//! Events on disk, for which memory has no room while the store is unavailable.
//!
//! A [`Keeper`] is a thread that owns the directory: it appends batches to segment files ([`segment`]), counts
//! the events that it cannot keep, and gives out the segments, oldest first. All other threads use it through a [`Spool`]. A
//! segment is deleted only when all its events are recorded. So the events of a node that ends in any way are recorded by the
//! next one that starts on the directory.

mod directory;
mod keeper;
pub mod segment;

pub(crate) use directory::is_gone;
pub use directory::{Segment, SpoolSettings};
pub use keeper::{Keeper, Spool};
