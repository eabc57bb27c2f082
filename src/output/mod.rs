//! Where the counts go: the [`Output`] trait and its errors.
//!
//! An output is given counts that are sealed. It may be given the same ones again, after a crash or
//! a doubtful answer, and writes the same bytes each time; so none needs a memory of what it has written.

pub mod influxdb;
pub mod line_protocol;
pub mod stdout;

use std::time::Duration;

use async_trait::async_trait;

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
    /// Not these counts as they are: 400, 413, 422.
    #[error("output refuses these counts: {message}")]
    Rejected {
        /// The server's message, shortened to 512 bytes.
        message: String,
        /// What to look at if the server refuses every count so.
        hint: &'static str,
    },
    /// No answer to a request that was sent, or a fault of the server: time-out, broken connection, 408, most of 5xx.
    #[error("output fails: {reason}")]
    Failed {
        /// What happened, for the log.
        reason: String,
    },
    /// The server is away, or asks to be left alone: refused connection, 425, 429, 503, any `Retry-After`.
    #[error("output is unavailable: {reason}")]
    Unavailable {
        /// What happened, for the log.
        reason: String,
        /// How long the server asked to be left alone (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// The server looks as if it turned every write away until somebody fixes the configuration: 401, 403, 404, a
    /// certificate that does not hold.
    #[error("output refuses this configuration: {reason}; {hint}")]
    Misconfigured {
        /// What the server said.
        reason: String,
        /// Which configuration key to look at, and what to do.
        hint: String,
    },
}

impl WriteError {
    /// Returns what happened, without the kind of error.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Rejected { message, .. } => message.clone(),
            Self::Failed { reason }
            | Self::Unavailable { reason, .. }
            | Self::Misconfigured { reason, .. } => reason.clone(),
        }
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Rejected { hint, .. } => (*hint).to_owned(),
            Self::Misconfigured { hint, .. } => hint.clone(),
            // An answer has a status.
            Self::Failed { reason } | Self::Unavailable { reason, .. } if reason.starts_with("status ") => {
                "the server answers and takes nothing: look at its log, its limits and its load, and at what stands between; \
                 counts wait in the store until it takes them"
                    .to_owned()
            }
            Self::Failed { .. } | Self::Unavailable { .. } => {
                "start the server, or look at output.url and the network; counts wait in the store until it takes them".to_owned()
            }
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
