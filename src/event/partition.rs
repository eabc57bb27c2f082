//! Partitions: how series are distributed across the store. Each partition counts the events of series beyond the cap under
//! its own overflow series, such as `eds_overflow=series,partition=3`, so that no two partitions write the same point.

use std::num::NonZeroU16;
use std::sync::Arc;

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::{Minute, Rollup};

/// The number of a partition, which is less than [`Partitions::count`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u16);

impl Partition {
    /// Returns the number, for use as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How series are assigned to partitions. The assignment must be the same on every node, because a series in two partitions
/// would be counted twice. While the partition count is changing, earlier minutes have their own assignment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitions {
    count: NonZeroU16,
    before: Option<Before>,
    rollups: Arc<[Rollup]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Before {
    from: Minute,
    places: Arc<[Partition]>,
}

impl Partitions {
    /// Assigns the series of every minute to this many partitions.
    #[must_use]
    pub fn new(count: NonZeroU16) -> Self {
        Self { count, before: None, rollups: Arc::default() }
    }

    /// Assigns the series of minutes before `from` to the partitions in `places`; an empty list means no change of the
    /// count. Places below the count are also partitions of later minutes; the others are numbered from the count on.
    pub(crate) fn with_before(self, from: Minute, places: &[u16]) -> Self {
        let places: Arc<[_]> = places.iter().copied().map(Partition).collect();
        let before = (!places.is_empty()).then_some(Before { from, places });
        Self { before, ..self }
    }

    /// Returns the number of partitions, including those that only minutes before a change have.
    #[must_use]
    pub fn count(&self) -> u16 {
        let places = self.before.iter().flat_map(|before| before.places.iter());
        let last = places.map(|place| place.0 + 1).max().unwrap_or_default();
        last.max(self.count.get())
    }

    pub(crate) fn count_in(&self, minute: Minute) -> u16 {
        match self.before() {
            Some((count, from)) if minute < from => count,
            _ => self.count.get(),
        }
    }

    /// Returns the partition count before a change and the first minute after it, or `None` if no change is in progress.
    pub(crate) fn before(&self) -> Option<(u16, Minute)> {
        let before = self.before.as_ref()?;
        let count = u16::try_from(before.places.len()).unwrap_or(u16::MAX);
        Some((count, before.from))
    }

    /// Returns the partition of a canonical series in a minute: XXH3 modulo the count, as fixed by the storage format.
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

    /// Returns a partition's number before and after a change of the count; `None` where the partition does not exist.
    pub(crate) fn parts(&self, partition: Partition) -> [Option<Partition>; 2] {
        let places = self.before.iter().flat_map(|before| before.places.iter());
        let before = (0..).zip(places).find(|(_, place)| **place == partition);
        [
            before.map(|(part, _)| Partition(part)),
            (partition.0 < self.count.get()).then_some(partition),
        ]
    }

    /// Returns every partition of series, in order.
    pub fn iter(&self) -> impl Iterator<Item = Partition> + use<> {
        (0..self.count()).map(Partition)
    }

    /// Adds a partition for the windows of each of these rollups.
    #[must_use]
    pub fn with_rollups(self, rollups: Vec<Rollup>) -> Self {
        Self { rollups: rollups.into(), ..self }
    }

    /// Returns the rollups, each with the partition of its windows.
    pub fn rollups(&self) -> impl Iterator<Item = (Partition, &Rollup)> {
        (self.count()..).map(Partition).zip(&*self.rollups)
    }

    /// Returns the rollup whose windows are in this partition, or `None` if it is a partition of series.
    #[must_use]
    pub fn rollup(&self, partition: Partition) -> Option<&Rollup> {
        let place = partition.0.checked_sub(self.count())?;
        self.rollups.get(usize::from(place))
    }

    /// Returns the maximum number of minutes in a window of any rollup; 0 if there are no rollups.
    #[must_use]
    pub fn longest_window(&self) -> i64 {
        self.rollups.iter().map(|rollup| rollup.every.longest()).max().unwrap_or_default()
    }

    /// Returns the period that counts of a minute in this partition are for.
    #[must_use]
    pub fn period(&self, partition: Partition, minute: Minute) -> Period {
        match self.rollup(partition) {
            None => minute.into(),
            Some(rollup) => {
                Period { start: rollup.every.window(minute)[0], suffix: Arc::clone(&rollup.suffix) }
            }
        }
    }

    /// Returns every partition of series, and then those of windows.
    pub fn all(&self) -> impl Iterator<Item = Partition> + use<> {
        let windows: Vec<_> = self.rollups().map(|(partition, _)| partition).collect();
        self.iter().chain(windows)
    }
}

/// The minute or window that counts are for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Period {
    /// The first minute.
    pub start: Minute,
    /// The suffix of the names of the measurements; empty for a minute.
    pub suffix: Arc<str>,
}

impl From<Minute> for Period {
    fn from(start: Minute) -> Self {
        Self { start, suffix: Arc::default() }
    }
}

/// The tag key that only overflow series have.
pub const OVERFLOW_TAG: &str = "eds_overflow";

/// Returns whether lines with this tag key are rejected. The reserved keys are [`OVERFLOW_TAG`] and those that InfluxDB
/// rejects: `time` (version 1), `_field` and `_measurement` (version 2), and `value`, the name of a field (version 3).
#[must_use]
pub fn is_reserved(key: &[u8]) -> bool {
    key == OVERFLOW_TAG.as_bytes()
        || matches!(key, b"time" | b"value" | b"_field" | b"_measurement")
}

/// Returns a partition's overflow series, in canonical form. `partition` is its number in the minute of the series.
#[must_use]
pub fn overflow_series(partition: Partition) -> String {
    format!("{OVERFLOW_TAG}=series,partition={}", partition.index())
}

/// The overflow series of a partition. Its name may differ for minutes before a change of the partition count.
#[derive(Debug, Clone)]
pub struct OverflowSeries {
    from: Option<Minute>,
    names: [String; 2],
}

impl OverflowSeries {
    /// Returns the overflow series of a partition.
    #[must_use]
    pub fn new(partitions: &Partitions, partition: Partition) -> Self {
        let name = |part: Option<Partition>| overflow_series(part.unwrap_or(partition));
        Self {
            from: partitions.before().map(|(_, from)| from),
            names: partitions.parts(partition).map(name),
        }
    }

    pub(crate) fn of(&self, minute: Minute) -> &str {
        let is_before = self.from.is_some_and(|from| minute < from);
        &self.names[usize::from(!is_before)]
    }
}

/// Returns a hash of a canonical series, the same on every node, to tell the series in an overflow series apart.
#[must_use]
pub fn series_fingerprint(series: &str) -> u128 {
    xxh3_128(series.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{LineRules, Parser, Rejection};

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn the_partition_of_a_series_never_changes() {
        let partitions = Partitions::new(NonZeroU16::new(32).unwrap());
        let index = |series| partitions.of(series, minute(0)).index();
        assert_eq!(index("event_type=http-5xx,product=productA"), 26);
        assert_eq!(index("event_type=os_error,product=productA"), 31);
        assert_eq!(index("event_type=browser_error,product=productB"), 1);
    }

    #[test]
    fn each_minute_has_one_number_of_partitions() {
        let three = Partitions::new(NonZeroU16::new(3).unwrap());
        // Of the two partitions before the change, number 1 becomes number 0 of the new partitions, and number 0 becomes 3.
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

    #[test]
    fn lines_with_reserved_tags_are_rejected() {
        let partitions = Partitions::new(NonZeroU16::new(3).unwrap());
        let mut parser = Parser::new(&LineRules::default());
        for partition in partitions.iter() {
            let line = format!("{} value=u", overflow_series(partition));
            let parsed = parser.parse(line.as_bytes()).map(|_| ());
            assert_eq!(parsed, Err(Rejection::TagReserved), "{line}");
        }
        for key in ["time", "value", "_field", "_measurement"] {
            for line in [format!("{key}=x value=u"), format!("a=b,{key}=x value=u")] {
                let parsed = parser.parse(line.as_bytes()).map(|_| ());
                assert_eq!(parsed, Err(Rejection::TagReserved), "{line}");
            }
        }
        // Keys that merely resemble a reserved key are ordinary keys.
        for key in [
            "eds_overflow2",
            "eds_probe",
            "eds\\_overflow",
            "Eds_overflow",
            "a\\ eds_overflow",
            "timestamp",
            "values",
            "Time",
        ] {
            let line = format!("{key}=series value=u");
            assert!(parser.parse(line.as_bytes()).is_ok(), "{line}");
        }
    }

    #[test]
    fn minutes_before_a_change_use_the_old_partitions() {
        let partitions = Partitions::new(NonZeroU16::new(2).unwrap());
        let partitions = partitions.with_before(minute(10), &[1, 2]);
        let name = |partition: usize, number| {
            let partition = partitions.iter().nth(partition).unwrap();
            OverflowSeries::new(&partitions, partition).of(minute(number)).to_owned()
        };
        assert_eq!(name(1, 9), "eds_overflow=series,partition=0");
        assert_eq!(name(1, 10), "eds_overflow=series,partition=1");
        assert_eq!(name(2, 9), "eds_overflow=series,partition=1");
        let unchanged = Partitions::new(NonZeroU16::new(2).unwrap());
        let always = OverflowSeries::new(&unchanged, unchanged.of("a=1", minute(10)));
        assert_eq!(always.of(minute(9)), always.of(minute(10)));
    }
}
