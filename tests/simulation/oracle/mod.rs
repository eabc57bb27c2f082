//! An independent model of what must be true. It is derived from the executed calls, not from the store's responses.
//!
//! The model learns of every effect immediately, reads the store only for comparison, and shares no code with the service.

mod admissions;
mod claims;
mod ending;
mod forgetting;
mod lives;
mod points;
mod windows;

use forgetting::ForgettingBook;

use super::plan::{OUTPUTS, ROLLUP};
use super::rollup::RollupPlan;
use crate::simulation::prelude::*;

pub(crate) use lives::{Arrival, LifeBook};
pub(crate) use windows::Contribution;

pub(crate) type Violation = String;
pub(crate) type Verdict = Result<(), Violation>;

pub(crate) type Place = (usize, i64);

#[derive(Debug)]
pub(crate) struct Oracle {
    retention_ms: i64,
    outputs: usize,
    /// The number of partitions of series, which come before those of windows.
    partitions: usize,
    rollups: Vec<RollupPlan>,
    layout: Layout,
    places: BTreeMap<Place, PlaceBook>,
    /// For each output, the number of writes, and the number of the last write that was accepted.
    writes: [u64; OUTPUTS],
    accepted: [u64; OUTPUTS],
    lives: Vec<LifeBook>,
    forgetting: ForgettingBook,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct PlaceBook {
    series: BTreeMap<u8, PointBook>,
    /// The cut that is being sealed, with the log layout.
    cut: Option<CutBook>,
    /// The claim to seal, and the claims to send to each output.
    claims: [Option<ClaimBook>; 2 + OUTPUTS],
    /// The greatest token that was granted for each claim.
    token_numbers: [i64; 2 + OUTPUTS],
    /// The times of the first and last recording since the last claim, in milliseconds.
    recorded_ms: Option<(i64, i64)>,
    /// When a claim request first saw the minute after the last recording, in milliseconds.
    looked_ms: Option<i64>,
    /// When the counts may expire if no more events arrive, in milliseconds.
    keep_until_ms: Option<i64>,
    /// The series that have been admitted, and the series that have been refused.
    admitted: BTreeSet<u8>,
    refused: BTreeSet<u8>,
    /// When the admissions may expire if nothing is recorded, in milliseconds.
    unused_until_ms: Option<i64>,
    /// Whether the minute may have been forgotten and started again, so that the store may have admitted more series.
    anew: bool,
    /// Whether an output has all counts of the minute, so that all further events are late.
    closed: bool,
    /// The series under which each event is counted, by original series, user and timestamp.
    homes: BTreeMap<(u8, u8, i64), u8>,
    /// For a window, the minutes that have been added, and the lives that added them.
    added: BTreeMap<Place, usize>,
    /// Whether a window has users that have not been sealed.
    is_filled: bool,
}

/// The counts of each series or group.
type Counted = Vec<(u8, (u64, u64))>;

/// The counts of each series in a cut of the logs, in the order of sealing, and how many have been sealed.
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
    /// The users and events recorded since the sets were last dropped.
    users: BTreeSet<u8>,
    events: BTreeSet<(u8, u8, i64)>,
    /// The sealed unique and cumulative counts.
    counts: Option<(u64, u64)>,
    sealed_users: BTreeSet<u8>,
    outputs: [OutputBook; 1 + OUTPUTS],
}

#[derive(Debug, Clone, Default)]
struct OutputBook {
    written: bool,
    acknowledged: bool,
    quarantined: bool,
    /// For each life, the number of its last write in which the output rejected this point alone.
    rejected: BTreeMap<usize, u64>,
}

impl PointBook {
    const fn is_unsent(&self, output: usize) -> bool {
        let book = &self.outputs[output];
        self.counts.is_some() && !book.acknowledged && !book.quarantined
    }
}

impl PlaceBook {
    fn has_sets(&self) -> bool {
        self.cut.is_some()
            || self.is_filled
            || self.series.values().any(|point| !point.events.is_empty())
    }

    fn has_unsent(&self, output: usize) -> bool {
        self.series.values().any(|point| point.is_unsent(output))
    }

    /// Notes that events, or users of a window, have arrived.
    fn arrived(&mut self, now_ms: i64) {
        let first = self.recorded_ms.map_or(now_ms, |(first, _)| first);
        self.recorded_ms = Some((first, now_ms));
        self.looked_ms = None;
        // This does not restore counts that have expired.
        if self.keep_until_ms.is_some_and(|until| until > now_ms) {
            self.keep_until_ms = None;
        }
    }

    /// Closes the minute if there are neither sets nor claims to send, so that its counts may expire.
    fn ends(&mut self, now_ms: i64, retention_ms: i64) {
        let is_awaited = self.claims[1..].iter().any(Option::is_some);
        if self.has_sets() || is_awaited {
            return;
        }
        self.closed = true;
        // A claim that ends without any work does not restore expired counts.
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
            partitions: plan.partitions.into(),
            rollups: plan.rollups.clone(),
            layout: plan.layout,
            places: BTreeMap::new(),
            writes: [0; OUTPUTS],
            accepted: [0; OUTPUTS],
            lives: Vec::new(),
            forgetting: ForgettingBook::default(),
        }
    }

    /// Returns the outputs of a partition, which include [`ROLLUP`] if its minutes are added to windows.
    fn outputs_of(&self, partition: usize) -> impl Iterator<Item = usize> + use<> {
        let has_windows = partition < self.partitions && !self.rollups.is_empty();
        (0..self.outputs).chain(has_windows.then_some(ROLLUP))
    }

    fn point(&mut self, partition: usize, event: Event, under: u8) -> &mut PointBook {
        let place = self.places.entry((partition, event.minute())).or_default();
        place.series.entry(under).or_default()
    }
}
