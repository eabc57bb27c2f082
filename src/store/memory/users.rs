//! [`Users`]: the names of a minute's users, each once, by number.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::event::Batch;

/// The bits of a user's number. The nanoseconds of a minute take 36, which leaves these of a word.
pub(super) const NUMBER_BITS: u32 = 28;

/// The users of one minute, numbered as they come.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// One behind the other.
    names: Vec<u8>,
    /// Where each ends, by number.
    ends: Vec<u32>,
    /// By name. Keyed at random: the names come from strangers.
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
    /// The memory that the store was charged for them.
    pub(super) charged: u64,
}

impl Users {
    /// Whether there is room for all users of a batch.
    pub(super) fn has_room(&self, batch: &Batch) -> bool {
        u32::try_from(self.names.len() + batch.bytes()).is_ok()
            && self.ends.len() + batch.events() < 1 << NUMBER_BITS
    }

    /// The memory that they take more than was charged.
    pub(super) fn charge(&mut self) -> u64 {
        let ends = self.ends.capacity() * size_of::<u32>();
        let taken = (self.names.capacity() + ends + self.numbers.allocation_size()) as u64;
        let more = taken.saturating_sub(self.charged);
        self.charged += more;
        more
    }

    /// The number of a user, who may be new.
    pub(super) fn number(&mut self, name: &str) -> u32 {
        let Self { names, ends, numbers, hasher, .. } = self;
        let hash = hasher.hash_one(name.as_bytes());
        let same = |&number: &u32| name_of(names, ends, number) == name.as_bytes();
        if let Some(&number) = numbers.find(hash, same) {
            return number;
        }
        names.extend_from_slice(name.as_bytes());
        // `has_room` was asked.
        let number = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        ends.push(u32::try_from(names.len()).unwrap_or(u32::MAX));
        numbers
            .insert_unique(hash, number, |&number| hasher.hash_one(name_of(names, ends, number)));
        number
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name.as_bytes());
        let same = |&number: &u32| name_of(&self.names, &self.ends, number) == name.as_bytes();
        self.numbers.find(hash, same).copied()
    }

    pub(super) fn name(&self, number: u32) -> String {
        String::from_utf8_lossy(name_of(&self.names, &self.ends, number)).into_owned()
    }
}

fn name_of<'a>(names: &'a [u8], ends: &[u32], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = number.checked_sub(1).map_or(0, |before| ends[before]);
    &names[start as usize..ends[number] as usize]
}
