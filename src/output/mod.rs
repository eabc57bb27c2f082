//! Where the counts go: the [`Output`] trait and its errors.
//!
//! An output is given counts that are fixed for good. It may be given the same ones again, after a crash or
//! a doubtful answer, and writes the same bytes each time; so none needs a memory of what it has written.

pub mod influxdb;
pub mod line_protocol;
pub mod stdout;

use std::time::Duration;

use async_trait::async_trait;

use crate::event::Minute;

/// The two numbers of one series in one minute, fixed for good by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedCounts {
    /// The minute that was counted.
    pub minute: Minute,
    /// The canonical tag set: sorted by key, escaped as line protocol wants it.
    pub series: String,
    /// How many different users had the event.
    pub unique: u64,
    /// How many different events (pairs of user and timestamp) there were.
    pub cumulative: u64,
}

/// Counts that the server will never take as they are, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Index into the slice given to [`Output::write`].
    pub index: usize,
    /// The server's own words, shortened to [`WORDS_BYTES_MAX`].
    pub words: String,
}

/// The longest piece of a server's answer that is kept, in bytes.
pub const WORDS_BYTES_MAX: usize = 512;

/// What came of a write whose every count has an outcome.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Written {
    /// Counts to set aside. All the others are confirmed by the server.
    pub refused: Vec<Refused>,
}

/// Why a write came to no outcome. Every kind is tried again; they differ in what an operator must do.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The server is away, slow, overloaded or failing: refused connection, time-out, 429, 5xx.
    #[error("output is unavailable: {reason}")]
    Unavailable {
        /// What happened, in words for the log.
        reason: String,
        /// How long the server asked to be left alone (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The server turns every write away until somebody mends the configuration: 401, 403, 404, a certificate
    /// that does not hold, or a refusal of every single count, which is not believed of the counts.
    #[error("output refuses this configuration: {reason}; {mend}")]
    Misconfigured {
        /// What the server said.
        reason: String,
        /// Which configuration key to look at, and what to do.
        mend: String,
    },
}

/// A place that takes counts.
#[async_trait]
pub trait Output: Send + Sync + std::fmt::Debug {
    /// Writes the counts: two points each, `unique_user_event` and `cumulative_user_event`, stamped with the
    /// minute's start. Answers `Ok` only when every one of them is either confirmed or refused for good.
    /// On `Err` any part of them may have been written; the caller gives all of them again.
    ///
    /// Safe to drop half-way, and to call from several tasks at once. A time-out ends the write, but bounds a
    /// single request: a slow server that refuses many counts can hold a write for many times as long.
    async fn write(&self, counts: &[SealedCounts]) -> Result<Written, WriteError>;

    /// Where the points go, in words for the log, without secrets.
    fn describe(&self) -> String;
}
