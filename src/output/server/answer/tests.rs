//! Tests the verdict on every kind of response.

use super::*;

fn judged(dialect: Dialect, status: u16, text: &str) -> Result<(), WriteError> {
    judged_with(Some(Duration::from_secs(7)), dialect, status, text)
}

fn judged_with(
    retry_after: Option<Duration>,
    dialect: Dialect,
    status: u16,
    text: &str,
) -> Result<(), WriteError> {
    judge(dialect, status, retry_after, text)
}

#[track_caller]
fn check_hint(dialect: Dialect, status: u16, text: &str, key: &str) {
    match judged(dialect, status, text) {
        Err(WriteError::Misconfigured(found)) => {
            assert!(found.remedy.contains(key), "{found} does not name {key}");
            assert!(found.why.contains(&status.to_string()), "{found}");
        }
        other => panic!("{status} {text:?}: {other:?}"),
    }
}

#[test]
fn only_an_empty_success_is_accepted() {
    for (status, text) in [(204, ""), (200, ""), (200, "\r\n")] {
        assert!(matches!(judged(Dialect::V2, status, text), Ok(())), "{status}");
    }
    check_hint(Dialect::V2, 200, "<html>Welcome to nginx!</html>", "output.url");
    check_hint(Dialect::V1, 202, "", "output.url");
}

#[test]
fn a_server_in_trouble_is_unavailable() {
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        match judged(Dialect::V1, status, r#"{"error":"timeout"}"#) {
            Err(WriteError::Unavailable { found, retry_after }) => {
                assert_eq!(found.why, format!("status {status}: timeout"));
                assert_eq!(retry_after, Some(Duration::from_secs(7)));
            }
            other => panic!("{status}: {other:?}"),
        }
    }
}

#[test]
fn server_error_without_retry_after_may_depend_on_the_counts() {
    for status in [408, 500, 502, 504, 599] {
        let why = format!("status {status}: timeout");
        let expected = WriteError::Failed(Diagnosis::new(Cause::OutputOverloaded, why));
        let judged = judged_with(None, Dialect::V1, status, r#"{"error":"timeout"}"#);
        assert_eq!(judged, Err(expected));
    }
    for status in [425, 429, 503] {
        let judged = judged_with(None, Dialect::V1, status, "");
        assert!(matches!(judged, Err(WriteError::Unavailable { .. })), "{status}");
    }
}

#[test]
fn rejection_keeps_its_message() {
    let partial = r#"{"error":"partial write: unable to parse 'foo': missing fields dropped=0"}"#;
    let quoting =
        r#"{"error":"max-values-per-tag limit exceeded: value=\"database is required\""}"#;
    for (dialect, status, text, expected, key) in [
        (
            Dialect::V1,
            400,
            partial,
            "partial write: unable to parse 'foo': missing fields dropped=0",
            "limits",
        ),
        (Dialect::V2, 422, r#"{"code":"unprocessable entity","message":"no"}"#, "no", "limits"),
        (Dialect::V2, 413, "", "status 413", "limits"),
        (
            Dialect::V1,
            400,
            quoting,
            "max-values-per-tag limit exceeded: value=\"database is required\"",
            "output.database",
        ),
        (
            Dialect::V2,
            400,
            r#"{"message":"Please provide either orgID or org"}"#,
            "Please provide either orgID or org",
            "output.org",
        ),
        (
            Dialect::V2,
            400,
            "Client sent an HTTP request to an HTTPS server.\n",
            "Client sent an HTTP request to an HTTPS server.",
            "https://",
        ),
        (
            Dialect::V2,
            400,
            "unsupported path requested: \"/x\"",
            "unsupported path requested: \"/x\"",
            "output.url",
        ),
    ] {
        match judged(dialect, status, text) {
            Err(WriteError::Rejected(found)) => {
                assert_eq!(found.why, expected);
                assert!(found.remedy.contains(key), "{found} does not name {key}");
            }
            other => panic!("{status} {text:?}: {other:?}"),
        }
    }
}

#[test]
fn misconfiguration_names_its_key() {
    use Dialect::{V1, V2};
    check_hint(V1, 401, r#"{"error":"authorization failed"}"#, "output.password_file");
    check_hint(V1, 403, "", "output.database");
    check_hint(V1, 404, r#"{"error":"database not found: \"x\""}"#, "output.database");
    check_hint(V1, 404, "404 page not found", "output.url");
    check_hint(
        V2,
        401,
        r#"{"code":"unauthorized","message":"unauthorized access"}"#,
        "output.token_file",
    );
    check_hint(V2, 403, "", "output.token_file");
    check_hint(
        V2,
        404,
        r#"{"code":"not found","message":"bucket \"x\" not found"}"#,
        "output.bucket",
    );
    check_hint(
        V2,
        404,
        r#"{"code":"not found","message":"organization name \"x\" not found"}"#,
        "output.org",
    );
    check_hint(V2, 404, "", "output.url");
    check_hint(V2, 301, "", "redirects");
    check_hint(V2, 405, "", "output.url");
    check_hint(V1, 101, "", "output.url");
}

#[test]
fn the_message_is_found() {
    for (text, expected) in [
        (r#"{"error":"database is required"}"#, "database is required"),
        (r#"{"code":"invalid","message":"bad\nline"}"#, "bad line"),
        (r#"{"error":"a","message":"b"}"#, "b"),
        (r#"{"error":{"nested":1}}"#, r#"{"error":{"nested":1}}"#),
        ("404 page not found\n", "404 page not found"),
        ("a\r\n\tb\u{1b}[31mc", "a b [31mc"),
        ("", ""),
        (" \n", ""),
    ] {
        assert_eq!(message(text), expected);
    }
}

#[test]
fn retry_after_is_seconds_or_a_date() {
    // This is 30 seconds before the example date in RFC 9110.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777 - 30);
    let seconds = |n| Some(Duration::from_secs(n));
    for (value, expected) in [
        ("120", seconds(120)),
        (" 0 ", seconds(0)),
        ("Sun, 06 Nov 1994 08:49:37 GMT", seconds(30)),
        ("Sat, 05 Nov 1994 08:49:37 GMT", seconds(0)),
        ("Fri, 06 Nov 2065 08:49:37 GMT", seconds(3600)),
        ("99999999999999999999999", seconds(3600)),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
    ] {
        assert_eq!(retry_after(value, now), expected, "{value:?}");
    }
}
