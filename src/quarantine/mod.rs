//! `eds quarantine`: what an output refused, to be looked at, sent again or dropped.
//!
//! `options` is what may be typed, `listing` what is printed. Whatever is read is read a partition at a time, each
//! bounded by the store, and every change is one step of the store: an interruption leaves counts where they were
//! or where they go, and the same command goes on from there.

mod listing;
mod options;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};

pub use self::options::{Action, Change, List, Selection, Show};
use crate::event::{Minute, Partition, Partitions};
use crate::store::{OutputName, Quarantine, Quarantined, StoreError};

/// The most counts of one step of the store.
const STEP: usize = 500;

/// Why a command was not carried out, or not wholly.
#[derive(Debug, thiserror::Error)]
pub enum QuarantineError {
    /// The store does not answer, or refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was asked for cannot be printed.
    #[error("cannot write the answer: {0}")]
    Io(#[from] io::Error),
    /// A selection to which nothing belongs, perhaps mistyped.
    #[error("nothing in the quarantine has this minute and series; see eds quarantine list")]
    NothingSelected,
}

/// Carries the action out. The answer goes to `out`, sums and notes for people to `notes`.
pub async fn run(
    store: &dyn Quarantine,
    partitions: Partitions,
    output: &OutputName,
    action: &Action,
    out: &mut (dyn Write + Send),
    notes: &mut (dyn Write + Send),
) -> Result<(), QuarantineError> {
    let table = Table { store, partitions, output };
    match action {
        Action::List(options) => table.list(options, out, notes).await,
        Action::Show(options) => table.show(options, out).await,
        Action::Retry(options) => table.retry(options, out, notes).await,
        Action::Drop(options) => table.drop(options, out, notes).await,
    }
}

/// All that is quarantined of an output.
struct Table<'a> {
    store: &'a dyn Quarantine,
    partitions: Partitions,
    output: &'a OutputName,
}

impl Table<'_> {
    /// What is selected of one partition, in order.
    async fn read(
        &self,
        partition: Partition,
        selection: &Selection,
    ) -> Result<BTreeSet<Quarantined>, StoreError> {
        let mut found = BTreeSet::new();
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            let page = self.store.quarantined_page(partition, self.output, at).await?;
            let selected = page.items.into_iter().filter(|it| selection.holds(it));
            found.extend(selected);
            cursor = page.next;
        }
        Ok(found)
    }

    async fn list(
        &self,
        options: &List,
        out: &mut (dyn Write + Send),
        notes: &mut (dyn Write + Send),
    ) -> Result<(), QuarantineError> {
        let limit = options.limit().unwrap_or(usize::MAX);
        let mut first = BTreeSet::new();
        let mut total = 0_usize;
        for partition in self.partitions.iter() {
            let found = self.read(partition, &options.selection).await?;
            total += found.len();
            first.extend(found);
            while first.len() > limit {
                first.pop_last();
            }
        }
        if options.json {
            for quarantined in &first {
                listing::json(quarantined, out)?;
            }
        } else {
            listing::table(&first, out)?;
        }
        out.flush()?;
        let shown = first.len();
        if shown < total {
            writeln!(notes, "{shown} of {total} shown; --limit shows more")?;
        } else if total == 0 && !options.json {
            writeln!(notes, "nothing is quarantined")?;
        }
        Ok(())
    }

    async fn show(
        &self,
        options: &Show,
        out: &mut (dyn Write + Send),
    ) -> Result<(), QuarantineError> {
        let mut shown = 0;
        for partition in self.partitions.iter() {
            for quarantined in self.read(partition, &options.selection).await? {
                if options.json {
                    listing::json(&quarantined, out)?;
                } else {
                    listing::in_full(&quarantined, out)?;
                }
                shown += 1;
            }
        }
        out.flush()?;
        options.selection.answered_by(shown)
    }

    async fn retry(
        &self,
        options: &Change,
        out: &mut (dyn Write + Send),
        notes: &mut (dyn Write + Send),
    ) -> Result<(), QuarantineError> {
        let mut taken = 0;
        for partition in self.partitions.iter() {
            let mut minutes: BTreeMap<Minute, Vec<Quarantined>> = BTreeMap::new();
            for quarantined in self.read(partition, &options.selection).await? {
                minutes.entry(quarantined.minute).or_default().push(quarantined);
            }
            for (minute, quarantined) in &minutes {
                for step in quarantined.chunks(STEP) {
                    let series: Vec<&str> = step.iter().map(|it| it.series.as_str()).collect();
                    let requeued = self.store.requeue(partition, self.output, *minute, &series);
                    taken += requeued.await?;
                    listing::each(step, options.json, out)?;
                }
            }
        }
        writeln!(notes, "{taken} taken back; a node sends them in its next round")?;
        options.selection.answered_by(taken)
    }

    /// Printed first and dropped then, so that an interruption may repeat what is printed but not lose it.
    async fn drop(
        &self,
        options: &Change,
        out: &mut (dyn Write + Send),
        notes: &mut (dyn Write + Send),
    ) -> Result<(), QuarantineError> {
        let mut dropped = 0;
        for partition in self.partitions.iter() {
            let found = self.read(partition, &options.selection).await?;
            let found: Vec<_> = found.into_iter().collect();
            for step in found.chunks(STEP) {
                listing::each(step, options.json, out)?;
                dropped += self.store.discard(partition, self.output, step).await?;
            }
        }
        writeln!(notes, "{dropped} dropped")?;
        options.selection.answered_by(dropped)
    }
}

#[cfg(test)]
mod tests;
