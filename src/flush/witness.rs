//! [`Witness`]: what a node remembers about a partition: the closed minutes, and those whose counts may have been written.
//! After a rollback, the node reports them to the store before claiming anything, so that no published minute is recounted.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::event::Minute;
use crate::store::{Attested, CLOCK_TOLERANCE_MS, Known, News, Testimony};

/// Maximum number of notes. Beyond this, every other note in the older half is dropped.
const NOTES_MAX: usize = 512;

#[derive(Debug, Default)]
pub(super) struct Witness {
    pub(super) past: Past,
    /// The sequence number of the last closing this node has learned of.
    sequence: u64,
    /// The generation of the store that has received everything this node remembers.
    attested: Option<u64>,
    clock: Option<StoreClock>,
    /// Check-ins, oldest first.
    notes: VecDeque<Note>,
    /// The number of late events this process has found; `None` until the store has reported it.
    late: Option<u64>,
}

#[derive(Debug)]
struct Note {
    stamp: u64,
    at: Instant,
    /// How many events this process had recorded before the check-in.
    recorded: u64,
}

/// The part of a witness that is saved to disk, if a directory is configured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Past {
    testimony: Testimony,
    /// The store's clock at the last stamp, in ms since the epoch.
    clock_ms: i64,
}

/// A time range, in ms by the store's clock, whose acknowledged records the store has lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rollback {
    /// The start of the range: the store still has all records from before it. 0 if the store has lost everything.
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
    /// Maximum number of events that this process may have recorded in that time range.
    pub(super) events: u64,
    /// The minutes that were still announced when the rollback was detected. Some of their counts may never reach an output.
    pub(super) unconfirmed: BTreeSet<Minute>,
}

impl Witness {
    pub(super) fn has_attested(&self, generation: u64) -> bool {
        self.attested == Some(generation)
    }

    pub(super) fn testimony(&self, generation: u64) -> Option<Testimony> {
        (!self.has_attested(generation)).then(|| self.past.testimony.clone())
    }

    /// Processes the store's response to a testimony. Returns a [`Rollback`] if the store has lost data since the last one.
    pub(super) fn attested(
        &mut self,
        generation: u64,
        answer: Attested,
        recorded: u64,
    ) -> Option<Rollback> {
        self.attested = Some(generation);
        // This requests all closings again, because the store may reuse their sequence numbers.
        self.sequence = 0;
        let before = std::mem::replace(&mut self.past.testimony.epoch, answer.epoch);
        self.past.testimony.stamp = answer.stamp;
        if before == 0 || before == answer.epoch {
            return None;
        }
        let to_ms = self.past.clock_ms;
        let mut notes = self.notes.iter().rev();
        let note = notes.find(|note| note.stamp <= answer.forgot_from);
        let mut from_ms = answer.forgot_from_ms;
        if from_ms > to_ms {
            // The store's clock has been set back since then, so the start is computed from the elapsed time.
            let last = self.clock.map(|clock| clock.at);
            let ago_ms = note.zip(last).map_or(0, |(note, last)| millis_between(note.at, last));
            from_ms = to_ms - ago_ms;
        }
        let events = recorded.saturating_sub(note.map_or(0, |note| note.recorded));
        self.notes.clear();
        self.late = None;
        let unconfirmed = self.past.testimony.announced.clone();
        Some(Rollback { from_ms, to_ms, events, unconfirmed })
    }

    /// Returns whether a minute is known to be closed.
    pub(super) fn has_closed(&self, minute: Minute) -> bool {
        let Testimony { since, closed, .. } = &self.past.testimony;
        since.is_some_and(|since| minute < since) || closed.contains(&minute)
    }

    pub(super) fn forgotten(&mut self) {
        self.attested = None;
    }

    pub(super) fn known(&self, now: Instant) -> Known {
        Known {
            epoch: self.past.testimony.epoch,
            stamp: self.past.testimony.stamp,
            sequence: self.sequence,
            expected_ms: self.clock.map(|clock| clock.expected_ms(now)),
        }
    }

    /// Adds the store's reply to a check-in. Returns by how many ms the store's clock has jumped ahead; 0 if it has not.
    pub(super) fn learn(
        &mut self,
        news: &News,
        recorded: u64,
        asked: Instant,
        now: Instant,
    ) -> i64 {
        let shown = StoreClock::shown(news.now_ms, asked, now);
        let jumped_ms = self.clock.get_or_insert(shown).update(shown);
        self.past.clock_ms = news.now_ms;
        self.sequence = news.sequence;
        let Testimony { stamp, since, closed, empty, announced, .. } = &mut self.past.testimony;
        *stamp = news.stamp;
        closed.extend(&news.closed);
        empty.extend(&news.empty);
        announced.extend(&news.announced);
        *since = (*since).max(news.since);
        if let Some(since) = since {
            for minutes in [&mut *closed, empty, announced] {
                *minutes = minutes.split_off(since);
            }
        }
        announced.retain(|minute| !closed.contains(minute));
        self.note(recorded, now);
        jumped_ms
    }

    /// Records that this minute's counts may now be written.
    pub(super) fn publishes(&mut self, minute: Minute) {
        let Testimony { since, closed, announced, .. } = &mut self.past.testimony;
        if !since.is_some_and(|since| minute < since) && !closed.contains(&minute) {
            announced.insert(minute);
        }
    }

    /// Records that all minutes of a window are closed, and that only these had events.
    pub(super) fn settled(&mut self, [first, last]: [Minute; 2], with_events: &[Minute]) {
        let Testimony { since, closed, empty, announced, .. } = &mut self.past.testimony;
        let first = since.map_or(first, |since| first.max(since));
        let numbers = first.epoch_minutes()..=last.epoch_minutes();
        let minutes = numbers.filter_map(Minute::from_epoch_minutes);
        empty.extend(minutes.filter(|minute| {
            !(with_events.contains(minute) || closed.contains(minute) || announced.contains(minute))
        }));
    }

    /// Records how many late events this process has found in total, according to the store. Returns how many are new.
    pub(super) fn found_late(&mut self, in_all: u64) -> u64 {
        let before = self.late.unwrap_or(in_all);
        self.late = Some(before.max(in_all));
        in_all.saturating_sub(before)
    }

    fn note(&mut self, recorded: u64, at: Instant) {
        let last = self.notes.back();
        if last.is_some_and(|note| note.recorded == recorded) {
            return;
        }
        self.notes.push_back(Note { stamp: self.past.testimony.stamp, at, recorded });
        if self.notes.len() > NOTES_MAX {
            let mut place = 0;
            self.notes.retain(|_| {
                place += 1;
                place > NOTES_MAX / 2 || place % 2 == 0
            });
        }
    }
}

/// Bounds on the store's clock at an instant, in ms since the epoch. The clock was read between the request and the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StoreClock {
    at: Instant,
    low_ms: i64,
    high_ms: i64,
}

impl StoreClock {
    fn shown(ms: i64, asked: Instant, answered: Instant) -> Self {
        Self { at: answered, low_ms: ms, high_ms: ms + millis_between(asked, answered) }
    }

    fn expected_ms(self, now: Instant) -> i64 {
        let at_now = self.at(now);
        i64::midpoint(at_now.low_ms, at_now.high_ms)
    }

    /// Adds a later reading. Returns by how many ms the clock may have jumped ahead; 0 if there need not have been a jump.
    fn update(&mut self, later: Self) -> i64 {
        let known = self.at(later.at);
        let low_ms = known.low_ms.max(later.low_ms);
        let high_ms = known.high_ms.min(later.high_ms);
        *self = if low_ms <= high_ms { Self { low_ms, high_ms, ..later } } else { later };
        if later.low_ms - known.high_ms > CLOCK_TOLERANCE_MS {
            later.high_ms - known.low_ms
        } else {
            0
        }
    }

    fn at(self, now: Instant) -> Self {
        let passed_ms = millis_between(self.at, now);
        Self { at: now, low_ms: self.low_ms + passed_ms, high_ms: self.high_ms + passed_ms }
    }
}

fn millis_between(from: Instant, to: Instant) -> i64 {
    i64::try_from(to.duration_since(from).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
