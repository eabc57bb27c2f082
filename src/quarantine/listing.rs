//! How counts that are set aside are printed.

use std::collections::BTreeSet;
use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat};

use crate::store::SetAside;

/// What of a server's words fits a line.
const WORDS_CHARS: usize = 60;

/// Columns, with a line of headings; nothing at all of nothing.
pub(super) fn table(all: &BTreeSet<SetAside>, out: &mut dyn Write) -> io::Result<()> {
    if all.is_empty() {
        return Ok(());
    }
    let width = |text: fn(&SetAside) -> usize, least: usize| {
        all.iter().map(text).max().unwrap_or(0).max(least)
    };
    let minute = width(|it| it.minute.to_string().len(), "minute".len());
    let series = width(|it| printable(&it.series).chars().count(), "series".len());
    writeln!(
        out,
        "{:minute$}  {:series$}  {:>10}  {:>10}  {:20}  words",
        "minute", "series", "unique", "cumulative", "since"
    )?;
    for set_aside in all {
        writeln!(
            out,
            "{:minute$}  {:series$}  {:>10}  {:>10}  {:20}  {}",
            set_aside.minute.to_string(),
            printable(&set_aside.series),
            set_aside.unique,
            set_aside.cumulative,
            since(set_aside),
            first_words(&set_aside.words),
        )?;
    }
    Ok(())
}

/// A block of lines.
pub(super) fn in_full(set_aside: &SetAside, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "minute      {}", set_aside.minute)?;
    writeln!(out, "begins      {}", begins(set_aside))?;
    writeln!(out, "series      {}", printable(&set_aside.series))?;
    writeln!(out, "unique      {}", set_aside.unique)?;
    writeln!(out, "cumulative  {}", set_aside.cumulative)?;
    writeln!(out, "since       {}", since(set_aside))?;
    writeln!(out, "words       {}\n", printable(&set_aside.words))
}

/// One object on one line.
pub(super) fn json(set_aside: &SetAside, out: &mut dyn Write) -> io::Result<()> {
    let object = serde_json::json!({
        "minute": set_aside.minute.to_string(),
        "begins": begins(set_aside),
        "series": set_aside.series,
        "unique": set_aside.unique,
        "cumulative": set_aside.cumulative,
        "since": since(set_aside),
        "words": set_aside.words,
    });
    writeln!(out, "{object}")
}

/// Each of them in full, and nothing kept back.
pub(super) fn each(all: &[SetAside], as_json: bool, out: &mut dyn Write) -> io::Result<()> {
    for set_aside in all {
        if as_json {
            json(set_aside, out)?;
        } else {
            in_full(set_aside, out)?;
        }
    }
    out.flush()
}

fn since(set_aside: &SetAside) -> String {
    instant(set_aside.since)
}

fn begins(set_aside: &SetAside) -> String {
    instant(set_aside.minute.epoch_minutes().saturating_mul(60))
}

/// RFC 3339, in UTC.
fn instant(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0).map_or_else(
        || seconds.to_string(),
        |instant| instant.to_rfc3339_opts(SecondsFormat::Secs, true),
    )
}

fn first_words(words: &str) -> String {
    let words = printable(words);
    match words.char_indices().nth(WORDS_CHARS) {
        Some((end, _)) => format!("{}…", &words[..end]),
        None => words,
    }
}

/// On one line, and without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}
