//! [`Dedup`]: the users that the store has already, so that a recorder does not send them again.
//!
//! It learns users only from confirmed batches, and is emptied when the store's generation changes: a Redis that was restarted or
//! replaced may lack confirmed users. It keeps a fingerprint of series and user: 128 bits with a random key, so that neither chance
//! nor a sender makes two of them equal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::event::Minute;

/// The maximum bytes of a user: 17 for each place in a table, of which 7 in 16 are used right after it grew.
const USER_BYTES_MAX: usize = 40;
/// The bytes of a minute without its table.
const MINUTE_BYTES: usize = 96;
/// The bytes of the first user of a minute.
const FIRST_BYTES: usize = 192;
/// The time for which a minute's users are kept after its last events.
const UNUSED_FOR: Duration = Duration::from_secs(120);

/// The memory that all recorders of a node may use together for known users (`input.dedup_users`).
#[derive(Debug)]
pub struct DedupBudget {
    bytes_max: usize,
    bytes: AtomicUsize,
}

impl DedupBudget {
    /// Creates a budget for `users_max` users.
    #[must_use]
    pub const fn new(users_max: usize) -> Self {
        Self { bytes_max: users_max.saturating_mul(USER_BYTES_MAX), bytes: AtomicUsize::new(0) }
    }

    fn reserve(&self, bytes: usize) -> bool {
        let used = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = used.saturating_add(bytes) <= self.bytes_max;
        if !fits {
            self.release(bytes);
        }
        fits
    }

    fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Identifies a user of a series, within a minute and in one recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint(u128);

/// A user of a minute that the store confirmed.
pub(super) type KnownUser = (Minute, Fingerprint);

/// The known users of one recorder.
#[derive(Debug)]
pub(super) struct Dedup {
    budget: Arc<DedupBudget>,
    /// Random, so that no sender can construct names with equal fingerprints.
    seed: u64,
    series_seed: u64,
    minutes: HashMap<Minute, MinuteUsers>,
}

#[derive(Debug)]
struct MinuteUsers {
    users: HashSet<Fingerprint>,
    last_used: Instant,
}

impl MinuteUsers {
    fn bytes(&self) -> usize {
        match self.users.allocation_size() {
            0 => 0,
            table => table + MINUTE_BYTES,
        }
    }
}

/// Makes the fingerprints of one series.
pub(super) struct Fingerprinter {
    seed: u64,
    series: u128,
}

impl Fingerprinter {
    /// Returns the sum of the hashes of user and series: a collision is as unlikely as with a hash of both texts, which need not be
    /// copied together.
    pub(super) fn of(&self, user: &str) -> Fingerprint {
        let user = xxh3_128_with_seed(user.as_bytes(), self.seed);
        Fingerprint(self.series.wrapping_add(user))
    }
}

impl Dedup {
    pub(super) fn new(budget: Arc<DedupBudget>) -> Self {
        Self { budget, seed: rand::random(), series_seed: rand::random(), minutes: HashMap::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    pub(super) fn fingerprinter(&self, series: &str) -> Fingerprinter {
        // Another seed: a user with the name of another series must not make two sums equal.
        let series = xxh3_128_with_seed(series.as_bytes(), self.series_seed);
        Fingerprinter { seed: self.seed, series }
    }

    /// Returns whether the store has a user in a minute.
    pub(super) fn known_in(&self, minute: Minute) -> impl Fn(Fingerprint) -> bool {
        let known = self.minutes.get(&minute);
        move |user| known.is_some_and(|known| known.users.contains(&user))
    }

    /// Adds users that the store confirmed. The minute that was used longest ago makes room; if that is the user's own, the user is
    /// left out.
    pub(super) fn insert(&mut self, users: &[KnownUser], now: Instant) {
        for &(minute, user) in users {
            if self.has_room(minute, now)
                && let Some(known) = self.minutes.get_mut(&minute)
            {
                known.users.insert(user);
            }
        }
    }

    /// Makes room for one more user, and charges it. A table doubles when it grows, so its present size is reserved first.
    fn has_room(&mut self, minute: Minute, now: Instant) -> bool {
        loop {
            let known = self
                .minutes
                .entry(minute)
                .or_insert_with(|| MinuteUsers { users: HashSet::new(), last_used: now });
            if known.users.len() < known.users.capacity() {
                return true;
            }
            let before = known.bytes();
            let asked = before.max(FIRST_BYTES);
            if self.budget.reserve(asked) {
                known.users.reserve(1);
                let grown = known.bytes() - before;
                self.budget.release(asked.saturating_sub(grown));
                return true;
            }
            let others = self.minutes.iter().filter(|(other, _)| **other != minute);
            let oldest = others.min_by_key(|(other, known)| (known.last_used, **other));
            let oldest = oldest.map(|(oldest, known)| (*oldest, known.last_used));
            // A minute in use does not make room for another one in use.
            let Some((oldest, _)) = oldest.filter(|(_, last_used)| *last_used < now) else {
                if before == 0 {
                    self.minutes.remove(&minute);
                }
                return false;
            };
            if let Some(known) = self.minutes.remove(&oldest) {
                self.budget.release(known.bytes());
            }
        }
    }

    /// Drops everything: another store may lack confirmed users.
    pub(super) fn clear(&mut self) {
        for (_, known) in self.minutes.drain() {
            self.budget.release(known.bytes());
        }
    }

    /// Notes that a minute had events, of known users or others.
    pub(super) fn touch(&mut self, minute: Minute, now: Instant) {
        if let Some(known) = self.minutes.get_mut(&minute) {
            known.last_used = now;
        }
    }

    /// Drops the minutes that have had no events for a while.
    pub(super) fn expire(&mut self, now: Instant) {
        let budget = &self.budget;
        self.minutes.retain(|_, known| {
            let is_used = now.duration_since(known.last_used) < UNUSED_FOR;
            if !is_used {
                budget.release(known.bytes());
            }
            is_used
        });
    }
}

impl Drop for Dedup {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    fn insert(dedup: &mut Dedup, number: i64, users: std::ops::Range<u32>) {
        let of = dedup.fingerprinter("a=1");
        let users = users.map(|user| (minute(number), of.of(&user.to_string())));
        let users: Vec<KnownUser> = users.collect();
        let now = Instant::now();
        dedup.insert(&users, now);
        dedup.touch(minute(number), now);
    }

    fn knows(dedup: &Dedup, number: i64, user: u32) -> bool {
        let user = dedup.fingerprinter("a=1").of(&user.to_string());
        dedup.known_in(minute(number))(user)
    }

    #[test]
    fn known_other_series_and_minutes_are_others() {
        let mut dedup = Dedup::new(Arc::new(DedupBudget::new(100)));
        insert(&mut dedup, 1, 0..10);
        assert!(knows(&dedup, 1, 9));
        assert!(!knows(&dedup, 1, 10) && !knows(&dedup, 2, 9));
        let other = |series: &str, user: &str| {
            let user = dedup.fingerprinter(series).of(user);
            dedup.known_in(minute(1))(user)
        };
        assert!(other("a=1", "1"));
        assert!(!other("a=", "11") && !other("a=2", "1") && !other("1", "a=1"));
    }

    #[test]
    fn what_is_dropped_is_unknown_and_takes_no_memory() {
        let budget = Arc::new(DedupBudget::new(100));
        let mut dedup = Dedup::new(Arc::clone(&budget));
        insert(&mut dedup, 1, 0..10);
        insert(&mut dedup, 1, 0..10);
        assert!(knows(&dedup, 1, 5));
        let bytes = dedup.minutes[&minute(1)].bytes();
        assert_eq!(budget.bytes.load(Ordering::Relaxed), bytes);
        dedup.clear();
        assert!(!knows(&dedup, 1, 5));
        assert_eq!(budget.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_minute_makes_room_and_a_full_one_takes_no_more_users() {
        let budget = Arc::new(DedupBudget::new(1000));
        let mut dedup = Dedup::new(Arc::clone(&budget));
        insert(&mut dedup, 1, 0..1000);
        assert!(knows(&dedup, 1, 999));
        insert(&mut dedup, 2, 0..1000);
        assert!(!knows(&dedup, 1, 0));
        assert!(knows(&dedup, 2, 999));
        insert(&mut dedup, 2, 1000..9000);
        assert!(knows(&dedup, 2, 1000) && !knows(&dedup, 2, 8999));
        assert!(budget.bytes.load(Ordering::Relaxed) <= 1000 * USER_BYTES_MAX);
    }
}
