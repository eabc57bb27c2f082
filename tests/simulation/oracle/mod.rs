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

use event_data_service::store::redis::Layout;

use super::event::Event;
use super::plan::{OUTPUTS, Plan};

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
    /// How many outputs there are.
    outputs: usize,
    layout: Layout,
    places: BTreeMap<Place, PlaceBook>,
    /// How many writes came to each output, and which of them it accepted last.
    writes: [u64; OUTPUTS],
    accepted: [u64; OUTPUTS],
    lives: Vec<LifeBook>,
    forgetting: ForgettingBook,
}

/// What the model knows of a minute of a partition.
#[derive(Debug, Clone, Default)]
pub(crate) struct PlaceBook {
    series: BTreeMap<u8, PointBook>,
    /// With logs: what is counted of them and not sealed yet.
    cut: Option<CutBook>,
    /// To seal, and to send to each output.
    claims: [Option<ClaimBook>; 1 + OUTPUTS],
    /// The greatest token of each so far.
    token_numbers: [i64; 1 + OUTPUTS],
    /// The first and the last recording since it was last claimed, ms.
    recorded_ms: Option<(i64, i64)>,
    /// When a claim first looked at it after the last recording, ms.
    looked_ms: Option<i64>,
    /// When its counts may be forgotten, if nothing more comes.
    keep_until_ms: Option<i64>,
    /// What nodes were answered about its series.
    admitted: BTreeSet<u8>,
    refused: BTreeSet<u8>,
    /// When these may be forgotten if nothing is ever recorded.
    unused_until_ms: Option<i64>,
    /// It may have been forgotten and begun anew, so a minute with places may be full all the same.
    anew: bool,
    /// An output has all of it: what comes later is late.
    closed: bool,
    /// Under which series each event is counted: series, user, timestamp.
    homes: BTreeMap<(u8, u8, i64), u8>,
}

/// Series, each with its users and events.
type Counted = Vec<(u8, (u64, u64))>;

/// Logs that are counted: each series with its users and events, in the order in which they are sealed.
#[derive(Debug, Clone)]
struct CutBook {
    series: Counted,
    done: usize,
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
    of: [OutputBook; OUTPUTS],
}

/// What the model knows of a point at an output.
#[derive(Debug, Clone, Copy, Default)]
struct OutputBook {
    /// It took it.
    written: bool,
    /// The store was told so.
    acknowledged: bool,
    quarantined: bool,
    /// The write in which it last rejected it alone.
    rejected: Option<u64>,
}

impl PointBook {
    const fn is_unsent(&self, output: usize) -> bool {
        let of = self.of[output];
        self.counts.is_some() && !of.acknowledged && !of.quarantined
    }
}

impl PlaceBook {
    fn has_sets(&self) -> bool {
        self.cut.is_some() || self.series.values().any(|point| !point.events.is_empty())
    }

    fn has_unsent(&self, output: usize) -> bool {
        self.series.values().any(|point| point.is_unsent(output))
    }

    /// Nothing is left to do: its counts may be forgotten after a while.
    fn ends(&mut self, now_ms: i64, retention_ms: i64) {
        let is_awaited = self.claims[1..].iter().any(Option::is_some);
        if self.has_sets() || is_awaited {
            return;
        }
        self.closed = true;
        // What was forgotten already does not come back by a claim that found nothing to do.
        if self.keep_until_ms.is_none_or(|until| until > now_ms) {
            self.keep_until_ms = Some(now_ms + retention_ms);
        }
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
    pub(crate) fn new(plan: &Plan, retention: Duration) -> Self {
        Self {
            retention_ms: millis(retention),
            outputs: plan.outputs,
            layout: plan.layout,
            places: BTreeMap::new(),
            writes: [0; OUTPUTS],
            accepted: [0; OUTPUTS],
            lives: Vec::new(),
            forgetting: ForgettingBook::default(),
        }
    }

    fn point(&mut self, partition: usize, event: Event, under: u8) -> &mut PointBook {
        let place = self.places.entry((partition, event.minute())).or_default();
        place.series.entry(under).or_default()
    }
}
