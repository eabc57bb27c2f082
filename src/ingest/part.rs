//! [`Part`]: a part of a batch that is recorded in one transaction, and what becomes of it when the node gives up.

use crate::event::{Batch, Group, Occurrence};
use crate::spool::Spool;
use crate::telemetry::{DropReason, Ledger};

/// Where a batch comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// From a listener: its events are in the ledger's queue.
    Queue,
    /// From the disk: they are in the queue, too, and on the disk until they are recorded.
    Spool,
    /// Recorded before: its events have left the ledger.
    Replay,
}

/// A part of a group that fits into one transaction.
pub(super) struct Part<'a> {
    pub(super) group: &'a Group,
    pub(super) from: usize,
    pub(super) to: usize,
}

impl<'a> Part<'a> {
    /// Its events.
    pub(super) fn events(&self) -> &'a [Occurrence] {
        &self.group.occurrences[self.from..self.to]
    }

    /// Adds its events to another batch. Answers for how many there was no room.
    fn copy(&self, from: &Batch, to: &mut Batch) -> usize {
        let Group { minute, series, .. } = self.group;
        let mut lost = 0;
        for event in self.events() {
            if !to.push(*minute, series, from.user(event), event.timestamp) {
                lost += 1;
            }
        }
        lost
    }
}

/// The node may not wait any longer: what is not recorded goes to the disk, where there is one.
pub(super) async fn give_up(
    ledger: &Ledger,
    spool: Option<&Spool>,
    batch: &Batch,
    parts: &[Part<'_>],
    origin: Origin,
) {
    let events = parts.iter().map(|part| part.to - part.from).sum();
    match (origin, spool) {
        (Origin::Replay, _) => {}
        (Origin::Spool, _) => ledger.spooled(events),
        (Origin::Queue, None) => ledger.dropped(DropReason::Shutdown, events),
        (Origin::Queue, Some(spool)) => {
            ledger.spooled(events);
            let mut rest = Batch::default();
            let lost = parts.iter().map(|part| part.copy(batch, &mut rest)).sum();
            ledger.refused_by_spool(DropReason::SpoolFailed, lost);
            if let Err(rest) = spool.keep(rest).await {
                ledger.refused_by_spool(DropReason::SpoolFailed, rest.events());
            }
        }
    }
}
