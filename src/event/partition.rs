//! Partitions: how the series are spread over the store.

use std::num::NonZeroU16;

use xxhash_rust::xxh3::xxh3_64;

/// The number of a partition, below the count of [`Partitions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// The number, for indexing.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How many partitions there are. It is the same on every node: a series that two nodes put into different
/// partitions would be counted twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions(NonZeroU16);

impl Partitions {
    /// That many partitions.
    #[must_use]
    pub const fn new(count: NonZeroU16) -> Self {
        Self(count)
    }

    /// How many there are.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.0.get()
    }

    /// The partition of a canonical series: XXH3 of its bytes, modulo the count. Part of the protocol between
    /// nodes; changing it needs a new layout name.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below a u16"
    )]
    pub fn of(self, series: &str) -> Partition {
        Partition((xxh3_64(series.as_bytes()) % u64::from(self.count())) as u16)
    }

    /// Every partition, in order.
    pub fn iter(self) -> impl Iterator<Item = Partition> {
        (0..self.count()).map(Partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_partition_of_a_series_never_changes() {
        let partitions = Partitions::new(NonZeroU16::new(32).unwrap());
        let of = |series| partitions.of(series).index();
        assert_eq!(of("event_type=http-5xx,product=productA"), 26);
        assert_eq!(of("event_type=os_error,product=productA"), 31);
        assert_eq!(of("event_type=browser_error,product=productB"), 1);
    }
}
