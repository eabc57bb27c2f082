//! [`Sets`]: the events of a series in a minute. [`Users`] numbers the users of a minute in a partition. An event is one
//! 64-bit word, its time within the minute and its user's number, and takes 8 to 16 bytes, because lists are partly empty.

use std::collections::BTreeMap;
use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::event::{Batch, Minute, series_fingerprint};
use crate::store::RecordRequest;

const MINUTE_NANOS: i64 = 60_000_000_000;
/// The number of bits for the user's number in an event. The other 36 hold the nanoseconds within the minute.
const NUMBER_BITS: u32 = 28;
/// The number of events in a full run, which takes 4 KiB.
const RUN_EVENTS: usize = 512;
/// The approximate size of a run's entry in the index of runs, in bytes.
const RUN_BYTES: usize = 48;
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

    /// Returns the number of distinct users, and for each user in `asked` whether it is among them.
    pub(super) fn users(&self, users: &Users, asked: &[&str]) -> (u64, Vec<bool>) {
        let place = |number: u32| ((number / 64) as usize, 1 << (number % 64));
        let (mut seen, mut count) = (vec![0_u64; users.ends.len() / 64 + 1], 0);
        for event in self.all() {
            let (word, bit) = place(user_number(event));
            count += u64::from(seen[word] & bit == 0);
            seen[word] |= bit;
        }
        let is_there = |name: &&str| {
            let number = users.find(name);
            number.map(place).is_some_and(|(word, bit)| seen[word] & bit != 0)
        };
        (count, asked.iter().map(is_there).collect())
    }

    /// Returns the numbers of distinct users and events.
    pub(super) fn counts(&self, users: &Users) -> (u64, u64) {
        (self.users(users, &[]).0, self.cumulative)
    }

    /// Returns the user of each event, and the time of the event in nanoseconds since the epoch.
    pub(super) fn named(
        &self,
        minute: Minute,
        users: &Users,
    ) -> impl Iterator<Item = (String, i64)> {
        self.all().map(move |event| {
            let name = name_of(&users.names, &users.ends, user_number(event));
            let nanos = (event >> NUMBER_BITS).cast_signed();
            (String::from_utf8_lossy(name).into_owned(), minute.start_nanos() + nanos)
        })
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.overflowed.values().chain([&self.events]).flat_map(Events::iter)
    }
}

/// Returns an event as a word, with the time in the high bits so that words sort by time.
const fn event(timestamp: i64, user: u32) -> u64 {
    let at = timestamp.rem_euclid(MINUTE_NANOS).cast_unsigned();
    at << NUMBER_BITS | user as u64
}

const fn user_number(event: u64) -> u32 {
    (event & ((1 << NUMBER_BITS) - 1)) as u32
}

/// A set of events in sorted runs. Events mostly arrive in chronological order, so adding one is a comparison and a write.
#[derive(Debug, Default)]
struct Events {
    last: Vec<u64>,
    /// All runs except the last one, by their first event. The first run also takes all events before its first one.
    runs: BTreeMap<u64, Vec<u64>>,
}

impl Events {
    fn insert(&mut self, event: u64) -> bool {
        if self.last.last().is_none_or(|&last| last < event) {
            if self.last.len() == RUN_EVENTS {
                self.end_run(RUN_EVENTS);
            }
            self.last.push(event);
            return true;
        }
        // The key of the run that the event belongs to; `None` for the last run.
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
            // The first run may have taken earlier events than its key, so both keys are taken from the events.
            let upper = lower.split_off(RUN_EVENTS / 2);
            self.runs.extend([lower, upper].map(|run| (run[0], run)));
        } else {
            // The event is probably only slightly late, so only the end of the run remains the last run.
            self.end_run(RUN_EVENTS / 8 * 7);
        }
        self.insert(event)
    }

    /// Ends the last run after this many of its events.
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

/// The users of one minute, numbered in order of arrival.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// The names of all users, concatenated without separators.
    names: Vec<u8>,
    /// Where each name ends in `names`, indexed by the user's number.
    ends: Vec<u32>,
    /// The numbers of the users, hashed by name. The hasher has random keys, because senders choose the names.
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The total memory that [`Users::charge`] has returned so far, in bytes.
    pub(super) charged: u64,
}

impl Users {
    pub(super) fn has_room(&self, batch: &Batch) -> bool {
        u32::try_from(self.names.len() + batch.bytes()).is_ok()
            && self.ends.len() + batch.events() < 1 << NUMBER_BITS
    }

    /// Returns how many bytes have been allocated since the last call.
    pub(super) fn charge(&mut self) -> u64 {
        let ends = self.ends.capacity() * size_of::<u32>();
        let taken = (self.names.capacity() + ends + self.numbers.allocation_size()) as u64;
        let more = taken.saturating_sub(self.charged);
        self.charged += more;
        more
    }

    /// Returns the number of a user, adding the user if necessary.
    fn number(&mut self, name: &str) -> u32 {
        let Self { names, ends, numbers, hasher, .. } = self;
        let hash = hasher.hash_one(name.as_bytes());
        let is_same = |&number: &u32| name_of(names, ends, number) == name.as_bytes();
        if let Some(&number) = numbers.find(hash, is_same) {
            return number;
        }
        names.extend_from_slice(name.as_bytes());
        // Neither number overflows, because the caller has checked `has_room`.
        let number = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        ends.push(u32::try_from(names.len()).unwrap_or(u32::MAX));
        numbers
            .insert_unique(hash, number, |&number| hasher.hash_one(name_of(names, ends, number)));
        number
    }

    fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let is_same = |&number: &u32| name_of(&self.names, &self.ends, number) == name.as_bytes();
        self.numbers.find(hash, is_same).copied()
    }
}

fn name_of<'a>(names: &'a [u8], ends: &[u32], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = number.checked_sub(1).map_or(0, |before| ends[before]);
    &names[start as usize..ends[number] as usize]
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
