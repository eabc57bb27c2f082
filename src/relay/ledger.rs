//! The ledger of a relay: the fate of every line that it read from a socket.
//!
//! received = events + passthrough + rejected + looped, and for each node and for passthrough lines = sent + dropped + queued, at
//! every moment. Each change is one step under a lock, taken once for the datagrams of one system call and once for each pack.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Rejection;

/// Why a line was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// No address is known for the name.
    NoAddress,
    /// The kernel had no room.
    Busy,
    /// The kernel refused: no route, a firewall, too long for a datagram.
    Unreachable,
    /// The queue for the server was full.
    QueueFull,
    /// The server refused the line.
    Refused,
    /// The relay stopped before.
    Shutdown,
    /// It would come back to this relay.
    Looped,
    /// `rest.url` is `none:`.
    Discarded,
}

impl Loss {
    /// Every reason, in the order of the metrics.
    pub const ALL: &[Self] = &[
        Self::NoAddress,
        Self::Busy,
        Self::Unreachable,
        Self::QueueFull,
        Self::Refused,
        Self::Shutdown,
        Self::Looped,
        Self::Discarded,
    ];

    /// Returns the reason's name in the metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoAddress => "no_address",
            Self::Busy => "busy",
            Self::Unreachable => "unreachable",
            Self::QueueFull => "queue_full",
            Self::Refused => "refused",
            Self::Shutdown => "shutdown",
            Self::Looped => "looped",
            Self::Discarded => "discarded",
        }
    }
}

/// The lines for one place: a node, or the place of passthrough lines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// Lines that the kernel took, or a server confirmed.
    pub sent: u64,
    /// Dropped lines, by place in [`Loss::ALL`].
    pub dropped: [u64; Loss::ALL.len()],
    /// Lines that wait.
    pub queued: u64,
}

impl Place {
    /// Moves this many queued lines to the sent ones.
    pub const fn send(&mut self, lines: u64) {
        self.queued -= lines;
        self.sent += lines;
    }

    /// Moves this many queued lines to the dropped ones.
    pub const fn lose(&mut self, reason: Loss, lines: u64) {
        self.queued -= lines;
        self.dropped[reason as usize] += lines;
    }

    /// Returns the number of dropped lines, without [`Self::discarded`].
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() - self.discarded()
    }

    /// Returns the number of lines that the configuration discards.
    #[must_use]
    pub const fn discarded(&self) -> u64 {
        self.dropped[Loss::Discarded as usize]
    }

    /// Returns the number of all lines.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.sent + self.queued + self.dropped.iter().sum::<u64>()
    }

    fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.queued += other.queued;
        add_all(&mut self.dropped, &other.dropped);
    }
}

fn add_all(totals: &mut [u64], more: &[u64]) {
    for (total, more) in totals.iter_mut().zip(more) {
        *total += more;
    }
}

/// The number of lines in each place. All but the queued ones only grow.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Lines read from the sockets.
    pub received: u64,
    /// Rejected lines, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Lines that have passed too many relays.
    pub looped: u64,
    /// Lines for the nodes, each once.
    pub events: u64,
    /// Events that no node was sent.
    pub nowhere: u64,
    /// The events of each node.
    pub nodes: Vec<Place>,
    /// All other lines.
    pub passthrough: Place,
}

impl LedgerTotals {
    /// Returns whether every line is in exactly one place, for each node.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let rejected: u64 = self.rejected.iter().sum();
        self.received == self.events + self.passthrough.lines() + rejected + self.looped
            && self.nodes.iter().all(|node| node.lines() == self.events)
    }

    /// Returns the totals after the end of the process, which drops the queued lines.
    #[must_use]
    pub fn at_end(mut self) -> Self {
        let waiting = self.nodes.iter().map(|node| node.queued).min();
        self.nowhere += waiting.unwrap_or_default();
        for place in self.nodes.iter_mut().chain([&mut self.passthrough]) {
            place.lose(Loss::Shutdown, place.queued);
        }
        self
    }

    /// Returns the number of lines that were accepted and sent nowhere.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.nowhere + self.passthrough.lost()
    }
}

/// The lines that one thread read since it last updated the ledger.
#[derive(Debug, Clone, Default)]
pub(super) struct Intake {
    /// Lines for the nodes; they are queued.
    pub(super) events: u64,
    pub(super) passthrough: Place,
    pub(super) looped: u64,
    pub(super) rejected: [u64; Rejection::ALL.len()],
}

/// The ledger of a relay.
#[derive(Debug)]
pub struct Ledger(Mutex<LedgerTotals>);

impl Ledger {
    /// Returns the ledger of a relay to this many nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        let nodes = vec![Place::default(); nodes];
        Self(Mutex::new(LedgerTotals { nodes, ..LedgerTotals::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, LedgerTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of lines in each place, all at the same moment.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        self.lock().clone()
    }

    pub(super) fn take_in(&self, intake: &Intake) {
        let mut totals = self.lock();
        let rejected: u64 = intake.rejected.iter().sum();
        totals.received += intake.events + intake.passthrough.lines() + intake.looped + rejected;
        totals.looped += intake.looped;
        totals.events += intake.events;
        for node in &mut totals.nodes {
            node.queued += intake.events;
        }
        totals.passthrough.add(&intake.passthrough);
        add_all(&mut totals.rejected, &intake.rejected);
    }

    /// Enters a sent pack of this many lines: the outcome of each node, and the number of lines that no node was sent.
    pub(super) fn flushed(&self, lines: u64, outcomes: &[Place], nowhere: u64) {
        let mut totals = self.lock();
        totals.nowhere += nowhere;
        for (node, outcome) in totals.nodes.iter_mut().zip(outcomes) {
            node.queued -= lines;
            node.add(outcome);
        }
    }

    /// Changes the place of passthrough lines.
    pub(super) fn passthrough(&self, change: impl FnOnce(&mut Place)) {
        change(&mut self.lock().passthrough);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_in_one_place_for_each_node() {
        let ledger = Ledger::new(2);
        let mut intake = Intake { events: 10, ..Intake::default() };
        intake.rejected[Rejection::NotUtf8.index()] = 1;
        intake.passthrough.queued = 4;
        intake.passthrough.sent = 2;
        intake.passthrough.dropped[Loss::Discarded as usize] = 3;
        intake.looped = 5;
        ledger.take_in(&intake);
        assert!(ledger.totals().is_balanced());
        let mut outcomes = [Place::default(); 2];
        outcomes[0].sent = 6;
        outcomes[1].dropped[Loss::Busy as usize] = 6;
        ledger.flushed(6, &outcomes, 0);
        ledger.passthrough(|place| place.send(1));
        ledger.passthrough(|place| place.lose(Loss::Refused, 1));
        let totals = ledger.totals();
        assert!(totals.is_balanced(), "{totals:?}");
        assert_eq!((totals.received, totals.nodes[0].queued), (25, 4));
        assert_eq!(totals.lost(), 1, "one node has the events");
        let ended = totals.at_end();
        assert!(ended.is_balanced());
        assert_eq!(ended.lost(), 4 + 1 + 2);
    }
}
