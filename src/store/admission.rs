//! Which series and users of a minute get a place of their own, and which are beyond the caps.

use crate::event::Minute;

/// A question for series of one minute that this node does not know to be admitted or refused.
#[derive(Debug, Clone, Copy)]
pub struct AdmitRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The series, some thousand at most.
    pub series: &'a [&'a str],
    /// The most series of a partition in a minute, the overflow series not counted.
    pub series_max: u64,
    /// The series under which the events of those are recorded that are refused.
    pub overflow: &'a str,
}

/// What becomes of a series in a minute. It stays so for good, for every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is recorded under its own name, and had so many users when the store answered.
    Admitted {
        /// The users.
        users: u64,
    },
    /// It is one too many: its events are recorded under the overflow series.
    Refused,
}

/// The answer to an [`AdmitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The users of the overflow series.
    pub overflow_users: u64,
    /// What becomes of each series, in the order of the question.
    pub series: Vec<Admission>,
}

/// The users of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesUsers {
    /// How many there are.
    pub count: u64,
    /// Whether each of those that were asked for is among them.
    pub there: Vec<bool>,
}
