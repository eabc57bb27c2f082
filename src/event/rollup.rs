//! [`Rollup`]: which minutes form a window, and which series form a group, whose distinct users are counted together.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use chrono::{Datelike as _, Days, NaiveDate, TimeZone as _, Utc};
use chrono_tz::Tz;

use super::scan::{escaped_tags, tags};
use super::{Minute, OVERFLOW_TAG};

const MINUTES_PER_DAY: i64 = 1440;

/// A rule that combines the users and events of several minutes, of several series, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    /// The name, unique among the rollups: 1 to 32 characters from `a-z 0-9 _ -`.
    pub name: String,
    /// The length of a window.
    pub every: Every,
    /// The tags that distinguish groups.
    pub tags: Tags,
    /// If not empty, only series that match one of these filters are counted.
    pub keep: Vec<TagFilter>,
    /// Series that match one of these filters are not counted.
    pub drop: Vec<TagFilter>,
    /// How much of a window is counted exactly.
    pub limits: RollupLimits,
    /// The suffix of the names of the measurements.
    pub suffix: Arc<str>,
}

/// How much of a window is counted exactly. Beyond it, the number of users of a group is an estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RollupLimits {
    /// The maximum number of users per group.
    pub users_max: u64,
    /// The maximum number of groups. The users and events of further groups are counted in [`OVERFLOW_GROUP`].
    pub groups_max: usize,
    /// The maximum memory for the users of all groups, in bytes. Beyond it, the largest groups are estimated.
    pub bytes_max: u64,
}

/// The group of the series beyond the limit on groups.
pub const OVERFLOW_GROUP: &str = "eds_overflow=groups";

/// The relative standard error of an estimated number of users.
pub const ESTIMATE_ERROR: f64 = 0.0081;

/// How the numbers of a window may differ from the true ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quality {
    /// Whether the number of users is an estimate with the relative standard error [`ESTIMATE_ERROR`].
    pub is_estimated: bool,
    /// Whether the store has lost data since the window began, so that users and events may be missing.
    pub is_incomplete: bool,
}

impl Quality {
    /// Splits counts as they are stored into their quality and the rest.
    pub(crate) fn split(counts: &str) -> (Self, &str) {
        let rest = counts.trim_start_matches(['~', '!']);
        let marks = &counts[..counts.len() - rest.len()];
        (Self { is_estimated: marks.contains('~'), is_incomplete: marks.contains('!') }, rest)
    }
}

impl fmt::Display for Quality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_estimated { "~" } else { "" })?;
        f.write_str(if self.is_incomplete { "!" } else { "" })
    }
}

/// The length of a window: a divisor of a day, aligned to UTC, or whole days of a time zone. Weeks begin on Monday.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// This number of minutes, which divides a day.
    Minutes(i64),
    /// This number of days, 1 or 7. With a change to or from daylight saving time, a day has 23 or 25 hours.
    Days(u64, Tz),
}

/// The tags of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tags {
    /// All tags of the series.
    #[default]
    All,
    /// Only the tags with these keys.
    By(Vec<String>),
    /// All tags except those with these keys.
    Without(Vec<String>),
}

/// Matches series with this tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagFilter {
    key: String,
    value: String,
}

impl TagFilter {
    /// Returns the filter for `KEY=VALUE`, or `None` if either is empty.
    #[must_use]
    pub fn new(tag: &str) -> Option<Self> {
        let (key, value) = tag.split_once('=')?;
        let is_valid = !key.is_empty() && !value.is_empty();
        is_valid.then(|| Self { key: key.to_owned(), value: value.to_owned() })
    }
}

impl Every {
    /// The length of a minute, which is a window of one minute.
    pub const MINUTE: Self = Self::Minutes(1);

    /// Returns the windows of this length, or `None` if it neither divides a day nor is one or seven days.
    #[must_use]
    pub fn new(length: Duration, zone: Tz) -> Option<Self> {
        let minutes = i64::try_from(length.as_secs()).ok()? / 60;
        let is_whole = length == Duration::from_secs(minutes.unsigned_abs() * 60);
        match minutes {
            MINUTES_PER_DAY => Some(Self::Days(1, zone)),
            10_080 => Some(Self::Days(7, zone)),
            1.. => (MINUTES_PER_DAY % minutes == 0).then_some(Self::Minutes(minutes)),
            _ => None,
        }
        .filter(|_| is_whole)
    }

    /// Returns the maximum number of minutes in a window.
    #[must_use]
    pub const fn longest(self) -> i64 {
        match self {
            Self::Minutes(minutes) => minutes,
            // On one of the days, the clock may be set back, by at most two hours.
            Self::Days(..) => self.minutes() + 120,
        }
    }

    /// Returns the number of minutes in a window, if daylight saving time does not change.
    #[must_use]
    pub const fn minutes(self) -> i64 {
        match self {
            Self::Minutes(minutes) => minutes,
            Self::Days(days, _) => days.cast_signed() * MINUTES_PER_DAY,
        }
    }

    /// Returns the time zone whose days these are; UTC if a window is shorter than a day.
    #[must_use]
    pub const fn zone(self) -> Tz {
        match self {
            Self::Minutes(_) => Tz::UTC,
            Self::Days(_, zone) => zone,
        }
    }

    /// Returns the first and the last minute of the window with this minute.
    #[must_use]
    pub fn window(self, minute: Minute) -> [Minute; 2] {
        let number = minute.epoch_minutes();
        let [start, end] = match self {
            Self::Minutes(minutes) => {
                let start = number.div_euclid(minutes) * minutes;
                [start, start + minutes]
            }
            Self::Days(days, zone) => days_with(number, days, zone),
        };
        [start, end - 1].map(|number| Minute::from_epoch_minutes(number).unwrap_or(minute))
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Minutes(minutes) if minutes % 60 == 0 => write!(f, "{}h", minutes / 60),
            Self::Minutes(minutes) => write!(f, "{minutes}m"),
            Self::Days(days, _) => write!(f, "{days}d"),
        }
    }
}

/// Returns the first minute of the days in a time zone that contain this minute, and the first minute after them.
fn days_with(number: i64, days: u64, zone: Tz) -> [i64; 2] {
    let date_of = |number: i64| {
        let time = Utc.timestamp_opt(number * 60, 0).single().unwrap_or_default();
        time.with_timezone(&zone).date_naive()
    };
    let first_of = |date: NaiveDate| {
        let past_monday = u64::from(date.weekday().num_days_from_monday()) % days;
        date.checked_sub_days(Days::new(past_monday)).unwrap_or(date)
    };
    let (date, length) = (first_of(date_of(number)), Days::new(days));
    let [before, after] = [date.checked_sub_days(length), date.checked_add_days(length)]
        .map(|day| day.unwrap_or(date));
    let afterwards = after.checked_add_days(length).unwrap_or(after);
    // With an offset that is not a whole number of minutes, as before 1972, a day begins within a minute.
    let days = [before, date, after, afterwards].map(|day| start_of(day, zone));
    let current = days.windows(2).find(|days| (days[0]..days[1]).contains(&number));
    current.map_or([number, number + 1], |days| [days[0], days[1]])
}

/// Returns the minute in which a day begins. In some time zones, daylight saving time begins at midnight, which is skipped.
fn start_of(date: NaiveDate, zone: Tz) -> i64 {
    let midnight = date.and_time(chrono::NaiveTime::MIN);
    let mut times =
        (0..=4).map(|half_hours| midnight + chrono::TimeDelta::minutes(30 * half_hours));
    let first = times.find_map(|time| zone.from_local_datetime(&time).earliest());
    first.map_or_else(|| midnight.and_utc().timestamp(), |time| time.timestamp()).div_euclid(60)
}

impl fmt::Display for Rollup {
    /// Writes the rollup in a canonical form, so that nodes can compare their rollups.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, every, tags, keep, drop, limits, suffix } = self;
        let RollupLimits { users_max, groups_max, bytes_max } = limits;
        let zone = every.zone();
        let filters = |filters: &[TagFilter]| {
            let all = filters.iter().map(|TagFilter { key, value }| format!("{key}={value}"));
            all.collect::<Vec<_>>().join(",")
        };
        let (by, without) = match tags {
            Tags::All => (String::new(), String::new()),
            Tags::By(keys) => (keys.join(","), String::new()),
            Tags::Without(keys) => (String::new(), keys.join(",")),
        };
        let (keep, drop) = (filters(keep), filters(drop));
        write!(
            f,
            "{name} every={every} zone={zone} by={by} without={without} keep={keep} drop={drop} users_max={users_max} groups_max={groups_max} memory_max={bytes_max} suffix={suffix}"
        )
    }
}

impl Rollup {
    /// Returns whether a rollup counts the same groups with the same limits, although possibly in longer windows.
    pub(crate) fn has_groups_of(&self, other: &Self) -> bool {
        let Self { tags, keep, drop, limits, .. } = self;
        (tags, keep, drop, limits) == (&other.tags, &other.keep, &other.drop, &other.limits)
    }

    /// Returns the group of a series, or `None` if the rollup does not count the series. Overflow series are not grouped.
    #[must_use]
    pub fn group<'a>(&self, series: &'a str) -> Option<Cow<'a, str>> {
        let tags = tags(series);
        let has = |TagFilter { key, value }: &TagFilter| {
            tags.iter().any(|(tag, text)| tag == key && text == value)
        };
        if self.drop.iter().any(has) || !(self.keep.is_empty() || self.keep.iter().any(has)) {
            return None;
        }
        let is_overflow = tags.first().is_some_and(|(key, _)| key == OVERFLOW_TAG);
        let (keys, are_kept) = match &self.tags {
            Tags::By(keys) if !is_overflow => (keys, true),
            Tags::Without(keys) if !is_overflow => (keys, false),
            _ => return Some(Cow::Borrowed(series)),
        };
        let kept = escaped_tags(series).zip(&tags);
        let kept = kept.filter(|(_, (key, _))| keys.contains(key) == are_kept);
        let kept: Vec<_> = kept.map(|(tag, _)| tag).collect();
        Some(Cow::Owned(kept.join(",")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn minute(time: &str) -> Minute {
        let time = chrono::DateTime::parse_from_rfc3339(time).unwrap();
        Minute::from_epoch_minutes(time.timestamp() / 60).unwrap()
    }

    #[test]
    fn windows_begin_at_multiples_of_their_length_in_utc() {
        for (every, start, last) in [
            (60, "2026-11-26T03:00:00Z", "2026-11-26T03:00:00Z"),
            (300, "2026-11-26T03:00:00Z", "2026-11-26T03:04:00Z"),
            (3600, "2026-11-26T03:00:00Z", "2026-11-26T03:59:00Z"),
            (43_200, "2026-11-26T00:00:00Z", "2026-11-26T11:59:00Z"),
        ] {
            let every = Every::new(Duration::from_secs(every), Tz::Europe__Berlin).unwrap();
            let [start, last] = [start, last].map(minute);
            assert_eq!(every.window(start), [start, last], "{every}");
            assert_eq!(every.window(last), [start, last], "{every}");
        }
    }

    #[test]
    fn days_follow_the_time_zone_and_daylight_saving_time() {
        let day = Duration::from_secs(86_400);
        for (zone, days, start, last) in [
            (Tz::UTC, 1, "2026-11-26T00:00:00Z", "2026-11-26T23:59:00Z"),
            (Tz::Europe__Berlin, 1, "2026-03-28T23:00:00Z", "2026-03-29T21:59:00Z"),
            (Tz::Europe__Berlin, 1, "2026-10-24T22:00:00Z", "2026-10-25T22:59:00Z"),
            (Tz::Europe__Berlin, 7, "2026-10-18T22:00:00Z", "2026-10-25T22:59:00Z"),
            (Tz::Asia__Kathmandu, 1, "2026-11-25T18:15:00Z", "2026-11-26T18:14:00Z"),
            // Midnight is skipped on the first day of daylight saving time.
            (Tz::America__Asuncion, 1, "2024-10-06T04:00:00Z", "2024-10-07T02:59:00Z"),
        ] {
            let every = Every::new(day * days, zone).unwrap();
            let [start, last] = [start, last].map(minute);
            assert_eq!(every.window(start), [start, last], "{zone}");
            assert_eq!(every.window(last), [start, last], "{zone}");
        }
    }

    #[test]
    fn only_divisors_of_a_day_and_whole_days_are_windows() {
        for seconds in [0, 30, 61, 90, 420, 172_800, 100_000_000] {
            assert_eq!(Every::new(Duration::from_secs(seconds), Tz::UTC), None, "{seconds}");
        }
        let texts = [60, 300, 3600, 43_200, 86_400, 604_800]
            .map(|seconds| Every::new(Duration::from_secs(seconds), Tz::UTC).unwrap().to_string());
        assert_eq!(texts, ["1m", "5m", "1h", "12h", "1d", "7d"]);
    }

    fn rollup(tags: Tags, keep: &[&str], drop: &[&str]) -> Rollup {
        let filters = |all: &[&str]| all.iter().filter_map(|tag| TagFilter::new(tag)).collect();
        Rollup {
            name: "r".to_owned(),
            every: Every::Minutes(60),
            tags,
            keep: filters(keep),
            drop: filters(drop),
            limits: RollupLimits { users_max: 1, groups_max: 9, bytes_max: 8 },
            suffix: "_1h".into(),
        }
    }

    #[test]
    fn groups_have_the_chosen_tags() {
        let keys = |keys: &[&str]| keys.iter().map(ToString::to_string).collect();
        let by = rollup(Tags::By(keys(&["product", "a b"])), &[], &[]);
        let without = rollup(Tags::Without(keys(&["host"])), &[], &[]);
        for (series, grouped, rest) in [
            ("event_type=x,host=h,product=p", "product=p", "event_type=x,product=p"),
            ("host=h", "", ""),
            (
                r"a\ b=1\,product\=2,host=h,product=p\ q",
                r"a\ b=1\,product\=2,product=p\ q",
                r"a\ b=1\,product\=2,product=p\ q",
            ),
            (
                "eds_overflow=series,partition=3",
                "eds_overflow=series,partition=3",
                "eds_overflow=series,partition=3",
            ),
        ] {
            assert_eq!(by.group(series).unwrap(), grouped, "{series}");
            assert_eq!(without.group(series).unwrap(), rest, "{series}");
        }
        assert_eq!(rollup(Tags::All, &[], &[]).group("a=1,b=2").unwrap(), "a=1,b=2");
    }

    #[test]
    fn filters_choose_series_by_tag_value() {
        let kept = rollup(Tags::All, &["product=a b", "product=c"], &["host=x=y"]);
        for (series, is_kept) in [
            (r"product=a\ b", true),
            ("host=z,product=c", true),
            (r"host=x\=y,product=c", false),
            ("product=d", false),
            ("product=cc", false),
        ] {
            assert_eq!(kept.group(series).is_some(), is_kept, "{series}");
        }
    }

    proptest! {
        /// Every minute is in exactly one window, whatever the time zone.
        #[test]
        fn windows_are_contiguous(number in -100_000_000_i64..100_000_000, zone in prop::sample::select(&chrono_tz::TZ_VARIANTS[..]), days in prop::sample::select(vec![1, 7])) {
            let every = Every::Days(days, zone);
            let minute = Minute::from_epoch_minutes(number).unwrap();
            let [start, last] = every.window(minute);
            prop_assert!(start <= minute && minute <= last, "{:?} {:?}", start, last);
            let [before, after] = [start.epoch_minutes() - 1, last.epoch_minutes() + 1].map(|number| Minute::from_epoch_minutes(number).unwrap());
            prop_assert_eq!(every.window(before)[1], before);
            prop_assert_eq!(every.window(after)[0], after);
            prop_assert_eq!(every.window(start), [start, last]);
        }

        /// The load generator computes windows in a different way. Until 2011, a date could begin twice in some time zones.
        #[test]
        fn windows_are_those_of_the_load_generator(number in 22_100_000_i64..40_000_000, zone in prop::sample::select(&chrono_tz::TZ_VARIANTS[..]), days in prop::sample::select(vec![1, 7])) {
            let start = Every::Days(days, zone).window(Minute::from_epoch_minutes(number).unwrap())[0];
            let rollup = format!("a every={days}days time_zone={zone} suffix=_window").parse().unwrap();
            let mut expected = loadgen::Expected::with_rollups(vec![rollup]);
            expected.add(format!("a=1 value=x {}", number * 60_000_000_000).as_bytes()).unwrap();
            expected.confirm();
            let point = format!("cumulative_user_event_window,a=1 value=1 {}", start.start_nanos());
            prop_assert!(expected.lines().unwrap().lines().any(|line| line == point), "{}", point);
        }
    }
}
