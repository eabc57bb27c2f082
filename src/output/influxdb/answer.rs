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
mod tests {
    use super::*;

    fn judged(dialect: Dialect, status: u16, text: &str) -> Answer {
        let retry_after = Some(Duration::from_secs(7));
        judge(
            dialect,
            &Reply {
                status,
                retry_after,
                text: text.to_owned(),
            },
        )
    }

    #[track_caller]
    fn check_mend(dialect: Dialect, status: u16, text: &str, key: &str) {
        match judged(dialect, status, text) {
            Answer::Failed(WriteError::Misconfigured { reason, mend }) => {
                assert!(mend.contains(key), "{mend:?} does not name {key}");
                assert!(reason.contains(&status.to_string()), "{reason:?}");
            }
            other => panic!("{status} {text:?}: {other:?}"),
        }
    }

    #[test]
    fn only_an_empty_success_is_done() {
        for (status, text) in [(204, ""), (200, ""), (200, "\r\n")] {
            assert!(
                matches!(judged(Dialect::V2, status, text), Answer::Done),
                "{status}"
            );
        }
        check_mend(
            Dialect::V2,
            200,
            "<html>Welcome to nginx!</html>",
            "output.url",
        );
        check_mend(Dialect::V1, 202, "", "output.url");
    }

    #[test]
    fn a_server_in_trouble_is_unavailable() {
        for status in [408, 425, 429, 500, 502, 503, 504, 599] {
            match judged(Dialect::V1, status, r#"{"error":"timeout"}"#) {
                Answer::Failed(WriteError::Unavailable {
                    reason,
                    retry_after,
                }) => {
                    assert_eq!(reason, format!("status {status}: timeout"));
                    assert_eq!(retry_after, Some(Duration::from_secs(7)));
                }
                other => panic!("{status}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_body_that_the_server_dislikes_is_rejected_in_its_words() {
        let partial =
            r#"{"error":"partial write: unable to parse 'foo': missing fields dropped=0"}"#;
        for (dialect, status, text, expected) in [
            (
                Dialect::V1,
                400,
                partial,
                "partial write: unable to parse 'foo': missing fields dropped=0",
            ),
            (
                Dialect::V2,
                422,
                r#"{"code":"unprocessable entity","message":"no"}"#,
                "no",
            ),
            (Dialect::V2, 413, "", "status 413"),
            // A line that the server quotes has its spaces escaped, and so cannot pose as a fault of the request.
            (
                Dialect::V1,
                400,
                r"unable to parse 'x,a=database\ is\ required'",
                r"unable to parse 'x,a=database\ is\ required'",
            ),
        ] {
            match judged(dialect, status, text) {
                Answer::Rejected { words } => assert_eq!(words, expected),
                other => panic!("{status} {text:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_misconfiguration_names_the_key_to_look_at() {
        use Dialect::{V1, V2};
        check_mend(
            V1,
            401,
            r#"{"error":"authorization failed"}"#,
            "output.password_file",
        );
        check_mend(V1, 403, "", "output.database");
        check_mend(
            V1,
            404,
            r#"{"error":"database not found: \"x\""}"#,
            "output.database",
        );
        check_mend(V1, 404, "404 page not found", "output.url");
        check_mend(
            V2,
            401,
            r#"{"code":"unauthorized","message":"unauthorized access"}"#,
            "output.token_file",
        );
        check_mend(V2, 403, "", "output.token_file");
        check_mend(
            V2,
            404,
            r#"{"code":"not found","message":"bucket \"x\" not found"}"#,
            "output.bucket",
        );
        check_mend(
            V2,
            404,
            r#"{"code":"not found","message":"organization name \"x\" not found"}"#,
            "output.org",
        );
        check_mend(V2, 404, "", "output.url");
        check_mend(V2, 301, "", "redirects");
        check_mend(V2, 405, "", "output.url");
        check_mend(V1, 101, "", "output.url");
    }

    #[test]
    fn a_400_about_the_request_is_a_misconfiguration() {
        check_mend(
            Dialect::V1,
            400,
            r#"{"error":"database is required"}"#,
            "output.database",
        );
        check_mend(
            Dialect::V2,
            400,
            r#"{"message":"Please provide either orgID or org"}"#,
            "output.org",
        );
        check_mend(
            Dialect::V2,
            400,
            "Client sent an HTTP request to an HTTPS server.\n",
            "https://",
        );
        check_mend(
            Dialect::V2,
            400,
            "unsupported path requested: \"/x\"",
            "output.url",
        );
    }
}
