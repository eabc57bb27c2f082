//! [`Heads`]: the tags that lines began with lately, so that what was taken apart and hashed once is not again.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use xxhash_rust::xxh3::xxh3_64;

/// The most bytes that they take, about: strangers choose them. Then they are learnt anew.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What one takes beside its text, roughly.
const HEAD_BYTES: usize = 72;

/// What finds a series in tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeriesHash {
    /// The same on every node: it decides the [partition](super::Partitions::of_hash). A sender can choose series that have the
    /// same.
    pub spread: u64,
    /// Keyed at random, for tables of this process.
    pub keyed: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heads {
    known: Vec<Head>,
    /// Indexes into `known`, by their tags.
    index: HashTable<u32>,
    hasher: DefaultHashBuilder,
    bytes: usize,
}

#[derive(Debug)]
struct Head {
    /// As they stand in a line.
    tags: Box<[u8]>,
    /// The canonical form, where that is another one.
    series: Option<Box<str>>,
    hash: SeriesHash,
}

impl Heads {
    pub(super) fn find(&self, tags: &[u8]) -> Option<u32> {
        let same = |&place: &u32| *self.known[place as usize].tags == *tags;
        let hash = self.hasher.hash_one(tags);
        self.index.find(hash, same).copied()
    }

    /// The canonical form of these tags, and its hash.
    pub(super) fn get<'a>(&'a self, place: u32, tags: &'a str) -> (&'a str, SeriesHash) {
        let head = &self.known[place as usize];
        (head.series.as_deref().unwrap_or(tags), head.hash)
    }

    /// The hash of a series, which these tags stand for in every line that has them up to its first space. Without tags nothing
    /// is learnt.
    pub(super) fn learn(&mut self, tags: Option<&[u8]>, series: &str) -> SeriesHash {
        let hash = SeriesHash {
            spread: xxh3_64(series.as_bytes()),
            keyed: self.hasher.hash_one(series.as_bytes()),
        };
        let Some(tags) = tags else {
            return hash;
        };
        if self.bytes >= BYTES_MAX {
            (self.bytes, self.known) = (0, Vec::new());
            self.index.clear();
        }
        let series: Option<Box<str>> = (*tags != *series.as_bytes()).then(|| series.into());
        self.bytes += HEAD_BYTES + tags.len() + series.as_deref().map_or(0, str::len);
        let Self {
            known,
            index,
            hasher,
            ..
        } = self;
        // Below the bytes that 2³² would take.
        let place = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let tags: Box<[u8]> = Box::from(tags);
        let new = hasher.hash_one(&*tags);
        known.push(Head { tags, series, hash });
        index.insert_unique(new, place, |&place| {
            hasher.hash_one(&*known[place as usize].tags)
        });
        hash
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{LineRules, Parser};

    #[test]
    fn strangers_cannot_make_it_grow_without_end() {
        let mut heads = Heads::default();
        let mut most = 0;
        for number in 0..300_000 {
            let tags = format!("a={number}");
            heads.learn(Some(tags.as_bytes()), &tags);
            most = most.max(heads.known.len());
        }
        assert!(heads.known.len() < most && most < BYTES_MAX / HEAD_BYTES);
        assert!(heads.find(b"a=0").is_none() && heads.find(b"a=299999").is_some());
    }

    proptest! {
        /// Whatever lines a parser has seen, it reads the next one as a new parser does.
        #[test]
        fn known_tags_change_nothing(lines in prop::collection::vec("(m,)?[ab]=[xy\\\\,= ]{1,3} (value=u)?( 1)?", 1..8)) {
            let mut known = Parser::new(&LineRules::default());
            for line in lines.iter().chain(&lines) {
                let mut new = Parser::new(&LineRules::default());
                let expected = new.parse(line.as_bytes());
                prop_assert_eq!(known.parse(line.as_bytes()), expected, "{}", line);
            }
        }
    }
}
