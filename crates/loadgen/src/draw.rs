//! Random numbers that depend only on the seed, the purpose and an index. They can be drawn in any order, so an event does
//! not depend on the sending order or on dropped copies. The algorithm does not come from a library, because a seed from an
//! old report must produce the same events after every upgrade.

/// The increment used by `SplitMix64` (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

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

#[derive(Debug, Clone, Copy)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) const fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(mix(seed) ^ purpose as u64))
    }

    /// Returns the random number at this index, uniformly distributed over `u64`.
    pub(super) const fn at(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(GOLDEN)))
    }

    /// Returns the random number at this index, which is less than the bound; 0 if the bound is 0.
    pub(super) fn below<N: Into<u64> + TryFrom<u64> + Default>(self, index: u64, bound: N) -> N {
        // The conversions cannot fail, because the upper 64 bits of the product are less than the bound.
        let scaled = (u128::from(self.at(index)) * u128::from(bound.into())) >> 64;
        let scaled = u64::try_from(scaled).unwrap_or_default();
        N::try_from(scaled).unwrap_or_default()
    }

    pub(super) fn falls_into(self, index: u64, share: f64) -> bool {
        // The conversion cannot fail, because this is the upper half of a u64.
        let upper = u32::try_from(self.at(index) >> 32).unwrap_or_default();
        f64::from(upper) < share * 4_294_967_296.0
    }
}

/// The `SplitMix64` finalizer: a bijection in which each input bit flips half of the output bits on average.
const fn mix(input: u64) -> u64 {
    let input = input.wrapping_add(GOLDEN);
    let input = (input ^ (input >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let input = (input ^ (input >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    input ^ (input >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_uniform() {
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
}
