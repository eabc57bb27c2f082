//! [`Ledger`]: counts the events in each state. Under its lock, received = recorded + rejected + dropped + queued.

use std::sync::Mutex;

use super::lock;
use crate::diagnosis::{ByCause, LossCause};
use crate::event::Rejection;

/// The number of events in each state. All except `queued`, `spooled`, `unwritten` and `queued_bytes` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Events read from the sockets, valid or not, and events that an earlier process left on disk.
    pub received: u64,
    /// Events that the store has acknowledged.
    pub recorded: u64,
    /// Recorded events that are counted in an overflow series.
    pub overflowed: u64,
    /// Distinct recorded events that were lost with the process before they were published; 0 until the process exits.
    pub unpublished: u64,
    /// Rejected lines, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Dropped events, by cause.
    pub dropped: ByCause,
    /// Events waiting for the store, in memory or on disk.
    pub queued: u64,
    /// Queued events that are on disk or are being written to it.
    pub spooled: u64,
    /// Spooled events that are still being written.
    pub unwritten: u64,
    /// Approximate memory used by the queued events that are not spooled, in bytes.
    pub queued_bytes: u64,
}

impl LedgerTotals {
    /// Returns whether every event is in exactly one state.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let rejected: u64 = self.rejected.iter().sum();
        let dropped: u64 = self.dropped.iter().sum();
        self.received == self.recorded + rejected + dropped + self.queued
    }

    /// Returns the totals on exit, when queued events that are not on disk are dropped.
    pub(crate) const fn at_end(mut self, unpublished: u64) -> Self {
        let on_disk = self.spooled.saturating_sub(self.unwritten);
        self.dropped[LossCause::Shutdown as usize] += self.queued.saturating_sub(on_disk);
        self.queued = on_disk;
        self.unpublished = unpublished;
        self
    }

    pub(crate) fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() + self.unpublished
    }

    pub(crate) const fn in_memory(&self) -> u64 {
        self.queued.saturating_sub(self.spooled)
    }
}

/// The lines that one thread has read since it last updated the ledger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    /// Events in batches for the store.
    pub queued: u64,
    /// The memory used by these batches, in bytes.
    pub queued_bytes: u64,
    /// Events in batches for the spool.
    pub spooled: u64,
    /// Rejected lines, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Events dropped because the queue was full.
    pub dropped: u64,
}

/// The number of events in each state on this node.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<LedgerTotals>);

impl Ledger {
    /// Returns a consistent snapshot of the totals.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        *lock(&self.0)
    }

    /// Adds lines that have been read, and returns the new totals.
    pub fn take_in(&self, intake: &Intake) -> LedgerTotals {
        let mut totals = lock(&self.0);
        totals.received +=
            intake.queued + intake.spooled + intake.dropped + intake.rejected.iter().sum::<u64>();
        totals.queued += intake.queued + intake.spooled;
        totals.spooled += intake.spooled;
        totals.unwritten += intake.spooled;
        totals.queued_bytes += intake.queued_bytes;
        totals.dropped[LossCause::QueueFull as usize] += intake.dropped;
        for (total, rejected) in totals.rejected.iter_mut().zip(&intake.rejected) {
            *total += rejected;
        }
        *totals
    }

    /// Moves events from queued to recorded. `overflowed` of them have been recorded under an overflow series.
    pub fn recorded(&self, events: usize, overflowed: usize) {
        let mut totals = lock(&self.0);
        totals.queued -= events as u64;
        totals.recorded += events as u64;
        totals.overflowed += overflowed as u64;
    }

    pub(crate) fn rejected(&self, reason: Rejection, events: usize) {
        let mut totals = lock(&self.0);
        totals.queued -= events as u64;
        totals.rejected[reason.index()] += events as u64;
    }

    pub(crate) fn dropped(&self, reason: LossCause, events: usize) {
        let mut totals = lock(&self.0);
        totals.queued -= events as u64;
        totals.dropped[reason as usize] += events as u64;
    }

    /// Marks queued events as about to be spooled. Their memory is released separately.
    pub(crate) fn to_be_spooled(&self, events: usize) {
        let mut totals = lock(&self.0);
        totals.spooled += events as u64;
        totals.unwritten += events as u64;
    }

    /// Counts events from the spool as spooled again, because they are still on disk. Their memory is released separately.
    pub(crate) fn stay_spooled(&self, events: usize) {
        lock(&self.0).spooled += events as u64;
    }

    pub(crate) fn written(&self, events: usize) {
        lock(&self.0).unwritten -= events as u64;
    }

    pub(crate) fn refused_by_spool(&self, reason: LossCause, events: usize) {
        self.written(events);
        self.lost_in_spool(reason, events);
    }

    pub(crate) fn lost_in_spool(&self, reason: LossCause, events: usize) {
        let mut totals = lock(&self.0);
        totals.queued -= events as u64;
        totals.spooled -= events as u64;
        totals.dropped[reason as usize] += events as u64;
    }

    /// Adds events that an earlier process left in the spool.
    pub(crate) fn restored(&self, events: u64) {
        let mut totals = lock(&self.0);
        totals.received += events;
        totals.queued += events;
        totals.spooled += events;
    }

    /// Moves events from the spool to memory, where they use `bytes`.
    pub(crate) fn unspooled(&self, events: u64, bytes: usize) {
        let mut totals = lock(&self.0);
        totals.spooled -= events;
        totals.queued_bytes += bytes as u64;
    }

    /// Subtracts memory that queued events have released.
    pub fn released(&self, bytes: usize) {
        lock(&self.0).queued_bytes -= bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_balances() {
        let ledger = Ledger::default();
        let mut intake = Intake { queued: 10, dropped: 2, ..Intake::default() };
        intake.rejected[Rejection::TooOld.index()] = 3;
        assert!(ledger.take_in(&intake).is_balanced());
        ledger.recorded(4, 0);
        ledger.rejected(Rejection::TooOld, 1);
        ledger.dropped(LossCause::Shutdown, 2);
        let totals = ledger.totals();
        assert!(totals.is_balanced());
        assert_eq!((totals.received, totals.recorded, totals.queued), (15, 4, 3));
        assert_eq!(totals.rejected[Rejection::TooOld.index()], 4);
    }

    #[test]
    fn queue_includes_the_spool() {
        let ledger = Ledger::default();
        let intake = Intake { queued: 10, spooled: 5, ..Intake::default() };
        ledger.take_in(&intake);
        ledger.refused_by_spool(LossCause::SpoolFull, 1);
        ledger.restored(3);
        ledger.to_be_spooled(2);
        ledger.written(5);
        let totals = ledger.totals();
        assert_eq!((totals.queued, totals.spooled), (17, 9));
        assert_eq!(totals.in_memory(), 8);
        // The next process reads the events that are on disk, so they are not lost.
        let ended = totals.at_end(4);
        assert!(ended.is_balanced());
        assert_eq!((ended.queued, ended.lost()), (8, 1 + 9 + 4));
        ledger.unspooled(9, 100);
        ledger.recorded(17, 0);
        let totals = ledger.totals();
        assert!(totals.is_balanced());
        assert_eq!((totals.queued, totals.in_memory()), (0, 0));
    }
}
