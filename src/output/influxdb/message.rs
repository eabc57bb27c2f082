//! What a server says beside its status: the message in the body, and the header `Retry-After`.

use std::error::Error;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;
use crate::text::{chain, on_one_line};

/// The longest `Retry-After` that is believed. A server that names a longer one is asked again by then.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The message in an answer: InfluxDB 1.x keeps it under `error`, 2.x under `message`, others send plain text.
pub(super) fn message(text: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    let found = json
        .as_ref()
        .and_then(|json| json.get("message").or_else(|| json.get("error")))
        .and_then(serde_json::Value::as_str);
    on_one_line(found.unwrap_or(text))
}

/// A request that was sent and got no answer, or none that is HTTP.
pub(super) fn unanswered(error: &(dyn Error + 'static), timed_out: bool) -> WriteError {
    let cause = if timed_out { Cause::OutputDown } else { Cause::OutputHangsUp };
    WriteError::Failed(Diagnosis::new(cause, on_one_line(&chain(error))))
}

/// How long a `Retry-After` asks to wait: seconds, or a date in the one form that servers may send (RFC 9110,
/// IMF-fixdate). At most [`RETRY_AFTER_MAX`]; `None` for what is neither.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // Digits that do not fit are a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = DateTime::parse_from_rfc2822(value).ok()?.with_timezone(&Utc);
        SystemTime::from(date).duration_since(now).unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // RFC 9110's example of a date, 30 seconds before it.
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
}
