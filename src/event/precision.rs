//! The unit of the timestamps in the input.

/// The unit of the timestamps in the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// `ns`
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
    pub(super) const fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }
}
