//! From sets to counts that every output has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_trait::async_trait;

use super::MemoryStore;
use super::reading::{page, series_counts};
use super::state::{PartitionState, deadline, unsent_bytes};
use super::witness::is_expected;
use crate::event::{Minute, Partition};
use crate::store::{
    Announced, Attested, Backlog, Claim, ClaimRequest, Compaction, Draining, Known, LOOKED_AT_MAX,
    News, OutputBacklog, OutputName, Page, QUARANTINE_MAX, Quarantined, SeriesCounts, StoreError,
    Testimony, is_recent,
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
        alive: Duration,
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
        partition.set_back(now_ms, lease);
        let witness = &mut partition.witness;
        witness.check_in(&self.node, known.sequence, now_ms, alive);
        let (closed, announced, sequence) = witness.closed_after(known.sequence);
        let witness = &partition.witness;
        Ok(News {
            stamp: witness.stamp,
            now_ms,
            sequence,
            closed,
            announced,
            late: witness.stamp_of(&self.node).late,
            since: witness.since.and_then(Minute::from_epoch_minutes),
            is_due: partition.is_due(self.closes_until_ms(now_ms)),
        })
    }

    async fn claim(
        &self,
        index: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        let micros = (self.clock)();
        let now_ms = micros.div_euclid(1000);
        let until_ms = self.closes_until_ms(now_ms);
        let mut state = self.lock();
        let partition = state.partition(index);
        partition.witness.check(&self.node, &request.known)?;
        let (mut request, grace) = (*request, request.grace);
        if partition.is_lagging(now_ms) {
            request.grace = request.grace.max(request.max_hold);
        }
        let is_expected = is_expected(&request, now_ms);
        if !is_expected {
            (request.lapsed_max, request.finished_max) = (0, 0);
        }
        let mut granted = Vec::new();
        let mut grant =
            |partition: &mut PartitionState, minute, output: Option<&OutputName>, taken_over| {
                let token = partition.grant(&self.node, (minute, output), micros, request.lease);
                granted.push(Claim {
                    partition: index,
                    minute,
                    output: output.cloned(),
                    token,
                    generation: 0,
                    taken_over,
                });
            };
        for minute in partition.lapsed(None, now_ms, request.lapsed_max) {
            grant(partition, minute, None, true);
        }
        for (output, most) in sending.iter().filter(|_| is_expected) {
            for minute in partition.lapsed(Some(output), now_ms, *most) {
                grant(partition, minute, Some(output), true);
            }
        }
        let mut finished = 0;
        let mut claim_finished = |partition: &mut PartitionState, looked: &[Minute], most| {
            if finished >= most {
                return finished;
            }
            for &minute in looked {
                if partition.claims.contains_key(&minute) {
                    partition.waiting.remove(&minute);
                } else if partition.is_finished(minute, now_ms, &request) && finished < most {
                    grant(partition, minute, None, false);
                    partition.waiting.remove(&minute);
                    if let Some(state) = partition.minutes.get_mut(&minute) {
                        state.idle = None;
                    }
                    finished += 1;
                }
            }
            finished
        };
        let waiting = partition.waiting.iter().copied();
        let over: Vec<_> = waiting
            .take_while(|it| it.end_millis() <= until_ms)
            .collect();
        let (old, recent) =
            over.split_at(over.partition_point(|it| !is_recent(*it, now_ms, grace)));
        let newest: Vec<_> = recent.iter().rev().take(LOOKED_AT_MAX).copied().collect();
        let finished = claim_finished(partition, &newest, request.finished_max);
        let most = request.finished_max.min(finished + request.old_max);
        let mut blocks = old.chunks(LOOKED_AT_MAX);
        let lowest = blocks.next().unwrap_or_default();
        if blocks.len() == 0 {
            claim_finished(partition, lowest, most);
        } else {
            let turn = usize::try_from(micros).unwrap_or_default() % blocks.len();
            claim_finished(partition, lowest, most - (most - finished) / 4);
            claim_finished(partition, blocks.nth(turn).unwrap_or_default(), most);
        }
        Ok(granted)
    }

    async fn compact(
        &self,
        claim: &Claim,
        series_max: usize,
        lease: Duration,
        outputs: &[OutputName],
    ) -> Result<Compaction, StoreError> {
        let micros = (self.clock)();
        let now_ms = micros.div_euclid(1000);
        let state = &mut *self.lock();
        let mut done = Compaction::default();
        if claim.output.is_some() {
            return Err(StoreError::ClaimLost);
        }
        let (partition, bytes) = state.held(claim)?;
        partition.extend(claim, deadline(now_ms, lease));
        let is_closed = partition.witness.has_closed(claim.minute);
        let minute = partition.minutes.entry(claim.minute).or_default();
        let before = minute.unsent_bytes;
        for _ in 0..series_max {
            let Some((series, sets)) = minute.sets.pop_first() else {
                break;
            };
            *bytes -= sets.bytes;
            if is_closed || minute.counts.contains_key(&series) {
                done.late += sets.cumulative();
            } else {
                let counts = (sets.unique(), sets.cumulative());
                minute.admitted.remove(&series);
                minute.counts.insert(series.clone(), counts);
                minute.unsent_bytes += unsent_bytes(&series, outputs.len());
                for output in outputs {
                    let unsent = minute.unsent.entry(output.clone()).or_default();
                    unsent.insert(series.clone());
                }
                done.sealed += 1;
            }
        }
        *bytes += minute.unsent_bytes - before;
        if done.sealed > 0 {
            // Counts that were admitted after their events came would be forgotten otherwise.
            minute.expires_ms = None;
            for output in outputs {
                partition.sending.entry(output.clone()).or_default();
            }
        }
        done.left = minute.sets.len() as u64;
        done.late = partition.witness.late_in_all(claim.node(), done.late);
        if done.left > 0 {
            return Ok(done);
        }
        minute.arrivals = 0;
        *bytes -= std::mem::take(&mut minute.users).charged;
        let lacking: BTreeSet<_> = minute.unsent.keys().cloned().collect();
        done.sending = partition.hand_out(claim, &lacking, outputs, micros, lease);
        state.end(claim.partition.index(), claim.minute, now_ms);
        Ok(done)
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let mut state = self.lock();
        let partition = state.partition(claim.partition);
        let minute = partition.minutes.get(&claim.minute);
        let unsent =
            minute.and_then(|minute| Some((minute, minute.unsent.get(claim.output.as_ref()?)?)));
        let Some((minute, unsent)) = unsent else {
            return Ok(Page::default());
        };
        let Page { items, next } = page(unsent.iter(), cursor);
        let counts = |series: &String| Some(series_counts(series, *minute.counts.get(series)?));
        Ok(Page {
            items: items.into_iter().filter_map(counts).collect(),
            next,
        })
    }

    async fn announce(
        &self,
        index: Partition,
        known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        if claims.iter().any(|claim| claim.output.is_none()) {
            return Err(StoreError::ClaimLost);
        }
        let now_ms = self.now_ms();
        let mut state = self.lock();
        state.partition(index).witness.check(&self.node, known)?;
        let mut announced = Vec::new();
        for claim in claims {
            let is_held = state.held(claim).is_ok();
            let witness = &mut state.partition(index).witness;
            announced.push(if is_held || witness.has_closed(claim.minute) {
                witness.announce(claim.minute);
                witness.announced(claim.minute, &self.node, now_ms)
            } else {
                Announced::ClaimLost
            });
        }
        Ok(announced)
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let now_ms = self.now_ms();
        let state = &mut *self.lock();
        let retention = state.retention;
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        let (partition, _) = state.held(claim)?;
        let mut is_sealed = true;
        if let Some(minute) = partition.minutes.get_mut(&claim.minute) {
            minute.confirm(output, series.iter().copied());
            if minute.unsent.contains_key(output) {
                partition.extend(claim, deadline(now_ms, lease));
                return Ok(false);
            }
            is_sealed = minute.sets.is_empty();
        }
        if let Some(of) = partition.sending.get_mut(output) {
            of.remove(&claim.minute);
        }
        if is_sealed {
            partition.witness.close(claim.minute);
            partition.forget_closed((claim.minute, output), retention);
            state.end(claim.partition.index(), claim.minute, now_ms);
        }
        Ok(true)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let now_ms = self.now_ms();
        let mut state = self.lock();
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        let (partition, _) = state.held(claim)?;
        let quarantine = partition.quarantine.entry(output.clone()).or_default();
        let mut kept = Vec::new();
        for &(series, message) in refused {
            let state = partition.minutes.get_mut(&claim.minute);
            let counts = state.and_then(|state| {
                state.confirm(output, [series]);
                state.counts.get(series).copied()
            });
            // A store that went back may lack them; then they come to be sealed again, or are closed.
            let Some((unique, cumulative)) = counts else {
                kept.push(true);
                continue;
            };
            let entry = (claim.minute, series.to_owned());
            let room = quarantine.len() < QUARANTINE_MAX || quarantine.contains_key(&entry);
            if room {
                let quarantined = Quarantined {
                    minute: claim.minute,
                    series: series.to_owned(),
                    unique,
                    cumulative,
                    since: now_ms.div_euclid(1000),
                    message: message.to_owned(),
                };
                quarantine.insert(entry, quarantined);
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
            state.partition(partition).extend(claim, deadline_ms);
        }
        Ok(claims.len())
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        let mut state = self.lock();
        let partition = state.partition(partition);
        let (waiting, claims) = (&partition.waiting, &partition.claims);
        let quarantined = |output| partition.quarantine.get(output).map_or(0, BTreeMap::len);
        let outputs = partition.sending.iter().map(|(output, lacks)| {
            let backlog = OutputBacklog {
                unsent: lacks.len() as u64,
                oldest: lacks.keys().next().copied(),
                quarantined: quarantined(output) as u64,
            };
            (output.clone(), backlog)
        });
        Ok(Backlog {
            waiting: waiting.len() as u64,
            old: 0,
            claimed: claims.len() as u64,
            oldest: waiting.iter().chain(claims.keys()).min().copied(),
            outputs: outputs.collect(),
        })
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        let mut state = self.lock();
        let has_work = |&partition: &Partition| {
            let partition = state.partition(partition);
            let lacks = |output| !partition.sending.get(output).is_none_or(BTreeMap::is_empty);
            let is_open = !partition.waiting.is_empty() || !partition.claims.is_empty();
            is_open || outputs.iter().any(lacks)
        };
        Ok(partitions.iter().map(has_work).collect())
    }
}
