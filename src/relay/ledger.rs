//! The ledger: what became of every line that this relay read from a socket.
//!
//! received = events + rest + rejected + looped, and for each node events = sent + dropped + queued, at every moment; the same of the
//! rest. Each movement is one step under a lock, taken once for what one system call read and once for each pack.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::event::Rejection;

/// Why a line did not get to where it belongs.
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
    /// The server refused the line, or a write that it was in.
    Refused,
    /// The relay had to end before.
    Shutdown,
    /// What is sent there comes back to this relay.
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

    /// The reason's name in the metrics.
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

/// What became of the lines for one place: a node, or the rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The kernel took them, or a server confirmed them.
    pub sent: u64,
    /// Those that did not get there, by place in [`Loss::ALL`].
    pub dropped: [u64; Loss::ALL.len()],
    /// Those that wait.
    pub queued: u64,
}

impl Place {
    /// So many of the lines that wait were sent.
    pub const fn send(&mut self, lines: u64) {
        self.queued -= lines;
        self.sent += lines;
    }

    /// So many of them were dropped.
    pub const fn lose(&mut self, reason: Loss, lines: u64) {
        self.queued -= lines;
        self.dropped[reason as usize] += lines;
    }

    /// Those that should have got there and did not.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() - self.discarded()
    }

    /// Those that the configuration sends nowhere.
    #[must_use]
    pub const fn discarded(&self) -> u64 {
        self.dropped[Loss::Discarded as usize]
    }

    /// All of them.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.sent + self.lost() + self.discarded() + self.queued
    }

    /// Takes in what became of further lines.
    fn join(&mut self, other: &Self) {
        self.sent += other.sent;
        self.queued += other.queued;
        for (all, more) in self.dropped.iter_mut().zip(other.dropped) {
            *all += more;
        }
    }
}

/// How many lines are where. All but what is queued only grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LedgerTotals {
    /// Lines read from the sockets.
    pub received: u64,
    /// Lines that are for nobody, by [`Rejection::index`].
    pub rejected: [u64; Rejection::ALL.len()],
    /// Lines that have passed too many relays: they circle among relays.
    pub looped: u64,
    /// Lines for the nodes, each once.
    pub events: u64,
    /// Those of them that no node was sent.
    pub nowhere: u64,
    /// What became of them, for each node.
    pub nodes: Vec<Place>,
    /// All other lines.
    pub rest: Place,
}

impl LedgerTotals {
    /// Whether every line is in exactly one place, for each node.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let rejected: u64 = self.rejected.iter().sum();
        self.received == self.events + self.rest.lines() + rejected + self.looped
            && self.nodes.iter().all(|node| node.lines() == self.events)
    }

    /// The totals once the process ends: what waits is dropped.
    #[must_use]
    pub fn at_end(mut self) -> Self {
        let waiting = self.nodes.iter().map(|node| node.queued).min();
        self.nowhere += waiting.unwrap_or_default();
        for place in self.nodes.iter_mut().chain([&mut self.rest]) {
            place.lose(Loss::Shutdown, place.queued);
        }
        self
    }

    /// Lines that this process had taken and that got nowhere.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.nowhere + self.rest.lost()
    }
}

/// What one thread did with the lines that it read since it last updated the ledger.
#[derive(Debug, Clone, Default)]
pub(super) struct Intake {
    /// Lines for the nodes; they wait.
    pub(super) events: u64,
    /// Lines for the rest.
    pub(super) rest: Place,
    /// Lines that circle among relays.
    pub(super) looped: u64,
    /// Lines for nobody.
    pub(super) rejected: [u64; Rejection::ALL.len()],
}

/// The ledger of a relay.
#[derive(Debug)]
pub struct Ledger(Mutex<LedgerTotals>);

impl Ledger {
    /// Of a relay to so many nodes.
    #[must_use]
    pub fn new(nodes: usize) -> Self {
        Self(Mutex::new(LedgerTotals {
            nodes: vec![Place::default(); nodes],
            ..LedgerTotals::default()
        }))
    }

    fn lock(&self) -> MutexGuard<'_, LedgerTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many lines are where, all at the same moment.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        self.lock().clone()
    }

    /// Enters what was read.
    pub(super) fn take_in(&self, intake: &Intake) {
        let mut totals = self.lock();
        totals.received += intake.events
            + intake.rest.lines()
            + intake.looped
            + intake.rejected.iter().sum::<u64>();
        totals.looped += intake.looped;
        totals.events += intake.events;
        for node in &mut totals.nodes {
            node.queued += intake.events;
        }
        totals.rest.join(&intake.rest);
        for (total, rejected) in totals.rejected.iter_mut().zip(&intake.rejected) {
            *total += rejected;
        }
    }

    /// A pack of so many lines went out: what became of them for each node, and how many no node was sent.
    pub(super) fn flushed(&self, lines: u64, outcomes: &[Place], nowhere: u64) {
        let mut totals = self.lock();
        totals.nowhere += nowhere;
        for (node, outcome) in totals.nodes.iter_mut().zip(outcomes) {
            node.queued -= lines;
            node.join(outcome);
        }
    }

    /// What waited for the rest has got there, or not.
    pub(super) fn rest(&self, change: impl FnOnce(&mut Place)) {
        change(&mut self.lock().rest);
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
        intake.rest.queued = 4;
        intake.rest.sent = 2;
        intake.rest.dropped[Loss::Discarded as usize] = 3;
        intake.looped = 5;
        ledger.take_in(&intake);
        assert!(ledger.totals().is_balanced());
        let mut outcomes = [Place::default(); 2];
        outcomes[0].sent = 6;
        outcomes[1].dropped[Loss::Busy as usize] = 6;
        ledger.flushed(6, &outcomes, 0);
        ledger.rest(|rest| rest.send(1));
        ledger.rest(|rest| rest.lose(Loss::Refused, 1));
        let totals = ledger.totals();
        assert!(totals.is_balanced(), "{totals:?}");
        assert_eq!((totals.received, totals.nodes[0].queued), (25, 4));
        assert_eq!(totals.lost(), 1, "one node has the events");
        let ended = totals.at_end();
        assert!(ended.is_balanced());
        assert_eq!(ended.lost(), 4 + 1 + 2);
    }
}
