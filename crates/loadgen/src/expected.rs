//! The exact counts that must come out of the lines that were sent.
//!
//! They are compared with what the service wrote, so this shares no code with it: neither the parser, nor the minutes, nor
//! the counting. It keeps every event, sorts them and counts neighbours. It understands only the short form, in which there
//! is nothing to get wrong, and refuses all other lines.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

const MINUTE_NANOS: i64 = 60_000_000_000;

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

/// Collects events and writes their counts to a file at the end.
#[derive(Debug)]
pub(super) struct Expected {
    path: PathBuf,
    file: File,
    /// Numbers of series, by the tags as they were sent, in any order.
    spellings: HashMap<Vec<u8>, u32>,
    series: Names,
    users: Names,
    /// The confirmed events, then those of the datagram that is being filled.
    events: Vec<Event>,
    confirmed: usize,
}

impl Expected {
    /// Creates the file at once, so that one that cannot be written is known before anything is sent.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            file: File::create(path)?,
            spellings: HashMap::new(),
            series: Names::default(),
            users: Names::default(),
            events: Vec::new(),
            confirmed: 0,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a line to the datagram that is being filled. Comments are no events.
    pub(super) fn add(&mut self, line: &[u8]) -> Result<(), NotSimple> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.first() == Some(&b'#') {
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
        self.events.push(Event {
            series,
            user,
            nanos,
        });
        Ok(())
    }

    /// The datagram was sent to somebody: its events count.
    pub(super) fn confirm(&mut self) {
        self.confirmed = self.events.len();
    }

    /// The datagram was sent to nobody: its events do not count.
    pub(super) fn discard(&mut self) {
        self.events.truncate(self.confirmed);
    }

    /// Counts the confirmed events and writes the file.
    pub(super) fn write(mut self) -> io::Result<()> {
        self.discard();
        let counts = self.counts();
        let mut file = BufWriter::new(self.file);
        for line in counts {
            writeln!(file, "{line}")?;
        }
        file.into_inner()
            .map_err(io::IntoInnerError::into_error)?
            .sync_all()
    }

    fn counts(&mut self) -> Vec<String> {
        let series_names = self.series.by_number();
        let key = |event: &Event| (event.series, event.minute(), event.user, event.nanos);
        self.events.sort_unstable_by_key(key);
        self.events.dedup();
        let mut lines = Vec::new();
        let together = |a: &Event, b: &Event| a.series == b.series && a.minute() == b.minute();
        for events in self.events.chunk_by(together) {
            let unique = events.chunk_by(|a, b| a.user == b.user).count();
            let cumulative = events.len();
            let start = events[0].minute() * MINUTE_NANOS;
            let series = &series_names[events[0].series as usize];
            lines.push(format!(
                "cumulative_user_event,{series} value={cumulative} {start}"
            ));
            lines.push(format!("unique_user_event,{series} value={unique} {start}"));
        }
        lines.sort_unstable();
        lines
    }
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
    Ok((
        tags,
        user,
        timestamp.parse().map_err(|_| NotSimple::Timestamp)?,
    ))
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
#[derive(Debug, Default)]
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
        names
            .into_iter()
            .map(|(name, _)| String::from_utf8_lossy(name).into_owned())
            .collect()
    }
}

#[cfg(test)]
#[path = "expected_tests.rs"]
mod tests;
