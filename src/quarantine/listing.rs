//! Prints quarantined counts.

use std::collections::BTreeSet;
use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat};

use crate::store::Quarantined;

/// The most characters of a server's message in a table.
const MESSAGE_CHARS: usize = 60;

/// Prints a table with a heading, or nothing if it is empty.
pub(super) fn table(all: &BTreeSet<Quarantined>, out: &mut dyn Write) -> io::Result<()> {
    if all.is_empty() {
        return out.flush();
    }
    let width = |text: fn(&Quarantined) -> usize, heading: &str| {
        all.iter().map(text).max().unwrap_or(0).max(heading.len())
    };
    let minute = width(|counts| counts.minute.shown().len(), "minute");
    let series = width(|counts| printable(&counts.series).chars().count(), "series");
    writeln!(
        out,
        "{:minute$}  {:series$}  {:>10}  {:>10}  {:20}  message",
        "minute", "series", "unique", "cumulative", "since"
    )?;
    for quarantined in all {
        writeln!(
            out,
            "{:minute$}  {:series$}  {:>10}  {:>10}  {:20}  {}",
            quarantined.minute.shown(),
            printable(&quarantined.series),
            quarantined.unique,
            quarantined.cumulative,
            time(quarantined.since),
            beginning(&quarantined.message),
        )?;
    }
    out.flush()
}

/// Prints every field of each, as a JSON object or as a block of lines.
pub(super) fn print<'a>(
    all: impl IntoIterator<Item = &'a Quarantined>,
    as_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    for quarantined in all {
        let Quarantined { minute, series, unique, cumulative, since, message } = quarantined;
        let begins = time(minute.epoch_minutes().saturating_mul(60));
        let (minute, since) = (minute.shown(), time(*since));
        if as_json {
            let object = serde_json::json!({
                "minute": minute,
                "begins": begins,
                "series": series,
                "unique": unique,
                "cumulative": cumulative,
                "since": since,
                "message": message,
            });
            writeln!(out, "{object}")?;
        } else {
            writeln!(out, "minute      {minute}")?;
            writeln!(out, "begins      {begins}")?;
            writeln!(out, "series      {}", printable(series))?;
            writeln!(out, "unique      {unique}")?;
            writeln!(out, "cumulative  {cumulative}")?;
            writeln!(out, "since       {since}")?;
            writeln!(out, "message       {}\n", printable(message))?;
        }
    }
    out.flush()
}

/// RFC 3339, in UTC.
fn time(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0)
        .map_or_else(|| seconds.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn beginning(message: &str) -> String {
    let message = printable(message);
    match message.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

/// Replaces control characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
