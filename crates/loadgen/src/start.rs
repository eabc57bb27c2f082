//! When a synthetic load begins.

use std::str::FromStr;
use std::time::Duration;

use chrono::DateTime;

/// When a synthetic load begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// So long before now.
    Ago(Duration),
    /// At this instant, in nanoseconds since the epoch.
    At(i64),
}

impl Start {
    /// Nanoseconds since the epoch; at the end of what an `i64` holds, that end.
    pub(super) fn nanos(self, now_nanos: i64) -> i64 {
        match self {
            Self::Ago(ago) => {
                now_nanos.saturating_sub(i64::try_from(ago.as_nanos()).unwrap_or(i64::MAX))
            }
            Self::At(nanos) => nanos,
        }
    }
}

/// Text that names no start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected `now`, a time before now like `-10m`, or a date like 2016-12-04T18:38:00Z")]
pub struct ParseStartError;

impl FromStr for Start {
    type Err = ParseStartError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "now" {
            return Ok(Self::Ago(Duration::ZERO));
        }
        if let Some(ago) = text.strip_prefix('-') {
            return humantime::parse_duration(ago).map(Self::Ago).map_err(|_| ParseStartError);
        }
        DateTime::parse_from_rfc3339(text)
            .ok()
            .and_then(|date| date.timestamp_nanos_opt())
            .map(Self::At)
            .ok_or(ParseStartError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_dates_or_before_now() {
        let nanos = |text: &str| text.parse::<Start>().map(|start| start.nanos(7_000_000_000));
        assert_eq!(nanos("now"), Ok(7_000_000_000));
        assert_eq!(nanos("-2s"), Ok(5_000_000_000));
        assert_eq!(nanos("2016-12-04T18:38:00Z"), Ok(1_480_876_680_000_000_000));
        assert_eq!(nanos("2016-12-04T19:38:00+01:00"), Ok(1_480_876_680_000_000_000));
        for text in ["", "10m", "-", "then", "3000-01-01T00:00:00Z"] {
            assert_eq!(nanos(text), Err(ParseStartError), "{text:?}");
        }
    }
}
