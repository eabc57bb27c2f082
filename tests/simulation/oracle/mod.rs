//! The independent model: what must be true, derived from the executed calls, not from the store's answers.
//!
//! It learns of every effect when it happens and reads the store only to compare. It shares no code with the service:
//! minutes, sets, tokens, deadlines and ages are computed anew.

mod admissions;
mod claims;
mod ending;
mod forgetting;
mod lives;
mod points;

use forgetting::ForgettingBook;

use super::plan::OUTPUTS;
use crate::simulation::prelude::*;

pub(crate) use lives::{Arrival, LifeBook};

pub(crate) type Violation = String;
pub(crate) type Verdict = Result<(), Violation>;

pub(crate) type Place = (usize, i64);

#[derive(Debug)]
pub(crate) struct Oracle {
    retention_ms: i64,
    outputs: usize,
    layout: Layout,
    places: BTreeMap<Place, PlaceBook>,
    /// For each output, the number of writes, and the last accepted one.
    writes: [u64; OUTPUTS],
    accepted: [u64; OUTPUTS],
    lives: Vec<LifeBook>,
    forgetting: ForgettingBook,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct PlaceBook {
    series: BTreeMap<u8, PointBook>,
    /// With logs: the counts that are not sealed yet.
    cut: Option<CutBook>,
    /// The claims to seal and to send to each output.
    claims: [Option<ClaimBook>; 1 + OUTPUTS],
    /// The greatest token of each.
    token_numbers: [i64; 1 + OUTPUTS],
    /// The first and last recording since the last claim, in ms.
    recorded_ms: Option<(i64, i64)>,
    /// When a claim first saw it after the last recording, in ms.
    looked_ms: Option<i64>,
    /// When its counts may expire if nothing more arrives.
    keep_until_ms: Option<i64>,
    /// The answers about its series.
    admitted: BTreeSet<u8>,
    refused: BTreeSet<u8>,
    /// When these may expire if nothing is recorded.
    unused_until_ms: Option<i64>,
    /// It may have been forgotten and started anew, so a minute with room may be full.
    anew: bool,
    /// An output has all of it: later events are late.
    closed: bool,
    /// The series under which each event is counted, by original series, user and timestamp.
    homes: BTreeMap<(u8, u8, i64), u8>,
}

type Counted = Vec<(u8, (u64, u64))>;

/// Counted logs: users and events of each series, in the order of sealing.
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

#[derive(Debug, Clone, Default)]
struct PointBook {
    /// Recorded since the sets were last dropped.
    users: BTreeSet<u8>,
    events: BTreeSet<(u8, u8, i64)>,
    /// Unique and cumulative count, sealed.
    counts: Option<(u64, u64)>,
    of: [OutputBook; OUTPUTS],
}

#[derive(Debug, Clone, Copy, Default)]
struct OutputBook {
    written: bool,
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

    /// No work is left: its counts may expire.
    fn ends(&mut self, now_ms: i64, retention_ms: i64) {
        let is_awaited = self.claims[1..].iter().any(Option::is_some);
        if self.has_sets() || is_awaited {
            return;
        }
        self.closed = true;
        // A claim that finds no work does not restore expired data.
        if self.keep_until_ms.is_none_or(|until| until > now_ms) {
            self.keep_until_ms = Some(now_ms + retention_ms);
        }
    }
}

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
