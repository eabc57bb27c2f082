//! The independent model: what must be true, worked out from what was done and not from what the store says.
//!
//! It learns of every effect at the moment at which it takes place, and looks at the store only to compare. It
//! shares no code with the service: minutes, sets, tokens, deadlines and ages are worked out again, from the design.

mod admissions;
mod claims;
mod ending;
mod forgetting;
mod lives;
mod points;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::event::Event;

use forgetting::ForgettingBook;
pub(crate) use lives::{Arrival, LifeBook};

/// What first was not as it must be.
pub(crate) type Violation = String;
/// Whether a step was right.
pub(crate) type Verdict = Result<(), Violation>;

/// A minute of a partition.
pub(crate) type Place = (usize, i64);

/// What the model knows.
#[derive(Debug)]
pub(crate) struct Oracle {
    retention_ms: i64,
    places: BTreeMap<Place, PlaceBook>,
    /// How many writes came to the output, and which of them it accepted last.
    writes: u64,
    accepted: u64,
    lives: Vec<LifeBook>,
    forgetting: ForgettingBook,
}

/// What the model knows of a minute of a partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlaceBook {
    series: BTreeMap<u8, PointBook>,
    claim: Option<ClaimBook>,
    /// The greatest token so far.
    token_number: i64,
    /// The first and the last recording since it was last claimed, ms.
    recorded_ms: Option<(i64, i64)>,
    /// When its counts may be forgotten, if nothing more comes.
    keep_until_ms: Option<i64>,
    /// What nodes were answered about its series.
    admitted: BTreeSet<u8>,
    refused: BTreeSet<u8>,
    /// When these may be forgotten if nothing is ever recorded.
    unused_until_ms: Option<i64>,
    /// It may have been forgotten and begun anew, so a minute with places may be full all the same.
    anew: bool,
    /// A claim of it ended, and no event before it: what comes later is late.
    closed: bool,
    /// Under which series each event is counted: series, user, timestamp.
    homes: BTreeMap<(u8, u8, i64), u8>,
}

#[derive(Debug, Clone)]
struct ClaimBook {
    token: String,
    deadline_ms: i64,
}

/// What the model knows of a series in a minute.
#[derive(Debug, Clone, Default)]
struct PointBook {
    /// Recorded since the sets were last dropped.
    users: BTreeSet<u8>,
    /// Series that they came with, user, timestamp.
    events: BTreeSet<(u8, u8, i64)>,
    /// Unique and cumulative, fixed.
    counts: Option<(u64, u64)>,
    /// The output took it.
    written: bool,
    /// The store was asked to.
    acknowledged: bool,
    quarantined: bool,
    /// The write in which the output last rejected it alone.
    rejected: Option<u64>,
}

impl PointBook {
    const fn is_unsent(&self) -> bool {
        self.counts.is_some() && !self.acknowledged && !self.quarantined
    }
}

impl PlaceBook {
    fn has_sets(&self) -> bool {
        self.series.values().any(|point| !point.events.is_empty())
    }

    fn has_unsent(&self) -> bool {
        self.series.values().any(PointBook::is_unsent)
    }
}

/// Answers the violation when something is not as it must be.
macro_rules! must {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
use must;

const fn end_ms(minute: i64) -> i64 {
    (minute + 1) * 60_000
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap()
}

impl Oracle {
    pub(crate) fn new(retention: Duration) -> Self {
        Self {
            retention_ms: millis(retention),
            places: BTreeMap::new(),
            writes: 0,
            accepted: 0,
            lives: Vec::new(),
            forgetting: ForgettingBook::default(),
        }
    }

    fn point(&mut self, partition: usize, event: Event, under: u8) -> &mut PointBook {
        let place = self.places.entry((partition, event.minute())).or_default();
        place.series.entry(under).or_default()
    }
}
