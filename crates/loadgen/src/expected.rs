//! The exact counts that must come out of the lines that were sent.
//!
//! They are compared with what the service wrote, so this shares no code with it: neither the parser, nor the minutes, nor
//! the counting. It keeps every event, sorts them and counts neighbours. It understands only the short form, in which there
//! is nothing to get wrong, and refuses all other lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{MINUTE_NANOS, SendError};

/// Why a line has no certain count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotSimple {
    /// Not three parts with single spaces between them.
    #[error("expected `<tags> value=<user> <timestamp>`")]
    Parts,
    /// Characters with a meaning of their own, or none.
    #[error(
        "escapes, quotes, control characters and bytes that are not UTF-8 are not understood here"
    )]
    Character,
    /// A tag without a key, an equals sign or a value.
    #[error("expected tags like `event_type=http-5xx,product=productA`")]
    Tag,
    /// The same key twice.
    #[error("a tag key is repeated")]
    RepeatedTag,
    /// Another field, several, or an empty one.
    #[error("expected one field, `value=<user>`")]
    User,
    /// Not a number, below zero, or beyond the year 2262.
    #[error("expected a timestamp in nanoseconds since the epoch")]
    Timestamp,
    /// More different series or users than are numbered.
    #[error("there are more than 4294967295 different series or users")]
    TooMany,
}

/// An event, with series and user as numbers: 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Event {
    series: u32,
    user: u32,
    /// Since the epoch.
    nanos: i64,
}

impl Event {
    const fn minute(self) -> i64 {
        self.nanos / MINUTE_NANOS
    }
}

/// What must come out of a series in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts {
    /// The tags, sorted by key: `event_type=http-5xx,product=productA`.
    pub series: String,
    /// The minute's first instant, in nanoseconds since the epoch.
    pub minute_start_nanos: i64,
    /// How many different users.
    pub unique: usize,
    /// How many different events.
    pub cumulative: usize,
}

/// Collects the events of lines, and counts them at the end.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Numbers of series, by the tags as they were sent, in any order.
    spellings: HashMap<Vec<u8>, u32>,
    series: Names,
    users: Names,
    /// The confirmed events, then those of the datagram that is being filled.
    events: Vec<Event>,
    confirmed: usize,
}

impl Expected {
    /// Adds a line to the datagram that is being filled. Comments are no events.
    pub fn add(&mut self, line: &[u8]) -> Result<(), NotSimple> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.trim_ascii_start().first() == Some(&b'#') {
            return Ok(());
        }
        let (tags, user, nanos) = split(line)?;
        let series = if let Some(&series) = self.spellings.get(tags.as_bytes()) {
            series
        } else {
            let series = self.series.number(canonical(tags)?.as_bytes())?;
            self.spellings.insert(tags.as_bytes().to_vec(), series);
            series
        };
        let user = self.users.number(user.as_bytes())?;
        self.events.push(Event { series, user, nanos });
        Ok(())
    }

    /// The datagram was sent to somebody: its events count.
    pub fn confirm(&mut self) {
        self.confirmed = self.events.len();
    }

    /// The datagram was sent to nobody: its events do not count.
    pub fn discard(&mut self) {
        self.events.truncate(self.confirmed);
    }

    /// The counts of the confirmed events.
    #[must_use]
    pub fn counts(mut self) -> Vec<Counts> {
        self.discard();
        let series_names = self.series.by_number();
        let key = |event: &Event| (event.series, event.minute(), event.user, event.nanos);
        self.events.sort_unstable_by_key(key);
        self.events.dedup();
        let together = |a: &Event, b: &Event| a.series == b.series && a.minute() == b.minute();
        let counts = |events: &[Event]| Counts {
            series: series_names[events[0].series as usize].clone(),
            minute_start_nanos: events[0].minute() * MINUTE_NANOS,
            unique: events.chunk_by(|a, b| a.user == b.user).count(),
            cumulative: events.len(),
        };
        self.events.chunk_by(together).map(counts).collect()
    }

    /// The lines that the service must write, sorted.
    pub(super) fn lines(self) -> Vec<String> {
        let lines = |counts: Counts| {
            let (series, start) = (counts.series, counts.minute_start_nanos);
            [("cumulative_user_event", counts.cumulative), ("unique_user_event", counts.unique)]
                .map(|(measurement, count)| {
                    format!("{measurement},{series} value={count} {start}\n")
                })
        };
        let mut lines: Vec<_> = self.counts().into_iter().flat_map(lines).collect();
        lines.sort_unstable();
        lines
    }
}

/// Where the counts go at the end.
#[derive(Debug)]
pub(super) struct ExpectedFile {
    path: PathBuf,
    file: File,
    pub(super) expected: Expected,
}

impl ExpectedFile {
    /// Creates the file at once, so that one that cannot be written is known before anything is sent.
    pub(super) fn create(path: &Path) -> Result<Self, SendError> {
        let file = File::create(path).map_err(|source| failed(path, source))?;
        Ok(Self { path: path.to_owned(), file, expected: Expected::default() })
    }

    pub(super) fn write(mut self) -> Result<(), SendError> {
        let text = self.expected.lines().concat();
        let written = self.file.write_all(text.as_bytes());
        let written = written.and_then(|()| self.file.sync_all());
        written.map_err(|source| failed(&self.path, source))
    }
}

fn failed(path: &Path, source: io::Error) -> SendError {
    let path = path.to_owned();
    SendError::Expected { path, source }
}

/// The tags, the user and the timestamp.
fn split(line: &[u8]) -> Result<(&str, &str, i64), NotSimple> {
    let line = std::str::from_utf8(line).map_err(|_| NotSimple::Character)?;
    if line.contains(|c: char| c.is_control() || c == '\\' || c == '"') {
        return Err(NotSimple::Character);
    }
    let mut parts = line.split(' ');
    let (Some(tags), Some(field), Some(timestamp), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(NotSimple::Parts);
    };
    let user = field.strip_prefix("value=").ok_or(NotSimple::User)?;
    if user.is_empty() || user.contains(['=', ',']) {
        return Err(NotSimple::User);
    }
    if !timestamp.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(NotSimple::Timestamp);
    }
    Ok((tags, user, timestamp.parse().map_err(|_| NotSimple::Timestamp)?))
}

/// The tags, sorted by key.
fn canonical(tags: &str) -> Result<String, NotSimple> {
    let mut pairs = Vec::new();
    for tag in tags.split(',') {
        let (key, value) = tag.split_once('=').ok_or(NotSimple::Tag)?;
        if key.is_empty() || value.is_empty() || value.contains('=') {
            return Err(NotSimple::Tag);
        }
        pairs.push((key, tag));
    }
    pairs.sort_unstable();
    if pairs.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err(NotSimple::RepeatedTag);
    }
    let tags: Vec<&str> = pairs.into_iter().map(|(_, tag)| tag).collect();
    Ok(tags.join(","))
}

/// Numbers names from 0, in the order of their first use.
#[derive(Debug, Clone, Default)]
struct Names(HashMap<Vec<u8>, u32>);

impl Names {
    fn number(&mut self, name: &[u8]) -> Result<u32, NotSimple> {
        if let Some(&number) = self.0.get(name) {
            return Ok(number);
        }
        let number = u32::try_from(self.0.len()).map_err(|_| NotSimple::TooMany)?;
        self.0.insert(name.to_vec(), number);
        Ok(number)
    }

    fn by_number(&self) -> Vec<String> {
        let mut names: Vec<_> = self.0.iter().collect();
        names.sort_unstable_by_key(|&(_, number)| number);
        names.into_iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
