//! From sets to counts that every output has.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::looking::{page, series_counts};
use super::{MemoryStore, MinuteState, PartitionState, State, after_ms};
use crate::event::{Minute, Partition};
use crate::store::{
    Announced, Attested, Backlog, CLOCK_TOLERANCE_MS, Claim, ClaimRequest, Compaction, Draining,
    Known, News, OutputBacklog, OutputName, Page, QUARANTINE_MAX, SeriesCounts, StoreError,
    Testimony, is_recent,
};

/// What a count takes beside its name, in bytes; roughly.
const COUNT_BYTES: usize = 100;

impl State {
    /// The minute of a claim, and its partition's late events. Fails where it is not claimed any more: there it is done.
    fn held(&mut self, claim: &Claim) -> Result<&mut MinuteState, StoreError> {
        let minutes = &mut self.partitions[claim.partition.index()].minutes;
        let minute = minutes.get_mut(&claim.minute).ok_or(StoreError::ClaimLost)?;
        let until = minute.claim_of(claim.output.as_ref()).and_then(|until| *until);
        until.map(|_| minute).ok_or(StoreError::ClaimLost)
    }
}

impl PartitionState {
    /// The minutes that have something to seal and are not claimed.
    pub(super) fn waiting(&self) -> impl Iterator<Item = Minute> {
        let busy = self.busy.iter().copied();
        busy.filter(|minute| self.minutes.get(minute).is_some_and(MinuteState::waits))
    }

    pub(super) fn backlog(&self) -> Backlog {
        let busy = self.busy.iter();
        let busy: Vec<_> = busy.filter_map(|it| Some((*it, self.minutes.get(it)?))).collect();
        let claimed = busy.iter().filter(|(_, minute)| minute.sealing.is_some());
        let mut open = busy.iter().filter(|(_, it)| it.waits() || it.sealing.is_some());
        let outputs = self.outputs.iter().map(|(output, refused)| {
            let lacks = |(_, minute): &&(Minute, &MinuteState)| minute.unsent.contains_key(output);
            let backlog = OutputBacklog {
                unsent: busy.iter().filter(lacks).count() as u64,
                oldest: busy.iter().find(lacks).map(|(minute, _)| *minute),
                quarantined: refused.len() as u64,
            };
            (output.clone(), backlog)
        });
        Backlog {
            waiting: self.waiting().count() as u64,
            old: 0,
            claimed: claimed.count() as u64,
            oldest: open.next().map(|(minute, _)| *minute),
            outputs: outputs.collect(),
        }
    }
}

impl MinuteState {
    fn waits(&self) -> bool {
        !self.sets.is_empty() && self.sealing.is_none()
    }

    /// Until when it is claimed to be sent to an output, or to be sealed.
    fn claim_of(&mut self, output: Option<&OutputName>) -> Option<&mut Option<Instant>> {
        match output {
            None => Some(&mut self.sealing),
            Some(output) => self.unsent.get_mut(output).map(|(_, until)| until),
        }
    }

    fn renew(&mut self, output: Option<&OutputName>, lease: Duration) {
        if let Some(until) = self.claim_of(output) {
            *until = Some(Instant::now() + lease);
        }
    }

    /// Whether a minute that is over may be closed.
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
        // While this node lags it has events to bring, of whichever minute.
        is_held_long || (!lags && now >= since + request.grace)
    }

    /// Takes series out of what an output lacks.
    fn confirm<'a>(&mut self, output: &OutputName, series: impl IntoIterator<Item = &'a str>) {
        if let Some((unsent, _)) = self.unsent.get_mut(output) {
            for series in series {
                unsent.remove(series);
            }
        }
    }
}

#[async_trait]
impl Draining for MemoryStore {
    /// Nothing is forgotten while the process lives, so there is nothing to hand back.
    async fn attest(&self, _: Partition, _: &Testimony) -> Result<Attested, StoreError> {
        Ok(Attested { epoch: 1, ..Attested::default() })
    }

    async fn check_in(
        &self,
        partition: Partition,
        _known: &Known,
        lags: bool,
        _lease: Duration,
        _alive: Duration,
    ) -> Result<News, StoreError> {
        let now_ms = self.now_ms();
        let partition = &mut self.lock().partitions[partition.index()];
        partition.lags = lags;
        let until_ms = self.closes_until_ms(now_ms);
        let is_due = partition.busy.iter().any(|minute| {
            let is_claimed = partition.minutes.get(minute).is_some_and(|it| !it.waits());
            is_claimed || minute.end_millis() <= until_ms
        });
        Ok(News { now_ms, late: partition.late, is_due, ..News::default() })
    }

    async fn claim(
        &self,
        index: Partition,
        request: &ClaimRequest,
        sending: &[(OutputName, usize)],
    ) -> Result<Vec<Claim>, StoreError> {
        let (now, now_ms) = (Instant::now(), self.now_ms());
        let expected_ms = request.known.expected_ms;
        if expected_ms.is_some_and(|expected| (now_ms - expected).abs() > CLOCK_TOLERANCE_MS) {
            // Minutes look over that are not.
            return Ok(Vec::new());
        }
        let partition = &mut self.lock().partitions[index.index()];
        let mut granted = Vec::new();
        let mut grant = |minute, state: &mut MinuteState, output: Option<&OutputName>, again| {
            state.renew(output, request.lease);
            granted.push(Claim {
                partition: index,
                minute,
                output: output.cloned(),
                token: String::new(),
                generation: 0,
                taken_over: again,
            });
        };
        let outputs = sending.iter().map(|(output, most)| (Some(output), *most));
        for (output, most) in std::iter::once((None, request.lapsed_max)).chain(outputs) {
            let lapsed = partition.busy.iter().filter_map(|minute| {
                let state = partition.minutes.get_mut(minute)?;
                let until = state.claim_of(output).and_then(|until| *until);
                until.filter(|until| *until <= now).map(|until| (until, *minute))
            });
            let mut lapsed: Vec<_> = lapsed.collect();
            lapsed.sort_unstable();
            for (_, minute) in lapsed.into_iter().take(most) {
                grant(minute, partition.minutes.entry(minute).or_default(), output, true);
            }
        }
        let until_ms = self.closes_until_ms(now_ms);
        let over = partition.waiting();
        let over: Vec<_> = over.take_while(|it| it.end_millis() <= until_ms).collect();
        let is_old = |minute: &Minute| !is_recent(*minute, now_ms, request.grace);
        let (old, recent) = over.split_at(over.partition_point(is_old));
        let (mut finished, mut finished_old) = (0, 0);
        // Recent minutes come first, the newest before the others: they do not wait for old ones, however many there are.
        for minute in recent.iter().rev().chain(old) {
            let is_old = is_old(minute);
            let state = partition.minutes.entry(*minute).or_default();
            let is_finished = state.is_finished(*minute, partition.lags, (now, now_ms), request);
            let has_room =
                finished < request.finished_max && (!is_old || finished_old < request.old_max);
            if is_finished && has_room {
                state.idle = None;
                grant(*minute, state, None, false);
                finished += 1;
                finished_old += usize::from(is_old);
            }
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
        let state = &mut *self.lock();
        if claim.output.is_some() {
            return Err(StoreError::ClaimLost);
        }
        state.held(claim)?.renew(None, lease);
        let partition = &mut state.partitions[claim.partition.index()];
        let is_closed = partition.has_closed(claim.minute);
        let minute = partition.minutes.entry(claim.minute).or_default();
        let mut done = Compaction::default();
        for _ in 0..series_max {
            let Some((series, sets)) = minute.sets.pop_first() else {
                break;
            };
            state.bytes -= sets.bytes;
            if is_closed || minute.counts.contains_key(&series) {
                partition.late += sets.cumulative;
                continue;
            }
            // Its name is there once, and once for each output.
            let bytes = ((1 + outputs.len()) * (COUNT_BYTES + series.len())) as u64;
            minute.unsent_bytes += bytes;
            state.bytes += bytes;
            for output in outputs {
                partition.outputs.entry(output.clone()).or_default();
                let (unsent, _) = minute.unsent.entry(output.clone()).or_default();
                unsent.insert(series.clone());
            }
            minute.admitted.remove(&series);
            minute.counts.insert(series, sets.counts(&minute.users));
            // Counts that were admitted after their events came would be forgotten otherwise.
            minute.expires_ms = None;
            done.sealed += 1;
        }
        done.left = minute.sets.len() as u64;
        done.late = partition.late;
        if done.left > 0 {
            return Ok(done);
        }
        minute.arrivals = 0;
        state.bytes -= std::mem::take(&mut minute.users).charged;
        minute.sealing = None;
        for (output, (_, until)) in &mut minute.unsent {
            if until.is_none() {
                *until = Some(Instant::now() + lease);
                done.sending.push(Claim {
                    output: Some(output.clone()),
                    taken_over: false,
                    ..claim.clone()
                });
            }
        }
        self.end(state, claim.partition, claim.minute);
        Ok(done)
    }

    async fn unsent(&self, claim: &Claim, cursor: u64) -> Result<Page<SeriesCounts>, StoreError> {
        let mut state = self.lock();
        let Ok(minute) = state.held(claim) else {
            return Ok(Page::default());
        };
        let unsent = claim.output.as_ref().and_then(|output| minute.unsent.get(output));
        let Some((unsent, _)) = unsent else {
            return Ok(Page::default());
        };
        let Page { items, next } = page(unsent.iter(), cursor);
        let counts = |series: &String| Some(series_counts(series, *minute.counts.get(series)?));
        Ok(Page { items: items.into_iter().filter_map(counts).collect(), next })
    }

    /// There is nobody else to hear of it.
    async fn announce(
        &self,
        partition: Partition,
        _known: &Known,
        claims: &[&Claim],
    ) -> Result<Vec<Announced>, StoreError> {
        let mut state = self.lock();
        let announced = claims.iter().map(|claim| {
            if claim.output.is_none() || state.held(claim).is_err() {
                return Announced::ClaimLost;
            }
            state.partitions[partition.index()].close(claim.minute, self.retention);
            Announced::Heard
        });
        Ok(announced.collect())
    }

    async fn acknowledge(
        &self,
        claim: &Claim,
        series: &[&str],
        lease: Duration,
    ) -> Result<bool, StoreError> {
        let state = &mut *self.lock();
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        let minute = state.held(claim)?;
        minute.confirm(output, series.iter().copied());
        if minute.unsent.get(output).is_some_and(|(unsent, _)| !unsent.is_empty()) {
            minute.renew(Some(output), lease);
            return Ok(false);
        }
        minute.unsent.remove(output);
        if minute.sets.is_empty() {
            let partition = &mut state.partitions[claim.partition.index()];
            partition.close(claim.minute, self.retention);
            self.end(state, claim.partition, claim.minute);
        }
        Ok(true)
    }

    async fn quarantine(
        &self,
        claim: &Claim,
        refused: &[(&str, &str)],
    ) -> Result<Vec<bool>, StoreError> {
        let mut state = self.lock();
        let output = claim.output.as_ref().ok_or(StoreError::ClaimLost)?;
        state.held(claim)?;
        let partition = &mut state.partitions[claim.partition.index()];
        let quarantine = partition.outputs.entry(output.clone()).or_default();
        let minute = partition.minutes.entry(claim.minute).or_default();
        let kept = refused.iter().map(|&(series, _)| {
            minute.confirm(output, [series]);
            let events = minute.counts.get(series).map_or(0, |(_, events)| *events);
            let has_room = quarantine.len() < QUARANTINE_MAX;
            if has_room {
                quarantine.insert((claim.minute, series.to_owned()), events);
            }
            has_room
        });
        Ok(kept.collect())
    }

    async fn extend(
        &self,
        _partition: Partition,
        claims: &[&Claim],
        lease: Duration,
    ) -> Result<usize, StoreError> {
        let mut state = self.lock();
        let extended = claims.iter().filter(|claim| {
            let held = state.held(claim);
            held.map(|minute| minute.renew(claim.output.as_ref(), lease)).is_ok()
        });
        Ok(extended.count())
    }

    async fn backlog(&self, partition: Partition) -> Result<Backlog, StoreError> {
        Ok(self.lock().partitions[partition.index()].backlog())
    }

    async fn have_work(
        &self,
        partitions: &[Partition],
        _outputs: &[OutputName],
    ) -> Result<Vec<bool>, StoreError> {
        let state = self.lock();
        let busy = partitions.iter().map(|it| &state.partitions[it.index()].busy);
        Ok(busy.map(|busy| !busy.is_empty()).collect())
    }
}

impl MemoryStore {
    /// Minutes that end later are not closed now.
    fn closes_until_ms(&self, now_ms: i64) -> i64 {
        self.stopped_ms.get().map_or(now_ms, |at| now_ms.min(*at))
    }
}
