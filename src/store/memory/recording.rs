//! Events into sets.

use super::state::State;
use crate::event::{Partition, series_fingerprint};
use crate::store::{RecordRequest, StoreError};

/// What a member of a set costs beside its text, in bytes; roughly.
const MEMBER_BYTES: u64 = 64;

impl State {
    pub(super) fn check_room(&self) -> Result<(), StoreError> {
        if self.bytes < self.bytes_max {
            return Ok(());
        }
        Err(StoreError::Full(format!(
            "the open minutes take {} bytes and store.memory_max is {}; raise it, or use a Redis",
            self.bytes, self.bytes_max
        )))
    }

    pub(super) fn record(
        &mut self,
        partition: Partition,
        recordings: &[RecordRequest<'_>],
    ) -> Result<u64, StoreError> {
        self.check_room()?;
        let mut repeated = 0;
        let partition = &mut self.partitions[partition.index()];
        for recording in recordings {
            let minute = partition.minutes.entry(recording.minute).or_default();
            let sets = minute.sets.entry(recording.series.to_owned()).or_default();
            let before = sets.bytes;
            let series = recording.gathered_from.map(series_fingerprint);
            for user in &recording.new_users {
                if sets.users.insert((*user).into()) {
                    sets.bytes += user.len() as u64 + MEMBER_BYTES;
                }
            }
            for occurrence in recording.occurrences {
                let user = recording.batch.user(occurrence);
                let timestamp = occurrence.timestamp;
                let is_new = match series {
                    None => sets.events.insert((user.into(), timestamp)),
                    Some(series) => sets.gathered.insert((series, user.into(), timestamp)),
                };
                if is_new {
                    sets.bytes += user.len() as u64 + MEMBER_BYTES;
                } else {
                    repeated += 1;
                }
            }
            self.bytes += sets.bytes - before;
            minute.arrivals += recording.occurrences.len() as u64;
            // Nothing is forgotten of a minute that has something to do.
            minute.expires_ms = None;
            partition.waiting.insert(recording.minute);
        }
        Ok(repeated)
    }
}
