//! Counting different fingerprints per series, in bounded memory: where there are too many they are counted in several passes
//! over the logs, each for a range of them.

use std::collections::HashMap;

use super::Logs;
use super::frame::{self, Events, Piece};
use super::pieces::{Place, Position};
use crate::store::redis::RedisStore;
use crate::store::{SeriesCounts, StoreError};

/// The most fingerprints of a pass: 16 MiB, and as much again while a list of them grows.
const HELD_MAX: usize = 2 << 20;

impl RedisStore {
    /// The counts of all series in these logs, in the order of their names; and how many events there are, copies included.
    pub(super) async fn count(
        &self,
        logs: &Logs,
        place: Place<'_>,
    ) -> Result<(Vec<SeriesCounts>, u64), StoreError> {
        // It is never closed.
        let _turn = logs.counting.acquire().await;
        let mut tally = Tally::new(HELD_MAX);
        loop {
            for log in place.logs {
                let mut numbers = Numbers::default();
                let mut position = Position::at(0);
                while let Some(frames) = self.read(place, log, &mut position).await? {
                    for frame in &frames {
                        tally.take(&mut numbers, frame);
                        if tally.is_full() {
                            tally = off_runtime(tally, Tally::shrink).await;
                        }
                    }
                }
            }
            tally = off_runtime(tally, Tally::end_pass).await;
            if tally.is_done {
                let events = tally.events;
                return Ok((tally.counts(), events));
            }
        }
    }
}

/// Sorting millions of numbers takes tens of ms.
async fn off_runtime(mut tally: Tally, work: fn(&mut Tally)) -> Tally {
    let worked = tokio::task::spawn_blocking(move || {
        work(&mut tally);
        tally
    });
    match worked.await {
        Ok(tally) => tally,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// The place in a tally of each series of a log, by its number there.
#[derive(Debug, Default)]
struct Numbers(HashMap<u64, usize>);

/// Different fingerprints of all series.
#[derive(Debug, Default)]
struct Tally {
    places: HashMap<Box<str>, usize>,
    series: Vec<Series>,
    /// The range of fingerprints of this pass.
    first: u64,
    last: u64,
    is_done: bool,
    held: usize,
    held_max: usize,
    /// The events that were read in the first pass.
    events: u64,
    /// Whether a frame was none.
    is_foreign: bool,
}

#[derive(Debug, Default)]
struct Series {
    /// Those of this pass, some of them several times.
    users: Vec<u64>,
    events: Vec<u64>,
    /// How many there were in the passes before.
    counted: (u64, u64),
}

impl Tally {
    fn new(held_max: usize) -> Self {
        Self {
            last: u64::MAX,
            held_max,
            ..Self::default()
        }
    }

    fn take(&mut self, numbers: &mut Numbers, bytes: &[u8]) {
        let is_frame = frame::read(bytes, |piece| match piece {
            Piece::Entry(number, series) => {
                let place = self.place(series);
                numbers.0.insert(number, place);
            }
            Piece::Part(number, from, events) => self.add(numbers, number, from, events),
        });
        if !is_frame && !std::mem::replace(&mut self.is_foreign, true) {
            tracing::error!(
                bytes = bytes.len(),
                "what is no frame in a log is not counted"
            );
        }
    }

    fn place(&mut self, series: &str) -> usize {
        if let Some(place) = self.places.get(series) {
            return *place;
        }
        self.series.push(Series::default());
        self.places.insert(series.into(), self.series.len() - 1);
        self.series.len() - 1
    }

    fn add(&mut self, numbers: &Numbers, number: u64, from: u64, events: Events<'_>) {
        let series = numbers.0.get(&number);
        let Some(series) = series.and_then(|place| self.series.get_mut(*place)) else {
            tracing::error!(
                number,
                "a log does not name the series of events, which are not counted"
            );
            return;
        };
        if self.first == 0 {
            self.events += events.count() as u64;
        }
        let pass = self.first..=self.last;
        let before = series.held();
        let users = events.iter().map(|event| event.user);
        series.users.extend(users.filter(|it| pass.contains(it)));
        let events = events.iter().map(|event| event.fingerprint(from));
        series.events.extend(events.filter(|it| pass.contains(it)));
        self.held += series.held() - before;
    }

    fn is_full(&self) -> bool {
        self.held > self.held_max
    }

    /// Makes room: what is there twice goes, and where that is not enough the upper half of the range, until another pass.
    fn shrink(&mut self) {
        self.each(Series::distinct);
        while self.held > self.held_max / 2 && self.first < self.last {
            self.last = self.first + (self.last - self.first) / 2;
            let last = self.last;
            self.each(|series| series.keep_to(last));
        }
    }

    fn each(&mut self, change: impl Fn(&mut Series)) {
        self.series.iter_mut().for_each(change);
        self.held = self.series.iter().map(Series::held).sum();
    }

    /// Counts what is there, and goes on to the next range, as large as this one, or larger where this one had little.
    fn end_pass(&mut self) {
        self.is_done = self.last == u64::MAX;
        let mut size = self.last - self.first;
        if self.held < self.held_max / 4 {
            size = size.saturating_mul(2).saturating_add(1);
        }
        self.each(Series::end_pass);
        self.first = self.last.wrapping_add(1);
        self.last = self.first.saturating_add(size);
    }

    fn counts(self) -> Vec<SeriesCounts> {
        let mut counts: Vec<_> = self
            .places
            .into_iter()
            .map(|(series, place)| {
                let (unique, cumulative) = self.series[place].counted;
                SeriesCounts {
                    series: series.into(),
                    unique,
                    cumulative,
                }
            })
            .collect();
        counts.sort_unstable();
        counts
    }
}

impl Series {
    fn held(&self) -> usize {
        self.users.len() + self.events.len()
    }

    fn distinct(&mut self) {
        for fingerprints in [&mut self.users, &mut self.events] {
            fingerprints.sort_unstable();
            fingerprints.dedup();
        }
    }

    fn keep_to(&mut self, last: u64) {
        for fingerprints in [&mut self.users, &mut self.events] {
            fingerprints.retain(|it| *it <= last);
            fingerprints.shrink_to(2 * fingerprints.len());
        }
    }

    fn end_pass(&mut self) {
        self.distinct();
        self.counted.0 += self.users.len() as u64;
        self.counted.1 += self.events.len() as u64;
        self.users.clear();
        self.events.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::frame::{Event, Frame};
    use super::*;

    proptest! {
        /// However little room there is, the counts are those of sets.
        #[test]
        fn passes_change_no_count(
            parts in prop::collection::vec((0..3_u32, prop::option::of(1..4_u64), prop::collection::vec((0..30_u64, 0..30_u64), 0..40)), 0..12),
            held_max in 4..200_usize,
        ) {
            // Each is there twice, in two logs that number the series differently.
            let logs: Vec<Vec<Vec<u8>>> = [0, 100].map(|shift| {
                parts.iter().map(|(series, from, events)| {
                    let mut frame = Frame::default();
                    frame.name(series + shift, &format!("s={series}"));
                    // Users are anywhere; times are close to each other.
                    let events = events.iter().map(|(user, time)| Event { user: user.wrapping_mul(0x2545_f491_4f6c_dd1d), time: *time });
                    frame.add(series + shift, from.map(|from| from << 40), events);
                    frame.bytes()
                }).collect()
            }).into();
            let mut tally = Tally::new(held_max);
            let mut passes = 0;
            while !tally.is_done {
                passes += 1;
                for log in &logs {
                    let mut numbers = Numbers::default();
                    for frame in log {
                        tally.take(&mut numbers, frame);
                        if tally.is_full() {
                            tally.shrink();
                        }
                    }
                }
                tally.end_pass();
            }
            let mut expected = Vec::new();
            for series in parts.iter().map(|(series, ..)| *series).collect::<BTreeSet<_>>() {
                let of = parts.iter().filter(|part| part.0 == series);
                let users: BTreeSet<_> = of.clone().flat_map(|part| part.2.iter().map(|event| event.0)).collect();
                let events: BTreeSet<_> = of.flat_map(|part| part.2.iter().map(|event| (part.1, event))).collect();
                expected.push(SeriesCounts {
                    series: format!("s={series}"),
                    unique: users.len() as u64,
                    cumulative: events.len() as u64,
                });
            }
            prop_assert_eq!(tally.counts(), expected, "{} passes", passes);
        }
    }
}
