//! Where the counts go: the [`Output`] trait and its errors.
//!
//! An output is given counts that are sealed. It may be given the same ones again, after a crash or
//! a doubtful answer, and writes the same bytes each time; so none needs a memory of what it has written.

pub(crate) mod delivery;
pub mod influxdb;
pub mod line_protocol;
pub mod stdout;

use std::time::Duration;

use async_trait::async_trait;

use crate::diagnosis::{Cause, Diagnosis};
use crate::event::Minute;

/// The two numbers of one series in one minute, sealed by the store.
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

/// Why a write was not confirmed. Part of it may have been written all the same.
///
/// The kind says what one answer looks like, not what it means: a message may quote a tag, and a firewall or a fault of
/// the server may answer to a tag's text. Whoever writes finds out by other writes whether it is about these counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Not these counts as they are: 400, 413, 422. The remedy is for a server that refuses every count so.
    #[error("output refuses these counts: {}", .0.why)]
    Rejected(Diagnosis),
    /// No answer to a request that was sent, or a fault of the server: time-out, broken connection, 408, most of 5xx.
    #[error("output fails: {}", .0.why)]
    Failed(Diagnosis),
    /// The server is away, or asks to be left alone: refused connection, 425, 429, 503, any `Retry-After`.
    #[error("output is unavailable: {}", .found.why)]
    Unavailable {
        /// What happened.
        found: Diagnosis,
        /// How long the server asked to be left alone (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The server looks as if it turned every write away until somebody fixes the configuration: 401, 403, 404, a
    /// certificate that does not hold.
    #[error("output refuses this configuration: {}", .0.reason())]
    Misconfigured(Diagnosis),
}

impl WriteError {
    /// Away, without a time when it comes back.
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

/// A place that takes counts.
#[async_trait]
pub trait Output: Send + Sync + std::fmt::Debug {
    /// Writes the counts in one request: two points each, `unique_user_event` and `cumulative_user_event`, stamped
    /// with the minute's start. Answers `Ok` only when every one of them is confirmed. On `Err` any part of them may
    /// have been written.
    ///
    /// Safe to drop half-way, and to call from several tasks at once. Bounded by the output's own time-out.
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError>;

    /// Writes a point of no count, at this minute's start, to find out whether the output takes points. It goes into a measurement
    /// of its own, never into those of the counts. Nothing is written where no server could refuse it, which is the default.
    async fn probe(&self, _minute: Minute) -> Result<(), WriteError> {
        Ok(())
    }

    /// Where the points go, for the log, without secrets.
    fn describe(&self) -> String;

    /// Whether a server answers, who may turn writes away: that is worth knowing before there is anything to write.
    fn has_server(&self) -> bool {
        true
    }
}
