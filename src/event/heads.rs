//! [`Heads`]: the tags of recent lines, which need not be parsed and sorted again.

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use super::batch::Hint;

/// The approximate limit of their memory, since senders choose them. All are dropped when it is reached.
const BYTES_MAX: usize = 16 << 20;
/// The approximate bytes of one without its text.
const HEAD_BYTES: usize = 2 * size_of::<Head>();

/// The known tags, and the series of each.
#[derive(Debug)]
pub(super) struct Heads {
    /// By their tags as written: a fingerprint of 128 bits with a random key, so that neither chance nor a sender makes two of them
    /// equal. Each event looks one up, and to compare texts would be one more access to memory outside the caches.
    known: HashTable<Head>,
    seed: u64,
    /// The bytes of all series.
    text: usize,
    /// The hint of tags that are not learned.
    no_hint: Hint,
}

/// Fits one line of a processor's cache: with two an event would wait for both.
#[derive(Debug)]
#[repr(align(64))]
struct Head {
    tags: u128,
    series: Box<str>,
    hint: Hint,
}

impl Head {
    const fn hash(&self) -> u64 {
        hash(self.tags)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "half of the bits will do")]
const fn hash(tags: u128) -> u64 {
    tags as u64
}

impl Default for Heads {
    fn default() -> Self {
        Self { known: HashTable::new(), seed: rand::random(), text: 0, no_hint: Hint::default() }
    }
}

impl Heads {
    /// Returns the place of these tags, if they are known.
    pub(super) fn find(&self, tags: &[u8]) -> Option<usize> {
        let tags = xxh3_128_with_seed(tags, self.seed);
        self.known.find_bucket_index(hash(tags), |head| head.tags == tags)
    }

    /// Returns the series of the tags at a place, and its hint.
    pub(super) fn get(&mut self, place: usize) -> Option<(&str, &mut Hint)> {
        let head = self.known.get_bucket_mut(place)?;
        Some((&head.series, &mut head.hint))
    }

    /// Learns the series of tags that end at the first space of their line; without tags nothing.
    pub(super) fn learn(&mut self, tags: Option<&str>, series: &str) -> &mut Hint {
        let Some(tags) = tags else {
            self.no_hint = Hint::default();
            return &mut self.no_hint;
        };
        if self.text + self.known.len() * HEAD_BYTES >= BYTES_MAX {
            (self.text, self.known) = (0, HashTable::new());
        }
        self.text += series.len();
        let head = Head {
            tags: xxh3_128_with_seed(tags.as_bytes(), self.seed),
            series: series.into(),
            hint: Hint::default(),
        };
        let new = self.known.insert_unique(head.hash(), head, Head::hash);
        &mut new.into_mut().hint
    }
}

#[cfg(test)]
impl Heads {
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{LineLimits, LineRules, Parser};

    #[test]
    fn strangers_cannot_make_it_grow_without_end() {
        let mut heads = Heads::default();
        let mut most = 0;
        for number in 0..300_000 {
            let tags = format!("a={number}");
            heads.learn(Some(&tags), &tags);
            most = most.max(heads.known.len());
        }
        assert!(heads.known.len() < most && most < BYTES_MAX / HEAD_BYTES);
        assert!(heads.find(b"a=0").is_none() && heads.find(b"a=299999").is_some());
    }

    proptest! {
        /// Whatever lines a parser has seen, it reads the next one as a new parser does.
        #[test]
        fn known_tags_change_nothing(
            lines in prop::collection::vec(" ?(a=x|(m,)?[ab]=[xy\\\\,= ]{1,3}) (value=[u\"\\\\,= \u{80}é\u{7f}]{0,3})?( {1,2}(-?0?1|2e|9{19}|9{20})? ?)?", 1..8),
        ) {
            let limits = LineLimits { user: 2, ..LineRules::default().limits };
            let rules = LineRules { limits, ..LineRules::default() };
            let mut known = Parser::new(&rules);
            for line in lines.iter().chain(&lines) {
                let mut new = Parser::new(&rules);
                let expected = new.parse(line.as_bytes());
                prop_assert_eq!(known.parse(line.as_bytes()), expected, "{}", line);
            }
        }
    }
}
