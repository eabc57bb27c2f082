//! [`Minute`]: a minute in UTC, for which events are counted. Its name includes the date, so no two minutes share a key.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveDate, Timelike, Utc};
use serde::{Deserialize, Serialize};

const NANOS_PER_MINUTE: i64 = 60_000_000_000;
const MILLIS_PER_MINUTE: i64 = 60_000;
const MINUTES_PER_DAY: i64 = 1440;

/// A minute, counted from 1970-01-01T00:00Z. Its range is that of an `i64` of nanoseconds (1677-09-21 to 2262-04-11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "i64", into = "i64")]
pub struct Minute(i64);

impl Minute {
    /// The first minute in the range.
    pub const MIN: Self = Self::of_nanos(i64::MIN);
    /// The last minute in the range.
    pub const MAX: Self = Self::of_nanos(i64::MAX);

    /// Returns the minute that contains an instant, given in nanoseconds since the epoch.
    #[must_use]
    pub const fn of_nanos(nanos: i64) -> Self {
        Self(nanos.div_euclid(NANOS_PER_MINUTE))
    }

    /// Returns the minute with this number, counted from the epoch, or `None` if it is out of range.
    #[must_use]
    pub const fn from_epoch_minutes(minutes: i64) -> Option<Self> {
        let exists = Self::MIN.0 <= minutes && minutes <= Self::MAX.0;
        if exists { Some(Self(minutes)) } else { None }
    }

    /// Returns the number of minutes since the epoch.
    #[must_use]
    pub const fn epoch_minutes(self) -> i64 {
        self.0
    }

    /// Returns the minute that is this number of minutes later.
    pub(crate) fn after(self, minutes: u32) -> Self {
        Self::from_epoch_minutes(self.0 + i64::from(minutes)).unwrap_or(Self::MAX)
    }

    /// Returns the start of the minute in nanoseconds since the epoch; for [`Minute::MIN`], the smallest `i64`.
    #[must_use]
    pub const fn start_nanos(self) -> i64 {
        self.0.saturating_mul(NANOS_PER_MINUTE)
    }

    /// Returns the end of the minute (exclusive), in milliseconds since the epoch.
    pub(crate) const fn end_millis(self) -> i64 {
        (self.0 + 1) * MILLIS_PER_MINUTE
    }

    /// Returns the number of minutes since midnight UTC, from 0 to 1439.
    #[must_use]
    pub fn minutes_since_midnight(self) -> u16 {
        // This cannot fail, because the remainder is below 1440.
        u16::try_from(self.0.rem_euclid(MINUTES_PER_DAY)).unwrap_or_default()
    }

    /// Returns the earliest of these minutes, given by name; `None` if there are no names or the earliest one is invalid.
    pub(crate) fn earliest<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        let in_order = |name: &&'a str| {
            let (date, minute) = name.split_once(':').unwrap_or((name, ""));
            (date, minute.len(), minute)
        };
        names.into_iter().min_by_key(in_order)?.parse().ok()
    }

    /// Returns the name shown to people, such as `20161204:0007`, with four digits for the minute. It can also be parsed.
    pub(crate) fn shown(self) -> String {
        let minute = self.minutes_since_midnight();
        format!("{}:{minute:04}", self.start().format("%Y%m%d"))
    }

    fn start(self) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(self.start_nanos())
    }
}

impl TryFrom<i64> for Minute {
    type Error = &'static str;

    fn try_from(minutes: i64) -> Result<Self, Self::Error> {
        Self::from_epoch_minutes(minutes).ok_or("minute number out of range")
    }
}

impl From<Minute> for i64 {
    fn from(minute: Minute) -> Self {
        minute.0
    }
}

/// Formats the name used in keys, such as `20161204:7`: the date and the minutes since midnight, in UTC.
impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start().format("%Y%m%d"), self.minutes_since_midnight())
    }
}

/// The error for a name that is not a date followed by a minute of that day.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a minute; write the date and the minutes since midnight in UTC, such as 20161204:1118 for 18:38"
)]
pub struct ParseMinuteError(String);

impl FromStr for Minute {
    type Err = ParseMinuteError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let error = || ParseMinuteError(name.to_owned());
        let (date, minute) = name.split_once(':').ok_or_else(error)?;
        let date = NaiveDate::parse_from_str(date, "%Y%m%d").map_err(|_| error())?;
        let minute: u32 = minute.parse().map_err(|_| error())?;
        let start = date.and_hms_opt(minute / 60, minute % 60, 0).ok_or_else(error)?.and_utc();
        debug_assert_eq!(start.second(), 0);
        Self::from_epoch_minutes(start.timestamp().div_euclid(60)).ok_or_else(error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEED_NANOS: i64 = 1_480_876_707_352_348_928;

    #[test]
    fn the_seed_event_is_in_minute_1118() {
        let minute = Minute::of_nanos(SEED_NANOS);
        assert_eq!(minute.minutes_since_midnight(), 1118);
        assert_eq!(minute.to_string(), "20161204:1118");
        assert_eq!(minute.start_nanos(), 1_480_876_680_000_000_000);
    }

    #[test]
    fn midnight_begins_a_new_date() {
        let last = Minute::from_epoch_minutes(1440 * 17_139 - 1).unwrap();
        let first = Minute::from_epoch_minutes(1440 * 17_139).unwrap();
        assert_eq!(last.to_string(), "20161203:1439");
        assert_eq!(first.to_string(), "20161204:0");
        assert_eq!(first.shown(), "20161204:0000");
        assert_eq!("20161204:0000".parse(), Ok(first));
    }

    #[test]
    fn instants_before_the_epoch_round_down() {
        assert_eq!(Minute::of_nanos(-1).epoch_minutes(), -1);
        assert_eq!(Minute::of_nanos(-1).to_string(), "19691231:1439");
    }

    #[test]
    fn earliest_name_is_found_by_date_and_minute() {
        let earliest = |names: &[&str]| Minute::earliest(names.iter().copied());
        let minute = |name: &str| name.parse::<Minute>().ok();
        let names = ["20161205:0", "20161204:1118", "20161204:999", "20161204:1000"];
        assert_eq!(earliest(&names), minute("20161204:999"));
        assert_eq!(earliest(&names[..2]), minute("20161204:1118"));
        assert_eq!(earliest(&[]), None);
    }

    #[test]
    fn invalid_minute_names_are_refused() {
        for name in ["", "20161204", "20161204:1440", "20161304:0", "x:1", "20161204:-1"] {
            assert!(name.parse::<Minute>().is_err(), "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn a_name_parses_back(nanos: i64) {
            let minute = Minute::of_nanos(nanos);
            prop_assert_eq!(minute.to_string().parse::<Minute>().unwrap(), minute);
            prop_assert_eq!(minute.shown().parse::<Minute>().unwrap(), minute);
            prop_assert!(minute.minutes_since_midnight() < 1440);
        }
    }
}
