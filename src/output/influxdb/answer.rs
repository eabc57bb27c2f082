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

/// What a 400 says that is about the request as a whole, in lower case, and what to fix.
const REQUEST_FAULTS: [(&str, &str); 6] = [
    ("database is required", "set output.database"),
    ("please provide either orgid or org", "set output.org"),
    (
        "unsupported path requested",
        "look at the path in output.url",
    ),
    (
        "http request to an https server",
        "output.url must begin with https://",
    ),
    (
        "plain http request was sent to https port",
        "output.url must begin with https://",
    ),
    (
        "invalid precision",
        "look at output.api: the server knows no nanoseconds",
    ),
];

/// What to look at when every count is rejected with a message that tells nothing.
const REJECTION_HINT: &str = "look at the server's limits and at the type of its field `value`, at output.url and at \
                               what stands between";

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
                reason,
                retry_after,
            }
        }
        (400 | 413 | 422, _) => WriteError::Rejected {
            message: if message.is_empty() { reason } else { message },
            hint: REQUEST_FAULTS
                .iter()
                .find(|(phrase, _)| lower.contains(phrase))
                .map_or(REJECTION_HINT, |(_, hint)| hint),
        },
        (408 | 500 | 502..=504 | 506..=599, None) => WriteError::Failed { reason },
        (status, _) => WriteError::Misconfigured {
            reason,
            hint: hint(dialect, status, &lower).to_owned(),
        },
    })
}

/// What an operator should look at, by status and the message in lower case.
fn hint(dialect: Dialect, status: u16, message: &str) -> &'static str {
    match (dialect, status) {
        (Dialect::V1, 401) => "look at output.username and output.password_file",
        (Dialect::V1, 403) => {
            "grant the user of output.username the right to write to output.database"
        }
        // InfluxDB 1.x answers 404 for a path that it does not have, too.
        (Dialect::V1, 404) if message.contains("database") => {
            "create the database, or look at output.database"
        }
        (Dialect::V1, 404) => "look at output.url and output.api: there is no /write there",
        (Dialect::V2, 401) => "look at output.token_file",
        (Dialect::V2, 403) => {
            "give the token in output.token_file the right to write to output.bucket"
        }
        (Dialect::V2, 404) if message.contains("bucket") => {
            "create the bucket, or look at output.bucket"
        }
        (Dialect::V2, 404) if message.contains("org") => "look at output.org",
        (Dialect::V2, 404) => "look at output.url and output.api: there is no /api/v2/write there",
        (_, 300..=399) => {
            "set output.url to where the server really is: redirects are not followed"
        }
        _ => "look at output.url and output.api: this is not how InfluxDB answers a write",
    }
}

#[cfg(test)]
mod tests;
