//! How counts that are quarantined are printed.

use std::collections::BTreeSet;
use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat};

use crate::store::Quarantined;

/// What of a server's message fits a line.
const MESSAGE_CHARS: usize = 60;

/// Columns, with a line of headings; nothing at all of nothing.
pub(super) fn table(all: &BTreeSet<Quarantined>, out: &mut dyn Write) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let width = |text: fn(&Quarantined) -> usize, least: usize| {
        all.iter().map(text).max().unwrap_or(0).max(least)
    };
    let minute = width(|it| it.minute.shown().len(), "minute".len());
    let series = width(|it| printable(&it.series).chars().count(), "series".len());
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
            since(quarantined),
            beginning(&quarantined.message),
        )?;
    }
    Ok(())
}

/// A block of lines.
pub(super) fn in_full(quarantined: &Quarantined, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "minute      {}", quarantined.minute.shown())?;
    writeln!(out, "begins      {}", begins(quarantined))?;
    writeln!(out, "series      {}", printable(&quarantined.series))?;
    writeln!(out, "unique      {}", quarantined.unique)?;
    writeln!(out, "cumulative  {}", quarantined.cumulative)?;
    writeln!(out, "since       {}", since(quarantined))?;
    writeln!(out, "message       {}\n", printable(&quarantined.message))
}

/// One object on one line.
pub(super) fn json(quarantined: &Quarantined, out: &mut dyn Write) -> io::Result<()> {
    let object = serde_json::json!({
        "minute": quarantined.minute.shown(),
        "begins": begins(quarantined),
        "series": quarantined.series,
        "unique": quarantined.unique,
        "cumulative": quarantined.cumulative,
        "since": since(quarantined),
        "message": quarantined.message,
    });
    writeln!(out, "{object}")
}

/// Each of them in full, and nothing kept back.
pub(super) fn each(all: &[Quarantined], as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    for quarantined in all {
        if as_json {
            json(quarantined, out)?;
        } else {
            in_full(quarantined, out)?;
        }
    }
    out.flush()
}

fn since(quarantined: &Quarantined) -> String {
    instant(quarantined.since)
}

fn begins(quarantined: &Quarantined) -> String {
    instant(quarantined.minute.epoch_minutes().saturating_mul(60))
}

/// RFC 3339, in UTC.
fn instant(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0).map_or_else(
        || seconds.to_string(),
        |instant| instant.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

fn beginning(message: &str) -> String {
    let message = printable(message);
    match message.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}…", &message[..end]),
        None => message,
    }
}

/// On one line, and without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}
