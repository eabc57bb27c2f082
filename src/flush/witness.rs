//! What this node knows of a partition's past, to be handed back to a store that forgets it. Pure: the caller brings the
//! time.
//!
//! Every node is a witness: it hears of each minute that is closed, and knows of which it has written points itself. A
//! store that went back hears it again before it is asked for claims; so nothing that was published is counted anew.

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tokio::time::Instant;

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
    /// The store's clock, and when it was that, in ms since the epoch.
    clock: Option<(i64, Instant)>,
    /// The store's clock, and how many events this process had recorded by then.
    notes: VecDeque<(i64, u64)>,
}

/// The part of it that outlives the process where there is a disk for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Past {
    epoch: u64,
    stamp_ms: i64,
    since: Option<i64>,
    closed: BTreeSet<i64>,
}

/// A stretch of time of which the store forgot what it had confirmed. In ms of its clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rollback {
    /// Everything before this is there; 0: nothing is.
    pub(super) from_ms: i64,
    pub(super) to_ms: i64,
    /// The most events that this process had recorded meanwhile.
    pub(super) events: u64,
}

impl Witness {
    /// With what an earlier process left.
    pub(super) fn new(past: Past) -> Self {
        Self {
            past,
            ..Self::default()
        }
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
        let minutes = |numbers: &BTreeSet<i64>| {
            let minutes = numbers.iter().copied();
            minutes.filter_map(Minute::from_epoch_minutes).collect()
        };
        Some(Testimony {
            epoch: self.past.epoch,
            stamp_ms: self.past.stamp_ms,
            since: self.past.since.and_then(Minute::from_epoch_minutes),
            closed: minutes(&self.past.closed),
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
        let to_ms = self.past.stamp_ms;
        if before == 0 || before == answer.epoch {
            return None;
        }
        let from_ms = answer.forgot_from_ms.min(to_ms);
        self.past.stamp_ms = 0;
        let events = recorded - self.recorded_by(from_ms, recorded);
        self.notes.clear();
        Some(Rollback {
            from_ms,
            to_ms,
            events,
        })
    }

    /// The store lacks what is known; it has to be handed back.
    pub(super) fn forgotten(&mut self) {
        self.attested = None;
    }

    pub(super) fn known(&self, now: Instant) -> Known {
        let expected = |&(ms, at): &(i64, Instant)| ms + millis_since(at, now);
        Known {
            epoch: self.past.epoch,
            stamp_ms: self.past.stamp_ms,
            sequence: self.sequence,
            expected_ms: self.clock.as_ref().map(expected),
        }
    }

    /// Takes in what the store answered; `recorded` is how many events this process had recorded before. Answers how far
    /// the store's clock jumped since the last answer, in ms.
    pub(super) fn heard(&mut self, news: &News, recorded: u64, now: Instant) -> i64 {
        let expected = self.known(now).expected_ms.unwrap_or(news.now_ms);
        self.clock = Some((news.now_ms, now));
        self.past.stamp_ms = news.stamp_ms;
        self.sequence = news.sequence;
        let closed = news.closed.iter().map(|minute| minute.epoch_minutes());
        self.past.closed.extend(closed);
        if let Some(since) = news.since {
            let since = self.past.since.max(Some(since.epoch_minutes()));
            self.past.since = since;
            self.past.closed = self.past.closed.split_off(&since.unwrap_or(i64::MIN));
        }
        self.note(recorded);
        news.now_ms - expected
    }

    /// Points of this minute may be written from now on. Answers whether that is news.
    pub(super) fn publishes(&mut self, minute: Minute) -> bool {
        let number = minute.epoch_minutes();
        let is_past = self.past.since.is_some_and(|since| number < since);
        !is_past && self.past.closed.insert(number)
    }

    fn note(&mut self, recorded: u64) {
        if self
            .notes
            .back()
            .is_some_and(|&(_, count)| count == recorded)
        {
            return;
        }
        self.notes.push_back((self.past.stamp_ms, recorded));
        if self.notes.len() > NOTES_MAX {
            let mut place = 0;
            self.notes.retain(|_| {
                place += 1;
                place > NOTES_MAX / 2 || place % 2 == 0
            });
        }
    }

    /// How many events were recorded by this time, or fewer.
    fn recorded_by(&self, stamp_ms: i64, recorded: u64) -> u64 {
        let before = self.notes.iter().rev().find(|(at, _)| *at <= stamp_ms);
        before.map_or(0, |&(_, count)| count).min(recorded)
    }
}

fn millis_since(at: Instant, now: Instant) -> i64 {
    i64::try_from(now.duration_since(at).as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "witness_tests.rs"]
mod tests;
