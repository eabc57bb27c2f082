//! The [`Recording`] role: admission of series, and recording of events.

use async_trait::async_trait;

use super::{Bucket, Result, SeriesCounts, Store};
use crate::event::{Batch, Minute, Occurrence, Partition};

/// The most bytes of a request, roughly: 0.4 s over a link of 1 MB/s, so that one command does not delay other partitions.
pub const REQUEST_BYTES_MAX: usize = 384 << 10;

/// Events of one series in one minute, to be recorded.
#[derive(Debug)]
pub struct RecordRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The canonical series under which the events are recorded.
    pub series: &'a str,
    /// The series of the events where `series` is the overflow series: events of different series are different events there.
    pub overflowed_from: Option<&'a str>,
    /// The users that the store may not know yet; `None`: it [finds new users](super::Capabilities::finds_new_users).
    pub new_users: Option<Vec<&'a str>>,
    /// The events.
    pub occurrences: &'a [Occurrence],
    /// The batch that holds the users of `occurrences`.
    pub batch: &'a Batch,
}

/// The number of events of a minute that this process has seen, including the events that are recorded with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The minute.
    pub minute: Minute,
    /// In total, so that a repeated request changes nothing.
    pub events: u64,
    /// Whether the retention of the number starts again.
    pub renew: bool,
}

/// Events of a partition, to be recorded in one call.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a> {
    /// The generation of the store in which the series were admitted; 0: any.
    pub generation: u64,
    /// The events.
    pub requests: &'a [RecordRequest<'a>],
    /// What this process has seen of their minutes.
    pub seen: &'a [Seen],
}

/// Asks for the admission of series in a minute.
#[derive(Debug, Clone, Copy)]
pub struct AdmitRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The series, some thousand at most.
    pub series: &'a [&'a str],
    /// The most series of a partition in a minute, without the overflow series.
    pub series_max: u64,
    /// The series under which events of refused series are recorded.
    pub overflow: &'a str,
}

/// The admission of a series in a minute: final, and equal for every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The series is recorded under its own name.
    Admitted {
        /// The number of its users; `None`: only a slow [count](Recording::counts) tells.
        users: Option<u64>,
    },
    /// The cap is reached: events of the series are recorded under the overflow series.
    Refused,
}

/// The answer to an [`AdmitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The number of users of the overflow series, as in [`Admission::Admitted`].
    pub overflow_users: Option<u64>,
    /// The number of events recorded in the minute so far, copies included: no series has more users.
    pub arrivals: u64,
    /// In the order of the request.
    pub series: Vec<Admission>,
}

/// Users of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesUsers {
    /// The number of users.
    pub count: u64,
    /// Whether each user of the question is among them.
    pub there: Vec<bool>,
}

/// The role of a recorder.
#[async_trait]
pub trait Recording: Store {
    /// Admits or refuses series in a minute, up to the cap; final, and equal for all nodes, while the generation does not change.
    async fn admit(&self, partition: Partition, request: &AdmitRequest<'_>) -> Result<Admitted>;

    /// Returns the counts of all series in an open minute, for a store whose admission does not return the users of a series.
    async fn counts(&self, _bucket: Bucket) -> Result<Vec<SeriesCounts>> {
        Ok(Vec::new())
    }

    /// Returns the number of users of a series in a minute, and which of these are among them.
    async fn users(&self, bucket: Bucket, series: &str, users: &[&str]) -> Result<SeriesUsers>;

    /// Records events, and returns how many of them were recorded before: copies from any node, or events of a user with the same
    /// timestamp. Does nothing in another generation than that of the records, since that store may have admitted other series.
    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64>;
}
