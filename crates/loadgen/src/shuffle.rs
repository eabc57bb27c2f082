//! An order for any number of events that needs no memory: a seeded permutation of the indices.
//!
//! A Feistel network is a bijection on an even number of bits whatever its rounds do; indices that come out
//! beyond the end are sent through again until they fall inside (cycle walking: Black and Rogaway, "Ciphers
//! with arbitrary finite domains", 2002). The domain is below four times the count, so that takes few turns.

use super::draw::{Draw, Purpose, mix};

const ROUNDS: u64 = 4;

/// A permutation of 0 to below `count`.
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

    /// Which index goes at this place. The place must be below the count.
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
        // By chance alone 2 % of the neighbours lie as near as that.
        assert!(near < 400, "{near}");
    }

    #[test]
    fn the_largest_count_needs_no_more_bits_than_there_are() {
        let shuffle = Shuffle::new(9, u64::MAX);
        assert!(shuffle.index_at(u64::MAX - 1) < u64::MAX);
    }
}
