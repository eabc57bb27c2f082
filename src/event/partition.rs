//! Partitions: how the series are spread over the store.

use std::num::NonZeroU16;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Minute;

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

/// How the series are spread. It is the same on every node: a series that two nodes put into different partitions
/// would be counted twice.
///
/// Each minute is divided into one number of partitions. While that number changes there are two: one for the minutes
/// before an instant, and one from then on. The store decides which partitions of the two are one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    count: NonZeroU16,
    before: Option<Before>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Before {
    from: Minute,
    places: Arc<[Partition]>,
}

impl Partitions {
    /// That many partitions, of every minute.
    #[must_use]
    pub const fn new(count: NonZeroU16) -> Self {
        Self { count, before: None }
    }

    /// The same, but the minutes before `from` are divided into as many parts as there are places. A place below the
    /// count is one of the partitions of later minutes, too; the others are counted on from there without gaps.
    /// Without places nothing changes.
    #[must_use]
    pub fn with_before(self, from: Minute, places: &[u16]) -> Self {
        let places: Arc<[_]> = places.iter().copied().map(Partition).collect();
        let before = (!places.is_empty()).then_some(Before { from, places });
        Self { before, ..self }
    }

    /// How many there are, those of earlier minutes included.
    #[must_use]
    pub fn count(&self) -> u16 {
        let places = self.before.iter().flat_map(|before| before.places.iter());
        let last = places.map(|place| place.0 + 1).max().unwrap_or_default();
        last.max(self.count.get())
    }

    /// Into how many a minute is divided.
    #[must_use]
    pub fn count_in(&self, minute: Minute) -> u16 {
        match self.before() {
            Some((count, from)) if minute < from => count,
            _ => self.count.get(),
        }
    }

    /// Into how many the minutes before another one are divided, and that minute; `None`: no minute differs.
    #[must_use]
    pub fn before(&self) -> Option<(u16, Minute)> {
        let before = self.before.as_ref()?;
        let count = u16::try_from(before.places.len()).unwrap_or(u16::MAX);
        Some((count, before.from))
    }

    /// The partition of a canonical series in a minute: XXH3 of its bytes, modulo the minute's count. Part of the
    /// protocol between nodes; changing it needs a new format.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "the remainder is below a u16")]
    pub fn of(&self, series: &str, minute: Minute) -> Partition {
        let hash = xxh3_64(series.as_bytes());
        let among = |count: usize| (hash % count as u64) as u16;
        match &self.before {
            Some(before) if minute < before.from => {
                before.places[usize::from(among(before.places.len()))]
            }
            _ => Partition(among(usize::from(self.count.get()))),
        }
    }

    /// Which of the minutes' parts a partition is: of those before the change of the number, and of the others.
    #[must_use]
    pub fn parts(&self, partition: Partition) -> [Option<Partition>; 2] {
        let places = self.before.iter().flat_map(|before| before.places.iter());
        let before = (0..).zip(places).find(|(_, place)| **place == partition);
        [
            before.map(|(part, _)| Partition(part)),
            (partition.0 < self.count.get()).then_some(partition),
        ]
    }

    /// Every partition, in order.
    pub fn iter(&self) -> impl Iterator<Item = Partition> + use<> {
        (0..self.count()).map(Partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn the_partition_of_a_series_never_changes() {
        let partitions = Partitions::new(NonZeroU16::new(32).unwrap());
        let of = |series| partitions.of(series, minute(0)).index();
        assert_eq!(of("event_type=http-5xx,product=productA"), 26);
        assert_eq!(of("event_type=os_error,product=productA"), 31);
        assert_eq!(of("event_type=browser_error,product=productB"), 1);
    }

    #[test]
    fn each_minute_has_one_division() {
        let three = Partitions::new(NonZeroU16::new(3).unwrap());
        // Of two parts before, the second is the first of the three, and the first is a place of its own.
        let both = three.clone().with_before(minute(10), &[3, 0]);
        assert_eq!(both.iter().map(Partition::index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert_eq!((both.count_in(minute(9)), both.count_in(minute(10))), (2, 3));
        assert_eq!(both.before(), Some((2, minute(10))));
        for series in ["a=1", "a=2", "a=3", "a=4", "a=5"] {
            assert_eq!(both.of(series, minute(10)), three.of(series, minute(0)));
            let two = Partitions::new(NonZeroU16::new(2).unwrap());
            let part = two.of(series, minute(0)).index();
            assert_eq!(both.of(series, minute(9)).index(), [3, 0][part]);
        }
        assert_eq!(both.parts(Partition(0)), [Some(Partition(1)), Some(Partition(0))]);
        assert_eq!(both.parts(Partition(2)), [None, Some(Partition(2))]);
        assert_eq!(both.parts(Partition(3)), [Some(Partition(0)), None]);
    }
}
