//! The [`Output`] trait, its implementations and its errors. An output may receive the same counts again, after a crash or a
//! doubtful answer, and writes the same bytes each time; so it needs no memory of its writes.

pub(crate) mod delivery;
pub mod influxdb;
pub mod line_protocol;

use std::time::Duration;

use async_trait::async_trait;

use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};

/// The two numbers of one series in one minute, sealed by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedCounts {
    /// The partition of the series.
    pub partition: Partition,
    /// The minute that was counted.
    pub minute: Minute,
    /// The canonical tag set: sorted by key, escaped as line protocol wants it.
    pub series: String,
    /// How many different users had the event.
    pub unique: u64,
    /// How many different events (pairs of user and timestamp) there were.
    pub cumulative: u64,
}

/// Why a write was not confirmed. Part of it may have been written all the same.
///
/// The kind classifies one answer. It does not decide whether these counts are at fault: a message may quote a tag, and a
/// firewall or a server error may depend on a tag's text. The writer finds that out by further writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server refuses these counts: 400, 413, 422. The remedy applies if it refuses every count.
    #[error("output refuses these counts: {}", .0.why)]
    Rejected(Diagnosis),
    /// The request has no answer, or the server failed: timeout, broken connection, 408, most of 5xx.
    #[error("output fails: {}", .0.why)]
    Failed(Diagnosis),
    /// The server is unavailable, or asks for a pause: refused connection, 425, 429, 503, any `Retry-After`.
    #[error("output is unavailable: {}", .found.why)]
    Unavailable {
        /// What happened.
        found: Diagnosis,
        /// The pause that the server asked for (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The server seems to refuse every write until the configuration is fixed: 401, 403, 404, an invalid certificate.
    #[error("output refuses this configuration: {}", .0.reason())]
    Misconfigured(Diagnosis),
}

impl WriteError {
    /// Returns the error of an unreachable server.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { found: Diagnosis::new(Cause::OutputDown, why), retry_after: None }
    }

    /// Returns what happened, and what to do about it.
    #[must_use]
    pub const fn found(&self) -> &Diagnosis {
        match self {
            Self::Rejected(found)
            | Self::Failed(found)
            | Self::Unavailable { found, .. }
            | Self::Misconfigured(found) => found,
        }
    }
}

/// A destination of counts.
#[async_trait]
pub trait Output: Send + Sync + std::fmt::Debug {
    /// Writes the counts in one request: two points each, `unique_user_event` and `cumulative_user_event`, stamped
    /// with the minute's start. Returns `Ok` only when all of them are confirmed. On `Err` any part of them may have been
    /// written.
    ///
    /// Cancel-safe, callable from several tasks at once, and bounded by the output's timeout.
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError>;

    /// Writes a probe point at this minute's start, into a measurement without counts, to find out whether the output accepts
    /// points. The default writes nothing, for outputs without a server.
    async fn probe(&self, _minute: Minute) -> Result<(), WriteError> {
        Ok(())
    }

    /// Returns the destination for the log, without secrets.
    fn describe(&self) -> String;

    /// Returns whether a server may refuse writes, so that it is probed before there are counts to write.
    fn has_server(&self) -> bool {
        true
    }
}
