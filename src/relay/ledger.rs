//! [`Ledger`]: counts lines by outcome. At any time, received = events + passthrough + rejected + looped and, for each
//! destination, lines = sent + dropped + queued. Each thread counts in its own ledger, and adds it to the relay's ledger.

use crate::event::Rejection;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    NoAddress,
    /// The kernel had no buffer space.
    Busy,
    /// The kernel rejected the datagram because there was no route, a firewall blocked it, or it was too long.
    Unreachable,
    QueueFull,
    Refused,
    Shutdown,
    /// The line would have come back to this relay.
    Looped,
    /// `passthrough.url` is `none:`.
    Discarded,
}

impl Loss {
    pub(super) const LABELS: [&str; 8] = [
        "no_address",
        "busy",
        "unreachable",
        "queue_full",
        "refused",
        "shutdown",
        "looped",
        "discarded",
    ];
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Destination {
    pub(crate) lines: u64,
    /// Lines accepted by the kernel, or acknowledged by a server.
    pub(crate) sent: u64,
    pub(crate) dropped: [u64; Loss::LABELS.len()],
    /// Datagrams accepted by the kernel.
    pub(crate) datagrams: u64,
    /// Number of port-unreachable errors, with which the kernel reports that no process is listening at the address.
    pub(crate) refusals: u64,
}

impl Destination {
    pub(super) const fn lose(&mut self, reason: Loss, lines: u64) {
        self.dropped[reason as usize] += lines;
    }

    pub(crate) fn queued(&self) -> u64 {
        self.lines - self.sent - self.dropped.iter().sum::<u64>()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.dropped.iter().sum::<u64>() - self.discarded()
    }

    pub(crate) const fn discarded(&self) -> u64 {
        self.dropped[Loss::Discarded as usize]
    }

    fn add(&mut self, more: &Self) {
        self.lines += more.lines;
        self.sent += more.sent;
        self.datagrams += more.datagrams;
        self.refusals += more.refusals;
        add_all(&mut self.dropped, &more.dropped);
    }
}

fn add_all(totals: &mut [u64], more: &[u64]) {
    for (total, more) in totals.iter_mut().zip(more) {
        *total += more;
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub(crate) datagrams: u64,
    pub(crate) kernel_drops: u64,
    pub(crate) rejected: [u64; Rejection::ALL.len()],
    /// Lines that have passed through too many relays.
    pub(crate) looped: u64,
    /// Events, each counted once no matter how many nodes it is sent to.
    pub(crate) events: u64,
    /// Events that were not sent to any node.
    pub(crate) nowhere: u64,
    pub(crate) nodes: Vec<Destination>,
    pub(crate) passthrough: Destination,
}

impl Ledger {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes: vec![Destination::default(); nodes], ..Self::default() }
    }

    pub(crate) fn received(&self) -> u64 {
        self.events + self.passthrough.lines + self.looped + self.rejected.iter().sum::<u64>()
    }

    /// Returns the ledger as it will be after the process exits and its queued lines are dropped.
    pub(crate) fn at_end(mut self) -> Self {
        let queued = self.nodes.iter().map(Destination::queued).min();
        self.nowhere += queued.unwrap_or_default();
        for destination in self.nodes.iter_mut().chain([&mut self.passthrough]) {
            destination.lose(Loss::Shutdown, destination.queued());
        }
        self
    }

    /// Returns the number of lost lines: events not sent to any node, and lost passthrough lines ([`Destination::lost`]).
    pub(crate) fn lost(&self) -> u64 {
        self.nowhere + self.passthrough.lost()
    }

    /// Adds the counts of a thread's ledger to this one, and resets the thread's ledger to zero.
    pub(super) fn take_in(&mut self, more: &mut Self) {
        self.datagrams += more.datagrams;
        self.kernel_drops += more.kernel_drops;
        self.looped += more.looped;
        self.events += more.events;
        self.nowhere += more.nowhere;
        add_all(&mut self.rejected, &more.rejected);
        self.passthrough.add(&more.passthrough);
        for (node, more_of_node) in self.nodes.iter_mut().zip(&mut more.nodes) {
            node.add(more_of_node);
            node.lines += more.events;
            *more_of_node = Destination::default();
        }
        *more = Self { nodes: std::mem::take(&mut more.nodes), ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_one_outcome_for_each_node() {
        let mut ledger = Ledger::new(2);
        let mut counts = Ledger { events: 10, looped: 5, ..Ledger::new(2) };
        counts.rejected[Rejection::NotUtf8.index()] = 1;
        counts.passthrough = Destination { lines: 9, sent: 2, ..Destination::default() };
        counts.passthrough.lose(Loss::Discarded, 3);
        ledger.take_in(&mut counts);
        assert_eq!((ledger.received(), ledger.nodes[0].queued()), (25, 10));
        assert_eq!(counts, Ledger::new(2));
        counts.nodes[0].sent = 6;
        counts.nodes[1].lose(Loss::Busy, 6);
        ledger.take_in(&mut counts);
        ledger.passthrough.sent += 1;
        ledger.passthrough.lose(Loss::Refused, 1);
        assert_eq!((ledger.received(), ledger.nodes[0].queued()), (25, 4));
        assert_eq!(ledger.passthrough.queued(), 2);
        assert_eq!(ledger.lost(), 1, "one node has the events");
        let ended = ledger.at_end();
        assert_eq!((ended.nodes[1].queued(), ended.passthrough.queued()), (0, 0));
        assert_eq!(ended.lost(), 4 + 1 + 2);
    }
}
