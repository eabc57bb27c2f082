//! The ledger: what became of every event that this node read from a socket.
//!
//! received = recorded + rejected + dropped + queued, at every moment. Each movement is one step under a lock,
//! taken once a batch and not once an event, so no reader ever sees an event in two places or in none.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::diagnosis::{ByCause, LossCause};
use crate::event::Rejection;

/// How many events are where. All but `queued`, `spooled`, `unwritten` and `queued_bytes` only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Lines read from the sockets that are events, valid or not, and events that an earlier run left on disk.
    pub received: u64,
    /// Events that the store confirmed.
    pub recorded: u64,
    /// Those of them that are counted under an overflow series.
    pub overflowed: u64,
    /// Different events among the recorded ones that ended with the process, unpublished: 0 until it ends.
    pub unpublished: u64,
    /// Lines that are not counted, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Events that were not kept, by cause.
    pub dropped: ByCause,
    /// Events on the way to the store.
    pub queued: u64,
    /// Events among them that are on disk only, or on their way there.
    pub spooled: u64,
    /// Events among these that are on their way there.
    pub unwritten: u64,
    /// The memory that the others take, in bytes; roughly.
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

    /// The totals once the process ends: what is not on disk is dropped, and so many recorded events stay unpublished.
    #[must_use]
    pub const fn at_end(mut self, unpublished: u64) -> Self {
        let on_disk = self.spooled.saturating_sub(self.unwritten);
        self.dropped[LossCause::Shutdown as usize] += self.queued.saturating_sub(on_disk);
        self.queued = on_disk;
        self.unpublished = unpublished;
        self
    }

    /// Events that this process had taken and that nobody has any more.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() + self.unpublished
    }

    /// Events on the way to the store that take memory.
    #[must_use]
    pub const fn in_memory(&self) -> u64 {
        self.queued.saturating_sub(self.spooled)
    }
}

/// What one thread did with the lines that it read since it last updated the ledger.
#[derive(Debug, Clone, Copy, Default)]
pub struct Intake {
    /// Events put into batches.
    pub queued: u64,
    /// The memory that these take.
    pub queued_bytes: u64,
    /// Events put into batches for the spool.
    pub spooled: u64,
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

    /// Enters what was read, and returns the totals after it.
    pub fn take_in(&self, intake: &Intake) -> LedgerTotals {
        let mut totals = self.lock();
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

    /// Events of the queue were recorded.
    pub fn recorded(&self, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.recorded += events as u64;
    }

    /// So many of the events that were recorded went to an overflow series.
    pub fn overflowed(&self, events: usize) {
        if events > 0 {
            self.lock().overflowed += events as u64;
        }
    }

    /// Events of the queue turned out not to be counted after all.
    pub fn rejected(&self, reason: Rejection, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.rejected[reason.index()] += events as u64;
    }

    /// Events of the queue were dropped.
    pub fn dropped(&self, reason: LossCause, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.dropped[reason as usize] += events as u64;
    }

    /// Events of the queue go to the spool after all; their memory is given back apart.
    pub fn to_be_spooled(&self, events: usize) {
        let mut totals = self.lock();
        totals.spooled += events as u64;
        totals.unwritten += events as u64;
    }

    /// Events that came from the spool stay there; their memory is given back apart.
    pub fn stay_spooled(&self, events: usize) {
        self.lock().spooled += events as u64;
    }

    /// Events that were to go to the spool are there.
    pub fn written(&self, events: usize) {
        self.lock().unwritten -= events as u64;
    }

    /// The spool could not keep events that were to go there.
    pub fn refused_by_spool(&self, reason: LossCause, events: usize) {
        self.written(events);
        self.lost_in_spool(reason, events);
    }

    /// Events of the spool cannot be read again.
    pub fn lost_in_spool(&self, reason: LossCause, events: usize) {
        let mut totals = self.lock();
        totals.queued -= events as u64;
        totals.spooled -= events as u64;
        totals.dropped[reason as usize] += events as u64;
    }

    /// Events that an earlier run left in the spool are there.
    pub fn restored(&self, events: u64) {
        let mut totals = self.lock();
        totals.received += events;
        totals.queued += events;
        totals.spooled += events;
    }

    /// Events of the spool are in memory again, where they take so many bytes.
    pub fn unspooled(&self, events: u64, bytes: usize) {
        let mut totals = self.lock();
        totals.spooled -= events;
        totals.queued_bytes += bytes as u64;
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
        let mut intake = Intake { queued: 10, dropped: 2, ..Intake::default() };
        intake.rejected[Rejection::TooOld.index()] = 3;
        assert!(ledger.take_in(&intake).is_balanced());
        ledger.recorded(4);
        ledger.rejected(Rejection::TooOld, 1);
        ledger.dropped(LossCause::Shutdown, 2);
        let totals = ledger.totals();
        assert!(totals.is_balanced());
        assert_eq!((totals.received, totals.recorded, totals.queued), (15, 4, 3));
        assert_eq!(totals.rejected[Rejection::TooOld.index()], 4);
    }

    #[test]
    fn the_spool_is_a_part_of_the_queue() {
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
        // What is on disk is for the next process, and no loss.
        let ended = totals.at_end(4);
        assert!(ended.is_balanced());
        assert_eq!((ended.queued, ended.lost()), (8, 1 + 9 + 4));
        ledger.unspooled(9, 100);
        ledger.recorded(17);
        let totals = ledger.totals();
        assert!(totals.is_balanced());
        assert_eq!((totals.queued, totals.in_memory()), (0, 0));
    }
}
