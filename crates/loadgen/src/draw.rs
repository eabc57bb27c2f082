//! Random numbers that depend only on the seed, the purpose and an index, and a random order of indices.
//!
//! Draws can be made in any order, so event 7 of a load is the same event whether it is sent first or last, and whether or not
//! an earlier copy was dropped. The algorithm is written out here, not taken from a library, because a seed in an old report
//! must give the same bytes after every upgrade.

/// The increment of `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The rounds of the Feistel network.
const ROUNDS: u64 = 4;

/// The purpose of a draw. Draws for different purposes are independent.
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

    /// Returns the draw at this index, uniform over `u64`.
    pub(super) const fn at(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Returns the draw at this index, below the bound; 0 when the bound is 0.
    pub(super) fn below<N: Into<u64> + TryFrom<u64> + Default>(self, index: u64, bound: N) -> N {
        // In range: the product without its low 64 bits is below the bound.
        let scaled = (u128::from(self.at(index)) * u128::from(bound.into())) >> 64;
        let scaled = u64::try_from(scaled).unwrap_or_default();
        N::try_from(scaled).unwrap_or_default()
    }

    /// Returns whether the draw at this index falls into the share, from 0 (never) to 1 (always).
    pub(super) fn falls_into(self, index: u64, share: f64) -> bool {
        // In range: the upper half of a u64.
        let upper = u32::try_from(self.at(index) >> 32).unwrap_or_default();
        f64::from(upper) < share * 4_294_967_296.0
    }
}

/// The finalizer of `SplitMix64`: a bijection in which each bit of the input moves half of the output.
pub(super) const fn mix(input: u64) -> u64 {
    let input = input.wrapping_add(GOLDEN);
    let input = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let input = (input ^ (input >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    input ^ (input >> 31)
}

/// A seeded permutation of the indices below `count`, which needs no memory.
///
/// A Feistel network is a bijection on an even number of bits whatever its rounds do. Indices beyond the end are sent through it
/// again until they fall inside (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). The domain is
/// below four times the count, so that takes few turns.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shuffle {
    count: u64,
    half_bits: u32,
    keys: Draw,
}

impl Shuffle {
    pub(super) fn new(seed: u64, count: u64) -> Self {
        let bits = u64::BITS - count.saturating_sub(1).leading_zeros();
        Self { count, half_bits: bits.div_ceil(2).max(1), keys: Draw::new(seed, Purpose::Order) }
    }

    /// Returns the index at this place. The place must be below the count.
    pub(super) fn index_at(&self, place: u64) -> u64 {
        debug_assert!(place < self.count);
        let mut index = self.once(place);
        while index >= self.count {
            index = self.once(index);
        }
        index
    }

    fn once(&self, index: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (index >> self.half_bits, index & mask);
        for round in 0..ROUNDS {
            (left, right) = (right, left ^ (mix(self.keys.at(round) ^ right) & mask));
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_draws_falls_into_a_share() {
        let draw = Draw::new(1, Purpose::Drop);
        let count = |share| (0..100_000).filter(|&i| draw.falls_into(i, share)).count();
        assert_eq!(count(0.0), 0);
        assert_eq!(count(1.0), 100_000);
        let tenth = count(0.1);
        assert!((9_500..10_500).contains(&tenth), "{tenth}");
    }

    #[test]
    fn draws_stay_below_their_bound_and_reach_all_of_it() {
        let draw = Draw::new(2, Purpose::User);
        let mut seen = [false; 7];
        for index in 0..1_000 {
            seen[draw.below(index, 7_u32) as usize] = true;
        }
        assert_eq!(seen, [true; 7]);
        assert_eq!(draw.below(0, 0_u64), 0);
    }

    #[test]
    fn every_index_comes_exactly_once() {
        for count in [1, 2, 3, 4, 5, 100, 1_023, 1_024, 1_025, 5_000] {
            let shuffle = Shuffle::new(9, count);
            let mut indices: Vec<u64> = (0..count).map(|place| shuffle.index_at(place)).collect();
            indices.sort_unstable();
            assert!(indices.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn neighbours_are_torn_apart() {
        let shuffle = Shuffle::new(9, 10_000);
        let near = (1..10_000)
            .filter(|&place| shuffle.index_at(place).abs_diff(shuffle.index_at(place - 1)) < 100)
            .count();
        // By chance alone, 2 % of the neighbours are that near.
        assert!(near < 400, "{near}");
    }

    #[test]
    fn the_largest_count_needs_no_more_bits_than_there_are() {
        let shuffle = Shuffle::new(9, u64::MAX);
        assert!(shuffle.index_at(u64::MAX - 1) < u64::MAX);
    }
}
