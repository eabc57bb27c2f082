//! From sets to counts, and what becomes of the counts.

use std::time::Duration;

use super::state::{PartitionState, Sets, State, deadline};
use crate::store::witness::kept_for;
use crate::store::{
    Claim, Compaction, QUARANTINE_MAX, Quarantined, StoreError, UnsentCounts, UnsentPage,
};

/// The counts given at once.
const UNSENT_PAGE: usize = 500;

impl State {
    pub(super) fn compact(
        &mut self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        now_ms: i64,
    ) -> Result<Compaction, StoreError> {
        let (partition, bytes) = self.held(claim)?;
        partition.extend(claim.minute, deadline(now_ms, lease));
        let mut done = Compaction::default();
        let is_closed = partition.witness.has_closed(claim.minute);
        let Some(state) = partition.minutes.get_mut(&claim.minute) else {
            return Ok(done);
        };
        for _ in 0..series_max {
            let Some((series, sets)) = state.sets.pop_first() else {
                break;
            };
            *bytes -= sets.bytes;
            if is_closed || state.counts.contains_key(&series) {
                done.late += sets.cumulative();
            } else {
                let counts = (sets.users.len() as u64, sets.cumulative());
                state.admitted.remove(&series);
                state.counts.insert(series.clone(), counts);
                state.unsent.insert(series);
                done.sealed += 1;
            }
        }
        if done.sealed > 0 {
            // Counts that were admitted after their events came would be forgotten otherwise.
            state.expires_ms = None;
        }
        done.left = state.sets.len() as u64;
        Ok(done)
    }

    pub(super) fn unsent(&self, claim: &Claim, cursor: u64) -> UnsentPage {
        let partition = &self.partitions[claim.partition.index()];
        let Some(minute) = partition.minutes.get(&claim.minute) else {
            return UnsentPage::default();
        };
        let from = usize::try_from(cursor).unwrap_or(usize::MAX);
        let page = minute.unsent.iter().skip(from).take(UNSENT_PAGE);
        let counts = page.filter_map(|series| {
            let &(unique, cumulative) = minute.counts.get(series)?;
            Some(UnsentCounts {
                series: series.clone(),
                unique,
                cumulative,
            })
        });
        let next = from + UNSENT_PAGE;
        UnsentPage {
            counts: counts.collect(),
            next: (next < minute.unsent.len()).then_some(next as u64),
        }
    }

    pub(super) fn acknowledge(
        &mut self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
        now_ms: i64,
    ) -> Result<bool, StoreError> {
        let (retention, counts_max) = (self.retention, self.counts_max);
        let (partition, _) = self.held(claim)?;
        let mut expires_ms = i64::MAX;
        if let Some(state) = partition.minutes.get_mut(&claim.minute) {
            for series in series {
                state.unsent.remove(*series);
            }
            if !state.sets.is_empty() || !state.unsent.is_empty() {
                partition.extend(claim.minute, deadline(now_ms, lease));
                return Ok(false);
            }
            state.arrivals = 0;
            let counts = (state.counts.len() + state.admitted.len()) as u64;
            let kept = kept_for(retention, counts_max, counts);
            expires_ms = deadline(now_ms, kept);
            state.expires_ms = Some(expires_ms);
        }
        partition.claims.remove(&claim.minute);
        partition.close(claim.minute, retention);
        self.next_expiry_ms = self.next_expiry_ms.min(expires_ms);
        Ok(true)
    }

    /// The different events that no output has, those of refused counts included.
    pub(super) fn unpublished(&self) -> u64 {
        let of = |partition: &PartitionState| {
            let quarantine = partition
                .quarantine
                .values()
                .map(|counts| counts.cumulative);
            let minutes = partition.minutes.values().flat_map(|minute| {
                let unsent = minute.unsent.iter().filter_map(|it| minute.counts.get(it));
                let open = minute.sets.values().map(Sets::cumulative);
                open.chain(unsent.map(|&(_, cumulative)| cumulative))
            });
            quarantine.chain(minutes).sum::<u64>()
        };
        self.partitions.iter().map(of).sum()
    }

    pub(super) fn quarantine(
        &mut self,
        claim: &Claim,
        refused: &[(&str, &str)],
        now_ms: i64,
    ) -> Result<Vec<bool>, StoreError> {
        let (partition, _) = self.held(claim)?;
        let mut kept = Vec::new();
        for &(series, message) in refused {
            let state = partition.minutes.get_mut(&claim.minute);
            let counts = state.and_then(|state| {
                state.unsent.remove(series);
                state.counts.get(series).copied()
            });
            // A store that went back may lack them; then they come to be sealed again, or are closed.
            let Some(counts) = counts else {
                kept.push(true);
                continue;
            };
            let entry = (claim.minute, series.to_owned());
            let room = partition.quarantine.len() < QUARANTINE_MAX
                || partition.quarantine.contains_key(&entry);
            if room {
                let quarantine = Quarantined {
                    minute: claim.minute,
                    series: series.to_owned(),
                    unique: counts.0,
                    cumulative: counts.1,
                    since: now_ms.div_euclid(1000),
                    message: message.to_owned(),
                };
                partition.quarantine.insert(entry, quarantine);
            }
            kept.push(room);
        }
        Ok(kept)
    }
}
