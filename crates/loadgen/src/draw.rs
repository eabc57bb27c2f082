//! Chance that can be looked up: a number that depends on the seed, the purpose and an index, on nothing else.
//!
//! Any draw can be made at any time and in any order, so event 7 of a load is the same event whether it goes
//! first or last, and whether or not some copy before it was dropped. The algorithm is written out here, not
//! taken from a library, because a seed in an old report must give the same bytes after every upgrade.

use std::str::FromStr;

/// The increment of `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// What a draw is for. Draws for different purposes are independent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    Repeat = 1,
    Distance = 2,
    Series = 3,
    User = 4,
    Instant = 5,
    Order = 6,
    Drop = 7,
}

/// The draws of one seed for one purpose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) const fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(mix(seed) ^ purpose as u64))
    }

    /// The draw at this index, evenly over all of `u64`.
    pub(super) const fn at(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// The draw at this index, from 0 to below the bound; 0 when the bound is 0.
    pub(super) fn below(self, index: u64, bound: u64) -> u64 {
        let scaled = (u128::from(self.at(index)) * u128::from(bound)) >> 64;
        // In range: the product of two u64, without its low 64 bits.
        u64::try_from(scaled).unwrap_or_default()
    }

    /// The draw at this index, from 0 to below the bound; 0 when the bound is 0.
    pub(super) fn below_u32(self, index: u64, bound: u32) -> u32 {
        u32::try_from(self.below(index, u64::from(bound))).unwrap_or_default()
    }

    /// Whether the draw at this index falls into the share.
    pub(super) fn falls_into(self, index: u64, share: Share) -> bool {
        // In range: the upper half of a u64.
        let upper = u32::try_from(self.at(index) >> 32).unwrap_or_default();
        f64::from(upper) < share.0 * 4_294_967_296.0
    }
}

/// The finalizer of `SplitMix64`: a bijection in which each bit of the input moves half of the output.
pub(super) const fn mix(input: u64) -> u64 {
    let input = input.wrapping_add(GOLDEN);
    let input = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let input = (input ^ (input >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    input ^ (input >> 31)
}

/// A part of a whole: 0 is none, 1 is all.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Default)]
pub struct Share(f64);

impl Share {
    /// None of the whole.
    pub const NONE: Self = Self(0.0);

    /// The share; `None` when it is not from 0 to 1.
    #[must_use]
    pub fn new(share: f64) -> Option<Self> {
        (0.0..=1.0).contains(&share).then_some(Self(share))
    }

    /// This share, or the other where that is smaller.
    pub(super) const fn at_most(self, most: f64) -> Self {
        Self(self.0.min(most))
    }
}

impl std::fmt::Display for Share {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// Text that is not a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a share is a number from 0 to 1, for example 0.01")]
pub struct ParseShareError;

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().ok().and_then(Self::new).ok_or(ParseShareError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_draws_falls_into_a_share() {
        let draw = Draw::new(1, Purpose::Drop);
        let count = |share| (0..100_000).filter(|&i| draw.falls_into(i, share)).count();
        assert_eq!(count(Share::NONE), 0);
        assert_eq!(count(Share::new(1.0).unwrap()), 100_000);
        let tenth = count(Share::new(0.1).unwrap());
        assert!((9_500..10_500).contains(&tenth), "{tenth}");
    }

    #[test]
    fn draws_stay_below_their_bound_and_reach_all_of_it() {
        let draw = Draw::new(2, Purpose::User);
        let mut seen = [false; 7];
        for index in 0..1_000 {
            seen[usize::try_from(draw.below(index, 7)).unwrap()] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(draw.below(0, 0), 0);
    }

    #[test]
    fn shares_outside_0_to_1_are_refused() {
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%"] {
            assert_eq!(text.parse::<Share>(), Err(ParseShareError), "{text:?}");
        }
        assert_eq!("0.25".parse(), Ok(Share(0.25)));
    }
}
