//! Events into sets: the [`Recording`] role. Which series and users of a minute get a place of their own is asked before.

use async_trait::async_trait;

use super::{SeriesCounts, Store, StoreError};
use crate::event::{Batch, Minute, Occurrence, Partition};

/// The most bytes that a store is sent at once, roughly. Over a way of 1 MB/s they take 0.4 s, a small part of the time-out of an
/// answer, so that one command holds up no other partition's.
pub const REQUEST_BYTES_MAX: usize = 384 << 10;

/// Events of one series in one minute, to be recorded.
#[derive(Debug)]
pub struct RecordRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The canonical series under which they are recorded.
    pub series: &'a str,
    /// The series that they came with, where that one was refused and `series` is the overflow series: events of
    /// different series are different events there.
    pub overflowed_from: Option<&'a str>,
    /// The users that the store may not know yet in this minute and series; `None`: those of the events, as far as they are
    /// new. Only a store that [finds them out](super::Capabilities::finds_new_users) is not told.
    pub new_users: Option<Vec<&'a str>>,
    /// The events.
    pub occurrences: &'a [Occurrence],
    /// The batch that holds the users of `occurrences`.
    pub batch: &'a Batch,
}

/// How many events of a minute this process has seen, once those are recorded with which it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The minute.
    pub minute: Minute,
    /// In total, so that telling it again changes nothing.
    pub events: u64,
    /// Whether the store is to keep it for the whole of its retention from now on.
    pub renew: bool,
}

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
    /// It is recorded under its own name.
    Admitted {
        /// The number of its users; `None`: it was admitted before, and a [count](Recording::counts) takes the store a while.
        users: Option<u64>,
    },
    /// It is one too many: its events are recorded under the overflow series.
    Refused,
}

/// The answer to an [`AdmitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The number of users of the overflow series, as for any other.
    pub overflow_users: Option<u64>,
    /// The number of events recorded in the minute before, copies included: no series has more users.
    pub arrivals: u64,
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

/// What a recorder does with a store.
#[async_trait]
pub trait Recording: Store {
    /// Says which of these series are recorded under their own names in a minute, and which under the overflow
    /// series. The first that ask are admitted, as many as the cap allows; the answer is the same for all nodes and
    /// for good, as long as the generation does not change.
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError>;

    /// Returns the counts of all series in a minute that is not sealed. Asked only of a store that does not tell the users of a
    /// series that it admits.
    async fn counts(
        &self,
        _partition: Partition,
        _minute: Minute,
    ) -> Result<Vec<SeriesCounts>, StoreError> {
        Ok(Vec::new())
    }

    /// How many users a series has in a minute, and which of these are among them.
    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError>;

    /// Adds events to the sets of their minutes, and answers how many of them were there already: copies, from whichever
    /// node, or events of a user that have one timestamp. All recordings are of this partition. Changes nothing when the
    /// generation is not this one: another store may have admitted other series. 0 stands for any. With the events it keeps
    /// what this process has `seen` of minutes of them.
    async fn record(
        &self,
        partition: Partition,
        generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<u64, StoreError>;
}
