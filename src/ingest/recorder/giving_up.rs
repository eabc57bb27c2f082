//! What becomes of events when the node may not wait any longer for the store.

use super::Recorder;
use crate::event::Batch;
use crate::ingest::parts::{Origin, Part};
use crate::node::DropReason;

impl Recorder {
    /// What is not recorded goes to the disk, where there is one.
    pub(super) async fn give_up(&self, batch: &Batch, parts: &[Part<'_>], origin: Origin) {
        let ledger = &self.node.ledger;
        let events = parts.iter().map(Part::events).sum();
        match (origin, &self.spool) {
            (Origin::Replay, _) => {}
            (Origin::Spool, _) => ledger.stay_spooled(events),
            (Origin::Queue, None) => ledger.dropped(DropReason::Shutdown, events),
            (Origin::Queue, Some(spool)) => {
                ledger.to_be_spooled(events);
                let mut rest = Batch::default();
                let lost = parts.iter().map(|part| part.copy(batch, &mut rest)).sum();
                ledger.refused_by_spool(DropReason::SpoolFailed, lost);
                if let Err(rest) = spool.keep(rest).await {
                    ledger.refused_by_spool(DropReason::SpoolFailed, rest.events());
                }
            }
        }
    }
}
