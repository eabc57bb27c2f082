//! Computes the exact counts that the service must write for the lines that were sent. This module keeps all events, sorts
//! them, and compares neighbours. It accepts only lines in the short form, without escapes.

use std::collections::HashMap;

use super::MINUTE_NANOS;

/// Why the counts for a line cannot be computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NotSimple(&'static str);

const PARTS: NotSimple = NotSimple("expected `<tags> value=<user> <timestamp>`");
const CHARACTER: NotSimple =
    NotSimple("--expected does not support escapes, quotes, control characters or invalid UTF-8");
const TAG: NotSimple = NotSimple("expected tags such as `event_type=http-5xx,product=productA`");
const REPEATED_TAG: NotSimple = NotSimple("a tag key is repeated");
const USER: NotSimple = NotSimple("expected one field, `value=<user>`");
/// The timestamp is not a number, is negative, or is beyond the year 2262.
const TIMESTAMP: NotSimple = NotSimple("expected a timestamp in nanoseconds since the epoch");
const TOO_MANY: NotSimple = NotSimple("there are more than 4294967295 series or users");

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    series: u32,
    user: u32,
    nanos: i64,
}

impl Event {
    const fn minute(self) -> i64 {
        self.nanos / MINUTE_NANOS
    }
}

/// Collects the events in lines, and computes their counts at the end.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    spellings: HashMap<String, u32>,
    series: HashMap<String, u32>,
    users: HashMap<String, u32>,
    /// The confirmed events, followed by the events in the open datagram.
    events: Vec<Event>,
    confirmed: usize,
}

impl Expected {
    /// Adds the event in a line to the open datagram. Ignores comments. Returns an error if the line is not supported.
    pub fn add(&mut self, line: &[u8]) -> Result<(), NotSimple> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii_start().first() == Some(&b'#') {
            return Ok(());
        }
        let (tags, user, nanos) = split(line)?;
        let series = if let Some(&series) = self.spellings.get(tags) {
            series
        } else {
            let series = number(&mut self.series, &canonical(tags)?)?;
            self.spellings.insert(tags.to_owned(), series);
            series
        };
        let user = number(&mut self.users, user)?;
        self.events.push(Event { series, user, nanos });
        Ok(())
    }

    /// Confirms the events in the open datagram, which has been sent to at least one address, so that they are counted.
    pub fn confirm(&mut self) {
        self.confirmed = self.events.len();
    }

    pub(super) fn discard(&mut self) {
        self.events.truncate(self.confirmed);
    }

    /// Returns the lines that the service must write for the confirmed events, sorted, each with a trailing newline.
    #[must_use]
    pub fn lines(mut self) -> String {
        self.discard();
        let mut names = vec![""; self.series.len()];
        for (name, number) in &self.series {
            names[*number as usize] = name;
        }
        let key = |event: &Event| (event.series, event.minute(), event.user, event.nanos);
        self.events.sort_unstable_by_key(key);
        self.events.dedup();
        let mut lines = Vec::new();
        let together = |a: &Event, b: &Event| a.series == b.series && a.minute() == b.minute();
        for events in self.events.chunk_by(together) {
            let (series, start) =
                (names[events[0].series as usize], events[0].minute() * MINUTE_NANOS);
            let unique = events.chunk_by(|a, b| a.user == b.user).count();
            for (measurement, count) in
                [("cumulative_user_event", events.len()), ("unique_user_event", unique)]
            {
                lines.push(format!("{measurement},{series} value={count} {start}\n"));
            }
        }
        lines.sort_unstable();
        lines.concat()
    }
}

fn split(line: &[u8]) -> Result<(&str, &str, i64), NotSimple> {
    let line = std::str::from_utf8(line).map_err(|_| CHARACTER)?;
    if line.contains(|c: char| c.is_control() || c == '\\' || c == '"') {
        return Err(CHARACTER);
    }
    let parts: Vec<&str> = line.split(' ').collect();
    let [tags, field, timestamp] = parts[..] else { return Err(PARTS) };
    let user = field.strip_prefix("value=").ok_or(USER)?;
    if user.is_empty() || user.contains(['=', ',']) {
        return Err(USER);
    }
    if !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(TIMESTAMP);
    }
    Ok((tags, user, timestamp.parse().map_err(|_| TIMESTAMP)?))
}

fn canonical(tags: &str) -> Result<String, NotSimple> {
    let mut pairs = Vec::new();
    for tag in tags.split(',') {
        let (key, value) = tag.split_once('=').ok_or(TAG)?;
        if key.is_empty() || value.is_empty() || value.contains('=') {
            return Err(TAG);
        }
        pairs.push((key, tag));
    }
    pairs.sort_unstable();
    if pairs.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(REPEATED_TAG);
    }
    let tags: Vec<&str> = pairs.into_iter().map(|(_, tag)| tag).collect();
    Ok(tags.join(","))
}

fn number(names: &mut HashMap<String, u32>, name: &str) -> Result<u32, NotSimple> {
    if let Some(&number) = names.get(name) {
        return Ok(number);
    }
    let number = u32::try_from(names.len()).map_err(|_| TOO_MANY)?;
    names.insert(name.to_owned(), number);
    Ok(number)
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
