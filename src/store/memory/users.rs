//! [`Users`] and [`UserSet`]: the names of a minute's users, each once, and sets of them by number.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashSet, HashTable};

use crate::event::Batch;

/// The bits of a user's number. The nanoseconds of a minute take 36, which leaves these of a word.
pub(super) const NUMBER_BITS: u32 = 28;
/// The bits of a word of a set.
const WORD_BITS: u32 = u64::BITS;

/// The users of one minute, numbered as they come.
#[derive(Debug, Clone, Default)]
pub struct Users {
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
        let Self {
            names,
            ends,
            numbers,
            hasher,
            ..
        } = self;
        let hash = hasher.hash_one(name.as_bytes());
        let same = |&number: &u32| name_of(names, ends, number) == name.as_bytes();
        if let Some(&number) = numbers.find(hash, same) {
            return number;
        }
        names.extend_from_slice(name.as_bytes());
        // `has_room` was asked.
        let number = u32::try_from(ends.len()).unwrap_or(u32::MAX);
        ends.push(u32::try_from(names.len()).unwrap_or(u32::MAX));
        numbers.insert_unique(hash, number, |&number| {
            hasher.hash_one(name_of(names, ends, number))
        });
        number
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

impl PartialEq for Users {
    fn eq(&self, other: &Self) -> bool {
        self.names == other.names && self.ends == other.ends
    }
}

fn name_of<'a>(names: &'a [u8], ends: &[u32], number: u32) -> &'a [u8] {
    let number = number as usize;
    let start = number.checked_sub(1).map_or(0, |before| ends[before]);
    &names[start as usize..ends[number] as usize]
}

/// A set of users by number. Where a series has many of them a bit for each number up to the highest takes less memory than
/// a table of those that are there; which of the two it is, is decided anew whenever it has to grow.
#[derive(Debug, Clone)]
pub(super) enum UserSet {
    Bits { words: Vec<u64>, len: usize },
    Table(HashSet<u32>),
}

impl Default for UserSet {
    fn default() -> Self {
        Self::Table(HashSet::new())
    }
}

impl UserSet {
    pub(super) fn insert(&mut self, number: u32) {
        let place = (number / WORD_BITS) as usize;
        match self {
            Self::Bits { words, len } if place < words.len() => {
                let bit = 1 << (number % WORD_BITS);
                *len += usize::from(words[place] & bit == 0);
                words[place] |= bit;
            }
            Self::Table(table) if table.len() < table.capacity() => {
                table.insert(number);
            }
            _ => self.insert_growing(number),
        }
    }

    fn insert_growing(&mut self, number: u32) {
        let highest = match self {
            Self::Bits { .. } => number,
            Self::Table(table) => table.iter().fold(number, |highest, &it| highest.max(it)),
        };
        let places = (highest / WORD_BITS) as usize + 1;
        let has_bits = places * size_of::<u64>() <= table_bytes(self.len() + 1);
        match self {
            Self::Bits { words, .. } if has_bits => words.resize(places, 0),
            Self::Table(table) if !has_bits => table.reserve(1),
            Self::Bits { .. } => {
                let mut table = HashSet::with_capacity(self.len() + 1);
                table.extend(self.iter());
                *self = Self::Table(table);
            }
            Self::Table(_) => {
                let (words, len) = (vec![0; places], 0);
                let mut bits = Self::Bits { words, len };
                self.iter().for_each(|number| bits.insert(number));
                *self = bits;
            }
        }
        self.insert(number);
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        match self {
            Self::Bits { words, .. } => words
                .get((number / WORD_BITS) as usize)
                .is_some_and(|word| word >> (number % WORD_BITS) & 1 == 1),
            Self::Table(table) => table.contains(&number),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bits { len, .. } => *len,
            Self::Table(table) => table.len(),
        }
    }

    /// In no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        let (words, table) = match self {
            Self::Bits { words, .. } => (Some(words), None),
            Self::Table(table) => (None, Some(table)),
        };
        let bits = (0..).zip(words.into_iter().flatten());
        let bits = bits.flat_map(|(place, &word)| {
            let numbers = (0..WORD_BITS).filter(move |bit| word >> bit & 1 == 1);
            numbers.map(move |bit| place * WORD_BITS + bit)
        });
        bits.chain(table.into_iter().flatten().copied())
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Bits { words, .. } => words.capacity() * size_of::<u64>(),
            Self::Table(table) => table.allocation_size(),
        }
    }
}

impl PartialEq for UserSet {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().all(|number| other.contains(number))
    }
}

/// What a table of so many takes: four bytes and one for each place, of which at most 7 in 8 are used.
const fn table_bytes(users: usize) -> usize {
    (users * 8 / 7 + 1).next_power_of_two() * (size_of::<u32>() + 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Wherever the numbers are, so also while it changes between bits and a table.
        #[test]
        fn a_set_holds_what_it_was_given(ranges in prop::collection::vec((0_u32..40_000, 1_u32..600, 1_u32..40), 0..12)) {
            let (mut set, mut expected) = (UserSet::default(), BTreeSet::new());
            for (from, count, step) in ranges {
                for number in (0..count).map(|at| from + at * step) {
                    set.insert(number);
                    expected.insert(number);
                    prop_assert_eq!(set.len(), expected.len());
                }
            }
            prop_assert!((0..70_000).all(|number| set.contains(number) == expected.contains(&number)));
            prop_assert_eq!(set.iter().collect::<BTreeSet<_>>(), expected);
        }
    }

    #[test]
    fn it_takes_the_memory_of_the_smaller_way() {
        let of = |numbers: &mut dyn Iterator<Item = u32>| {
            let mut set = UserSet::default();
            numbers.for_each(|number| set.insert(number));
            set.bytes()
        };
        assert!(of(&mut (0..10_000)) <= 2 * 10_000 / 8);
        assert!(of(&mut (0..100).map(|at| at * 1_000_000)) <= 12 * 100);
        // Few that lie close, and then one far away.
        assert!(of(&mut (0..100).chain([1 << 27])) <= 12 * 101);
    }
}
