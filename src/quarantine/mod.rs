//! `eds quarantine`: lists, retries and drops the counts that an output refused.
//!
//! It reads one partition at a time, and each change is one step of the store. After an interruption each count is either
//! unchanged or done, and the same command continues.

mod listing;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

use clap::Args;

use crate::event::{Minute, Partition, Partitions};
use crate::store::redis::RedisStore;
use crate::store::{Bucket, OutputName, Quarantined, StoreError};

/// The most counts of one step of the store.
const STEP: usize = 500;
/// The most lines of a table without `--limit`.
const LIMIT: usize = 1000;

/// An error that leaves a command undone, or done in part.
#[derive(Debug, thiserror::Error)]
pub(crate) enum QuarantineError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("cannot write the answer: {0}")]
    Io(#[from] io::Error),
    /// The selection, which may be mistyped, matches no counts.
    #[error("nothing in the quarantine has this minute and series; see eds quarantine list")]
    NothingSelected,
}

/// A command.
#[derive(Debug, Clone)]
pub(crate) enum Action {
    /// Prints a line for each count.
    List(List),
    /// Prints every field of each count.
    Show(Selection),
    /// Sends counts again.
    Retry(Change),
    /// Prints counts and deletes them.
    Drop(Change),
}

/// The selected counts, and the form of the answer.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Selection {
    /// Of this minute, such as 20161204:1118; may be given several times
    #[arg(long, value_name = "MINUTE")]
    pub(crate) minute: Vec<Minute>,
    /// Of this series, as the list shows it; may be given several times
    #[arg(long, value_name = "SERIES")]
    pub(crate) series: Vec<String>,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// `eds quarantine list`.
#[derive(Debug, Clone, Args)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// The most to show, lowest minute first; 1000 in a table, all of them in JSON
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
}

/// `eds quarantine retry` and `eds quarantine drop`.
#[derive(Debug, Clone, Args)]
#[group(id = "which", required = true, multiple = true, args = ["minute", "series", "all"])]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// All of them
    #[arg(long, conflicts_with_all = ["minute", "series"])]
    pub(crate) all: bool,
}

impl Selection {
    fn contains(&self, quarantined: &Quarantined) -> bool {
        (self.minute.is_empty() || self.minute.contains(&quarantined.minute))
            && (self.series.is_empty() || self.series.contains(&quarantined.series))
    }

    /// Returns an error if a minute or a series was selected and nothing was found.
    fn check(&self, found: u64) -> Result<(), QuarantineError> {
        let is_all = self.minute.is_empty() && self.series.is_empty();
        if found > 0 || is_all { Ok(()) } else { Err(QuarantineError::NothingSelected) }
    }
}

/// A quarantine of an output, with the streams of the answer.
pub(crate) struct Command<'a> {
    pub(crate) store: &'a RedisStore,
    pub(crate) partitions: Partitions,
    pub(crate) output: &'a OutputName,
    pub(crate) out: &'a mut (dyn Write + Send),
    /// Sums and notes for people.
    pub(crate) notes: &'a mut (dyn Write + Send),
}

impl Command<'_> {
    /// Carries the action out.
    pub(crate) async fn run(&mut self, action: &Action) -> Result<(), QuarantineError> {
        match action {
            Action::List(List { selection, limit }) => self.list(selection, *limit).await,
            Action::Show(selection) => self.show(selection).await,
            Action::Retry(change) => self.retry(&change.selection).await,
            Action::Drop(change) => self.drop(&change.selection).await,
        }
    }

    /// Returns the selected counts of a partition.
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

    async fn list(
        &mut self,
        selection: &Selection,
        limit: Option<usize>,
    ) -> Result<(), QuarantineError> {
        let limit = limit.unwrap_or(if selection.json { usize::MAX } else { LIMIT });
        let mut first = BTreeSet::new();
        let mut total = 0;
        for partition in self.partitions.iter() {
            let found = self.read(partition, selection).await?;
            total += found.len();
            first.extend(found);
            while first.len() > limit {
                first.pop_last();
            }
        }
        if selection.json {
            listing::print(&first, true, self.out)?;
        } else {
            listing::table(&first, self.out)?;
        }
        let shown = first.len();
        if shown < total {
            writeln!(self.notes, "{shown} of {total} shown; --limit shows more")?;
        } else if total == 0 && !selection.json {
            writeln!(self.notes, "nothing is quarantined")?;
        }
        Ok(())
    }

    async fn show(&mut self, selection: &Selection) -> Result<(), QuarantineError> {
        let mut shown = 0;
        for partition in self.partitions.iter() {
            let found = self.read(partition, selection).await?;
            listing::print(&found, selection.json, self.out)?;
            shown += found.len() as u64;
        }
        selection.check(shown)
    }

    async fn retry(&mut self, selection: &Selection) -> Result<(), QuarantineError> {
        let mut requeued = 0;
        for partition in self.partitions.iter() {
            let mut minutes: BTreeMap<Minute, Vec<Quarantined>> = BTreeMap::new();
            for quarantined in self.read(partition, selection).await? {
                minutes.entry(quarantined.minute).or_default().push(quarantined);
            }
            for (minute, quarantined) in &minutes {
                for step in quarantined.chunks(STEP) {
                    let series: Vec<&str> = step.iter().map(|counts| &*counts.series).collect();
                    requeued += self
                        .store
                        .requeue(Bucket { partition, minute: *minute }, self.output, &series)
                        .await?;
                    listing::print(step, selection.json, self.out)?;
                }
            }
        }
        writeln!(self.notes, "{requeued} taken back; a node sends them in its next round")?;
        selection.check(requeued)
    }

    /// Prints counts before it drops them: an interruption may print some twice but loses none.
    async fn drop(&mut self, selection: &Selection) -> Result<(), QuarantineError> {
        let mut dropped = 0;
        for partition in self.partitions.iter() {
            let found: Vec<_> = self.read(partition, selection).await?.into_iter().collect();
            for step in found.chunks(STEP) {
                listing::print(step, selection.json, self.out)?;
                dropped += self.store.discard(partition, self.output, step).await?;
            }
        }
        writeln!(self.notes, "{dropped} dropped")?;
        selection.check(dropped)
    }
}

#[cfg(test)]
mod tests;
