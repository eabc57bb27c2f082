//! What a node remembers as recorded, to spare the store the same user twice.
//!
//! It is learnt only from confirmed batches and forgotten when the store's generation changes: a Redis that was
//! restarted or replaced may lack what the last one confirmed. No names are kept, but a fingerprint of series and user:
//! 128 bits, keyed at random, for which two are never the same by chance, nor by the will of a sender.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashTable};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::event::Minute;

/// What a user takes at most, in bytes: 17 for each place in a table, of which 7 in 16 are taken right after it grew.
const USER_BYTES_MAX: usize = 40;
/// What a minute takes beside its table, in bytes.
const MINUTE_BYTES: usize = 96;
/// What the first user of a minute takes, in bytes.
const FIRST_BYTES: usize = 192;
/// For how long a minute's users are remembered after its last events: they hardly come again, and others need the room.
const UNUSED_FOR: Duration = Duration::from_secs(120);

/// How much all recorders of a node may remember together.
#[derive(Debug)]
pub struct Budget {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl Budget {
    /// Room for so many users.
    #[must_use]
    pub const fn new(users_max: usize) -> Self {
        Self {
            bytes_max: users_max.saturating_mul(USER_BYTES_MAX),
            bytes: AtomicUsize::new(0),
        }
    }

    fn take(&self, bytes: usize) -> bool {
        let taken = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = taken.saturating_add(bytes) <= self.bytes_max;
        if !fits {
            self.give_back(bytes);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Stands for a user of a series, within a minute and in one recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint(u128);

impl Fingerprint {
    /// Where it belongs in a table: as good as any other 64 bits of it.
    #[expect(clippy::cast_possible_truncation, reason = "half of a hash is a hash")]
    const fn hash(self) -> u64 {
        self.0 as u64
    }
}

/// A user that the store confirmed, and the minute.
pub(super) type Learnt = (Minute, Fingerprint);

/// A flat set of fingerprints.
#[derive(Debug, Default)]
pub(super) struct Fingerprints(HashTable<Fingerprint>);

impl Fingerprints {
    fn contains(&self, user: Fingerprint) -> bool {
        self.0.find(user.hash(), |known| *known == user).is_some()
    }

    /// Answers whether it is new.
    pub(super) fn insert(&mut self, user: Fingerprint) -> bool {
        let hash = |user: &Fingerprint| user.hash();
        let entry = self.0.entry(user.hash(), |known| *known == user, hash);
        match entry {
            hashbrown::hash_table::Entry::Occupied(_) => false,
            hashbrown::hash_table::Entry::Vacant(place) => {
                place.insert(user);
                true
            }
        }
    }
}

/// The users of one partition that the store has, by minute.
#[derive(Debug)]
pub(super) struct Remembered {
    budget: Arc<Budget>,
    /// Makes the fingerprints of this recorder unlike those of any other: names come from strangers.
    seed: u64,
    generation: u64,
    minutes: HashMap<Minute, MinuteMemory>,
}

#[derive(Debug)]
struct MinuteMemory {
    users: Fingerprints,
    used: Instant,
}

impl MinuteMemory {
    fn bytes(&self) -> usize {
        match self.users.0.allocation_size() {
            0 => 0,
            table => table + MINUTE_BYTES,
        }
    }
}

/// Makes the fingerprints of one series.
pub(super) struct Fingerprinter {
    seed: u64,
    /// The fingerprint of the series, and behind it the user at hand: the first has one length, so no two pairs of
    /// names make the same bytes.
    bytes: Vec<u8>,
}

impl Fingerprinter {
    pub(super) fn of(&mut self, user: &str) -> Fingerprint {
        self.bytes.truncate(size_of::<u128>());
        self.bytes.extend_from_slice(user.as_bytes());
        Fingerprint(xxh3_128_with_seed(&self.bytes, self.seed))
    }
}

impl Remembered {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            budget,
            seed: rand::random(),
            generation: 0,
            minutes: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    /// Forgets everything if the store is not what it was.
    pub(super) fn belongs_to(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            self.forget_all();
        }
    }

    pub(super) fn fingerprinter(&self, series: &str) -> Fingerprinter {
        let series = xxh3_128_with_seed(series.as_bytes(), self.seed);
        Fingerprinter {
            seed: self.seed,
            bytes: series.to_le_bytes().to_vec(),
        }
    }

    /// Whether the store has this user in a minute.
    pub(super) fn has(&self, minute: Minute, user: Fingerprint) -> bool {
        let memory = self.minutes.get(&minute);
        memory.is_some_and(|memory| memory.users.contains(user))
    }

    /// Learns users that the store confirmed. Where there is no room, the minute that was used longest ago
    /// makes it; where that is this one, the user is not learnt.
    pub(super) fn learn(&mut self, users: &[Learnt], now: Instant) {
        for &(minute, user) in users {
            if self.has_room(minute, now)
                && let Some(memory) = self.minutes.get_mut(&minute)
            {
                memory.users.insert(user);
            }
        }
    }

    /// Makes room for one more user, and charges it. A table grows to twice its size, so that is asked for first.
    fn has_room(&mut self, minute: Minute, now: Instant) -> bool {
        loop {
            let memory = self.minutes.entry(minute).or_insert_with(|| MinuteMemory {
                users: Fingerprints::default(),
                used: now,
            });
            if memory.users.0.len() < memory.users.0.capacity() {
                return true;
            }
            let before = memory.bytes();
            let asked = before.max(FIRST_BYTES);
            if self.budget.take(asked) {
                memory.users.0.reserve(1, |user| user.hash());
                let grown = memory.bytes() - before;
                self.budget.give_back(asked.saturating_sub(grown));
                return true;
            }
            let others = self.minutes.iter().filter(|(other, _)| **other != minute);
            let oldest = others.min_by_key(|(other, memory)| (memory.used, **other));
            let oldest = oldest.map(|(oldest, memory)| (*oldest, memory.used));
            // What is in use is not forgotten for what is in use, too.
            let Some((oldest, _)) = oldest.filter(|(_, used)| *used < now) else {
                if before == 0 {
                    self.minutes.remove(&minute);
                }
                return false;
            };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, minute: Minute) {
        if let Some(memory) = self.minutes.remove(&minute) {
            self.budget.give_back(memory.bytes());
        }
    }

    fn forget_all(&mut self) {
        for (_, memory) in self.minutes.drain() {
            self.budget.give_back(memory.bytes());
        }
    }

    /// A minute had events, of users that were known or not.
    pub(super) fn used(&mut self, minute: Minute, now: Instant) {
        if let Some(memory) = self.minutes.get_mut(&minute) {
            memory.used = now;
        }
    }

    /// Forgets the minutes that have had no events for a while.
    pub(super) fn forget_unused(&mut self, now: Instant) {
        let budget = &self.budget;
        self.minutes.retain(|_, memory| {
            let is_used = now.duration_since(memory.used) < UNUSED_FOR;
            if !is_used {
                budget.give_back(memory.bytes());
            }
            is_used
        });
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.forget_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    fn learn(remembered: &mut Remembered, number: i64, users: std::ops::Range<u32>) {
        let mut of = remembered.fingerprinter("a=1");
        let users = users.map(|user| (minute(number), of.of(&user.to_string())));
        let users: Vec<Learnt> = users.collect();
        let now = Instant::now();
        remembered.learn(&users, now);
        remembered.used(minute(number), now);
    }

    fn knows(remembered: &Remembered, number: i64, user: u32) -> bool {
        let user = remembered.fingerprinter("a=1").of(&user.to_string());
        remembered.has(minute(number), user)
    }

    #[test]
    fn users_of_other_series_and_minutes_are_others() {
        let mut remembered = Remembered::new(Arc::new(Budget::new(100)));
        learn(&mut remembered, 1, 0..10);
        assert!(knows(&remembered, 1, 9));
        assert!(!knows(&remembered, 1, 10) && !knows(&remembered, 2, 9));
        let other = |series: &str, user: &str| {
            let user = remembered.fingerprinter(series).of(user);
            remembered.has(minute(1), user)
        };
        assert!(other("a=1", "1"));
        assert!(!other("a=", "11") && !other("a=2", "1"));
    }

    #[test]
    fn forgets_everything_with_the_generation() {
        let budget = Arc::new(Budget::new(100));
        let mut remembered = Remembered::new(Arc::clone(&budget));
        remembered.belongs_to(1);
        learn(&mut remembered, 1, 0..10);
        learn(&mut remembered, 1, 0..10);
        assert!(knows(&remembered, 1, 5));
        let bytes = remembered.minutes[&minute(1)].bytes();
        assert_eq!(budget.bytes.load(Ordering::Relaxed), bytes);
        remembered.belongs_to(2);
        assert!(!knows(&remembered, 1, 5));
        assert_eq!(budget.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_minute_makes_room_and_a_single_one_stops_learning() {
        let budget = Arc::new(Budget::new(1000));
        let mut remembered = Remembered::new(Arc::clone(&budget));
        learn(&mut remembered, 1, 0..1000);
        assert!(knows(&remembered, 1, 999));
        learn(&mut remembered, 2, 0..1000);
        assert!(!knows(&remembered, 1, 0));
        assert!(knows(&remembered, 2, 999));
        learn(&mut remembered, 2, 1000..9000);
        assert!(knows(&remembered, 2, 1000) && !knows(&remembered, 2, 8999));
        assert!(budget.bytes.load(Ordering::Relaxed) <= 1000 * USER_BYTES_MAX);
    }
}
