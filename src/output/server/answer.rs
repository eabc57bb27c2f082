//! Maps a server's response to a result.
//!
//! | status | result |
//! | --- | --- |
//! | 204; 200 with an empty body | done |
//! | 400, 413, 422; 409 from remote write and OTLP | [`WriteError::Rejected`] |
//! | 425, 429, 503; 408 and any 5xx with `Retry-After` | [`WriteError::Unavailable`] |
//! | 408, other 5xx except 501 and 505 | [`WriteError::Failed`] |
//! | 401, 403, 404, and all others | [`WriteError::Misconfigured`], with the key to check |
//!
//! A page with status 200 comes from some other web server. It is treated as a misconfiguration so that no counts are lost.
//!
//! The message is never used to decide, because it may quote sender-controlled text. It only helps to find the key to check.

use std::error::Error;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;
use crate::text::{chain, on_one_line};

const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::output) enum Dialect {
    /// The v1 API: `/write?db=…`.
    V1,
    /// The v2 API: `/api/v2/write?org=…&bucket=…`.
    V2,
    RemoteWrite,
    Otlp,
}

/// Lower-case phrases in messages that show that the request itself is wrong, whatever its counts, and the cause of each.
const REQUEST_FAULTS: [(&str, Cause); 6] = [
    ("database is required", Cause::OutputNoDatabase),
    ("please provide either orgid or org", Cause::OutputNoOrg),
    ("unsupported path requested", Cause::OutputPath),
    ("http request to an https server", Cause::OutputIsTls),
    ("plain http request was sent to https port", Cause::OutputIsTls),
    ("invalid precision", Cause::OutputPrecision),
];

/// Lower-case phrases of Prometheus and others about points that are older than those before them.
const ORDER_FAULTS: [&str; 4] = ["out of order", "out-of-order", "out of bounds", "too old sample"];

/// Returns the result of a write, given its response. `text` is the body, or as much of it as was read.
pub(in crate::output) fn judge(
    dialect: Dialect,
    status: u16,
    retry_after: Option<Duration>,
    text: &str,
) -> Result<(), WriteError> {
    let message = message(text);
    let separator = if message.is_empty() { "" } else { ": " };
    let reason = format!("status {status}{separator}{message}");
    let lower = message.to_lowercase();
    let has_lines = matches!(dialect, Dialect::V1 | Dialect::V2);
    let is_old = !has_lines && ORDER_FAULTS.iter().any(|phrase| lower.contains(phrase));
    let known = REQUEST_FAULTS.iter().find(|(phrase, _)| has_lines && lower.contains(phrase));
    let known = known.map(|(_, cause)| *cause).or(is_old.then_some(Cause::OutputOrder));
    Err(match (status, retry_after) {
        (200 | 204, _) if message.is_empty() => return Ok(()),
        (425 | 429 | 503, retry_after) | (408 | 500..=599, retry_after @ Some(_)) => {
            WriteError::Unavailable {
                found: Diagnosis::new(Cause::OutputOverloaded, reason),
                retry_after,
            }
        }
        (400 | 409 | 413 | 422, _) if status != 409 || !has_lines => {
            let cause = known.unwrap_or(Cause::OutputRejectsAll);
            let why = if message.is_empty() { reason } else { message };
            WriteError::Rejected(Diagnosis::new(cause, why))
        }
        (408 | 500 | 502..=504 | 506..=599, None) => {
            // Prometheus before 3.11 has this status for points that are too old.
            WriteError::Failed(Diagnosis::new(known.unwrap_or(Cause::OutputOverloaded), reason))
        }
        (status, _) => {
            WriteError::Misconfigured(Diagnosis::new(cause(dialect, status, &lower), reason))
        }
    })
}

/// Returns the cause to show to the operator, given the status and the message in lower case.
fn cause(dialect: Dialect, status: u16, message: &str) -> Cause {
    match (dialect, status) {
        (Dialect::V1, 401) => Cause::OutputPassword,
        (Dialect::V1, 403) => Cause::OutputUserRight,
        // InfluxDB 1.x also responds with 404 to an unknown path.
        (Dialect::V1, 404) if message.contains("database") => Cause::OutputDatabase,
        (Dialect::V1, 404) => Cause::OutputNoWrite,
        (Dialect::V2, 401) => Cause::OutputToken,
        (Dialect::V2, 403) => Cause::OutputTokenRight,
        (Dialect::V2, 404) if message.contains("bucket") => Cause::OutputBucket,
        (Dialect::V2, 404) if message.contains("org") => Cause::OutputOrg,
        (Dialect::V2, 404) => Cause::OutputNoWrite2,
        (Dialect::RemoteWrite | Dialect::Otlp, 401 | 403) => Cause::OutputLogin,
        (Dialect::RemoteWrite | Dialect::Otlp, 404 | 405) => Cause::OutputNoPath,
        (_, 300..=399) => Cause::OutputMoved,
        (Dialect::V1 | Dialect::V2 | Dialect::Otlp, 415) => Cause::OutputNoGzip,
        (Dialect::RemoteWrite | Dialect::Otlp, _) => Cause::OutputNoApi,
        _ => Cause::NotInfluxDb,
    }
}

/// Returns the message in a response. InfluxDB 1.x puts it in `error`, 2.x in `message`; others send plain text.
fn message(text: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    let found = json.as_ref().and_then(|json| json.get("message").or_else(|| json.get("error")));
    on_one_line(found.and_then(serde_json::Value::as_str).unwrap_or(text))
}

/// Returns the error for a request that got no response, or a response that is not HTTP.
pub(in crate::output) fn unanswered(
    error: &(dyn Error + 'static),
    is_connect: bool,
    is_timeout: bool,
) -> WriteError {
    let why = on_one_line(&chain(error));
    if is_connect {
        return WriteError::unavailable(why);
    }
    let cause = if is_timeout { Cause::OutputDown } else { Cause::OutputHangsUp };
    WriteError::Failed(Diagnosis::new(cause, why))
}

/// Parses `Retry-After`: seconds or an IMF-fixdate (RFC 9110). Returns at most [`RETRY_AFTER_MAX`], or `None` if invalid.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // A number that is too large for a `u64` means a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = DateTime::parse_from_rfc2822(value).ok()?.with_timezone(&Utc);
        SystemTime::from(date).duration_since(now).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
