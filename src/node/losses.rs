//! [`Losses`]: what this process lost, by minute and cause, for the record of losses in the store.
//!
//! Each entry is a total that only grows, so that it can be told to the store again after any doubt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::diagnosis::{ByCause, LossCause};
use crate::event::Minute;

/// The most entries. The oldest give way, and what is lost of their minutes later has no minute.
const ENTRIES_MAX: usize = 256;

/// What was lost of a minute for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// The minute of the events, or, where that is not known, in which they were lost; `None`: an earlier one.
    pub minute: Option<Minute>,
    /// Why.
    pub cause: LossCause,
    /// How many, in total.
    pub amount: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Losses(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<(Option<Minute>, LossCause), Amount>,
    /// The newest minute whose entry gave way.
    given_up: Option<Minute>,
    /// What [`Losses::count`] was told last.
    counted: ByCause,
    totals: ByCause,
    unacknowledged: ByCause,
}

#[derive(Debug, Clone, Copy, Default)]
struct Amount {
    lost: u64,
    /// What the record has of it.
    recorded: u64,
}

impl Losses {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds so many lost events of this minute.
    pub fn add(&self, cause: LossCause, minute: Minute, amount: u64) {
        self.lock().add(cause, minute, amount);
    }

    /// Adds what was lost in this minute by a counter that only grows.
    pub fn count(&self, cause: LossCause, total: u64, minute: Minute) {
        let mut state = self.lock();
        let before = std::mem::replace(&mut state.counted[cause as usize], total);
        state.add(cause, minute, total.saturating_sub(before));
    }

    /// Returns what this process lost in all.
    #[must_use]
    pub fn totals(&self) -> ByCause {
        self.lock().totals
    }

    /// Returns the entries that the record does not have in full.
    #[must_use]
    pub fn unrecorded(&self) -> Vec<Lost> {
        let state = self.lock();
        let entries = state.entries.iter();
        let unrecorded = entries.filter(|(_, amount)| amount.lost > amount.recorded);
        let lost = |(&(minute, cause), amount): (&(Option<Minute>, LossCause), &Amount)| Lost {
            minute,
            cause,
            amount: amount.lost,
        };
        unrecorded.map(lost).collect()
    }

    /// The record has these.
    pub fn recorded(&self, entries: &[Lost]) {
        let mut state = self.lock();
        for entry in entries {
            if let Some(amount) = state.entries.get_mut(&(entry.minute, entry.cause)) {
                amount.recorded = amount.recorded.max(entry.amount);
            }
        }
    }

    /// Returns what all nodes lost that is not acknowledged, as far as this one has heard.
    #[must_use]
    pub fn unacknowledged(&self) -> ByCause {
        self.lock().unacknowledged
    }

    /// Sets what all nodes lost that is not acknowledged.
    pub fn set_unacknowledged(&self, amounts: impl Iterator<Item = (LossCause, u64)>) {
        let mut unacknowledged = ByCause::default();
        for (cause, amount) in amounts {
            let sum = &mut unacknowledged[cause as usize];
            *sum = sum.saturating_add(amount);
        }
        self.lock().unacknowledged = unacknowledged;
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
        // Entries without a minute come first, and stay.
        let oldest = self.entries.keys().find(|(minute, _)| minute.is_some());
        let Some(&(oldest, cause)) = oldest else {
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
        let amounts: Vec<_> = entries.iter().map(|it| (it.cause, it.amount)).collect();
        let kernel = LossCause::KernelDrops;
        assert_eq!(amounts, [(kernel, 5), (LossCause::Late, 1), (kernel, 2)]);
        losses.add(LossCause::Late, minute(1), 1);
        losses.recorded(&entries);
        let rest = losses.unrecorded();
        assert_eq!(rest.len(), 1, "{rest:?}");
        assert_eq!(rest[0].amount, 2, "the total, not what was added");
    }

    #[test]
    fn oldest_entries_give_way_and_no_loss_is_forgotten() {
        let losses = Losses::default();
        let all = i64::try_from(ENTRIES_MAX).unwrap() + 10;
        for number in 1..=all {
            losses.add(LossCause::Late, minute(number), 1);
        }
        losses.add(LossCause::Late, minute(1), 1);
        let entries = losses.unrecorded();
        assert!(entries.len() <= ENTRIES_MAX);
        let sum: u64 = entries.iter().map(|it| it.amount).sum();
        assert_eq!(sum, ENTRIES_MAX as u64 + 11);
        assert_eq!((entries[0].minute, entries[0].amount), (None, 12));
    }
}
