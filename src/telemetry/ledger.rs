//! The ledger: what became of every event that this node read from a socket.
//!
//! received = recorded + rejected + dropped + queued, at every moment. Each movement is one step under a lock,
//! taken once a batch and not once an event, so no reader ever sees an event in two places or in none.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Rejection;

/// Why an event that could have been counted was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full: the store is away or too slow.
    QueueFull,
    /// The node had to end before the store took them.
    Shutdown,
}

impl DropReason {
    /// Every reason, in the order of the metrics.
    pub const ALL: &[Self] = &[Self::QueueFull, Self::Shutdown];

    /// The reason's name in the metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Shutdown => "shutdown",
        }
    }
}

/// How many events are where. All but `queued` and `queued_bytes` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Lines read from the sockets that are events, valid or not.
    pub received: u64,
    /// Events that the store confirmed.
    pub recorded: u64,
    /// Lines that are not counted, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Events that were not kept, by place in [`DropReason::ALL`].
    pub dropped: [u64; DropReason::ALL.len()],
    /// Events on the way to the store.
    pub queued: u64,
    /// The memory that these take, in bytes; roughly.
    pub queued_bytes: u64,
}

impl LedgerTotals {
    /// Whether every event is in exactly one place.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let rejected: u64 = self.rejected.iter().sum();
        let dropped: u64 = self.dropped.iter().sum();
        self.received == self.recorded + rejected + dropped + self.queued
    }
}

/// What one thread did with the lines that it read since it last told the ledger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    /// Events put into batches.
    pub queued: u64,
    /// The memory that these take.
    pub queued_bytes: u64,
    /// Lines that are not counted.
    pub rejected: [u64; Rejection::ALL.len()],
    /// Events for which there was no room.
    pub dropped: u64,
}

/// The ledger of this node.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<LedgerTotals>);

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, LedgerTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many events are where, all at the same moment.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        *self.lock()
    }

    /// Enters what was read, and answers the totals after it.
    pub fn take_in(&self, intake: &Intake) -> LedgerTotals {
        let mut totals = self.lock();
        totals.received += intake.queued + intake.dropped + intake.rejected.iter().sum::<u64>();
        totals.queued += intake.queued;
        totals.queued_bytes += intake.queued_bytes;
        totals.dropped[DropReason::QueueFull as usize] += intake.dropped;
        for (total, rejected) in totals.rejected.iter_mut().zip(&intake.rejected) {
            *total += rejected;
        }
        *totals
    }

    /// Events of the queue were recorded.
    pub fn recorded(&self, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.recorded += events as u64;
    }

    /// Events of the queue turned out not to be counted after all.
    pub fn rejected(&self, reason: Rejection, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.rejected[reason.index()] += events as u64;
    }

    /// Events of the queue were given up.
    pub fn dropped(&self, reason: DropReason, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.dropped[reason as usize] += events as u64;
    }

    /// Memory of the queue was given back.
    pub fn released(&self, bytes: usize) {
        self.lock().queued_bytes -= bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_event_is_in_one_place() {
        let ledger = Ledger::default();
        let mut intake = Intake {
            queued: 10,
            dropped: 2,
            ..Intake::default()
        };
        intake.rejected[Rejection::TooOld.index()] = 3;
        assert!(ledger.take_in(&intake).is_balanced());
        ledger.recorded(4);
        ledger.rejected(Rejection::TooOld, 1);
        ledger.dropped(DropReason::Shutdown, 2);
        let totals = ledger.totals();
        assert!(totals.is_balanced());
        assert_eq!(
            (totals.received, totals.recorded, totals.queued),
            (15, 4, 3)
        );
        assert_eq!(totals.rejected[Rejection::TooOld.index()], 4);
    }
}
