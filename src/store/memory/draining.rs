//! Draining: turns sets into sealed counts, and keeps these until every output has them.

use std::iter::once;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    Counts, MemoryStore, MinuteState, PartitionState, Result, State, after_ms, now_ms,
    series_counts,
};
use crate::event::{Every, Minute, OverflowSeries, Partition, Quality};
use crate::store::{
    ACTIVE_MAX, Announced, Attested, Backlog, Bucket, CLOCK_TOLERANCE_MS, CheckIn, Claim,
    ClaimRequest, Compaction, Draining, Known, News, OutputName, Page, QUARANTINE_MAX, SealRequest,
    SeriesCounts, StoreError, Testimony, Union, closed_minutes, is_recent, kept_counts, kept_for,
    retention_of,
};

/// The approximate size of a count in bytes, excluding its series.
const COUNT_BYTES: usize = 100;

impl MemoryStore {
    /// Returns the time by which a minute must have ended to be closed: now, or when the node stopped receiving events.
    fn closes_until_ms(&self, now_ms: i64) -> i64 {
        self.stopped_ms.get().map_or(now_ms, |at| now_ms.min(*at))
    }

    /// If a minute has neither sets nor unsent counts, closes the minute and lets its counts expire.
    fn end(&self, state: &mut State, partition: Partition, minute: Minute) {
        let every = self.partitions.rollup(partition).map_or(Every::MINUTE, |rollup| rollup.every);
        let partition = &mut state.partitions[partition.index()];
        let ended = partition.minutes.entry(minute).or_default();
        if ended.is_open() || !ended.unsent.is_empty() {
            return;
        }
        state.bytes -= std::mem::take(&mut ended.unsent_bytes);
        let counts = (ended.counts.len() + ended.admitted.len()) as u64;
        let (retention, counts_max) =
            (retention_of(self.retention, every), kept_counts(self.counts_max, every));
        ended.expires_ms = after_ms(now_ms(), kept_for(retention, counts_max, counts));
        partition.busy.remove(&minute);
        partition.close(minute, self.retention);
    }
}

/// Returns whether a series with these last events gets a zero in a minute without events.
fn is_silent(last: Minute, minute: Minute, zeros: u32) -> bool {
    last < minute && minute <= last.after(zeros)
}

impl State {
    fn held(&mut self, claim: &Claim) -> Result<&mut MinuteState> {
        let minutes = &mut self.partitions[claim.partition.index()].minutes;
        let minute = minutes.get_mut(&claim.minute);
        minute
            .filter(|minute| minute.leases.contains_key(&claim.output))
            .ok_or(StoreError::ClaimLost)
    }
}

impl PartitionState {
    fn is_closed(&self, minute: Minute) -> bool {
        self.since.is_some_and(|since| minute < since) || self.closed.contains(&minute)
    }

    /// Adds a minute to the closed minutes, and drops those before `since`, which never passes a minute with work.
    fn close(&mut self, minute: Minute, retention: Duration) {
        self.closed.insert(minute);
        let newest = self.closed.last().map_or(0, |newest| newest.epoch_minutes());
        let since = Minute::from_epoch_minutes(newest - closed_minutes(retention));
        let first = self.busy.first().copied();
        let since = since.map(|since| first.map_or(since, |first| first.min(since)));
        self.since = self.since.max(since);
        if let Some(since) = self.since {
            self.closed = self.closed.split_off(&since);
        }
    }
}

impl MinuteState {
    fn is_finished(
        &mut self,
        minute: Minute,
        lags: bool,
        (now, now_ms): (Instant, i64),
        request: &ClaimRequest,
    ) -> bool {
        let (arrivals, since, first) = self.idle.unwrap_or((self.arrivals, now, now));
        let since = if arrivals == self.arrivals { since } else { now };
        self.idle = Some((self.arrivals, since, first));
        let is_held_long = now >= first + request.max_hold
            && now_ms >= after_ms(minute.end_millis(), request.max_hold);
        // As long as the node lags, events that it has not recorded yet may belong to any minute, even if it is idle.
        is_held_long || (!lags && now >= since + request.grace)
    }
}

#[async_trait]
impl Draining for MemoryStore {
    /// Ignores the testimony, because this store loses nothing while the process lives.
    async fn attest(&self, _: Partition, _: &Testimony) -> Result<Attested> {
        Ok(Attested { epoch: 1, ..Attested::default() })
    }

    async fn check_in(&self, partition: Partition, check_in: &CheckIn) -> Result<News> {
        let now_ms = now_ms();
        let until_ms = self.closes_until_ms(now_ms);
        let partition = &mut self.lock().partitions[partition.index()];
        let PartitionState { minutes, busy, .. } = partition;
        minutes.retain(|minute, state| busy.contains(minute) || state.expires_ms >= now_ms);
        partition.lags = check_in.lags;
        let is_due = partition
            .busy()
            .any(|(minute, state)| !state.waits() || minute.end_millis() <= until_ms);
        Ok(News { now_ms, late: partition.late, is_due, ..News::default() })
    }

    async fn claim(
        &self,
        index: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>> {
        let (now, now_ms) = (Instant::now(), now_ms());
        let expected_ms = request.known.expected_ms;
        if expected_ms.is_some_and(|expected| (now_ms - expected).abs() > CLOCK_TOLERANCE_MS) {
            // The clock has been changed, so minutes may appear to have ended although they have not.
            return Ok(Vec::new());
        }
        let partition = &mut self.lock().partitions[index.index()];
        let mut claims = Vec::new();
        let mut grant = |minute, output: &Option<OutputName>, taken_over| {
            claims.push(Claim {
                partition: index,
                minute,
                output: output.clone(),
                token: String::new(),
                generation: 0,
                taken_over,
            });
        };
        let sending = sending.iter().map(|(output, most)| (Some(output.clone()), *most));
        for (output, most) in once((None, request.lapsed_max)).chain(sending) {
            let leases = partition.busy().filter_map(|(minute, state)| {
                state.leases.get(&output).map(|until| (*until, minute))
            });
            let mut lapsed: Vec<_> = leases.filter(|(until, _)| *until <= now).collect();
            lapsed.sort_unstable();
            lapsed.iter().take(most).for_each(|(_, minute)| grant(*minute, &output, true));
        }
        let until_ms = self.closes_until_ms(now_ms);
        let waiting = partition.busy().filter(|(_, state)| state.waits()).map(|(minute, _)| minute);
        let over: Vec<_> = waiting.take_while(|minute| minute.end_millis() <= until_ms).collect();
        let is_old = |minute: &Minute| !is_recent(*minute, now_ms, request.grace);
        let (old, recent) = over.split_at(over.partition_point(is_old));
        // Recent minutes come first, newest first, so that they do not wait for old ones, however many there are.
        let (mut finished, mut finished_old) = (0, 0);
        for minute in recent.iter().rev().chain(old) {
            let is_old = is_old(minute);
            let state = partition.minutes.entry(*minute).or_default();
            let is_finished = state.is_finished(*minute, partition.lags, (now, now_ms), request);
            let has_room =
                finished < request.finished_max && (!is_old || finished_old < request.old_max);
            if is_finished && has_room {
                finished += 1;
                finished_old += usize::from(is_old);
                state.idle = None;
                grant(*minute, &None, false);
            }
        }
        for claim in &claims {
            let state = partition.minutes.entry(claim.minute).or_default();
            state.leases.insert(claim.output.clone(), now + request.lease);
        }
        Ok(claims)
    }

    async fn compact(&self, claim: &Claim, request: &SealRequest<'_>) -> Result<Compaction> {
        let state = &mut *self.lock();
        state.held(claim)?;
        let SealRequest { series_max, lease, outputs, zeros, .. } = *request;
        let until = Instant::now() + lease;
        let partition = &mut state.partitions[claim.partition.index()];
        let is_closed = partition.is_closed(claim.minute);
        let minute = partition.minutes.entry(claim.minute).or_default();
        let mut done = Compaction::default();
        let keeps_users = outputs.contains(&OutputName::rollup());
        let union = minute.union.take();
        state.bytes -= union.as_ref().map_or(0, Union::bytes);
        let groups = union.iter().flat_map(Union::counts).filter(|_| !is_closed);
        let counts =
            |group: SeriesCounts| (group.series, (group.unique, group.cumulative, group.quality));
        let mut sealed: Vec<(String, Counts)> = groups.map(counts).collect();
        let overflow = OverflowSeries::new(&self.partitions, claim.partition);
        let overflow = overflow.of(claim.minute);
        let is_full = minute.admits(overflow);
        for (series, sets) in minute.sets.extract_if(|_, _| true).take(series_max) {
            state.bytes -= sets.bytes;
            if is_closed || minute.counts.contains_key(&series) {
                partition.late += sets.cumulative;
                continue;
            }
            if keeps_users {
                let users = sets.fingerprints(&minute.users, &self.hasher);
                minute.unsent_bytes += (users.len() * size_of::<u64>()) as u64;
                state.bytes += (users.len() * size_of::<u64>()) as u64;
                minute.sealed_users.insert(series.clone(), users);
            }
            minute.admitted.remove(&series);
            let (unique, cumulative) = sets.counts(&minute.users);
            sealed.push((series, (unique, cumulative, Quality::default())));
        }
        if zeros > 0 {
            for (series, _) in sealed.iter().filter(|(series, _)| series != overflow) {
                if let Some(last) = partition.active.get_mut(series) {
                    *last = claim.minute.max(*last);
                } else if partition.active.len() < ACTIVE_MAX {
                    partition.active.insert(series.clone(), claim.minute);
                }
            }
            if minute.sets.is_empty() && !is_closed && !is_full {
                let silent = partition.active.iter().filter(|(series, last)| {
                    is_silent(**last, claim.minute, zeros) && !minute.counts.contains_key(*series)
                });
                sealed.extend(silent.map(|(series, _)| (series.clone(), Counts::default())));
            }
        }
        for (series, counts) in sealed {
            // The series is stored once for the counts, and once per output.
            let bytes = ((1 + outputs.len()) * (COUNT_BYTES + series.len())) as u64;
            minute.unsent_bytes += bytes;
            state.bytes += bytes;
            for output in outputs {
                partition.outputs.entry(output.clone()).or_default();
                minute.unsent.entry(output.clone()).or_default().insert(series.clone());
            }
            done.estimated += u64::from(counts.2.is_estimated);
            minute.counts.insert(series, counts);
            done.sealed += 1;
        }
        done.left = minute.sets.len() as u64;
        done.late = partition.late;
        if done.left > 0 {
            minute.leases.insert(None, until);
            return Ok(done);
        }
        minute.arrivals = 0;
        minute.awaits_zeros = false;
        state.bytes -= std::mem::take(&mut minute.users).bytes;
        minute.leases.remove(&None);
        for output in minute.unsent.keys().cloned().map(Some) {
            minute.leases.entry(output.clone()).or_insert_with(|| {
                done.sending.push(Claim { output, taken_over: false, ..claim.clone() });
                until
            });
        }
        self.end(state, claim.partition, claim.minute);
        let partition = &mut state.partitions[claim.partition.index()];
        let next = claim.minute.after(1);
        let awaits_zeros = partition.active.values().any(|last| is_silent(*last, next, zeros));
        if awaits_zeros && !partition.is_closed(next) {
            partition.busy.insert(next);
            partition.minutes.entry(next).or_default().awaits_zeros = true;
        }
        partition.active.retain(|_, last| claim.minute < last.after(2 * zeros));
        Ok(done)
    }

    async fn sealed_users(
        &self,
        claim: &Claim,
        series: &[SeriesCounts],
        take: &mut (dyn FnMut(usize, Vec<u64>) + Send),
    ) -> Result<()> {
        let mut state = self.lock();
        let minute = state.held(claim)?;
        for (place, counts) in series.iter().enumerate() {
            take(place, minute.sealed_users.get(&counts.series).cloned().unwrap_or_default());
        }
        Ok(())
    }

    async fn contribute(&self, window: Bucket, source: Bucket, frames: &[Vec<u8>]) -> Result<bool> {
        let Some(rollup) = self.partitions.rollup(window.partition) else {
            return Ok(false);
        };
        let state = &mut *self.lock();
        let partition = &mut state.partitions[window.partition.index()];
        if partition.is_closed(window.minute) {
            return Ok(false);
        }
        if frames.is_empty() {
            return Ok(true);
        }
        partition.busy.insert(window.minute);
        let minute = partition.minutes.entry(window.minute).or_default();
        if minute.added.insert(source) {
            minute.arrivals += 1;
            let union = minute.union.get_or_insert_with(|| Union::new(rollup.limits));
            let before = union.bytes();
            for frame in frames {
                let read = union.read(frame);
                read.map_err(|error| StoreError::unavailable(error.to_string()))?;
            }
            union.settle();
            state.bytes = state.bytes + union.bytes() - before;
        }
        Ok(true)
    }

    async fn lacks(&self, _: Bucket, _: Partition, _: &[Minute]) -> Result<Vec<Minute>> {
        Ok(Vec::new())
    }

    async fn settle(
        &self,
        partition: Partition,
        [first, last]: [Minute; 2],
        request: &ClaimRequest,
    ) -> Result<Option<Vec<Minute>>> {
        let until_ms = self.closes_until_ms(now_ms());
        let partition = &mut self.lock().partitions[partition.index()];
        let is_waiting = |state: &MinuteState| {
            let is_unsent = state.unsent.contains_key(&OutputName::rollup());
            state.is_open() || state.leases.contains_key(&None) || is_unsent
        };
        let window = first..=last;
        if partition.busy().any(|(minute, state)| window.contains(&minute) && is_waiting(state)) {
            return Ok(None);
        }
        let wait = if partition.lags { request.max_hold } else { request.grace };
        if until_ms < after_ms(last.end_millis(), wait) {
            return Ok(None);
        }
        let from = partition.since.unwrap_or(first).max(first);
        let window = from.epoch_minutes()..=last.epoch_minutes();
        partition.closed.extend(window.filter_map(Minute::from_epoch_minutes));
        Ok(Some(Vec::new()))
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>> {
        let mut state = self.lock();
        let (Ok(minute), Some(output)) = (state.held(claim), &claim.output) else {
            return Ok(Page::default());
        };
        let unsent = &minute.unsent[output];
        let counts = unsent.iter().map(|series| series_counts((series, &minute.counts[series])));
        Ok(Page::cut(counts, cursor))
    }

    /// Closes the minutes immediately, because there are no other nodes that would have to learn of it.
    async fn announce(&self, _: &Known, claims: &[&Claim]) -> Result<Vec<Announced>> {
        let mut state = self.lock();
        let announced = claims.iter().map(|claim| {
            if state.held(claim).is_err() {
                return Announced::ClaimLost;
            }
            state.partitions[claim.partition.index()].close(claim.minute, self.retention);
            Announced::Heard
        });
        Ok(announced.collect())
    }

    async fn acknowledge(&self, claim: &Claim, series: &[&str], lease: Duration) -> Result<bool> {
        let state = &mut *self.lock();
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        let minute = state.held(claim)?;
        let unsent = minute.unsent.entry(output.clone()).or_default();
        for series in series {
            unsent.remove(*series);
            if *output == OutputName::rollup() {
                minute.sealed_users.remove(*series);
            }
        }
        if !unsent.is_empty() {
            minute.leases.insert(claim.output.clone(), Instant::now() + lease);
            return Ok(false);
        }
        minute.unsent.remove(output);
        minute.leases.remove(&claim.output);
        if !minute.is_open() {
            let partition = &mut state.partitions[claim.partition.index()];
            partition.close(claim.minute, self.retention);
            self.end(state, claim.partition, claim.minute);
        }
        Ok(true)
    }

    async fn quarantine(&self, claim: &Claim, refused: &[(&str, &str)]) -> Result<Vec<bool>> {
        let mut state = self.lock();
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        state.held(claim)?;
        let partition = &mut state.partitions[claim.partition.index()];
        let quarantine = partition.outputs.entry(output.clone()).or_default();
        let minute = partition.minutes.entry(claim.minute).or_default();
        let unsent = minute.unsent.entry(output.clone()).or_default();
        let kept = refused.iter().map(|&(series, _)| {
            unsent.remove(series);
            let has_room = quarantine.len() < QUARANTINE_MAX;
            if has_room {
                let events = minute.counts.get(series).map_or(0, |(_, events, _)| *events);
                quarantine.insert((claim.minute, series.to_owned()), events);
            }
            has_room
        });
        Ok(kept.collect())
    }

    async fn extend(&self, claims: &[&Claim], lease: Duration) -> Result<usize> {
        let mut state = self.lock();
        let until = Instant::now() + lease;
        let extended = claims.iter().filter(|claim| {
            let held = state.held(claim);
            held.map(|minute| minute.leases.insert(claim.output.clone(), until)).is_ok()
        });
        Ok(extended.count())
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog> {
        Ok(self.lock().partitions[partition.index()].backlog(Minute::MIN))
    }

    async fn have_work(&self, partitions: &[Partition], _: &[OutputName]) -> Result<Vec<bool>> {
        let state = self.lock();
        let busy = partitions.iter().map(|partition| &state.partitions[partition.index()].busy);
        Ok(busy.map(|busy| !busy.is_empty()).collect())
    }
}
