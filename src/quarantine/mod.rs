//! `eds quarantine`: lists, retries and drops rejected counts. If a command is interrupted, it can simply be run again.

use std::collections::BTreeSet;
use std::io::{self, Write};

use chrono::{DateTime, SecondsFormat};
use clap::{Args, Subcommand};
use serde_json::Value;

use crate::event::{Minute, Partition, Partitions};
use crate::store::redis::RedisStore;
use crate::store::{Bucket, OutputName, Quarantined, StoreError};

const STEP: usize = 500;
/// Maximum number of lines in a table without `--limit`.
const LIMIT: usize = 1000;
const MESSAGE_CHARS: usize = 60;

/// The error of a command that was not completed. Part of the command's work may have been done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuarantineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write to standard output: {0}")]
    Io(#[from] io::Error),
    /// No counts match the selection, which may be mistyped.
    #[error(
        "no quarantined counts match the selected minutes and series; `eds quarantine list` shows all of them"
    )]
    NothingSelected,
}

const CHANGE: &str =
    "eds quarantine <retry|drop> <--all | --minute <MINUTE>… and/or --series <SERIES>…> [OPTIONS]
Example: eds quarantine drop --minute 20161204:1118 --series event_type=login,product=shop";

/// A subcommand of `eds quarantine`.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Action {
    /// Print one line per count: minute, series, counts, time, and the start of the server's message
    List(List),
    /// Print every field of each count
    Show(Selection),
    /// Move counts back to the unsent counts, with unchanged values. Use this after fixing the cause; counts that the server
    /// rejects again return to the quarantine
    #[command(override_usage = CHANGE)]
    Retry(Change),
    /// Print counts and delete them; this cannot be undone
    #[command(override_usage = CHANGE)]
    Drop(Change),
}

/// Options that select counts and set the output format.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selection {
    /// Select counts for this minute, such as 20161204:1118; may be repeated
    #[arg(long, value_name = "MINUTE")]
    pub(crate) minute: Vec<Minute>,
    /// Select counts for this series, as shown in the list; may be repeated
    #[arg(long, value_name = "SERIES")]
    pub(crate) series: Vec<String>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `eds quarantine list`.
#[derive(Debug, Clone, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Maximum number of counts to show, earliest minutes first; by default 1000 in a table and all in JSON
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

/// `eds quarantine retry` and `eds quarantine drop`.
#[derive(Debug, Clone, Args)]
#[group(id = "which", required = true, multiple = true, args = ["minute", "series", "all"])]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Select all counts
    #[arg(long, conflicts_with_all = ["minute", "series"])]
    pub(crate) all: bool,
}

impl Selection {
    fn contains(&self, quarantined: &Quarantined) -> bool {
        (self.minute.is_empty() || self.minute.contains(&quarantined.minute))
            && (self.series.is_empty() || self.series.contains(&quarantined.series))
    }
}

pub(crate) struct Command<'a> {
    pub(crate) store: &'a RedisStore,
    pub(crate) partitions: Partitions,
    pub(crate) output: &'a OutputName,
    pub(crate) out: &'a mut (dyn Write + Send),
    /// Where to write totals and notes for human readers.
    pub(crate) notes: &'a mut (dyn Write + Send),
}

impl Command<'_> {
    pub(crate) async fn run(&mut self, action: &Action) -> Result<(), QuarantineError> {
        let (selection, done) = match action {
            Action::List(List { selection, limit }) => return self.list(selection, *limit).await,
            Action::Show(selection) => (selection, None),
            Action::Retry(Change { selection, .. }) => {
                (selection, Some("requeued; a node will send them in its next round"))
            }
            Action::Drop(Change { selection, .. }) => (selection, Some("dropped")),
        };
        let mut count = 0;
        for partition in self.partitions.all() {
            let found: Vec<_> = self.read(partition, selection).await?.into_iter().collect();
            let minutes = found.chunk_by(|a, b| a.minute == b.minute);
            for step in minutes.flat_map(|minute| minute.chunks(STEP)) {
                if let Action::Retry(_) = action {
                    let series: Vec<&str> = step.iter().map(|counts| &*counts.series).collect();
                    let bucket = Bucket { partition, minute: step[0].minute };
                    count += self.store.requeue(bucket, self.output, &series).await?;
                }
                print(step, selection.json, self.out)?;
                match action {
                    // Prints before dropping, so that an interrupted command loses no counts, but may print some twice.
                    Action::Drop(_) => {
                        count += self.store.discard(partition, self.output, step).await?;
                    }
                    Action::Show(_) => count += step.len() as u64,
                    Action::List(_) | Action::Retry(_) => {}
                }
            }
        }
        if let Some(done) = done {
            writeln!(self.notes, "{count} {done}")?;
        }
        let is_all = selection.minute.is_empty() && selection.series.is_empty();
        if count > 0 || is_all { Ok(()) } else { Err(QuarantineError::NothingSelected) }
    }

    async fn list(
        &mut self,
        selection: &Selection,
        limit: Option<usize>,
    ) -> Result<(), QuarantineError> {
        let limit = limit.unwrap_or(if selection.json { usize::MAX } else { LIMIT });
        let mut first = BTreeSet::new();
        let mut total = 0;
        for partition in self.partitions.all() {
            let found = self.read(partition, selection).await?;
            total += found.len();
            first.extend(found);
            while first.len() > limit {
                first.pop_last();
            }
        }
        if selection.json {
            print(&first, true, self.out)?;
        } else {
            print_table(&first, self.out)?;
        }
        let shown = first.len();
        if shown < total {
            writeln!(self.notes, "{shown} of {total} counts shown; use --limit to show more")?;
        } else if total == 0 && !selection.json {
            writeln!(self.notes, "nothing is quarantined")?;
        }
        Ok(())
    }

    async fn read(
        &self,
        partition: Partition,
        selection: &Selection,
    ) -> Result<BTreeSet<Quarantined>, StoreError> {
        let mut found = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.store.quarantined_page(partition, self.output, at).await?;
            found.extend(page.items.into_iter().filter(|counts| selection.contains(counts)));
            cursor = page.next;
        }
        Ok(found)
    }
}

fn print_table(all: &BTreeSet<Quarantined>, out: &mut dyn Write) -> io::Result<()> {
    let width = all.iter().map(|counts| printable(&counts.series).chars().count()).max();
    let width = width.unwrap_or(0).max("series".len());
    if !all.is_empty() {
        writeln!(
            out,
            "{:13}  {:width$}  {:>10}  {:>10}  {:20}  message",
            "minute", "series", "unique", "cumulative", "since"
        )?;
    }
    for Quarantined { minute, series, unique, cumulative, since, message } in all {
        let (minute, series, since) = (minute.shown(), printable(series), time(*since));
        let mut message = printable(message);
        if let Some((end, _)) = message.char_indices().nth(MESSAGE_CHARS) {
            message.replace_range(end.., "…");
        }
        writeln!(
            out,
            "{minute}  {series:width$}  {unique:>10}  {cumulative:>10}  {since:20}  {message}"
        )?;
    }
    out.flush()
}

/// Prints every field of each count, as a JSON object or as a block of lines.
fn print<'a>(
    all: impl IntoIterator<Item = &'a Quarantined>,
    as_json: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    for Quarantined { minute, series, unique, cumulative, since, message } in all {
        let begins = time(minute.epoch_minutes().saturating_mul(60));
        let fields = [
            ("minute", minute.shown().into()),
            ("begins", begins.into()),
            ("series", series.as_str().into()),
            ("unique", (*unique).into()),
            ("cumulative", (*cumulative).into()),
            ("since", time(*since).into()),
            ("message", message.as_str().into()),
        ];
        if as_json {
            let fields = fields.map(|(name, value): (&str, Value)| (name.to_owned(), value));
            writeln!(out, "{}", Value::from_iter(fields))?;
            continue;
        }
        for (name, value) in fields {
            let text = value.as_str().map_or_else(|| value.to_string(), printable);
            writeln!(out, "{name:10}  {text}")?;
        }
        writeln!(out)?;
    }
    out.flush()
}

/// Formats a Unix time in seconds as RFC 3339 in UTC.
fn time(seconds: i64) -> String {
    DateTime::from_timestamp(seconds, 0)
        .map_or_else(|| seconds.to_string(), |time| time.to_rfc3339_opts(SecondsFormat::Secs, true))
}

fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests;
