//! The unit of the timestamps in the input.

use super::Rejection;

/// The unit of the timestamps in the input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// `ns`
    #[default]
    Nanoseconds,
    /// `us`
    Microseconds,
    /// `ms`
    Milliseconds,
    /// `s`
    Seconds,
}

impl Precision {
    /// Its length in nanoseconds.
    pub(crate) const fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }

    /// Which unit a rejected timestamp is likely in: in the years 2001 to 2286 the number of digits tells the units apart.
    pub(crate) fn mistaken(self, number: i64) -> Option<Rejection> {
        let (unit, reason) = match number.checked_ilog10()? + 1 {
            10 => (Self::Seconds, Rejection::TimestampInSeconds),
            13 => (Self::Milliseconds, Rejection::TimestampInMilliseconds),
            16 => (Self::Microseconds, Rejection::TimestampInMicroseconds),
            19 => (Self::Nanoseconds, Rejection::TimestampInNanoseconds),
            _ => return None,
        };
        (unit != self).then_some(reason)
    }
}
