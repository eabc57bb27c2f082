//! Computes the exact counts of minutes and windows that the service must write for the lines that were sent. This module keeps
//! all events, sorts them, and compares neighbours. It accepts only lines in the short form, without escapes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::MINUTE_NANOS;
use super::rollup::Rollup;

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

/// The counts of a window contradict the counts of its minutes or of other windows, so one of them is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the numbers of the {rollup} with the first minute {start} and the group `{group}` contradict its parts"
)]
pub struct Inconsistent {
    rollup: String,
    group: String,
    start: i64,
}

impl Inconsistent {
    fn new((group, start): &Window, rollup: &Rollup) -> Self {
        Self { rollup: format!("{rollup:?}"), group: group.clone(), start: *start }
    }
}

/// The group of a window, and its first minute.
type Window = (String, i64);

/// The numbers of windows.
type Windows = BTreeMap<Window, Counts>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    users: usize,
    events: usize,
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
    rollups: Vec<Rollup>,
}

impl Expected {
    /// Returns no events, whose windows of these rollups are to be counted.
    #[must_use]
    pub fn with_rollups(rollups: Vec<Rollup>) -> Self {
        Self { rollups, ..Self::default() }
    }

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

    /// Returns the lines that the service must write for the confirmed events and their windows, sorted, each with a trailing
    /// newline. Returns an error if the counts of windows contradict the minutes, other windows or sets of users.
    pub fn lines(mut self) -> Result<String, Inconsistent> {
        self.discard();
        self.events.sort_unstable_by_key(|event| (event.series, event.user, event.nanos));
        self.events.dedup();
        let mut names = vec![""; self.series.len()];
        for (name, number) in &self.series {
            names[*number as usize] = name;
        }
        let first_tag = names.first().and_then(|series| series.split('=').next());
        // The last two are only checked.
        let rollups = [Rollup::of_minutes(1, None)].into_iter().chain(self.rollups.clone());
        let rollups =
            rollups.chain([Rollup::of_minutes(60, None), Rollup::of_minutes(1_440, first_tag)]);
        let counted = rollups.map(|rollup| Ok((self.count(&rollup, &names)?, rollup)));
        let counted = counted.collect::<Result<Vec<_>, Inconsistent>>()?;
        for (windows, rollup) in &counted {
            for (parts, part) in &counted {
                check(windows, rollup, parts, part)?;
            }
        }
        let mut lines = Vec::new();
        for (windows, Rollup { suffix, .. }) in counted.iter().take(1 + self.rollups.len()) {
            let error = if suffix.is_empty() { "" } else { ",error=0" };
            for ((group, start), Counts { users, events }) in windows {
                let comma = if group.is_empty() { "" } else { "," };
                let start = start * MINUTE_NANOS;
                lines.extend([
                    format!("cumulative_user_event{suffix}{comma}{group} value={events} {start}\n"),
                    format!(
                        "unique_user_event{suffix}{comma}{group} value={users}{error} {start}\n"
                    ),
                ]);
            }
        }
        lines.sort_unstable();
        Ok(lines.concat())
    }

    /// Returns the numbers of each window, after counting the users both by sorting and with sets.
    fn count(&self, rollup: &Rollup, names: &[&str]) -> Result<Windows, Inconsistent> {
        let (mut numbers, mut starts) = (HashMap::new(), HashMap::new());
        // There are no more groups than series, so the number cannot be too large.
        let group = |series| number(&mut numbers, &rollup.group(series)?).ok();
        let groups: Vec<_> = names.iter().copied().map(group).collect();
        let mut users: Vec<(u32, i64, u32)> = Vec::with_capacity(self.events.len());
        let mut sets: HashMap<_, HashSet<u32>> = HashMap::new();
        for event in &self.events {
            let Some(group) = groups[event.series as usize] else { continue };
            let minute = event.minute();
            let start = *starts.entry(minute).or_insert_with(|| rollup.start(minute));
            users.push((group, start, event.user));
            sets.entry((group, start)).or_default().insert(event.user);
        }
        users.sort_unstable();
        let mut names = vec![""; numbers.len()];
        for (name, number) in &numbers {
            names[*number as usize] = name;
        }
        let mut windows = Windows::new();
        for events in users.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let (group, start, _) = events[0];
            let counts =
                Counts { users: events.chunk_by(|a, b| a.2 == b.2).count(), events: events.len() };
            let window = (names[group as usize].to_owned(), start);
            if sets[&(group, start)].len() != counts.users {
                return Err(Inconsistent::new(&window, rollup));
            }
            windows.insert(window, counts);
        }
        Ok(windows)
    }
}

/// Checks the counts of windows against their parts, if each window of `part` is part of a window of `rollup`.
fn check(
    windows: &Windows,
    rollup: &Rollup,
    parts: &Windows,
    part: &Rollup,
) -> Result<(), Inconsistent> {
    let Some(group_of) = rollup.containing(part) else { return Ok(()) };
    // The greatest and the total number of users, and the number of events.
    let mut sums: HashMap<Window, [usize; 3]> = HashMap::new();
    for ((group, start), Counts { users, events }) in parts {
        if let Some(group) = group_of(rollup, group) {
            let [most, total, all_events] = sums.entry((group, rollup.start(*start))).or_default();
            *most = *users.max(most);
            *total += users;
            *all_events += events;
        }
    }
    let is_wrong = |window: &&Window| match (windows.get(*window), sums.get(*window)) {
        (Some(counts), Some([most, total, events])) => {
            !(most..=total).contains(&&counts.users) || *events != counts.events
        }
        _ => true,
    };
    let wrong = windows.keys().chain(sums.keys()).find(is_wrong);
    wrong.map_or(Ok(()), |window| Err(Inconsistent::new(window, rollup)))
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
