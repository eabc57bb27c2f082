//! [`Sets`]: the events of a series in a minute. [`Users`] numbers the users of a minute in a partition. An event is one
//! 64-bit word, its time within the minute and its user's number, and takes 8 to 16 bytes, because lists are partly empty.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, RandomState};

use string_interner::{DefaultStringInterner, Symbol as _};

use crate::event::{Batch, series_fingerprint};
use crate::store::RecordRequest;

const MINUTE_NANOS: i64 = 60_000_000_000;
/// The number of bits for the user's number in an event. The other 36 hold the nanoseconds within the minute.
const NUMBER_BITS: u32 = 28;
/// The approximate size of an event that arrived after a later one, in bytes.
const LATE_EVENT_BYTES: usize = 14;
/// The approximate size of a user in bytes, excluding the name. This and 1.5 bytes per byte of the name allow for spare capacity.
const USER_BYTES: u64 = 22;
/// The approximate size of a series in bytes, excluding its name and its events.
const SERIES_BYTES: u64 = 200;
/// The approximate size of an original series within the overflow series in bytes, excluding its events.
const OVERFLOWED_BYTES: u64 = 96;

#[derive(Debug, Default)]
pub(super) struct Sets {
    events: Events,
    /// If this is the overflow series: its events, by the fingerprint of their original series.
    overflowed: BTreeMap<u128, Events>,
    pub(super) cumulative: u64,
    pub(super) bytes: u64,
}

impl Sets {
    pub(super) fn new(series: &str) -> Self {
        Self { bytes: SERIES_BYTES + series.len() as u64, ..Self::default() }
    }

    /// Adds events, and returns how many of them were already there.
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

    /// Returns for each user of the minute, by number, whether it is a user of this series, and the number of those that are.
    fn seen(&self, users: &Users) -> (Vec<bool>, u64) {
        let (mut seen, mut count) = (vec![false; users.names.len()], 0);
        let events = self.overflowed.values().chain([&self.events]).flat_map(Events::iter);
        for event in events {
            let was_seen = &mut seen[(event & ((1 << NUMBER_BITS) - 1)) as usize];
            count += u64::from(!std::mem::replace(was_seen, true));
        }
        (seen, count)
    }

    /// Returns the number of distinct users, and for each user in `asked` whether it is among them.
    pub(super) fn users(&self, users: &Users, asked: &[&str]) -> (u64, Vec<bool>) {
        let (seen, count) = self.seen(users);
        let is_there =
            |name: &&str| users.names.get(name).is_some_and(|number| seen[number.to_usize()]);
        (count, asked.iter().map(is_there).collect())
    }

    /// Returns the fingerprint of each distinct user.
    pub(super) fn fingerprints(&self, users: &Users, hasher: &RandomState) -> Vec<u64> {
        let (seen, _) = self.seen(users);
        let found = users.names.iter().zip(seen).filter(|(_, is_seen)| *is_seen);
        found.map(|((_, name), _)| hasher.hash_one(name)).collect()
    }

    /// Returns the numbers of distinct users and events.
    pub(super) fn counts(&self, users: &Users) -> (u64, u64) {
        (self.seen(users).1, self.cumulative)
    }
}

/// Returns an event as a word, with the time in the high bits so that words sort by time.
const fn event(timestamp: i64, user: u64) -> u64 {
    let at = timestamp.rem_euclid(MINUTE_NANOS).cast_unsigned();
    at << NUMBER_BITS | user
}

/// A set of events. Those that arrive in chronological order, which are most of them, are only appended.
#[derive(Debug, Default)]
struct Events {
    /// In ascending order.
    ordered: Vec<u64>,
    late: BTreeSet<u64>,
}

impl Events {
    fn insert(&mut self, event: u64) -> bool {
        if self.ordered.last().is_none_or(|&last| last < event) {
            self.ordered.push(event);
            return true;
        }
        self.ordered.binary_search(&event).is_err() && self.late.insert(event)
    }

    fn iter(&self) -> impl Iterator<Item = u64> {
        self.ordered.iter().chain(&self.late).copied()
    }

    fn bytes(&self) -> u64 {
        (self.ordered.capacity() * size_of::<u64>() + self.late.len() * LATE_EVENT_BYTES) as u64
    }
}

/// The users of one minute, numbered in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The hasher has random keys, because senders choose the names.
    names: DefaultStringInterner,
    /// The approximate memory used, in bytes.
    pub(super) bytes: u64,
}

impl Users {
    pub(super) fn has_room(&self, batch: &Batch) -> bool {
        self.names.len() + batch.events() < 1 << NUMBER_BITS
    }

    /// Returns the number of a user, adding the user if necessary.
    fn number(&mut self, name: &str) -> u64 {
        let known = self.names.len();
        let number = self.names.get_or_intern(name).to_usize();
        if number == known {
            self.bytes += USER_BYTES + name.len() as u64 * 3 / 2;
        }
        number as u64
    }
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
