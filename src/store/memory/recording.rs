//! Events into sets, and which series and users have a place of their own.

use async_trait::async_trait;

use super::MemoryStore;
use super::sets::Sets;
use super::state::{MinuteState, State, deadline};
use crate::diagnosis::{Cause, Diagnosis};
use crate::event::{Minute, Partition};
use crate::store::{
    Admission, AdmitRequest, Admitted, RecordRequest, Recording, Seen, SeriesUsers, StoreError,
};

impl MinuteState {
    fn admits(&self, series: &str) -> bool {
        self.admitted.contains(series) || self.counts.contains_key(series)
    }
}

impl State {
    pub(super) fn check_room(&self) -> Result<(), StoreError> {
        if self.bytes < self.bytes_max {
            return Ok(());
        }
        let why = format!(
            "open minutes and counts that an output lacks take {} bytes and store.memory_max is {}",
            self.bytes, self.bytes_max
        );
        Err(StoreError::Full(Diagnosis::new(Cause::MemoryFull, why)))
    }
}

#[async_trait]
impl Recording for MemoryStore {
    async fn admit(
        &self,
        partition: Partition,
        request: &AdmitRequest<'_>,
    ) -> Result<Admitted, StoreError> {
        let now_ms = self.now_ms();
        let state = &mut *self.lock();
        state.check_room()?;
        let retention = state.retention;
        let minute = state.partitions[partition.index()]
            .minutes
            .entry(request.minute)
            .or_default();
        let is_new = minute.admitted.is_empty() && minute.counts.is_empty();
        let users = |minute: &MinuteState, series: &str| {
            let sets = minute.sets.get(series);
            sets.map_or(0, Sets::unique)
        };
        let series = request.series.iter().map(|&series| {
            if !minute.admits(request.overflow) && !minute.admits(series) {
                // The first that is refused closes the minute.
                let admitted = (minute.admitted.len() + minute.counts.len()) as u64;
                let has_room = admitted < request.series_max;
                let entered = if has_room { series } else { request.overflow };
                minute.admitted.insert(entered.to_owned());
            }
            if minute.admits(series) {
                let users = users(minute, series);
                Admission::Admitted { users: Some(users) }
            } else {
                Admission::Refused
            }
        });
        let series = series.collect();
        // What nobody records anything under is forgotten, too. An event may come until it is too old.
        if is_new || minute.expires_ms.is_some() {
            let from_ms = now_ms.max(request.minute.end_millis());
            let expires_ms = deadline(from_ms, retention);
            // Never sooner, also when the clock was set back.
            minute.expires_ms = minute.expires_ms.filter(|_| !is_new).max(Some(expires_ms));
            state.next_expiry_ms = state.next_expiry_ms.min(expires_ms);
        }
        Ok(Admitted {
            overflow_users: Some(users(minute, request.overflow)),
            arrivals: minute.arrivals,
            series,
        })
    }

    async fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> Result<SeriesUsers, StoreError> {
        let state = self.lock();
        let minute = state.partitions[partition.index()].minutes.get(&minute);
        let known = minute.and_then(|minute| Some((&minute.users, minute.sets.get(series)?)));
        let is_there = |user: &&str| known.is_some_and(|(names, sets)| sets.has_user(names, user));
        Ok(SeriesUsers {
            count: known.map_or(0, |(_, sets)| sets.unique()),
            there: users.iter().map(is_there).collect(),
        })
    }

    async fn record(
        &self,
        partition: Partition,
        _generation: u64,
        recordings: &[RecordRequest<'_>],
        seen: &[Seen],
    ) -> Result<u64, StoreError> {
        let now_ms = self.now_ms();
        let state = &mut *self.lock();
        state.check_room()?;
        let mut repeated = 0;
        let partition = &mut state.partitions[partition.index()];
        for recording in recordings {
            let minute = partition.minutes.entry(recording.minute).or_default();
            if !minute.users.has_room(recording.batch) {
                let why = format!(
                    "minute {} has 268 million users in one of store.partitions, or their names take 4 GiB, which is the most",
                    recording.minute
                );
                return Err(StoreError::Full(Diagnosis::new(Cause::MemoryCrowded, why)));
            }
            let series = recording.series;
            let sets = if let Some(sets) = minute.sets.get_mut(series) {
                state.bytes -= sets.bytes;
                sets
            } else {
                let new = minute.sets.entry(series.to_owned());
                new.or_insert_with(|| Sets::new(series))
            };
            repeated += sets.record(&mut minute.users, recording);
            state.bytes += sets.bytes + minute.users.charge();
            minute.arrivals += recording.occurrences.len() as u64;
            // Nothing is forgotten of a minute that has something to do.
            minute.expires_ms = None;
            partition.waiting.insert(recording.minute);
        }
        for seen in seen {
            let minute = partition.minutes.entry(seen.minute).or_default();
            minute.coverage.insert(self.node.clone(), seen.events);
            if seen.renew || minute.coverage_until_ms.is_none() {
                let until_ms = deadline(now_ms, state.retention);
                minute.coverage_until_ms = Some(until_ms);
                state.next_expiry_ms = state.next_expiry_ms.min(until_ms);
            }
        }
        Ok(repeated)
    }
}
