//! Timestamps: their unit in the input, and the time range in which events are accepted.

use std::time::Duration;

use super::Rejection;

/// The unit of the timestamps in the input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
pub enum Precision {
    /// Written as `ns` in the configuration.
    #[default]
    #[serde(rename = "ns")]
    Nanoseconds,
    /// Written as `us` in the configuration.
    #[serde(rename = "us")]
    Microseconds,
    /// Written as `ms` in the configuration.
    #[serde(rename = "ms")]
    Milliseconds,
    /// Written as `s` in the configuration.
    #[serde(rename = "s")]
    Seconds,
}

impl Precision {
    pub(crate) const fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }

    /// Parses a timestamp in this unit, and converts it to nanoseconds since the epoch. Returns `None` if the text is empty.
    pub(super) fn read(self, text: &str) -> Result<Option<i64>, Rejection> {
        if text.is_empty() {
            return Ok(None);
        }
        // Rust's parser also accepts a plus sign; otherwise, its syntax for integers is the same.
        let number = digits(text.as_bytes())
            .or_else(|| text.parse().ok().filter(|_| !text.starts_with('+')))
            .ok_or(Rejection::TimestampInvalid)?;
        match number.checked_mul(self.nanos()) {
            None => Err(self.mistaken(number).unwrap_or(Rejection::TimestampInvalid)),
            nanos => Ok(nanos),
        }
    }

    /// Parses a timestamp that consists only of digits. Returns `None` for other text, which [`Self::read`] handles.
    pub(super) fn read_digits(self, text: &[u8]) -> Option<i64> {
        let number = digits(text).filter(|_| !text.is_empty())?;
        number.checked_mul(self.nanos())
    }

    /// Returns the reason to reject a timestamp whose number of digits indicates a different unit (years 2001 to 2286).
    pub(crate) fn mistaken(self, number: i64) -> Option<Rejection> {
        let (unit, reason) = match number.checked_ilog10()? + 1 {
            10 => (Self::Seconds, Rejection::TimestampInSeconds),
            13 => (Self::Milliseconds, Rejection::TimestampInMilliseconds),
            16 => (Self::Microseconds, Rejection::TimestampInMicroseconds),
            19 => (Self::Nanoseconds, Rejection::TimestampInNanoseconds),
            _ => return None,
        };
        (unit != self).then_some(reason)
    }
}

/// Parses a number of at most 19 digits, 8 at a time; `None` for any other text.
fn digits(text: &[u8]) -> Option<i64> {
    if text.len() > 19 {
        return None;
    }
    let (eights, rest) = text.as_chunks::<8>();
    let mut number = 0_u64;
    for &eight in eights {
        // The first digit is in the lowest byte.
        let digits = u64::from_le_bytes(eight) ^ 0x3030_3030_3030_3030;
        if (digits | digits.wrapping_add(0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080 != 0 {
            return None;
        }
        // Combines neighbors into numbers of two, four and eight digits.
        let twos = (digits * 10 + (digits >> 8)) & 0x00ff_00ff_00ff_00ff;
        let fours = (twos * 100 + (twos >> 16)) & 0x0000_ffff_0000_ffff;
        let eight = (fours * 10_000 + (fours >> 32)) & 0xffff_ffff;
        number = number * 100_000_000 + eight;
    }
    for &byte in rest {
        let digit = byte ^ b'0';
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    number.try_into().ok()
}

/// The time range in which events are accepted: from `max_age` before now to `max_future` after now.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    max_age_nanos: i64,
    max_future_nanos: i64,
}

impl Window {
    /// Creates a window from these two limits. A limit beyond 292 years counts as unlimited.
    #[must_use]
    pub fn new(max_age: Duration, max_future: Duration) -> Self {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        Self { max_age_nanos: nanos(max_age), max_future_nanos: nanos(max_future) }
    }

    /// Returns an error if a timestamp is out of range. The timestamp and `now` are in nanoseconds since the epoch.
    pub const fn judge(&self, timestamp: i64, now: i64) -> Result<(), Rejection> {
        if timestamp < now.saturating_sub(self.max_age_nanos) {
            Err(Rejection::TooOld)
        } else if timestamp > now.saturating_add(self.max_future_nanos) {
            Err(Rejection::TooFarAhead)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The parser agrees with Rust's, except that it rejects a plus sign.
        #[test]
        fn numbers_are_read(
            text in prop_oneof!["-?[0-9]{1,20}", "[0-9]{0,18}[ -~][0-9]{0,18}", any::<i64>().prop_map(|number| number.to_string())],
        ) {
            let expected = text.parse().ok().filter(|_| !text.starts_with('+'));
            let expected = expected.ok_or(Rejection::TimestampInvalid).map(Some);
            prop_assert_eq!(Precision::Nanoseconds.read(&text), expected);
        }
    }

    #[test]
    fn non_digits_are_not_a_number() {
        for byte in (0..=255).filter(|byte: &u8| !byte.is_ascii_digit()) {
            assert_eq!(Precision::Nanoseconds.read_digits(&[byte; 8]), None);
            assert_eq!(Precision::Nanoseconds.read_digits(&[byte]), None);
        }
        assert_eq!(Precision::Nanoseconds.read_digits(b"9"), Some(9));
        assert_eq!(Precision::Microseconds.read_digits(b"999999999"), Some(999_999_999_000));
    }

    #[test]
    fn window_includes_both_ends() {
        let window = Window::new(Duration::from_nanos(100), Duration::from_nanos(10));
        let now = 1_000;
        assert_eq!(window.judge(900, now), Ok(()));
        assert_eq!(window.judge(899, now), Err(Rejection::TooOld));
        assert_eq!(window.judge(1_010, now), Ok(()));
        assert_eq!(window.judge(1_011, now), Err(Rejection::TooFarAhead));
    }

    #[test]
    fn an_unbounded_window_accepts_every_instant() {
        let window = Window::new(Duration::MAX, Duration::MAX);
        for timestamp in [-1_000_000_000_000_000_000, 0, i64::MAX] {
            assert_eq!(window.judge(timestamp, 1_480_876_707_352_348_928), Ok(()));
        }
    }
}
