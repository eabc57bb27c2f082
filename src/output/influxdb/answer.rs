//! Maps a server's response to a result.
//!
//! | status | result |
//! | --- | --- |
//! | 204; 200 with an empty body | done |
//! | 400, 413, 422 | [`WriteError::Rejected`] |
//! | 425, 429, 503; 408 and any 5xx with `Retry-After` | [`WriteError::Unavailable`] |
//! | 408, other 5xx except 501 and 505 | [`WriteError::Failed`] |
//! | 401, 403, 404, and all others | [`WriteError::Misconfigured`], with the key to check |
//!
//! Some other web server may answer any request with a page and status 200. Taking that for success would lose the counts, so it
//! is treated as a misconfiguration.
//!
//! The server's message is never used to decide, because it may quote a tag, and so contain arbitrary text from a sender. It only
//! helps to find the key to check if every count gets this response.

use std::error::Error;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;
use crate::text::{chain, on_one_line};

/// Upper limit on `Retry-After`.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The write API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/write?db=…`
    V1,
    /// `/api/v2/write?org=…&bucket=…`
    V2,
}

/// Phrases, in lower case, in a 400 response that is about the request as a whole.
const REQUEST_FAULTS: [(&str, Cause); 6] = [
    ("database is required", Cause::OutputNoDatabase),
    ("please provide either orgid or org", Cause::OutputNoOrg),
    ("unsupported path requested", Cause::OutputPath),
    ("http request to an https server", Cause::OutputIsTls),
    ("plain http request was sent to https port", Cause::OutputIsTls),
    ("invalid precision", Cause::OutputPrecision),
];

/// Returns the result of a write, given its response. `text` is the body, or as much of it as was read.
pub(super) fn judge(
    dialect: Dialect,
    status: u16,
    retry_after: Option<Duration>,
    text: &str,
) -> Result<(), WriteError> {
    let message = message(text);
    let separator = if message.is_empty() { "" } else { ": " };
    let reason = format!("status {status}{separator}{message}");
    let lower = message.to_lowercase();
    Err(match (status, retry_after) {
        (200 | 204, _) if message.is_empty() => return Ok(()),
        (425 | 429 | 503, retry_after) | (408 | 500..=599, retry_after @ Some(_)) => {
            WriteError::Unavailable {
                found: Diagnosis::new(Cause::OutputOverloaded, reason),
                retry_after,
            }
        }
        (400 | 413 | 422, _) => {
            let known = REQUEST_FAULTS.iter().find(|(phrase, _)| lower.contains(phrase));
            let cause = known.map_or(Cause::OutputRejectsAll, |(_, cause)| *cause);
            let why = if message.is_empty() { reason } else { message };
            WriteError::Rejected(Diagnosis::new(cause, why))
        }
        (408 | 500 | 502..=504 | 506..=599, None) => {
            WriteError::Failed(Diagnosis::new(Cause::OutputOverloaded, reason))
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
        (_, 300..=399) => Cause::OutputMoved,
        _ => Cause::NotInfluxDb,
    }
}

/// Returns the message in a response. InfluxDB 1.x puts it in `error`, 2.x in `message`; others send plain text.
fn message(text: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    let found = json.as_ref().and_then(|json| json.get("message").or_else(|| json.get("error")));
    on_one_line(found.and_then(serde_json::Value::as_str).unwrap_or(text))
}

/// Classifies a request that got no response, or one that is not HTTP.
pub(super) fn unanswered(
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

/// Parses `Retry-After`, which is either seconds or a date (RFC 9110, IMF-fixdate). Returns at most [`RETRY_AFTER_MAX`].
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // Digits that do not fit represent a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = DateTime::parse_from_rfc2822(value).ok()?.with_timezone(&Utc);
        SystemTime::from(date).duration_since(now).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests;
