//! The [`Recording`] role: admitting series and recording events.

use async_trait::async_trait;

use super::{Bucket, Result, SeriesCounts, Store};
use crate::event::{Batch, Group, Minute, Occurrence, Partition};

/// The approximate maximum size of a request in bytes. Such a request delays other partitions by 0.4 s on a 1 MB/s link.
pub const REQUEST_BYTES_MAX: usize = 384 << 10;

/// Events of one series in one minute that are to be recorded.
#[derive(Debug)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct RecordRequest<'a> {
    pub minute: Minute,
    /// The canonical series under which the events are recorded.
    pub series: &'a str,
    /// The original series if `series` is the overflow series, where events from different series are distinct.
    pub overflowed_from: Option<&'a str>,
    /// Users that may be new to the store; `None` if it [finds new users](super::Capabilities::finds_new_users).
    pub new_users: Option<Vec<&'a str>>,
    pub occurrences: &'a [Occurrence],
    /// The batch that holds the users of `occurrences`.
    pub batch: &'a Batch,
}

impl<'a> RecordRequest<'a> {
    /// Returns a request to record a group of a batch under the group's own series, without a list of new users.
    #[must_use]
    pub fn new(batch: &'a Batch, group: &'a Group) -> Self {
        Self {
            minute: group.minute,
            series: &group.series,
            overflowed_from: None,
            new_users: None,
            occurrences: &group.occurrences,
            batch,
        }
    }
}

/// The number of events in a minute that this process has seen, including those recorded in the same call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The minute.
    pub minute: Minute,
    /// The number of events. It is a total, so that repeating the request does not change anything.
    pub events: u64,
    /// Whether to restart the retention of this number.
    pub renew: bool,
}

/// Events of a partition, to be recorded in one call.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a> {
    /// The store generation in which the series were admitted; 0 if the events may be recorded in any generation.
    pub generation: u64,
    /// The events.
    pub requests: &'a [RecordRequest<'a>],
    /// How many events of these minutes this process has seen.
    pub seen: &'a [Seen],
}

/// A request to admit series in a minute.
#[derive(Debug, Clone, Copy)]
pub struct AdmitRequest<'a> {
    /// The minute.
    pub minute: Minute,
    /// The series, a few thousand at most.
    pub series: &'a [&'a str],
    /// The maximum number of series per partition per minute, excluding the overflow series.
    pub series_max: u64,
    /// The series under which events of rejected series are recorded.
    pub overflow: &'a str,
}

/// Whether a series is admitted in a minute. The decision is final and the same for every node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The series is recorded under its own name.
    Admitted {
        /// The number of users of the series; `None` if only the slow [`counts`](Recording::counts) can tell.
        users: Option<u64>,
    },
    /// The cap has been reached, so events of the series are recorded under the overflow series.
    Refused,
}

/// The response to an [`AdmitRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admitted {
    /// The number of users of the overflow series, as in [`Admission::Admitted`].
    pub overflow_users: Option<u64>,
    /// The number of events recorded in the minute so far, including duplicates. No series has more users than that.
    pub arrivals: u64,
    /// The decision for each series, in the order of the request.
    pub series: Vec<Admission>,
}

/// The response to a query for users of a series in a minute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeriesUsers {
    /// The number of users of the series.
    pub count: u64,
    /// For each of the users in the query, whether the series has this user.
    pub there: Vec<bool>,
}

/// The role of recorders, which admit series and record events.
#[async_trait]
pub trait Recording: Store {
    /// Admits series in a minute until the cap is reached. Within a generation, each decision is final for all nodes.
    async fn admit(&self, partition: Partition, request: &AdmitRequest<'_>) -> Result<Admitted>;

    /// Returns the counts of all series in an open minute, for stores whose admission cannot tell the number of users.
    async fn counts(&self, _bucket: Bucket) -> Result<Vec<SeriesCounts>> {
        Ok(Vec::new())
    }

    /// Returns the number of users of a series in a minute, and which of the given users are among them.
    async fn users(&self, bucket: Bucket, series: &str, users: &[&str]) -> Result<SeriesUsers>;

    /// Records events, and returns how many had already been recorded, by any node, with the same user and time. Does
    /// nothing if the generation of the store is not that of the records, because it may have admitted different series.
    async fn record(&self, partition: Partition, records: &Records<'_>) -> Result<u64>;
}
