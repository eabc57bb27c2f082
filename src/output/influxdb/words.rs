//! A server's words, made fit for a log line: its message out of the JSON around it, on one line, shortened.
//! And the one header that is listened to, `Retry-After`.

use std::time::{Duration, SystemTime};

use chrono::{DateTime, Utc};

use crate::output::WORDS_BYTES_MAX;

/// The longest `Retry-After` that is believed. A server that names a longer one is asked again by then.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);

/// The message in an answer: InfluxDB 1.x keeps it under `error`, 2.x under `message`, others send plain text.
pub(super) fn words(text: &str) -> String {
    let json = serde_json::from_str::<serde_json::Value>(text).ok();
    let message = json
        .as_ref()
        .and_then(|json| json.get("message").or_else(|| json.get("error")))
        .and_then(serde_json::Value::as_str);
    on_one_line(message.unwrap_or(text))
}

/// At most [`WORDS_BYTES_MAX`] bytes, each run of blanks and control characters one space.
pub(super) fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|w| !w.is_empty())
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > WORDS_BYTES_MAX {
            let end = (0..=WORDS_BYTES_MAX)
                .rev()
                .find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or(0));
            break;
        }
    }
    line
}

/// An error and all that caused it, without repetition.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !said.ends_with(&next) {
            said = format!("{said}: {next}");
        }
        cause = error.source();
    }
    on_one_line(&said)
}

/// How long a `Retry-After` asks to wait: seconds, or a date in the one form that servers may send (RFC 9110,
/// IMF-fixdate). At most [`RETRY_AFTER_MAX`]; `None` for what is neither.
pub(super) fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wait = if value.bytes().all(|byte| byte.is_ascii_digit()) && !value.is_empty() {
        // Digits that do not fit are a very long time.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        let date = DateTime::parse_from_rfc2822(value)
            .ok()?
            .with_timezone(&Utc);
        SystemTime::from(date)
            .duration_since(now)
            .unwrap_or_default()
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_message_is_found() {
        for (text, expected) in [
            (
                r#"{"error":"database is required"}"#,
                "database is required",
            ),
            (r#"{"code":"invalid","message":"bad\nline"}"#, "bad line"),
            (r#"{"error":"a","message":"b"}"#, "b"),
            (r#"{"error":{"nested":1}}"#, r#"{"error":{"nested":1}}"#),
            ("404 page not found\n", "404 page not found"),
            ("a\r\n\tb\u{1b}[31mc", "a b [31mc"),
            ("", ""),
            (" \n", ""),
        ] {
            assert_eq!(words(text), expected);
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

    proptest! {
        #[test]
        fn words_are_one_short_line(text in "(?s).{0,600}") {
            let words = words(&text);
            prop_assert!(words.len() <= WORDS_BYTES_MAX);
            prop_assert!(!words.contains(char::is_control));
        }
    }
}
