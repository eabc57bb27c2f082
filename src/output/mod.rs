//! The [`Output`] trait, its implementations and its errors. After a crash or an ambiguous response, an output may receive
//! the same counts again. It then writes the same bytes again, so it does not need to remember its writes.

pub(crate) mod delivery;
pub mod influxdb;
pub mod line_protocol;
mod otlp;
mod remote_write;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use self::influxdb::InfluxDb;
use self::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT};
use self::otlp::Otlp;
pub(crate) use self::otlp::OtlpClient;
use self::remote_write::RemoteWrite;
use self::server::{Api, Settings, SettingsError};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{ESTIMATE_ERROR, Minute, Partition, Period, Quality};

/// The two counts for one series in one minute, as sealed by the store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct SealedCounts {
    pub partition: Partition,
    pub minute: Minute,
    pub period: Period,
    /// The canonical tag set: sorted by key, and escaped for line protocol.
    pub series: String,
    /// Number of distinct users.
    pub unique: u64,
    /// Number of distinct events (pairs of user and timestamp).
    pub cumulative: u64,
    /// Whether the numbers are exact and complete, as those of a minute always are.
    pub quality: Quality,
}

/// Why a write was not acknowledged. Part of it may have been written anyway.
///
/// The variant classifies a single response. It does not decide whether these counts are to blame: a message may quote a
/// tag, and a firewall or server error may be triggered by a tag's text. The writer determines that with further writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The server rejects these counts: 400, 413, 422. The remedy applies only if the server rejects all counts.
    #[error("output rejected these counts: {}", .0.why)]
    Rejected(Diagnosis),
    /// The request got no response, or the server failed: timeout, broken connection, 408, most 5xx.
    #[error("output failed: {}", .0.why)]
    Failed(Diagnosis),
    /// The server is unavailable, or asks for a pause: connection refused, 425, 429, 503, any `Retry-After`.
    #[error("output is unavailable: {}", .found.why)]
    Unavailable {
        /// What happened.
        found: Diagnosis,
        /// The pause requested by the server (`Retry-After`).
        retry_after: Option<Duration>,
    },
    /// An error that will likely recur until the configuration is fixed: a status of 401, 403 or 404, or a bad certificate.
    #[error("output is misconfigured: {}", .0.reason())]
    Misconfigured(Diagnosis),
}

impl WriteError {
    /// Returns the error for an unreachable server. `why` is the reason to show.
    pub fn unavailable(why: impl Into<String>) -> Self {
        Self::Unavailable { found: Diagnosis::new(Cause::OutputDown, why), retry_after: None }
    }

    /// Returns what happened, and how to fix it.
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

/// A destination for counts.
#[async_trait]
pub trait Output: Send + Sync + std::fmt::Debug {
    /// Writes the counts in one request: two points each, `unique_user_event` and `cumulative_user_event`, stamped with the
    /// start of the minute. Returns `Ok` only if all are acknowledged. On `Err`, any part may have been written.
    ///
    /// Must be cancel-safe, callable from several tasks at once, and bounded by the output's timeout.
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError>;

    /// Writes a probe point for this minute to a separate measurement. By default (without a server), does nothing.
    async fn probe(&self, _minute: Minute) -> Result<(), WriteError> {
        Ok(())
    }

    /// Returns a description of the destination for log messages, without secrets.
    fn describe(&self) -> String;

    /// Returns whether there is a server that may reject writes. If so, it is probed before there are counts to write.
    fn has_server(&self) -> bool {
        true
    }
}

/// Creates the output for a server without connecting. The measurement name used for probes must not need escaping.
pub fn build(
    settings: &Settings,
    probe_measurement: &str,
) -> Result<Arc<dyn Output>, SettingsError> {
    let probe = probe_measurement.to_owned();
    Ok(match settings.api {
        Api::V1 { .. } | Api::V2 { .. } => Arc::new(InfluxDb::new(settings, probe_measurement)?),
        Api::RemoteWrite { version, .. } => Arc::new(RemoteWrite::new(settings, version, probe)?),
        Api::Otlp { .. } => Arc::new(Otlp::new(settings, probe)?),
    })
}

/// Returns the metrics of a count, for servers that store one value per series: the two counts and, for windows of rollups,
/// the error of the estimate and whether the window is incomplete.
fn metrics(counts: &SealedCounts) -> impl Iterator<Item = (String, f64)> {
    let SealedCounts { period: Period { suffix, .. }, unique, cumulative, quality, .. } = counts;
    let error = if quality.is_estimated { ESTIMATE_ERROR } else { 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "these servers store values as 64-bit floats")]
    let [unique, cumulative] = [*unique as f64, *cumulative as f64];
    let has_error = !suffix.is_empty();
    [
        (true, UNIQUE_MEASUREMENT, "", unique),
        (true, CUMULATIVE_MEASUREMENT, "", cumulative),
        (has_error, UNIQUE_MEASUREMENT, "_error", error),
        (quality.is_incomplete, UNIQUE_MEASUREMENT, "_complete", 0.0),
    ]
    .into_iter()
    .filter(|(is_present, ..)| *is_present)
    .map(move |(_, measurement, field, value)| (format!("{measurement}{suffix}{field}"), value))
}
