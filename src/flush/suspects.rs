//! Parts of bodies that the output did not accept, and in which order they are searched. Pure.
//!
//! A part is split in [`WAYS`], and its parts again, until single counts are left. Where `n` counts in a row are
//! refused this takes about `4/3·n` writes, and a lone one in 2500 takes some twenty. Where the server's message quotes
//! what only few of the counts contain, these are tried alone first, which takes two. A message decides nothing but
//! this order: it may quote whatever a sender likes.
//!
//! The first parts of all bodies go first, so that most of what can be written is written soon. After these the
//! smallest go first: a search that has little time must come to an end with some counts, or the next one begins where
//! it began.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::event::tags;
use crate::output::SealedCounts;

/// Into how many a part is split.
const WAYS: usize = 4;
/// The most counts that are searched; the others are written again in a later round.
const COUNTS_MAX: usize = 100_000;
/// The most counts that a message may name.
const NAMED_MAX: usize = 2;
/// How often a message is listened to in the parts of a body.
const HINTS_MAX: u8 = 8;

/// Counts on their way out, each with the place of its claim.
#[derive(Debug, Default)]
pub(super) struct Body {
    pub(super) claims: Vec<usize>,
    pub(super) counts: Vec<SealedCounts>,
}

impl Body {
    /// Appends the counts of a claim.
    pub(super) fn push(&mut self, claim: usize, counts: Vec<SealedCounts>) {
        self.claims.extend(std::iter::repeat_n(claim, counts.len()));
        self.counts.extend(counts);
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.claims.append(&mut other.claims);
        self.counts.append(&mut other.counts);
    }

    /// Leaves the counts of some claims here, by the places of these.
    pub(super) fn retain(&mut self, is_kept: impl Fn(usize) -> bool) {
        let mut kept = Self::default();
        for (claim, counts) in self.claims.drain(..).zip(self.counts.drain(..)) {
            if is_kept(claim) {
                kept.push(claim, vec![counts]);
            }
        }
        *self = kept;
    }

    /// Leaves the first counts here.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self { claims: self.claims.split_off(at), counts: self.counts.split_off(at) }
    }

    /// Takes one count out of its place, which its last one gets.
    fn take(&mut self, at: usize) -> Self {
        Self { claims: vec![self.claims.remove(at)], counts: vec![self.counts.remove(at)] }
    }

    /// In order of minute and series, so that kin stand together: what is refused of them is found with fewer writes.
    pub(super) fn sorted(self) -> Self {
        let mut pairs: Vec<_> = self.claims.into_iter().zip(self.counts).collect();
        pairs.sort_unstable_by(|(_, a), (_, b)| (a.minute, &a.series).cmp(&(b.minute, &b.series)));
        let (claims, counts) = pairs.into_iter().unzip();
        Self { claims, counts }
    }

    pub(super) fn len(&self) -> usize {
        self.counts.len()
    }
}

/// Counts among which some are not accepted.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) body: Body,
    depth: u32,
    hints_left: u8,
}

/// The parts to be written.
#[derive(Debug, Default)]
pub(super) struct Suspects {
    parts: BTreeMap<(bool, Reverse<u32>, u64), Part>,
    counts: usize,
    added: u64,
    /// Whether counts were left to a later round.
    pub(super) are_incomplete: bool,
}

impl Suspects {
    /// Takes in a body of more than one count that was not accepted.
    pub(super) fn add(&mut self, body: Body, message: &str) {
        if self.counts + body.len() > COUNTS_MAX {
            self.are_incomplete = true;
            return;
        }
        let whole = Part { body, depth: 0, hints_left: HINTS_MAX };
        self.split(whole, message);
    }

    /// Takes in the parts of a part that was not accepted.
    pub(super) fn split(&mut self, mut part: Part, message: &str) {
        let depth = part.depth + 1;
        let mut hints_left = part.hints_left;
        let named = if hints_left > 0 && part.body.len() > WAYS {
            named(&part.body.counts, message)
        } else {
            Vec::new()
        };
        let ways = if named.is_empty() { WAYS } else { 1 };
        hints_left -= u8::from(!named.is_empty());
        // From the end, so that the other places stay.
        let mut parts: Vec<_> = named.into_iter().rev().map(|at| part.body.take(at)).collect();
        let size = part.body.len().div_ceil(ways).max(1);
        while part.body.len() > 0 {
            let from = (part.body.len() - 1) / size * size;
            parts.push(part.body.split_off(from));
        }
        for body in parts {
            self.counts += body.len();
            self.added += 1;
            let key = (depth > 1, Reverse(depth), self.added);
            let part = Part { body, depth, hints_left };
            self.parts.insert(key, part);
        }
    }

    /// The part to be written next.
    pub(super) fn next(&mut self) -> Option<Part> {
        let (_, part) = self.parts.pop_first()?;
        self.counts -= part.body.len();
        Some(part)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// At most so many counts, from everywhere; `shift`, from 0 to 1, chooses others.
    pub(super) fn spread(&self, most: usize, shift: f64) -> Vec<SealedCounts> {
        let step = self.counts.div_ceil(most.max(1)).max(1);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a place among at most 100 000"
        )]
        let first = (step as f64 * shift) as usize % step;
        let all = self.parts.values().flat_map(|part| &part.body.counts);
        all.skip(first).step_by(step).cloned().collect()
    }
}

/// The places of those counts that contain the longest value of a tag that the message contains, if they are few.
fn named(counts: &[SealedCounts], message: &str) -> Vec<usize> {
    let mut longest = 0;
    let mut found = Vec::new();
    for (at, counts) in counts.iter().enumerate() {
        let values = tags(&counts.series).into_iter().map(|(_, value)| value);
        let quoted = values.filter(|value| message.contains(value.as_str()));
        let length = quoted.map(|value| value.len()).max().unwrap_or(0);
        if length > longest {
            longest = length;
            found.clear();
        }
        if length == longest && length > 0 {
            found.push(at);
        }
    }
    if found.len() > NAMED_MAX {
        found.clear();
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Minute;

    fn body(series: impl IntoIterator<Item = String>) -> Body {
        let counts = series.into_iter().map(|series| SealedCounts {
            minute: Minute::of_nanos(0),
            series,
            unique: 1,
            cumulative: 1,
        });
        let mut body = Body::default();
        body.push(0, counts.collect());
        body.sorted()
    }

    /// The writes that it takes to find the refused ones, beside the first.
    fn writes(
        counts: usize,
        is_refused: impl Fn(usize) -> bool,
        message: impl Fn(usize) -> String,
    ) -> usize {
        let number = |counts: &SealedCounts| counts.series[2..].parse::<usize>().unwrap();
        let first = |body: &Body| body.counts.iter().map(number).find(|n| is_refused(*n));
        let whole = body((0..counts).map(|n| format!("n={n:06}")));
        let mut suspects = Suspects::default();
        let refused = first(&whole).expect("one at least is refused");
        suspects.add(whole, &message(refused));
        let (mut writes, mut written, mut found) = (0, 0, 0);
        while let Some(part) = suspects.next() {
            writes += 1;
            match first(&part.body) {
                None => written += part.body.len(),
                Some(_) if part.body.len() == 1 => found += 1,
                Some(n) => suspects.split(part, &message(n)),
            }
        }
        assert_eq!(found, (0..counts).filter(|n| is_refused(*n)).count());
        assert_eq!(found + written, counts);
        assert_eq!(suspects.counts, 0);
        writes
    }

    #[test]
    fn neighbours_take_at_most_two_writes_each_and_a_lone_count_few() {
        let silent = |_| "no".to_owned();
        let quoting = |n| format!("no room for value=\"{n:06}\" dropped=1");
        for counts in [2, 3, 5, 100, 2500] {
            assert!(writes(counts, |_| true, silent) <= 2 * counts);
            assert!(writes(counts, |_| true, quoting) <= 2 * counts + 2 * usize::from(HINTS_MAX));
            assert!(writes(counts, |n| n > 0, silent) <= 2 * counts);
            assert!(writes(counts, |n| n < counts / 2 || n == 0, silent) <= counts + 25);
        }
        assert!(writes(2500, |n| n == 1234, silent) <= 24);
        assert_eq!(writes(2500, |n| n == 1234, quoting), 2);
        assert!(writes(2500, |n| n % 2 == 0, silent) <= 2 * 2500);
    }

    #[test]
    fn a_message_that_names_others_costs_little() {
        let lying = |_| "000001".to_owned();
        assert!(writes(2500, |n| n == 1234, lying) <= 24 + 2 * usize::from(HINTS_MAX));
    }

    #[test]
    fn values_are_compared_as_they_are_meant() {
        let body = body([r"a=x", r"a=database\ is\ required", "a=y"].map(str::to_owned));
        let named = named(&body.counts, "limit exceeded value=\"database is required\"");
        assert_eq!(body.counts[named[0]].series, r"a=database\ is\ required");
        assert_eq!(named.len(), 1);
    }

    #[test]
    fn a_sample_is_from_everywhere_and_each_shift_takes_another() {
        let mut suspects = Suspects::default();
        suspects.add(body((0..16).map(|n| format!("n={n:02}"))), "no");
        let sample = |most, shift| -> Vec<_> {
            let counts = suspects.spread(most, shift);
            counts.into_iter().map(|counts| counts.series).collect()
        };
        assert_eq!(suspects.counts, 16);
        let all = sample(16, 0.0);
        let every_fourth =
            |from: usize| -> Vec<_> { all[from..].iter().step_by(4).cloned().collect() };
        assert_eq!(sample(4, 0.0), every_fourth(0));
        assert_eq!(sample(4, 0.5), every_fourth(2));
        assert_eq!(sample(4, 0.99), every_fourth(3));
        assert_eq!(sample(4, 1.0), every_fourth(0));
    }

    #[test]
    fn what_is_searched_is_bounded() {
        let mut suspects = Suspects::default();
        for _ in 0..3 {
            let series = (0..COUNTS_MAX / 2).map(|n| format!("n={n:06}"));
            suspects.add(body(series), "no");
        }
        assert_eq!(suspects.counts, COUNTS_MAX);
        assert!(suspects.are_incomplete);
        let sample = suspects.spread(64, 0.99);
        assert!((60..=64).contains(&sample.len()), "{}", sample.len());
    }
}
