//! [`Losses`]: the losses of this process by minute and cause. The totals only grow, so they can be recorded repeatedly.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::lock;
use crate::diagnosis::{ByCause, LossCause};
use crate::event::Minute;

/// Maximum number of entries. Beyond this, the oldest minutes, and later losses in them, share one entry per cause.
const ENTRIES_MAX: usize = 256;

/// The minute of the lost events or, if unknown, of the loss (`None` for merged entries), and the cause.
type Entry = (Option<Minute>, LossCause);

#[derive(Debug, Default)]
pub(crate) struct Losses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Entry, Amount>,
    /// The newest minute whose entry has been merged.
    given_up: Option<Minute>,
    totals: ByCause,
    unacknowledged: ByCause,
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    lost: u64,
    /// The part of these losses that is in the loss record.
    recorded: u64,
}

impl Losses {
    pub(crate) fn add(&self, cause: LossCause, minute: Minute, amount: u64) {
        lock(&self.0).add(cause, minute, amount);
    }

    /// Adds the increase of a counter since the last call as a loss in this minute. Nothing else may add to this cause.
    pub(crate) fn count(&self, cause: LossCause, total: u64, minute: Minute) {
        let mut state = lock(&self.0);
        let before = state.totals[cause as usize];
        state.add(cause, minute, total.saturating_sub(before));
    }

    pub(crate) fn totals(&self) -> ByCause {
        lock(&self.0).totals
    }

    /// Returns the entries that are missing from the loss record, in whole or in part, with their total amounts.
    pub(crate) fn unrecorded(&self) -> Vec<(Entry, u64)> {
        let state = lock(&self.0);
        let unrecorded = state.entries.iter().filter(|(_, amount)| amount.lost > amount.recorded);
        unrecorded.map(|(entry, amount)| (*entry, amount.lost)).collect()
    }

    pub(crate) fn recorded(&self, entries: &[(Entry, u64)]) {
        let mut state = lock(&self.0);
        for (entry, recorded) in entries {
            if let Some(amount) = state.entries.get_mut(entry) {
                amount.recorded = amount.recorded.max(*recorded);
            }
        }
    }

    /// Returns the unacknowledged losses of all nodes, as last read from the store.
    pub(crate) fn unacknowledged(&self) -> ByCause {
        lock(&self.0).unacknowledged
    }

    pub(crate) fn set_unacknowledged(&self, amounts: impl Iterator<Item = (LossCause, u64)>) {
        let mut unacknowledged = ByCause::default();
        for (cause, amount) in amounts {
            let sum = &mut unacknowledged[cause as usize];
            *sum = sum.saturating_add(amount);
        }
        lock(&self.0).unacknowledged = unacknowledged;
    }
}

impl State {
    fn add(&mut self, cause: LossCause, minute: Minute, amount: u64) {
        if amount == 0 {
            return;
        }
        self.totals[cause as usize] += amount;
        let minute = Some(minute).filter(|_| Some(minute) > self.given_up);
        self.entries.entry((minute, cause)).or_default().lost += amount;
        if self.entries.len() <= ENTRIES_MAX {
            return;
        }
        // Entries without a minute sort first and are kept.
        let Some(&(oldest, cause)) = self.entries.keys().find(|(minute, _)| minute.is_some())
        else {
            return;
        };
        if let Some(Amount { lost, recorded }) = self.entries.remove(&(oldest, cause)) {
            self.given_up = self.given_up.max(oldest);
            if lost > recorded {
                self.entries.entry((None, cause)).or_default().lost += lost - recorded;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minute(number: i64) -> Minute {
        Minute::from_epoch_minutes(number).unwrap()
    }

    #[test]
    fn entries_grow_until_the_record_has_them() {
        let losses = Losses::default();
        losses.count(LossCause::KernelDrops, 0, minute(1));
        assert_eq!(losses.unrecorded(), []);
        losses.count(LossCause::KernelDrops, 5, minute(1));
        losses.count(LossCause::KernelDrops, 7, minute(2));
        losses.add(LossCause::Late, minute(1), 1);
        let entries = losses.unrecorded();
        let amounts: Vec<_> =
            entries.iter().map(|((_, cause), amount)| (*cause, *amount)).collect();
        let kernel = LossCause::KernelDrops;
        assert_eq!(amounts, [(kernel, 5), (LossCause::Late, 1), (kernel, 2)]);
        losses.add(LossCause::Late, minute(1), 1);
        losses.recorded(&entries);
        let rest = losses.unrecorded();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(rest[0].1, 2, "the total is reported, not the increase");
    }

    #[test]
    fn oldest_entries_are_merged_and_no_loss_is_forgotten() {
        let losses = Losses::default();
        let all = i64::try_from(ENTRIES_MAX).unwrap() + 10;
        for number in 1..=all {
            losses.add(LossCause::Late, minute(number), 1);
        }
        losses.add(LossCause::Late, minute(1), 1);
        let entries = losses.unrecorded();
        assert!(entries.len() <= ENTRIES_MAX);
        let sum: u64 = entries.iter().map(|(_, amount)| amount).sum();
        assert_eq!(sum, ENTRIES_MAX as u64 + 11);
        assert_eq!(entries[0], ((None, LossCause::Late), 12));
    }
}
