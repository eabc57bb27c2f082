//! What a server's answer means. Pure: a status and some words in, a verdict out.
//!
//! | status | meaning |
//! | --- | --- |
//! | 204; 200 with nothing in it | done |
//! | 400, 413, 422 | not this body as it is: [`Answer::Rejected`], which the delivery halves |
//! | 408, 425, 429, 5xx | the server is away or busy: [`WriteError::Unavailable`] |
//! | 401, 403, 404, and all others | [`WriteError::Misconfigured`], with the key to look at |
//!
//! A 200 with a page in it is what some other web server says to anything at all; to believe it would lose the
//! counts, so it counts as a misconfiguration.
//!
//! Some 400s speak of the request, not of a line: no halving would ever find a line at fault. They are told
//! apart by their words ([`REQUEST_FAULTS`]). No tag can imitate these: they contain bare spaces, and where a
//! server quotes a line its spaces are escaped. Those that the list does not know are caught by counting, in
//! [`super::delivery`].

use std::time::Duration;

use super::words::words;
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

/// What came of posting one body.
#[derive(Debug)]
pub(super) enum Answer {
    /// Every line is written.
    Done,
    /// The body is too large, or some line in it is not to the server's liking. Part of it may be written.
    Rejected {
        /// The server's words.
        words: String,
    },
    /// Nothing can be said of any line.
    Failed(WriteError),
}

/// Words of a 400 that are about the request as a whole, in lower case, and what to mend.
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

/// The verdict on an answer.
pub(super) fn judge(dialect: Dialect, reply: &Reply) -> Answer {
    let words = words(&reply.text);
    let said = if words.is_empty() {
        format!("status {}", reply.status)
    } else {
        format!("status {}: {words}", reply.status)
    };
    let lower = words.to_lowercase();
    let mend = match reply.status {
        200 | 204 if words.is_empty() => return Answer::Done,
        400 | 413 | 422 => {
            match REQUEST_FAULTS
                .iter()
                .find(|(phrase, _)| lower.contains(phrase))
            {
                Some((_, mend)) => *mend,
                None => {
                    return Answer::Rejected {
                        words: if words.is_empty() { said } else { words },
                    };
                }
            }
        }
        408 | 425 | 429 | 500..=599 => {
            let retry_after = reply.retry_after;
            return Answer::Failed(WriteError::Unavailable {
                reason: said,
                retry_after,
            });
        }
        status => mend(dialect, status, &lower),
    };
    Answer::Failed(WriteError::Misconfigured {
        reason: said,
        mend: mend.to_owned(),
    })
}

/// What an operator should look at, by status and the server's words in lower case.
fn mend(dialect: Dialect, status: u16, words: &str) -> &'static str {
    match (dialect, status) {
        (Dialect::V1, 401) => "look at output.username and output.password_file",
        (Dialect::V1, 403) => {
            "grant the user of output.username the right to write to output.database"
        }
        // InfluxDB 1.x answers 404 for a path that it does not have, too.
        (Dialect::V1, 404) if words.contains("database") => {
            "create the database, or look at output.database"
        }
        (Dialect::V1, 404) => "look at output.url and output.api: there is no /write there",
        (Dialect::V2, 401) => "look at output.token_file",
        (Dialect::V2, 403) => {
            "give the token in output.token_file the right to write to output.bucket"
        }
        (Dialect::V2, 404) if words.contains("bucket") => {
            "create the bucket, or look at output.bucket"
        }
        (Dialect::V2, 404) if words.contains("org") => "look at output.org",
        (Dialect::V2, 404) => "look at output.url and output.api: there is no /api/v2/write there",
        (_, 300..=399) => {
            "set output.url to where the server really is: redirects are not followed"
        }
        _ => "look at output.url and output.api: this is not how InfluxDB answers a write",
    }
}

#[cfg(test)]
mod tests;
