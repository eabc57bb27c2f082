//! What this node knows of a partition's past, to be handed back to a store that forgets it. Pure: the caller brings the
//! time.
//!
//! Every node is a witness: it hears of each minute whose counts are about to be written, and knows of which it writes points
//! itself. A store that went back hears it again before it is asked for claims; so nothing that was published is counted anew.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::store_clock::{StoreClock, millis_between};
use crate::event::Minute;
use crate::store::{Attested, Known, News, Testimony};

/// The notes that are kept. When there are more, every second one of the older half goes.
const NOTES_MAX: usize = 512;

/// What a node knows of a partition.
#[derive(Debug, Default)]
pub(super) struct Witness {
    past: Past,
    /// The number of the last closing that was heard of.
    sequence: u64,
    /// The generation that has what is known.
    attested: Option<u64>,
    clock: Option<StoreClock>,
    /// Check-ins, the last behind.
    notes: VecDeque<Note>,
    /// How many events this process found too late, in all; `None`: it has not heard yet what the store has counted.
    late: Option<u64>,
}

/// A check-in that is remembered.
#[derive(Debug)]
struct Note {
    stamp: u64,
    at: Instant,
    /// How many events this process had recorded by then.
    recorded: u64,
}

/// The part of it that outlives the process where there is a disk for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Past {
    epoch: u64,
    stamp: u64,
    /// The store's clock at that stamp, in ms since the epoch.
    clock_ms: i64,
    since: Option<i64>,
    closed: BTreeSet<i64>,
    /// Those of which it was heard that their counts are about to be written, and not that an output has them. None is in `closed`.
    announced: BTreeSet<i64>,
}

/// A stretch of time of which the store forgot what it had confirmed. In ms of its clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rollback {
    /// Everything before this is there; 0: nothing is.
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
    /// The most events that this process had recorded meanwhile.
    pub(super) events: u64,
    /// Minutes whose counts were about to be written: an output may lack some of them, for good.
    pub(super) unconfirmed: BTreeSet<Minute>,
}

impl Witness {
    /// With what an earlier process left.
    pub(super) fn new(past: Past) -> Self {
        Self { past, ..Self::default() }
    }

    pub(super) fn past(&self) -> &Past {
        &self.past
    }

    /// Whether the store of this generation has what is known.
    pub(super) fn has_attested(&self, generation: u64) -> bool {
        self.attested == Some(generation)
    }

    /// What is to be handed back to the store of this generation, if that is still to be done.
    pub(super) fn testimony(&self, generation: u64) -> Option<Testimony> {
        if self.has_attested(generation) {
            return None;
        }
        Some(Testimony {
            epoch: self.past.epoch,
            stamp: self.past.stamp,
            since: self.past.since.and_then(Minute::from_epoch_minutes),
            closed: minutes(&self.past.closed),
            announced: minutes(&self.past.announced),
        })
    }

    /// The store of this generation has it. Answers what the store forgot, if that is news; `recorded` is how many events
    /// this process has recorded.
    pub(super) fn attested(
        &mut self,
        generation: u64,
        answer: Attested,
        recorded: u64,
    ) -> Option<Rollback> {
        self.attested = Some(generation);
        // What is closed is heard of from the beginning: numbers of before may be given again.
        self.sequence = 0;
        let before = std::mem::replace(&mut self.past.epoch, answer.epoch);
        self.past.stamp = answer.stamp;
        if before == 0 || before == answer.epoch {
            return None;
        }
        let to_ms = self.past.clock_ms;
        let mut notes = self.notes.iter().rev();
        let note = notes.find(|note| note.stamp <= answer.forgot_from);
        let mut from_ms = answer.forgot_from_ms;
        if from_ms > to_ms {
            // The clock was set back meanwhile: by the clock as it is now.
            let last = self.clock.map(StoreClock::heard_at);
            let ago_ms = note.zip(last).map_or(0, |(note, last)| millis_between(note.at, last));
            from_ms = to_ms - ago_ms;
        }
        let events = recorded.saturating_sub(note.map_or(0, |note| note.recorded));
        self.notes.clear();
        self.late = None;
        Some(Rollback { from_ms, to_ms, events, unconfirmed: minutes(&self.past.announced) })
    }

    /// The store lacks what is known; it has to be handed back.
    pub(super) fn forgotten(&mut self) {
        self.attested = None;
    }

    pub(super) fn known(&self, now: Instant) -> Known {
        Known {
            epoch: self.past.epoch,
            stamp: self.past.stamp,
            sequence: self.sequence,
            expected_ms: self.clock.map(|clock| clock.expected_ms(now)),
        }
    }

    /// Takes in what the store answered to a question of `asked`; `recorded` is how many events this process had recorded before.
    /// Returns how far the store's clock jumped ahead, in ms.
    pub(super) fn heard(
        &mut self,
        news: &News,
        recorded: u64,
        asked: Instant,
        now: Instant,
    ) -> i64 {
        let showed = StoreClock::showed(news.now_ms, asked, now);
        let jumped_ms = self.clock.get_or_insert(showed).update(showed);
        let past = &mut self.past;
        past.stamp = news.stamp;
        past.clock_ms = news.now_ms;
        self.sequence = news.sequence;
        for minute in &news.closed {
            past.announced.remove(&minute.epoch_minutes());
            past.closed.insert(minute.epoch_minutes());
        }
        let announced = news.announced.iter().map(|minute| minute.epoch_minutes());
        let announced = announced.filter(|minute| !past.closed.contains(minute));
        past.announced.extend(announced);
        if let Some(since) = news.since {
            let since = past.since.max(Some(since.epoch_minutes()));
            past.since = since;
            for minutes in [&mut past.closed, &mut past.announced] {
                *minutes = minutes.split_off(&since.unwrap_or(i64::MIN));
            }
        }
        self.note(recorded, now);
        jumped_ms
    }

    /// Points of this minute may be written from now on.
    pub(super) fn publishes(&mut self, minute: Minute) {
        let number = minute.epoch_minutes();
        let is_past = self.past.since.is_some_and(|since| number < since);
        if !is_past && !self.past.closed.contains(&number) {
            self.past.announced.insert(number);
        }
    }

    /// Takes in how many events the store says that this process found too late, in all. Answers how many of them are news.
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
        self.notes.push_back(Note { stamp: self.past.stamp, at, recorded });
        if self.notes.len() > NOTES_MAX {
            let mut place = 0;
            self.notes.retain(|_| {
                place += 1;
                place > NOTES_MAX / 2 || place % 2 == 0
            });
        }
    }
}

fn minutes(numbers: &BTreeSet<i64>) -> BTreeSet<Minute> {
    let minutes = numbers.iter().copied();
    minutes.filter_map(Minute::from_epoch_minutes).collect()
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
