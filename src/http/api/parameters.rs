//! Parses request parameters. The functions are pure: the current time is passed as an argument.

use std::collections::BTreeMap;
use std::iter::successors;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::Query;
use axum::http::Uri;
use chrono::DateTime;

use crate::event::{Every, Minute, Partition, Partitions, tags};
use crate::http::problem::Problem;

pub(super) const QUERY_BYTES_MAX: usize = 2048;
pub(super) const TAGS_MAX: usize = 8;
/// Maximum total length of all tags in bytes. It is limited because the tags are part of the key of a list.
pub(super) const TAGS_BYTES_MAX: usize = 400;
pub(super) const ITEMS_MAX: usize = 100;

const RESERVED: [&str; 8] = ["rollup", "from", "to", "by", "window", "n", "position", "list"];
/// The default length of a range, in minutes or windows of a rollup.
const WINDOW_DEFAULT: i64 = 15;
/// Maximum length of a range in windows of a rollup.
const WINDOWS_MAX: i64 = 1440;
const ITEMS_DEFAULT: usize = 5;

pub(super) type Filter = BTreeMap<String, String>;

pub(super) fn matches(filter: &Filter, series: &str) -> bool {
    if filter.is_empty() {
        return true;
    }
    let has = tags(series);
    filter.iter().all(|(key, value)| has.iter().any(|(k, v)| k == key && v == value))
}

/// The subject of the requested counts: minutes, or the windows of a rollup.
#[derive(Debug)]
pub(super) struct Counted {
    /// The name of the rollup; `None` for minutes.
    pub(super) rollup: Option<String>,
    pub(super) every: Every,
    pub(super) partitions: Vec<Partition>,
}

impl Counted {
    fn new(partitions: &Partitions, rollup: Option<&str>) -> Result<Self, Problem> {
        let Some(name) = rollup else {
            let partitions = partitions.iter().collect();
            return Ok(Self { rollup: None, every: Every::MINUTE, partitions });
        };
        let named = partitions.rollups().find(|(_, rollup)| rollup.name == name);
        let (partition, rollup) = named.ok_or_else(|| {
            no_rollup(partitions, &format!("`{name}` is not the name of a rollup"))
        })?;
        let (rollup, every) = (Some(rollup.name.clone()), rollup.every);
        Ok(Self { rollup, every, partitions: vec![partition] })
    }
}

/// Returns the error for a missing or unknown rollup.
pub(super) fn no_rollup(partitions: &Partitions, why: &str) -> Problem {
    let known: Vec<_> = partitions.rollups().map(|(_, rollup)| &*rollup.name).collect();
    let known = match &known[..] {
        [] => "no rollups are configured".to_owned(),
        known => format!("use one of: {}", known.join(", ")),
    };
    Problem::parameter("rollup", format!("{why}; {known}"))
}

/// A range of minutes since the epoch, whose end is exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Range {
    pub(super) const ALL: Self = Self { from: i64::MIN, to: i64::MAX };

    /// Returns the last minute of each window that begins in the range.
    pub(super) fn windows(self, every: Every) -> impl Iterator<Item = Minute> {
        let last = move |number| Some(every.window(Minute::from_epoch_minutes(number)?)[1]);
        let windows = successors(last(self.from), move |at| last(at.epoch_minutes() + 1));
        windows
            .skip_while(move |minute| start(every, minute.epoch_minutes()) < self.from)
            .take_while(move |minute| start(every, minute.epoch_minutes()) < self.to)
    }

    /// Returns whether the window with this minute begins in the range.
    pub(super) fn has(self, every: Every, minute: Minute) -> bool {
        (self.from..self.to).contains(&start(every, minute.epoch_minutes()))
    }

    /// Returns the range of the last windows that ended before `now`, in seconds, with this total length in minutes.
    pub(super) fn before(now: i64, minutes: i64, every: Every) -> Self {
        let to = start(every, now.div_euclid(60));
        let windows = 0..minutes / every.minutes();
        Self { from: windows.fold(to, |from, _| start(every, from - 1)), to }
    }
}

/// Returns the first minute of the window with this minute.
pub(super) fn start(every: Every, number: i64) -> i64 {
    let window = Minute::from_epoch_minutes(number).map(|minute| every.window(minute));
    window.map_or(number, |[start, _]| start.epoch_minutes())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Unique,
    Cumulative,
}

impl By {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Unique => "unique",
            Self::Cumulative => "cumulative",
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Top {
    pub(super) by: By,
    pub(super) window: i64,
    pub(super) n: usize,
    pub(super) filter: Filter,
    pub(super) position: Option<usize>,
    pub(super) list: Option<String>,
    pub(super) counted: Arc<Counted>,
}

impl Top {
    /// Returns a key that identifies the list. Versions with different list formats must use different keys.
    pub(super) fn key(&self) -> String {
        let tags = serde_json::to_string(&self.filter).unwrap_or_default();
        let rollup = self.counted.rollup.as_ref();
        let rollup = rollup.map_or_else(String::new, |name| format!("rollup:{name}:"));
        format!("ranked:{rollup}{}:{}:{}:{tags}", self.by.word(), self.window, self.n)
    }
}

#[derive(Debug)]
pub(super) struct Parameters {
    known: BTreeMap<&'static str, String>,
    pub(super) filter: Filter,
    pub(super) counted: Counted,
    window_max: i64,
}

impl Parameters {
    /// Parses the query string of a URI. Names in `allowed` are parameters; all others are tags. `window_max` is the maximum
    /// length of a range of minutes; ranges of windows have a different limit.
    pub(super) fn read(
        uri: &Uri,
        allowed: &[&'static str],
        partitions: &Partitions,
        window_max: i64,
    ) -> Result<Self, Problem> {
        let bytes = uri.query().map_or(0, str::len);
        if bytes > QUERY_BYTES_MAX {
            let detail = format!(
                "the query is {bytes} bytes long, which exceeds the limit of {QUERY_BYTES_MAX}; shorten it"
            );
            return Err(Problem::too_much(detail));
        }
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::parameter("", error.to_string()))?;
        let (mut known, mut filter) = (BTreeMap::new(), Filter::new());
        for (key, value) in pairs {
            let replaced = if let Some(name) = allowed.iter().find(|name| **name == key) {
                known.insert(*name, value)
            } else if RESERVED.contains(&&*key) {
                let detail = format!(
                    "`{key}` is not a parameter of this path; remove it, or use `tag.{key}` for the tag with that name"
                );
                return Err(Problem::parameter(&key, detail));
            } else {
                let tag = key.strip_prefix("tag.").unwrap_or(&key);
                if tag.is_empty() {
                    return Err(Problem::parameter(&key, "a tag has no name; use `<tag>=<value>`"));
                }
                filter.insert(tag.to_owned(), value)
            };
            if replaced.is_some() {
                let detail = format!("`{key}` is given more than once; use it only once");
                return Err(Problem::parameter(&key, detail));
            }
        }
        let (tags, bytes) =
            (filter.len(), filter.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>());
        if tags > TAGS_MAX || bytes > TAGS_BYTES_MAX {
            let detail = format!(
                "the query has {tags} tags ({bytes} bytes in total), but the limits are {TAGS_MAX} tags and {TAGS_BYTES_MAX} bytes; use fewer tags"
            );
            return Err(Problem::too_much(detail));
        }
        let counted = Counted::new(partitions, known.get("rollup").map(String::as_str))?;
        let window_max = match counted.rollup {
            None => window_max,
            Some(_) => WINDOWS_MAX * counted.every.minutes(),
        };
        Ok(Self { known, filter, counted, window_max })
    }

    /// Returns an error with this detail if the request contains tags.
    pub(super) fn without_tags(self, detail: &str) -> Result<Self, Problem> {
        match self.filter.keys().next() {
            Some(tag) => Err(Problem::parameter(tag, detail)),
            None => Ok(self),
        }
    }

    /// Returns the default length of a range in minutes.
    fn window_default(&self) -> i64 {
        (WINDOW_DEFAULT * self.counted.every.minutes()).min(self.window_max)
    }

    fn parsed<T>(
        &self,
        name: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Problem> {
        let parsed = self.known.get(name).map(|text| {
            parse(text).map_err(|reason| Problem::parameter(name, format!("`{text}` is {reason}")))
        });
        parsed.transpose()
    }

    /// Returns the time given by a parameter in milliseconds since the epoch, or `None` if the parameter is missing.
    fn instant(&self, name: &'static str) -> Result<Option<i64>, Problem> {
        self.parsed(name, |text| {
            let seconds = text.parse::<i64>().ok();
            let at = seconds.and_then(|seconds| DateTime::from_timestamp(seconds, 0));
            let at = at.or_else(|| Some(DateTime::parse_from_rfc3339(text).ok()?.to_utc()));
            let millis = at.map(|at| at.timestamp_millis());
            let in_range =
                |millis: &i64| Minute::from_epoch_minutes(millis.div_euclid(60_000)).is_some();
            millis.filter(in_range).ok_or_else(|| {
                "not a time; use 2016-12-04T18:38:00Z or seconds since the epoch (and encode a plus sign as %2B)".to_owned()
            })
        })
    }

    /// Returns the minutes that begin between the parameters `from` and `to`, or by default the latest minutes.
    pub(super) fn range(&self, now: i64) -> Result<Range, Problem> {
        let to = self.instant("to")?.unwrap_or(now.saturating_mul(1000));
        let from = self.instant("from")?;
        let from = from.unwrap_or(to - self.window_default() * 60_000);
        if from >= to {
            let detail = "`from` must be before `to`, which defaults to now";
            return Err(Problem::parameter("from", detail));
        }
        let first_from = |millis: i64| -(-millis).div_euclid(60_000);
        let range = Range { from: first_from(from), to: first_from(to) };
        let (minutes, most) = (range.to - range.from, self.window_max);
        if minutes > most {
            let detail = format!(
                "the range spans {minutes} minutes, which exceeds the limit of {most}; use a shorter range"
            );
            return Err(Problem::parameter("from", detail));
        }
        Ok(range)
    }

    /// Returns the parameter `window` in minutes, or its default.
    pub(super) fn window(&self) -> Result<i64, Problem> {
        let window = self.parsed("window", |text| {
            let window: Duration = humantime::parse_duration(text)
                .map_err(|_| "not a duration; use a value such as 15m or 1h".to_owned())?;
            let is_whole = window.subsec_nanos() == 0 && window.as_secs().is_multiple_of(60);
            if !is_whole || window.is_zero() {
                return Err("not a whole number of minutes above 0; use a value such as 15m or 1h"
                    .to_owned());
            }
            let minutes = i64::try_from(window.as_secs() / 60).unwrap_or(i64::MAX);
            if minutes > self.window_max {
                return Err(format!("longer than the maximum of {}m", self.window_max));
            }
            if minutes % self.counted.every.minutes() != 0 {
                return Err(format!(
                    "not a multiple of {}, the length of a window",
                    self.counted.every
                ));
            }
            Ok(minutes)
        })?;
        Ok(window.unwrap_or(self.window_default()))
    }

    fn number(
        &self,
        name: &'static str,
        range: RangeInclusive<usize>,
    ) -> Result<Option<usize>, Problem> {
        self.parsed(name, |text| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            let (least, most) = (range.start(), range.end());
            number.ok_or_else(|| format!("not a whole number from {least} to {most}"))
        })
    }

    pub(super) fn top(self) -> Result<Top, Problem> {
        let by = self.parsed("by", |text| match text {
            "cumulative" => Ok(By::Cumulative),
            "unique" => Ok(By::Unique),
            _ => Err("not a valid order; use unique or cumulative".to_owned()),
        })?;
        let list = self.parsed("list", |id| {
            let is_id =
                (1..=20).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_digit());
            let reason = || "not a list ID; use `list.id` from a response".to_owned();
            is_id.then(|| id.to_owned()).ok_or_else(reason)
        })?;
        let n = self.number("n", 1..=ITEMS_MAX)?.unwrap_or(ITEMS_DEFAULT);
        Ok(Top {
            by: by.unwrap_or(By::Cumulative),
            window: self.window()?,
            n,
            position: self.number("position", 0..=n - 1)?,
            list,
            filter: self.filter,
            counted: Arc::new(self.counted),
        })
    }
}

#[cfg(test)]
mod tests;
