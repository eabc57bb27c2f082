//! Warnings about events that a node rejects because of their timestamps.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat};

/// Default of `input.max_age`.
pub const MAX_AGE: Duration = Duration::from_secs(3600);
/// Default of `input.max_future`.
pub const MAX_FUTURE: Duration = Duration::from_secs(60);

/// Returns a warning if a node with the default settings would reject this line because of its timestamp; otherwise `None`.
pub(super) fn rejected(line: &[u8], now_nanos: i64) -> Option<String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let last = line.rsplit(|&byte| byte == b' ').next()?;
    let nanos: i64 = std::str::from_utf8(last).ok()?.parse().ok()?;
    if line.starts_with(b"#") || last.len() == line.len() {
        return None;
    }
    let age_nanos = i128::from(now_nanos) - i128::from(nanos);
    let exceeds = |nanos: i128, most: Duration| {
        u128::try_from(nanos).is_ok_and(|nanos| nanos > most.as_nanos())
    };
    let (direction, key, most) = if exceeds(age_nanos, MAX_AGE) {
        ("ago", "input.max_age", MAX_AGE)
    } else if exceeds(-age_nanos, MAX_FUTURE) {
        ("in the future", "input.max_future", MAX_FUTURE)
    } else {
        return None;
    };
    let time = DateTime::from_timestamp_nanos(nanos).to_rfc3339_opts(SecondsFormat::Secs, true);
    let most = humantime::format_duration(most);
    Some(format!(
        "has the timestamp {time}, which is more than {most} {direction}; nodes with the default {key} reject the line. Timestamps \
         are in nanoseconds since 1970"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_480_876_707_352_348_928;
    const SECOND: i64 = 1_000_000_000;

    #[test]
    fn times_beyond_the_defaults_are_warned_of() {
        for (nanos, word) in [
            (NOW, None),
            (NOW - 3600 * SECOND, None),
            (NOW - 3601 * SECOND, Some("input.max_age")),
            (NOW + 60 * SECOND, None),
            (NOW + 61 * SECOND, Some("input.max_future")),
            (NOW / 1_000_000, Some("1970-01-01T")),
            (i64::MIN, Some("input.max_age")),
            (i64::MAX, Some("input.max_future")),
        ] {
            let warning = rejected(format!("a=1 value=x {nanos}\r").as_bytes(), NOW);
            assert_eq!(warning.is_some(), word.is_some(), "{nanos}: {warning:?}");
            assert!(warning.unwrap_or_default().contains(word.unwrap_or_default()));
        }
        for line in ["a=1 value=5", "a=1 value=\"b 5\"", "# 5", "5", "", "a=1 value=x now"] {
            assert_eq!(rejected(line.as_bytes(), NOW), None, "{line}");
        }
    }
}
