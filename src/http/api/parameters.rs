//! Parses the parameters of a request into types that are always valid. Pure: the time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Query;
use axum::http::Uri;
use chrono::{DateTime, Utc};

use crate::event::{Minute, tags};
use crate::http::problem::Problem;

/// The longest query string, in bytes.
pub(super) const QUERY_BYTES_MAX: usize = 2048;
/// The most tags that a request may ask for.
pub(super) const TAGS_MAX: usize = 8;
/// The maximum bytes of all tags together, which are a component of a key.
pub(super) const TAGS_BYTES_MAX: usize = 400;
/// The longest list.
pub(super) const ITEMS_MAX: usize = 100;

const RESERVED: [&str; 7] = ["from", "to", "by", "window", "n", "position", "list"];
const WINDOW_DEFAULT: i64 = 15;
const ITEMS_DEFAULT: usize = 5;

/// The tags that a series must have.
pub(super) type Filter = BTreeMap<String, String>;

/// Whether the series has all these tags.
pub(super) fn matches(filter: &Filter, series: &str) -> bool {
    if filter.is_empty() {
        return true;
    }
    let has = tags(series);
    filter.iter().all(|(key, value)| has.iter().any(|(k, v)| k == key && v == value))
}

/// Minutes: the first is in, the last is out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Range {
    pub(super) fn minutes(self) -> impl Iterator<Item = Minute> {
        (self.from..self.to).filter_map(Minute::from_epoch_minutes)
    }

    /// Returns the last complete minutes.
    pub(super) fn before(now: i64, minutes: i64) -> Self {
        let to = now.div_euclid(60);
        Self { from: to - minutes, to }
    }
}

/// The order of a list.
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

/// A request for a list or an item of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Top {
    pub(super) by: By,
    /// Minutes.
    pub(super) window: i64,
    pub(super) n: usize,
    pub(super) filter: Filter,
    pub(super) position: Option<usize>,
    pub(super) list: Option<String>,
}

impl Top {
    /// Returns the identity of the list. It differs between versions whose lists differ in form.
    pub(super) fn key(&self) -> String {
        let tags = serde_json::to_string(&self.filter).unwrap_or_default();
        format!("greatest:{}:{}:{}:{tags}", self.by.word(), self.window, self.n)
    }
}

/// The parameters of a request, each once.
#[derive(Debug)]
pub(super) struct Parameters {
    known: BTreeMap<&'static str, String>,
    pub(super) filter: Filter,
    window_max: i64,
}

impl Parameters {
    /// Reads a query string that may have these parameters; all others are tags. `window_max` is in minutes.
    pub(super) fn read(
        uri: &Uri,
        allowed: &[&'static str],
        window_max: i64,
    ) -> Result<Self, Problem> {
        let bytes = uri.query().map_or(0, str::len);
        if bytes > QUERY_BYTES_MAX {
            let detail =
                format!("the query has {bytes} bytes, more than {QUERY_BYTES_MAX}; ask for less");
            return Err(Problem::too_much(detail));
        }
        let Query(pairs) = Query::<Vec<(String, String)>>::try_from_uri(uri)
            .map_err(|error| Problem::parameter("", error.to_string()))?;
        let (mut known, mut filter) = (BTreeMap::new(), Filter::new());
        for (key, value) in pairs {
            let twice = || format!("`{key}` is there twice; give it once");
            if let Some(name) = allowed.iter().find(|name| **name == key) {
                if known.insert(*name, value).is_some() {
                    return Err(Problem::parameter(&key, twice()));
                }
                continue;
            }
            if RESERVED.contains(&&*key) {
                let detail = format!(
                    "`{key}` means nothing here; leave it out, or write `tag.{key}` for the tag of that name"
                );
                return Err(Problem::parameter(&key, detail));
            }
            let tag = key.strip_prefix("tag.").unwrap_or(&key).to_owned();
            if tag.is_empty() {
                return Err(Problem::parameter(&key, "a tag has a name; write `<tag>=<value>`"));
            }
            if filter.insert(tag, value).is_some() {
                return Err(Problem::parameter(&key, twice()));
            }
        }
        let bytes: usize = filter.iter().map(|(k, v)| k.len() + v.len()).sum();
        if filter.len() > TAGS_MAX || bytes > TAGS_BYTES_MAX {
            let detail = format!(
                "{} tags with {bytes} bytes are more than {TAGS_MAX} with {TAGS_BYTES_MAX}; ask by fewer tags",
                filter.len()
            );
            return Err(Problem::too_much(detail));
        }
        Ok(Self { known, filter, window_max })
    }

    /// The filter, which must be empty.
    pub(super) fn without_tags(self, detail: &str) -> Result<Filter, Problem> {
        match self.filter.keys().next() {
            Some(tag) => Err(Problem::parameter(tag, detail)),
            None => Ok(self.filter),
        }
    }

    fn instant(&self, name: &'static str) -> Result<Option<i64>, Problem> {
        let Some(text) = self.known.get(name) else {
            return Ok(None);
        };
        let millis = |at: DateTime<Utc>| at.timestamp_millis();
        let seconds = text.parse::<i64>().ok();
        let parsed = seconds
            .and_then(|seconds| DateTime::from_timestamp(seconds, 0))
            .map(millis)
            .or_else(|| Some(millis(DateTime::parse_from_rfc3339(text).ok()?.to_utc())));
        let in_range =
            |millis: &i64| Minute::from_epoch_minutes(millis.div_euclid(60_000)).is_some();
        parsed.filter(in_range).map(Some).ok_or_else(|| {
            let detail = format!(
                "`{text}` is no instant; write 2016-12-04T18:38:00Z or seconds since the epoch (and a plus as %2B)"
            );
            Problem::parameter(name, detail)
        })
    }

    /// `from` and `to`; `now` is in seconds since the epoch.
    pub(super) fn range(&self, now: i64) -> Result<Range, Problem> {
        let to = self.instant("to")?.unwrap_or(now.saturating_mul(1000));
        let from = self.instant("from")?;
        let from = from.unwrap_or(to - WINDOW_DEFAULT.min(self.window_max) * 60_000);
        if from >= to {
            return Err(Problem::parameter(
                "from",
                "`from` must be before `to`, which is now when it is left out",
            ));
        }
        let first_from = |millis: i64| -(-millis).div_euclid(60_000);
        let range = Range { from: first_from(from), to: first_from(to) };
        let minutes = range.to - range.from;
        if minutes > self.window_max {
            let detail = format!(
                "{minutes} minutes are more than {}; bring `from` and `to` together",
                self.window_max
            );
            return Err(Problem::parameter("from", detail));
        }
        Ok(range)
    }

    /// `window`, in minutes.
    pub(super) fn window(&self) -> Result<i64, Problem> {
        let Some(text) = self.known.get("window") else {
            return Ok(WINDOW_DEFAULT.min(self.window_max));
        };
        let wrong = |detail: String| Problem::parameter("window", detail);
        let window: Duration = humantime::parse_duration(text)
            .map_err(|_| wrong(format!("`{text}` is no duration; write 15m or 1h")))?;
        if window.subsec_nanos() != 0 || !window.as_secs().is_multiple_of(60) || window.is_zero() {
            return Err(wrong(format!("`{text}` is not whole minutes; write 15m or 1h")));
        }
        let minutes = i64::try_from(window.as_secs() / 60).unwrap_or(i64::MAX);
        if minutes > self.window_max {
            let detail = format!("`{text}` is longer than {}m; ask for less", self.window_max);
            return Err(wrong(detail));
        }
        Ok(minutes)
    }

    fn number(
        &self,
        name: &'static str,
        least: usize,
        most: usize,
    ) -> Result<Option<usize>, Problem> {
        let Some(text) = self.known.get(name) else {
            return Ok(None);
        };
        let number = text.parse().ok();
        let number = number.filter(|number| (least..=most).contains(number));
        number.map(Some).ok_or_else(|| {
            let detail = format!("`{text}` is no whole number from {least} to {most}");
            Problem::parameter(name, detail)
        })
    }

    /// The parameters of a list.
    pub(super) fn top(&self) -> Result<Top, Problem> {
        let by = match self.known.get("by").map(String::as_str) {
            None | Some("cumulative") => By::Cumulative,
            Some("unique") => By::Unique,
            Some(other) => {
                let detail = format!("`{other}` is no order; write unique or cumulative");
                return Err(Problem::parameter("by", detail));
            }
        };
        let n = self.number("n", 1, ITEMS_MAX)?.unwrap_or(ITEMS_DEFAULT);
        let list = self.known.get("list").cloned();
        if let Some(id) = &list
            && (id.is_empty() || id.len() > 20 || !id.bytes().all(|byte| byte.is_ascii_digit()))
        {
            let detail = format!("`{id}` is no list; take `list.id` of an answer");
            return Err(Problem::parameter("list", detail));
        }
        Ok(Top {
            by,
            window: self.window()?,
            n,
            filter: self.filter.clone(),
            position: self.number("position", 0, n - 1)?,
            list,
        })
    }
}

#[cfg(test)]
mod tests;
