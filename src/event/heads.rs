//! [`Heads`]: the tags that lines began with lately, so that what was taken apart and sorted once is not again.

use std::hash::BuildHasher as _;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::open_batch::Hint;

/// The most bytes that they take, about: strangers choose them. Then they are learnt anew.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What one takes beside its text, roughly.
const HEAD_BYTES: usize = 2 * size_of::<Head>();

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// By their tags.
    known: HashTable<Head>,
    /// The tags of each, as they stand in a line, and the canonical form where that is another one.
    text: String,
    hasher: DefaultHashBuilder,
    /// Of what is not learnt.
    no_hint: Hint,
}

#[derive(Debug)]
struct Head {
    tags: Range<u32>,
    series: Range<u32>,
    hint: Hint,
}

impl Head {
    fn tags<'a>(&self, text: &'a str) -> &'a [u8] {
        &text.as_bytes()[self.tags.start as usize..self.tags.end as usize]
    }
}

impl Heads {
    /// Where these tags are, if they are known.
    pub(super) fn find(&self, tags: &[u8]) -> Option<usize> {
        let same = |head: &Head| head.tags(&self.text) == tags;
        let hash = self.hasher.hash_one(tags);
        self.known.find_bucket_index(hash, same)
    }

    /// The series of the tags that are there, and where its last event went.
    pub(super) fn get(&mut self, place: usize) -> Option<(&str, &mut Hint)> {
        let head = self.known.get_bucket_mut(place)?;
        let series = self
            .text
            .get(head.series.start as usize..head.series.end as usize)?;
        Some((series, &mut head.hint))
    }

    /// Learns the series that these tags stand for in every line that has them up to its first space; without tags nothing.
    pub(super) fn learn(&mut self, tags: Option<&str>, series: &str) -> &mut Hint {
        let Some(tags) = tags else {
            self.no_hint = Hint::default();
            return &mut self.no_hint;
        };
        if self.text.len() + self.known.len() * HEAD_BYTES >= BYTES_MAX {
            (self.text, self.known) = (String::new(), HashTable::new());
        }
        let mut append = |text: &str| {
            // Below the bytes that 2³² would take.
            let end = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX);
            let start = end(&self.text);
            self.text.push_str(text);
            start..end(&self.text)
        };
        let at = append(tags);
        let head = Head {
            series: if tags == series {
                at.clone()
            } else {
                append(series)
            },
            tags: at,
            hint: Hint::default(),
        };
        let Self { text, hasher, .. } = self;
        let hash = hasher.hash_one(tags.as_bytes());
        let hash_of = |head: &Head| hasher.hash_one(head.tags(text));
        let new = self.known.insert_unique(hash, head, hash_of);
        &mut new.into_mut().hint
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
            heads.learn(Some(&tags), &tags);
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
