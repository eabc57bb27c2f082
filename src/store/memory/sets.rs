//! [`Sets`]: what is recorded of a series in a minute, exact and small.
//!
//! Each name stands once in a minute of a partition ([`Users`]). A user is its number from then on, and an event is one word:
//! when in the minute, and whose. Nothing else is kept of them, so an event takes 8 to 16 bytes; the different users are counted
//! when somebody asks.

use std::collections::BTreeMap;

use super::users::{NUMBER_BITS, Users};
use crate::event::{Minute, series_fingerprint};
use crate::store::RecordRequest;

const MINUTE_NANOS: i64 = 60_000_000_000;
/// The events of a full run, 4 KiB.
const RUN_EVENTS: usize = 512;
/// What a full run takes beside its events in the index of runs, in bytes; roughly.
const RUN_BYTES: usize = 48;
/// What a series takes beside its name and its events, in bytes; roughly.
const SERIES_BYTES: u64 = 200;
/// The same of a series whose events are in an overflow series.
const OVERFLOWED_BYTES: u64 = 96;

/// The events of a series in a minute.
#[derive(Debug, Default)]
pub(super) struct Sets {
    events: Events,
    /// The events of an overflow series, by the fingerprint of the series that they came with.
    overflowed: BTreeMap<u128, Events>,
    pub(super) cumulative: u64,
    /// The memory that all this takes, roughly.
    pub(super) bytes: u64,
}

impl Sets {
    pub(super) fn new(series: &str) -> Self {
        Self { bytes: SERIES_BYTES + series.len() as u64, ..Self::default() }
    }

    /// Adds events. Answers how many were there already.
    pub(super) fn record(&mut self, users: &mut Users, recording: &RecordRequest<'_>) -> u64 {
        let events = match recording.overflowed_from.map(series_fingerprint) {
            None => &mut self.events,
            Some(series) => self.overflowed.entry(series).or_insert_with(|| {
                self.bytes += OVERFLOWED_BYTES;
                Events::default()
            }),
        };
        let before = events.bytes();
        let mut new = 0;
        for occurrence in recording.occurrences {
            let number = users.number(recording.batch.user(occurrence));
            new += u64::from(events.insert(event(occurrence.timestamp, number)));
        }
        self.cumulative += new;
        self.bytes = self.bytes + events.bytes() - before;
        recording.occurrences.len() as u64 - new
    }

    /// How many different users there are, and whether each of these is among them.
    pub(super) fn users(&self, users: &Users, asked: &[&str]) -> (u64, Vec<bool>) {
        let (mut seen, mut count) = (vec![0_u64; users.len() / 64 + 1], 0);
        let events = self.overflowed.values().chain([&self.events]);
        for event in events.flat_map(Events::iter) {
            let (word, bit) = place(number(event));
            count += u64::from(seen[word] & bit == 0);
            seen[word] |= bit;
        }
        let is_there = |name: &&str| {
            let number = users.find(name);
            number.map(place).is_some_and(|(word, bit)| seen[word] & bit != 0)
        };
        (count, asked.iter().map(is_there).collect())
    }

    /// The two counts.
    pub(super) fn counts(&self, users: &Users) -> (u64, u64) {
        (self.users(users, &[]).0, self.cumulative)
    }

    /// What they hold of a series in this minute, as text.
    pub(super) fn open(&self, series: &str, minute: Minute, names: &Users) -> OpenSets {
        let start = i128::from(minute.epoch_minutes()) * i128::from(MINUTE_NANOS);
        let member = |event: u64| {
            let at = start + i128::from(event >> NUMBER_BITS);
            format!("{}_{at}", names.name(number(event)))
        };
        let own = self.events.iter().map(member);
        let overflowed = self.overflowed.iter().flat_map(|(series, events)| {
            let events = events.iter();
            events.map(move |event| format!("{}_{series:032x}", member(event)))
        });
        let mut events: Vec<_> = own.chain(overflowed).collect();
        events.sort_unstable();
        let all = self.overflowed.values().chain([&self.events]);
        let all = all.flat_map(Events::iter);
        let mut users: Vec<_> = all.map(|event| names.name(number(event))).collect();
        users.sort_unstable();
        users.dedup();
        OpenSets { series: series.to_owned(), users, events }
    }
}

/// The sets of one series in one minute, members in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenSets {
    /// The canonical series.
    pub series: String,
    /// The users.
    pub users: Vec<String>,
    /// The events: user and timestamp, and the fingerprint of the series that those of an overflow series came with; joined by
    /// underscores.
    pub events: Vec<String>,
}

/// An event as a word: first the time in its minute, so that words are in the order of time.
const fn event(timestamp: i64, user: u32) -> u64 {
    let at = timestamp.rem_euclid(MINUTE_NANOS).cast_unsigned();
    at << NUMBER_BITS | user as u64
}

/// Whose event it is.
const fn number(event: u64) -> u32 {
    (event & ((1 << NUMBER_BITS) - 1)) as u32
}

/// Where the bit of a user is: the word, and the bit in it.
const fn place(number: u32) -> (usize, u64) {
    ((number / 64) as usize, 1 << (number % 64))
}

/// A set of events in sorted runs. Most come in the order of time, which makes adding one a comparison and a store; the last run
/// is where they are put.
#[derive(Debug, Default)]
struct Events {
    last: Vec<u64>,
    /// The others, by their first event; the first of all also has those that came later and are from before it.
    runs: BTreeMap<u64, Vec<u64>>,
}

impl Events {
    /// Returns whether it is new.
    fn insert(&mut self, event: u64) -> bool {
        if self.last.last().is_none_or(|&last| last < event) {
            if self.last.len() == RUN_EVENTS {
                self.end_run(RUN_EVENTS);
            }
            self.last.push(event);
            return true;
        }
        // `None`: the last run.
        let first = if event < self.last[0] {
            let first = self.runs.range(..=event).next_back();
            first.or_else(|| self.runs.first_key_value())
        } else {
            None
        };
        let first = first.map(|(&first, _)| first);
        let run = first.and_then(|first| self.runs.get_mut(&first));
        let run = run.unwrap_or(&mut self.last);
        let Err(at) = run.binary_search(&event) else {
            return false;
        };
        if run.len() < RUN_EVENTS {
            run.insert(at, event);
            return true;
        }
        if let Some(mut lower) = first.and_then(|first| self.runs.remove(&first)) {
            // The first of all may have got events from before its first one.
            let upper = lower.split_off(RUN_EVENTS / 2);
            self.runs.extend([lower, upper].map(|run| (run[0], run)));
        } else {
            // What comes a little late goes to its end, so little stays there.
            self.end_run(RUN_EVENTS / 8 * 7);
        }
        self.insert(event)
    }

    /// Has the last run begin behind so many events of it.
    fn end_run(&mut self, events: usize) {
        let next = self.last.split_off(events);
        let ended = std::mem::replace(&mut self.last, next);
        self.runs.insert(ended[0], ended);
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.runs.values().flatten().chain(&self.last).copied()
    }

    fn bytes(&self) -> u64 {
        let runs = self.runs.len() * (RUN_EVENTS * size_of::<u64>() + RUN_BYTES);
        (runs + self.last.capacity() * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
