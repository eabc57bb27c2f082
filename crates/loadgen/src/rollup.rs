//! [`Rollup`]: which minutes form a window, and which series form a group, whose distinct users are counted together.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike as _};
use chrono_tz::Tz;

const MINUTES_PER_DAY: i64 = 1_440;

/// A rule that combines the users and events of several minutes, of several series, or both. It is written as a name and the
/// keys of `[[rollup]]` in the configuration, such as `products every=1day time_zone=Europe/Berlin by=product`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rollup {
    pub(super) suffix: String,
    every: Every,
    by: Vec<String>,
    without: Vec<String>,
    keep: Vec<String>,
    drop: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Every {
    Minutes(i64),
    Days(i64, Tz),
}

impl Every {
    fn new(text: &str, zone: Tz) -> Option<Self> {
        let seconds = humantime::parse_duration(text).ok().filter(|time| time.subsec_nanos() == 0);
        let seconds = i64::try_from(seconds?.as_secs()).ok().filter(|seconds| seconds % 60 == 0);
        match seconds? / 60 {
            MINUTES_PER_DAY => Some(Self::Days(1, zone)),
            10_080 => Some(Self::Days(7, zone)),
            minutes @ 1.. if MINUTES_PER_DAY % minutes == 0 => Some(Self::Minutes(minutes)),
            _ => None,
        }
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

impl Rollup {
    /// Returns windows of this many minutes, of groups with this tag or, if there is none, of every series.
    pub(super) fn of_minutes(minutes: i64, by: Option<&str>) -> Self {
        let by = by.into_iter().map(str::to_owned).collect();
        let [without, keep, drop] = Default::default();
        Self { suffix: String::new(), every: Every::Minutes(minutes), by, without, keep, drop }
    }

    /// Returns the first minute of the window with this minute. Minutes are counted from the epoch.
    pub(super) fn start(&self, minute: i64) -> i64 {
        match self.every {
            Every::Minutes(minutes) => minute - minute.rem_euclid(minutes),
            Every::Days(days, zone) => {
                let day = |minute: i64| {
                    let time = DateTime::from_timestamp(minute * 60, 0).unwrap_or_default();
                    i64::from(time.with_timezone(&zone).num_days_from_ce())
                };
                // Day 1 was a Monday.
                let first = day(minute) - (day(minute) - 1).rem_euclid(days);
                let (mut before, mut start) = (minute - (days + 1) * MINUTES_PER_DAY, minute);
                while start - before > 1 {
                    let middle = before.midpoint(start);
                    *(if day(middle) < first { &mut before } else { &mut start }) = middle;
                }
                start
            }
        }
    }

    /// Returns the group of a series, or `None` if the rollup does not count the series.
    pub(super) fn group(&self, series: &str) -> Option<String> {
        let has =
            |filters: &[String]| series.split(',').any(|tag| filters.iter().any(|one| one == tag));
        let is_counted = (self.keep.is_empty() || has(&self.keep)) && !has(&self.drop);
        is_counted.then(|| self.tags(series))
    }

    fn tags(&self, series: &str) -> String {
        let kept = |tag: &&str| self.has_tag(tag.split('=').next().unwrap_or_default());
        series.split(',').filter(kept).collect::<Vec<_>>().join(",")
    }

    fn has_tag(&self, key: &str) -> bool {
        let is_in = |keys: &[String]| keys.iter().any(|one| one == key);
        (self.by.is_empty() || is_in(&self.by)) && !is_in(&self.without)
    }

    fn has_all_tags(&self) -> bool {
        self.by.is_empty() && self.without.is_empty()
    }

    fn has_filters(&self) -> bool {
        !(self.keep.is_empty() && self.drop.is_empty())
    }

    /// Returns a function from a group of the other rollup to the group that contains it, if each window of the other rollup
    /// is part of a window of this one.
    pub(super) fn containing(&self, other: &Self) -> Option<fn(&Self, &str) -> Option<String>> {
        let are_windows_parts = match (other.every, self.every) {
            (Every::Minutes(part), Every::Minutes(whole)) => whole % part == 0,
            (Every::Minutes(part), Every::Days(_, zone)) => part == 1 || zone == Tz::UTC,
            (Every::Days(part, of_part), Every::Days(whole, zone)) => {
                whole % part == 0 && of_part == zone
            }
            (Every::Days(..), Every::Minutes(_)) => false,
        };
        let are_groups_parts = other.has_all_tags()
            || !self.by.is_empty() && self.by.iter().all(|key| other.has_tag(key))
            || other.by.is_empty() && other.without.iter().all(|key| !self.has_tag(key));
        if !(are_windows_parts && are_groups_parts) {
            None
        } else if self.keep == other.keep && self.drop == other.drop {
            // The filters have been applied, and their tags may be missing.
            Some(|whole, group| Some(whole.tags(group)))
        } else {
            (other.has_all_tags() && !other.has_filters()).then_some(Self::group)
        }
    }
}

impl FromStr for Rollup {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap_or_default();
        if name.is_empty() || name.contains('=') {
            return Err("expected a name, such as `hourly every=1h`".to_owned());
        }
        let mut keys = HashMap::new();
        for word in words {
            let (key, value) =
                word.split_once('=').ok_or(format!("expected KEY=VALUE: `{word}`"))?;
            keys.insert(key, value);
        }
        let zone = keys.remove("time_zone").unwrap_or("UTC");
        let zone = zone.parse().map_err(|_| format!("`{zone}` is not a time zone"))?;
        let every = keys.remove("every").unwrap_or("1h");
        let every = Every::new(every, zone)
            .ok_or(format!("`{every}` neither divides a day nor is one or seven days"))?;
        let suffix = keys.remove("suffix").map(str::to_owned);
        let mut list = |key| {
            let items = keys.remove(key).unwrap_or_default().split(',');
            items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
        };
        let [by, without, keep, drop] = ["by", "without", "keep", "drop"].map(&mut list);
        if let Some(key) = keys.keys().next() {
            return Err(format!("unknown key `{key}`"));
        }
        let mut rollup =
            Self { suffix: suffix.clone().unwrap_or_default(), every, by, without, keep, drop };
        if suffix.is_none() {
            let is_whole = rollup.has_all_tags() && !rollup.has_filters();
            rollup.suffix = if is_whole { format!("_{every}") } else { format!("_{name}") };
        }
        Ok(rollup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(time: &str) -> i64 {
        DateTime::parse_from_rfc3339(time).unwrap().timestamp() / 60
    }

    #[test]
    fn windows_begin_in_utc_or_with_a_day_of_the_time_zone() {
        for (rollup, start, last) in [
            ("a every=5m", "2026-11-26T03:00:00Z", "2026-11-26T03:04:00Z"),
            ("a", "2026-11-26T03:00:00Z", "2026-11-26T03:59:00Z"),
            ("a every=12h", "2026-11-26T12:00:00Z", "2026-11-26T23:59:00Z"),
            ("a every=1day", "2026-11-26T00:00:00Z", "2026-11-26T23:59:00Z"),
            (
                "a every=1day time_zone=Europe/Berlin",
                "2026-03-28T23:00:00Z",
                "2026-03-29T21:59:00Z",
            ),
            (
                "a every=1day time_zone=Europe/Berlin",
                "2026-10-24T22:00:00Z",
                "2026-10-25T22:59:00Z",
            ),
            (
                "a every=7days time_zone=Europe/Berlin",
                "2026-10-18T22:00:00Z",
                "2026-10-25T22:59:00Z",
            ),
            (
                "a every=1day time_zone=America/Asuncion",
                "2024-10-06T04:00:00Z",
                "2024-10-07T02:59:00Z",
            ),
        ] {
            let rollup: Rollup = rollup.parse().unwrap();
            let [start, last] = [start, last].map(minute);
            assert_eq!([start, last].map(|minute| rollup.start(minute)), [start; 2], "{rollup:?}");
            assert_eq!(rollup.start(last + 1), last + 1, "{rollup:?}");
        }
    }

    #[test]
    fn groups_have_the_chosen_tags_of_the_chosen_series() {
        let series = "event_type=x,host=h,product=p";
        for (rollup, group) in [
            ("a", Some(series)),
            ("a by=product,event_type", Some("event_type=x,product=p")),
            ("a by=other", Some("")),
            ("a without=host", Some("event_type=x,product=p")),
            ("a keep=host=g,host=h by=product", Some("product=p")),
            ("a keep=host=g", None),
            ("a drop=host=h", None),
            ("a drop=host=hh", Some(series)),
        ] {
            assert_eq!(
                rollup.parse::<Rollup>().unwrap().group(series).as_deref(),
                group,
                "{rollup}"
            );
        }
    }

    #[test]
    fn suffix_is_the_length_or_the_name() {
        for (rollup, suffix) in [
            ("a", "_1h"),
            ("a every=90s", "is not"),
            ("a every=7days suffix=_week", "_week"),
            ("a every=30m", "_30m"),
            ("a every=1day by=b", "_a"),
            ("a drop=b=c", "_a"),
            ("every=1h", "a name"),
            ("a every=7m", "neither"),
            ("a every=2days", "neither"),
            ("a time_zone=Berlin", "not a time zone"),
            ("a evry=1h", "unknown key `evry`"),
            ("a by", "KEY=VALUE"),
        ] {
            let found = rollup.parse::<Rollup>();
            let is_found = match &found {
                Ok(rollup) => rollup.suffix == suffix,
                Err(error) => error.contains(suffix) || suffix == "is not",
            };
            assert!(is_found, "{rollup}: {found:?}");
        }
    }

    #[test]
    fn rollups_that_contain_others_are_known() {
        for (whole, part, group) in [
            ("a every=12h", "b every=1h", Some("h=1,p=2")),
            ("a every=12h by=p", "b every=1h", Some("p=2")),
            (
                "a every=7days time_zone=Europe/Berlin",
                "b every=1day time_zone=Europe/Berlin",
                Some("h=1,p=2"),
            ),
            ("a every=1day time_zone=Europe/Berlin", "b every=1m", Some("h=1,p=2")),
            ("a every=1day time_zone=Asia/Kathmandu", "b every=1h", None),
            ("a every=1h", "b every=1day", None),
            ("a every=1h", "b every=45m", None),
            ("a by=p", "b without=h", Some("p=2")),
            ("a without=h", "b by=h", None),
            ("a by=p drop=h=1", "b drop=h=1", Some("p=2")),
            ("a drop=h=1", "b by=p", None),
            ("a drop=h=1", "b drop=h=2", None),
        ] {
            let [whole, part]: [Rollup; 2] = [whole, part].map(|text| text.parse().unwrap());
            let found = whole.containing(&part).and_then(|group| group(&whole, "h=1,p=2"));
            assert_eq!(found.as_deref(), group, "{whole:?} {part:?}");
        }
    }
}
