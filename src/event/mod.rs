//! What an event is. Pure: no I/O, no clock, no tokio.
//!
//! [`datagram`] splits what arrived into lines, [`Parser`] makes a [`Line`] of each, [`Window`] judges its age,
//! and an [`OpenBatch`] collects the events of one
//! [`Partition`], which are a [`Batch`] when it is closed.

mod batch;
pub mod datagram;
mod heads;
mod line;
mod minute;
mod open_batch;
mod overflow;
mod partition;
mod rejection;
mod rules;
mod scan;
mod timestamp;

pub use batch::{Batch, Group, Occurrence};
pub use line::{HintedLine, Line, Parser};
pub use minute::{Minute, ParseMinuteError};
pub use open_batch::{Hint, OpenBatch};
pub use overflow::{
    OVERFLOW_TAG, OverflowSeries, is_reserved, overflow_series, series_fingerprint,
};
pub use partition::{Partition, Partitions};
pub use rejection::Rejection;
pub use rules::{LineLimits, LineRules};
pub use scan::{escape, head, tags};
pub use timestamp::{Precision, Window};
