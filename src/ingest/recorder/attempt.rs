//! One attempt to record: what has a place of its own, what is rejected, and the transaction.

use std::sync::Arc;

use super::Recorder;
use crate::event::{Batch, Rejection};
use crate::ingest::caps::Pending;
use crate::ingest::parts::{Origin, Part};
use crate::store::{Recording, StoreError};

impl Recorder {
    /// Asks what has a place of its own, rejects the users for whom there is none, and records the rest. `None`: what
    /// was asked may be another store than the one that is there now.
    pub(super) async fn attempt<'a>(
        &mut self,
        batch: &'a Batch,
        overflow: &'a str,
        parts: &mut Vec<Part<'a>>,
        origin: Origin,
        generation: u64,
    ) -> Result<Option<Vec<Recording<'a>>>, StoreError> {
        let store = Arc::clone(&self.store);
        self.caps.ask(&*store, parts.iter().map(Part::key)).await?;
        let mut recordings = Vec::with_capacity(parts.len());
        let mut pending = Pending::new();
        let mut at = 0;
        while let Some(part) = parts.get(at).copied() {
            let (minute, series) = part.key();
            let overflow = self.caps.refuses(minute, series).then_some(overflow);
            let recording = part.recording(batch, overflow, &self.remembered);
            let users = &recording.new_users;
            let refused =
                self.caps
                    .users_refused(&*store, minute, recording.series, users, &mut pending);
            let refused = refused.await?;
            if refused.is_empty() {
                recordings.push(recording);
                at += 1;
            } else {
                let left = part.without(batch, &refused);
                let events = part.events() - left.iter().map(Part::events).sum::<usize>();
                if origin != Origin::Replay {
                    self.ledger.rejected(Rejection::TooManyUsers, events);
                }
                recordings.extend(
                    left.iter()
                        .map(|part| part.recording(batch, overflow, &self.remembered)),
                );
                let next = at + left.len();
                parts.splice(at..=at, left);
                at = next;
            }
        }
        if self.store.generation(self.partition) != generation {
            return Ok(None);
        }
        if !recordings.is_empty() {
            // The overflow series' recordings next to each other, which makes them one command.
            recordings.sort_by_key(|recording| recording.gathered_from.is_some());
            store
                .record(self.partition, generation, &recordings)
                .await?;
        }
        Ok(Some(recordings))
    }
}
