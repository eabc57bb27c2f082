//! Parses lines and groups their events, without I/O or a clock. [`datagram`] splits datagrams into lines, [`Parser`] parses
//! each line, [`Window`] checks its event's age, and [`OpenBatch`] collects a [`Partition`]'s events in a [`Batch`].

mod batch;
pub mod datagram;
mod line;
mod minute;
mod partition;
mod rejection;
mod rollup;
mod scan;
mod statsd;
mod timestamp;

pub use batch::{Batch, Group, Hint, Occurrence, OpenBatch};
pub(crate) use line::LookedUp;
pub use line::{Line, LineLimits, LineRules, Parser};
pub use minute::{Minute, ParseMinuteError};
pub use partition::{
    OVERFLOW_TAG, OverflowSeries, Partition, Partitions, Period, is_reserved, overflow_series,
    series_fingerprint,
};
pub use rejection::Rejection;
pub use rollup::{
    ESTIMATE_ERROR, Every, OVERFLOW_GROUP, Quality, Rollup, RollupLimits, TagFilter, Tags,
};
pub use scan::tags;
pub(crate) use scan::{escape, head};
pub use timestamp::{Precision, Window};
