//! From sets to counts that an output has.

use std::time::Duration;

use async_trait::async_trait;

use super::MemoryStore;
use super::reading::{page, series_counts};
use super::state::{PartitionState, Sets, State, deadline};
use super::witness::is_expected;
use crate::event::{Minute, Partition};
use crate::store::witness::kept_for;
use crate::store::{
    Attested, Backlog, Claim, ClaimRequest, Compaction, Draining, Known, News, Page,
    QUARANTINE_MAX, Quarantined, SeriesCounts, StoreError, Testimony,
};

#[async_trait]
impl Draining for MemoryStore {
    async fn attest(
        &self,
        partition: Partition,
        testimony: &Testimony,
    ) -> Result<Attested, StoreError> {
        let micros = (self.clock)();
        let mut state = self.lock();
        let witness = &mut state.partition(partition).witness;
        Ok(witness.attest(&self.node, testimony, micros))
    }

    async fn check_in(
        &self,
        partition: Partition,
        known: &Known,
        lags: bool,
        lease: Duration,
    ) -> Result<News, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let partition = state.partition(partition);
        let lagging = &mut partition.lagging;
        if lags {
            lagging.insert(self.node.clone(), deadline(now_ms, lease));
        } else if !partition.witness.has_heard_since(&self.node, known) {
            lagging.remove(&self.node);
        }
        partition.witness.check(&self.node, known)?;
        partition.witness.put_stamp(&self.node, now_ms);
        partition.set_back(now_ms, lease);
        let witness = &partition.witness;
        let (closed, sequence) = witness.closed_after(known.sequence);
        Ok(News {
            stamp_ms: witness.stamp_ms,
            now_ms,
            sequence,
            closed,
            since: witness.since.and_then(Minute::from_epoch_minutes),
        })
    }

    async fn claim(
        &self,
        index: Partition,
        request: &ClaimRequest,
    ) -> Result<Vec<Claim>, StoreError> {
        let micros = (self.clock)();
        let now_ms = micros.div_euclid(1000);
        let mut state = self.lock();
        let partition = state.partition(index);
        partition.witness.check(&self.node, &request.known)?;
        let mut request = *request;
        if partition.is_lagging(now_ms) {
            request.grace = request.grace.max(request.max_hold);
        }
        if !is_expected(&request, now_ms) {
            (request.lapsed_max, request.finished_max) = (0, 0);
        }
        let mut granted = Vec::new();
        let mut grant = |partition: &mut PartitionState, minute, taken_over| {
            let token = partition.grant(&self.node, minute, micros, request.lease);
            granted.push(Claim {
                partition: index,
                minute,
                token,
                generation: 0,
                taken_over,
            });
        };
        for minute in partition.lapsed(now_ms, request.lapsed_max) {
            grant(partition, minute, true);
        }
        let mut finished = 0;
        for minute in partition.waiting.clone() {
            if partition.claims.contains_key(&minute) {
                partition.waiting.remove(&minute);
            } else if minute.end_millis() > now_ms || finished >= request.finished_max {
                break;
            } else if partition.is_finished(minute, now_ms, &request) {
                grant(partition, minute, false);
                partition.waiting.remove(&minute);
                if let Some(state) = partition.minutes.get_mut(&minute) {
                    state.idle = None;
                }
                finished += 1;
            }
        }
        Ok(granted)
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
    ) -> Result<Compaction, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let (partition, bytes) = state.held(claim)?;
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

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let mut state = self.lock();
        let partition = state.partition(claim.partition);
        let Some(minute) = partition.minutes.get(&claim.minute) else {
            return Ok(Page::default());
        };
        let Page { items, next } = page(minute.unsent.iter(), cursor);
        let counts = |series: &String| Some(series_counts(series, *minute.counts.get(series)?));
        Ok(Page {
            items: items.into_iter().filter_map(counts).collect(),
            next,
        })
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let now_ms = self.now_ms();
        let state = &mut *self.lock();
        let (retention, counts_max) = (state.retention, state.counts_max);
        let (partition, _) = state.held(claim)?;
        let mut expires_ms = i64::MAX;
        if let Some(minute) = partition.minutes.get_mut(&claim.minute) {
            for series in series {
                minute.unsent.remove(*series);
            }
            if !minute.sets.is_empty() || !minute.unsent.is_empty() {
                partition.extend(claim.minute, deadline(now_ms, lease));
                return Ok(false);
            }
            minute.arrivals = 0;
            let counts = (minute.counts.len() + minute.admitted.len()) as u64;
            let kept = kept_for(retention, counts_max, counts);
            expires_ms = deadline(now_ms, kept);
            minute.expires_ms = Some(expires_ms);
        }
        partition.claims.remove(&claim.minute);
        partition.close(claim.minute, retention);
        state.next_expiry_ms = state.next_expiry_ms.min(expires_ms);
        Ok(true)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let (partition, _) = state.held(claim)?;
        let mut kept = Vec::new();
        for &(series, message) in refused {
            let state = partition.minutes.get_mut(&claim.minute);
            let counts = state.and_then(|state| {
                state.unsent.remove(series);
                state.counts.get(series).copied()
            });
            // A store that went back may lack them; then they come to be sealed again, or are closed.
            let Some((unique, cumulative)) = counts else {
                kept.push(true);
                continue;
            };
            let entry = (claim.minute, series.to_owned());
            let room = partition.quarantine.len() < QUARANTINE_MAX
                || partition.quarantine.contains_key(&entry);
            if room {
                let quarantined = Quarantined {
                    minute: claim.minute,
                    series: series.to_owned(),
                    unique,
                    cumulative,
                    since: now_ms.div_euclid(1000),
                    message: message.to_owned(),
                };
                partition.quarantine.insert(entry, quarantined);
            }
            kept.push(room);
        }
        Ok(kept)
    }

    async fn extend(
        &self,
        partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let held = |claim: &&&Claim| state.held(claim).is_ok();
        let claims: Vec<_> = claims.iter().filter(held).collect();
        for claim in &claims {
            let deadline_ms = deadline(now_ms, lease);
            state.partition(partition).extend(claim.minute, deadline_ms);
        }
        Ok(claims.len())
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        let mut state = self.lock();
        let partition = state.partition(partition);
        let (waiting, claims) = (&partition.waiting, &partition.claims);
        Ok(Backlog {
            waiting: waiting.len() as u64,
            claimed: claims.len() as u64,
            quarantined: partition.quarantine.len() as u64,
            oldest: waiting.iter().chain(claims.keys()).min().copied(),
        })
    }
}

impl State {
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
}
