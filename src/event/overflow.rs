//! The overflow series: it takes the events of a minute whose series are beyond the cap.
//!
//! Each partition has one, `eds_overflow=series,partition=3`, so that no two partitions write the same point. Lines
//! with this tag are rejected.

use xxhash_rust::xxh3::xxh3_128;

use super::{Minute, Partition, Partitions};

/// The tag key that only overflow series have.
pub const OVERFLOW_TAG: &str = "eds_overflow";

/// Whether lines with a tag of this key are rejected: it is ours, or not every InfluxDB takes it as a tag of our points.
/// Version 1 refuses `time`, version 2 has columns of its own named `_field` and `_measurement`, and version 3 has no tag
/// with the name of a field, `value`.
#[must_use]
pub fn is_reserved(key: &[u8]) -> bool {
    key == OVERFLOW_TAG.as_bytes()
        || matches!(key, b"time" | b"value" | b"_field" | b"_measurement")
}

/// The overflow series of a part of a minute, in canonical form.
#[must_use]
pub fn overflow_series(partition: Partition) -> String {
    format!("{OVERFLOW_TAG}=series,partition={}", partition.index())
}

/// The overflow series of a partition, which is another one for the minutes before a change of the number of partitions:
/// all nodes name it alike, also those that know nothing of the change yet.
#[derive(Debug, Clone)]
pub struct OverflowSeries {
    from: Option<Minute>,
    names: [String; 2],
}

impl OverflowSeries {
    /// The same of every minute.
    #[must_use]
    pub fn always(partition: Partition) -> Self {
        Self { from: None, names: [overflow_series(partition), overflow_series(partition)] }
    }

    /// Those of this partition.
    #[must_use]
    pub fn new(partitions: &Partitions, partition: Partition) -> Self {
        let name = |part: Option<Partition>| overflow_series(part.unwrap_or(partition));
        Self {
            from: partitions.before().map(|(_, from)| from),
            names: partitions.parts(partition).map(name),
        }
    }

    /// That of a minute, in canonical form.
    #[must_use]
    pub fn of(&self, minute: Minute) -> &str {
        let is_before = self.from.is_some_and(|from| minute < from);
        &self.names[usize::from(!is_before)]
    }
}

/// Tells the events of one series from those of another in the overflow series: a hash of 128 bits of the canonical
/// series, the same on every node. The series itself may have a thousand bytes, for each event.
#[must_use]
pub fn series_fingerprint(series: &str) -> u128 {
    xxh3_128(series.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;
    use crate::event::{LineRules, Parser, Rejection};

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
        // Keys that only look like it are keys like any other.
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
    fn minutes_before_a_change_of_partitions_have_the_series_of_their_own_part() {
        let minute = |number| Minute::from_epoch_minutes(number).unwrap();
        let partitions = Partitions::new(NonZeroU16::new(2).unwrap());
        let partitions = partitions.with_before(minute(10), &[1, 2]);
        let name = |partition: usize, number| {
            let partition = partitions.iter().nth(partition).unwrap();
            OverflowSeries::new(&partitions, partition).of(minute(number)).to_owned()
        };
        assert_eq!(name(1, 9), "eds_overflow=series,partition=0");
        assert_eq!(name(1, 10), "eds_overflow=series,partition=1");
        assert_eq!(name(2, 9), "eds_overflow=series,partition=1");
        let always = OverflowSeries::always(partitions.of("a=1", minute(10)));
        assert_eq!(always.of(minute(9)), always.of(minute(10)));
    }
}
