//! What a node remembers as recorded, to spare the store the same user twice.
//!
//! It is learnt only from confirmed batches and forgotten when the store's generation changes: a Redis that was
//! restarted or replaced may lack what the last one confirmed. Names are kept as they are, not as hashes: a
//! collision would lose a user.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{HashMap, HashSet};

use crate::event::Minute;

/// How many users all recorders of a node may remember together.
#[derive(Debug)]
pub struct Budget {
    users_max: usize,
    users: AtomicUsize,
}

impl Budget {
    /// Room for so many users.
    #[must_use]
    pub const fn new(users_max: usize) -> Self {
        Self {
            users_max,
            users: AtomicUsize::new(0),
        }
    }

    fn take(&self) -> bool {
        let taken = self.users.fetch_add(1, Ordering::Relaxed) < self.users_max;
        if !taken {
            self.users.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }

    fn give_back(&self, users: usize) {
        self.users.fetch_sub(users, Ordering::Relaxed);
    }
}

/// The users of one partition that the store has, by minute and series.
#[derive(Debug)]
pub(super) struct Remembered {
    budget: Arc<Budget>,
    generation: u64,
    minutes: HashMap<Minute, MinuteMemory>,
    /// Counts what was learnt; tells which minute was used last.
    clock: u64,
}

#[derive(Debug, Default)]
struct MinuteMemory {
    series: HashMap<String, HashSet<Box<str>>>,
    users: usize,
    used: u64,
}

impl Remembered {
    pub(super) fn new(budget: Arc<Budget>) -> Self {
        Self {
            budget,
            generation: 0,
            minutes: HashMap::new(),
            clock: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.minutes.is_empty()
    }

    /// Forgets everything if the store is not what it was.
    pub(super) fn belongs_to(&mut self, generation: u64) {
        if self.generation != generation {
            self.generation = generation;
            while let Some(&minute) = self.minutes.keys().next() {
                self.forget(minute);
            }
        }
    }

    /// The users of a series of a minute that the store has.
    pub(super) fn users(&self, minute: Minute, series: &str) -> Option<&HashSet<Box<str>>> {
        self.minutes.get(&minute)?.series.get(series)
    }

    /// Learns users that the store confirmed. Where there is no room, the minute that was used longest ago
    /// makes it; where that is this one, the rest is not learnt.
    pub(super) fn learn(&mut self, minute: Minute, series: &str, users: &[&str]) {
        self.clock += 1;
        self.minutes.entry(minute).or_default().used = self.clock;
        for user in users {
            while !self.budget.take() {
                let oldest = self.minutes.iter().min_by_key(|(_, memory)| memory.used);
                match oldest.map(|(minute, _)| *minute) {
                    Some(oldest) if oldest != minute => self.forget(oldest),
                    _ => return,
                }
            }
            let memory = self.minutes.entry(minute).or_default();
            let known = memory.series.entry_ref(series).or_default();
            if known.insert((*user).into()) {
                memory.users += 1;
            } else {
                self.budget.give_back(1);
            }
        }
    }

    fn forget(&mut self, minute: Minute) {
        if let Some(memory) = self.minutes.remove(&minute) {
            self.budget.give_back(memory.users);
        }
    }

    /// Forgets minutes that ended before this instant (nanoseconds since the epoch): their users hardly come
    /// again, and others need the room.
    pub(super) fn forget_before(&mut self, nanos: i64) {
        let gone = self
            .minutes
            .keys()
            .filter(|minute| minute.end_millis() < nanos / 1_000_000);
        for minute in gone.copied().collect::<Vec<_>>() {
            self.forget(minute);
        }
    }
}

impl Drop for Remembered {
    fn drop(&mut self) {
        self.budget
            .give_back(self.minutes.values().map(|memory| memory.users).sum());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    fn knows(remembered: &Remembered, number: i64, user: &str) -> bool {
        remembered
            .users(minute(number), "a=1")
            .is_some_and(|users| users.contains(user))
    }

    #[test]
    fn forgets_everything_with_the_generation() {
        let budget = Arc::new(Budget::new(10));
        let mut remembered = Remembered::new(Arc::clone(&budget));
        remembered.belongs_to(1);
        remembered.learn(minute(1), "a=1", &["u", "v", "u"]);
        assert!(knows(&remembered, 1, "u"));
        assert_eq!(budget.users.load(Ordering::Relaxed), 2);
        remembered.belongs_to(2);
        assert!(!knows(&remembered, 1, "u"));
        assert_eq!(budget.users.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_oldest_minute_makes_room_and_a_single_one_stops_learning() {
        let budget = Arc::new(Budget::new(3));
        let mut remembered = Remembered::new(Arc::clone(&budget));
        remembered.learn(minute(1), "a=1", &["u", "v"]);
        remembered.learn(minute(2), "a=1", &["u", "v"]);
        assert!(!knows(&remembered, 1, "u"));
        assert!(knows(&remembered, 2, "v"));
        remembered.learn(minute(2), "a=1", &["w", "x"]);
        assert!(knows(&remembered, 2, "w"));
        assert!(!knows(&remembered, 2, "x"));
        assert_eq!(budget.users.load(Ordering::Relaxed), 3);
    }
}
