//! Which series and users have a place of their own.

use super::state::{MinuteState, State, deadline};
use crate::event::{Minute, Partition};
use crate::store::{Admission, AdmitRequest, Admitted, SeriesUsers, StoreError};

impl MinuteState {
    fn admits(&self, series: &str) -> bool {
        self.admitted.contains(series) || self.counts.contains_key(series)
    }
}

impl State {
    pub(super) fn admit(
        &mut self,
        partition: Partition,
        request: &AdmitRequest<'_>,
        now_ms: i64,
    ) -> Result<Admitted, StoreError> {
        self.check_room()?;
        let retention = self.retention;
        let minute = self.partitions[partition.index()]
            .minutes
            .entry(request.minute)
            .or_default();
        let is_new = minute.admitted.is_empty() && minute.counts.is_empty();
        let users = |minute: &MinuteState, series: &str| {
            let sets = minute.sets.get(series);
            sets.map_or(0, |sets| sets.users.len() as u64)
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
                Admission::Admitted { users }
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
            self.next_expiry_ms = self.next_expiry_ms.min(expires_ms);
        }
        Ok(Admitted {
            overflow_users: users(minute, request.overflow),
            series,
        })
    }

    pub(super) fn users(
        &self,
        partition: Partition,
        minute: Minute,
        series: &str,
        users: &[&str],
    ) -> SeriesUsers {
        let minute = self.partitions[partition.index()].minutes.get(&minute);
        let Some(sets) = minute.and_then(|minute| minute.sets.get(series)) else {
            return SeriesUsers {
                count: 0,
                there: vec![false; users.len()],
            };
        };
        SeriesUsers {
            count: sets.users.len() as u64,
            there: users
                .iter()
                .map(|&user| sets.users.contains(user))
                .collect(),
        }
    }
}
