//! What a server's answer means. Pure: a status and a message in, a verdict out.
//!
//! | status | meaning |
//! | --- | --- |
//! | 204; 200 with nothing in it | done |
//! | 400, 413, 422 | [`WriteError::Rejected`] |
//! | 425, 429, 503; 408 and any 5xx with `Retry-After` | [`WriteError::Unavailable`] |
//! | 408, other 5xx, but for 501 and 505 | [`WriteError::Failed`] |
//! | 401, 403, 404, and all others | [`WriteError::Misconfigured`], with the key to look at |
//!
//! A 200 with a page in it is what some other web server says to anything at all; to believe it would lose the
//! counts, so it counts as a misconfiguration.
//!
//! The server's message decides nothing: it may quote a tag, and so say whatever a sender likes. It only helps to find
//! the key to look at, for the case that every count gets this answer.

use std::time::Duration;

use super::message::message;
use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;

/// Which write API a server is spoken to by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `/write?db=…`
    V1,
    /// `/api/v2/write?org=…&bucket=…`
    V2,
}

/// An HTTP answer, as far as it matters here.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    /// The HTTP status code.
    pub(super) status: u16,
    /// The `Retry-After` header, where headers are at hand.
    pub(super) retry_after: Option<Duration>,
    /// The body, or as much of it as was read.
    pub(super) text: String,
}

/// What a 400 says that is about the request as a whole, in lower case.
const REQUEST_FAULTS: [(&str, Cause); 6] = [
    ("database is required", Cause::OutputNoDatabase),
    ("please provide either orgid or org", Cause::OutputNoOrg),
    ("unsupported path requested", Cause::OutputPath),
    ("http request to an https server", Cause::OutputIsTls),
    ("plain http request was sent to https port", Cause::OutputIsTls),
    ("invalid precision", Cause::OutputPrecision),
];

/// The verdict on an answer.
pub(super) fn judge(dialect: Dialect, reply: &Reply) -> Result<(), WriteError> {
    let message = message(&reply.text);
    let reason = if message.is_empty() {
        format!("status {}", reply.status)
    } else {
        format!("status {}: {message}", reply.status)
    };
    let lower = message.to_lowercase();
    Err(match (reply.status, reply.retry_after) {
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

/// What an operator should look at, by status and the message in lower case.
fn cause(dialect: Dialect, status: u16, message: &str) -> Cause {
    match (dialect, status) {
        (Dialect::V1, 401) => Cause::OutputPassword,
        (Dialect::V1, 403) => Cause::OutputUserRight,
        // InfluxDB 1.x answers 404 for a path that it does not have, too.
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

#[cfg(test)]
mod tests;
