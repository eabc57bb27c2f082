//! [`Losses`]: what this process lost, by minute and cause, for the record of losses in the store.
//!
//! Each entry is a total that only grows, so that it can be told to the store again after any doubt.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::DropReason;
use crate::event::Minute;

/// The most entries. The oldest give way, and what is lost of their minutes later has no minute.
const ENTRIES_MAX: usize = 256;

/// Why events that a node was sent are in no point, or lines that a relay was sent are nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossCause {
    /// The node dropped them.
    Dropped(DropReason),
    /// The kernel dropped datagrams before the node read them.
    KernelDrops,
    /// Redis forgot them, and the node could not record them again.
    Forgotten,
    /// Redis forgot their minute while its counts were written, so that an output may lack some. Minutes are counted.
    Unconfirmed,
    /// An output refused their count, and the quarantine was full.
    Discarded,
    /// They came after their count was sealed.
    Late,
    /// A relay could send them to no node.
    RelayNowhere,
    /// The place that a relay sends all other lines to did not take them.
    RelayRest,
    /// The kernel dropped datagrams before the relay read them.
    RelayKernelDrops,
}

impl LossCause {
    /// Every cause, in the order of the metrics.
    pub const ALL: [Self; 12] = [
        Self::Dropped(DropReason::QueueFull),
        Self::Dropped(DropReason::SpoolFull),
        Self::Dropped(DropReason::SpoolFailed),
        Self::Dropped(DropReason::Shutdown),
        Self::KernelDrops,
        Self::Forgotten,
        Self::Unconfirmed,
        Self::Discarded,
        Self::Late,
        Self::RelayNowhere,
        Self::RelayRest,
        Self::RelayKernelDrops,
    ];

    /// The cause's name in the record and in the metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Dropped(reason) => reason.label(),
            Self::KernelDrops => "kernel_drops",
            Self::Forgotten => "forgotten",
            Self::Unconfirmed => "unconfirmed",
            Self::Discarded => "discarded",
            Self::Late => "late",
            Self::RelayNowhere => "relay_nowhere",
            Self::RelayRest => "relay_rest_dropped",
            Self::RelayKernelDrops => "relay_kernel_drops",
        }
    }

    /// The cause of this name.
    #[must_use]
    pub fn labelled(label: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.label() == label)
    }

    /// What was lost, after a number.
    #[must_use]
    pub const fn what(self) -> &'static str {
        match self {
            Self::Dropped(_) => "events dropped",
            Self::KernelDrops | Self::RelayKernelDrops => "datagrams dropped by the kernel",
            Self::Forgotten => "events forgotten by Redis",
            Self::Unconfirmed => "minutes forgotten by Redis while they were written",
            Self::Discarded => "events of counts discarded",
            Self::Late => "events found late",
            Self::RelayNowhere => "events sent to no node",
            Self::RelayRest => "lines of the rest dropped",
        }
    }

    /// Why it happens.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Dropped(reason) => reason.cause(),
            Self::KernelDrops | Self::RelayKernelDrops => {
                "the receive buffer was full, since the process was stopped or too slow, or checksums were wrong"
            }
            Self::Forgotten => {
                "Redis went back to an earlier state, and the node could not record them again"
            }
            Self::Unconfirmed => "an output may lack some of their counts, for good",
            Self::Discarded => "an output refused their counts, and its quarantine was full",
            Self::Late => "they came after their minute was closed, and are not published",
            Self::RelayNowhere => "every node refused them, or has no address",
            Self::RelayRest => {
                "the place of rest.url refuses them, does not answer, or leads back to the relay"
            }
        }
    }

    /// What to do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Dropped(reason) => reason.remedy(),
            Self::KernelDrops | Self::RelayKernelDrops => {
                "raise input.receive_buffer (and net.core.rmem_max), or input.threads; look at the load of the host"
            }
            Self::Forgotten => {
                "run `CONFIG SET appendonly yes`, and write it into redis.conf; give a master with replicas min-replicas-to-write 1; raise store.replay_window"
            }
            Self::Unconfirmed => {
                "compare the points of these minutes with what you expect; run `CONFIG SET appendonly yes`, and write it into redis.conf"
            }
            Self::Discarded => {
                "see `eds quarantine list --output NAME`, and have the server fixed; then `eds quarantine retry --all --output NAME`, or `eds quarantine drop --all --output NAME`"
            }
            Self::Late => {
                "look at clocks and delays of the senders; raise flush.grace, for all nodes by `eds settings apply`, and restart them"
            }
            Self::RelayNowhere => "start the nodes, and look at their addresses in relay.to",
            Self::RelayRest => {
                "see whether the server of rest.url takes lines: the relay's log has its message; raise rest.queue_bytes"
            }
        }
    }

    /// Whether all of them are missing from points. Copies of events that are in points may be among late ones.
    #[must_use]
    pub const fn is_certain(self) -> bool {
        !matches!(self, Self::Late)
    }

    /// Whether a relay lost them.
    #[must_use]
    pub const fn is_of_relay(self) -> bool {
        matches!(
            self,
            Self::RelayNowhere | Self::RelayRest | Self::RelayKernelDrops
        )
    }

    const fn index(self) -> usize {
        match self {
            Self::Dropped(reason) => reason as usize,
            Self::KernelDrops => 4,
            Self::Forgotten => 5,
            Self::Unconfirmed => 6,
            Self::Discarded => 7,
            Self::Late => 8,
            Self::RelayNowhere => 9,
            Self::RelayRest => 10,
            Self::RelayKernelDrops => 11,
        }
    }
}

/// A number for each of [`LossCause::ALL`].
pub type ByCause = [u64; LossCause::ALL.len()];

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
        let before = std::mem::replace(&mut state.counted[cause.index()], total);
        state.add(cause, minute, total.saturating_sub(before));
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
            let sum = &mut unacknowledged[cause.index()];
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

    #[test]
    fn index_is_the_place_in_all() {
        for (place, cause) in LossCause::ALL.into_iter().enumerate() {
            assert_eq!(cause.index(), place);
            assert_eq!(LossCause::labelled(cause.label()), Some(cause));
        }
    }
}
