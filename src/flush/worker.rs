//! [`Worker`]: the task that claims minutes and seals their counts. On shutdown, it releases its claims so that other nodes
//! can take them over. If the store ends with the process, the worker instead closes all minutes that have ended, and waits
//! until all counts have been sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat};
use futures_util::future::join;
use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::agreement::{Agreement, LOOK_WITHIN};
use super::backlog::BacklogReport;
use super::claims::{Inbox, take_turns};
use super::partitions::PartitionState;
use super::schedule::looked_within;
use super::{FlushSettings, Shared};
use crate::diagnosis::{Cause, LossCause};
use crate::event::{Minute, Partition};
use crate::node::{self, Heartbeat, Node, StoreErrors, Throttle, lock, number};
use crate::store::{
    Bucket, CheckIn, Claim, ClaimRequest, Compaction, News, OutputName, SealRequest, StoreError,
};

/// Number of series per compaction step. Each step blocks Redis for one to two ms.
const COMPACT_SERIES: usize = 200;
const CONCURRENT: usize = 8;
const OLD_CONCURRENT: usize = 4;
/// Number of old minutes that are sealed before their counts are passed on together.
const OLD_TOGETHER: usize = 16;
/// Maximum number of claims of each kind that a round takes from a partition.
const CLAIMS_MAX: usize = 16;
const BACKLOG_INTERVAL: Duration = Duration::from_secs(2);
/// Interval between checks of the store during a long pause.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LATE_LOG_INTERVAL: Duration = Duration::from_secs(60);
const OFFSET_LOG_INTERVAL: Duration = Duration::from_secs(60);
const DOWN_LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) outboxes: BTreeMap<OutputName, Arc<Inbox>>,
    pub(super) heartbeat: Heartbeat,
    pub(super) recorded: CancellationToken,
    /// Whether the store ends with the process.
    pub(super) is_alone: bool,
    pub(super) recent: Inbox,
    /// Old minutes to seal. No matter how many or how large they are, they do not delay minutes that have just ended.
    pub(super) old: Inbox,
}

impl Worker {
    pub(super) async fn run(self, mut backlog: BacklogReport) {
        let shared = &*self.shared;
        let work = async {
            tokio::join!(
                self.rounds(&mut backlog),
                self.seal_all(&self.recent, CONCURRENT, usize::MAX),
                self.seal_all(&self.old, OLD_CONCURRENT, OLD_TOGETHER),
            );
        };
        Box::pin(shared.claims.renewing(shared.until_overdue(work))).await;
        *lock(&shared.node.store_errors) = StoreErrors::default();
        shared.finished.cancel();
        shared.claims.release_all(None).await;
        shared.states.late().report(&mut Throttle::new(LATE_LOG_INTERVAL));
    }

    /// Returns whether to close every minute that has ended, because no more events can arrive.
    fn closes_all(&self) -> bool {
        self.is_alone && self.recorded.is_cancelled()
    }

    fn settings(&self) -> FlushSettings {
        let mut settings = self.shared.settings;
        if self.closes_all() {
            let now = Duration::ZERO;
            (settings.grace, settings.max_hold, settings.window_hold) = (now, now, now);
        }
        settings
    }

    async fn rounds(&self, backlog: &mut BacklogReport) {
        let Shared { store, metrics, states, stop, .. } = &*self.shared;
        let mut agreement = Agreement::default();
        let mut backlog_throttle = Throttle::new(BACKLOG_INTERVAL);
        let mut down_throttle = Throttle::new(DOWN_LOG_INTERVAL);
        let mut offset_throttle = Throttle::new(OFFSET_LOG_INTERVAL);
        let mut late_throttle = Throttle::new(LATE_LOG_INTERVAL);
        while !stop.is_cancelled() {
            let began = Instant::now();
            let closes_all = self.closes_all();
            let claims = self.heartbeat.during(self.round(&mut agreement)).await;
            match &claims {
                Ok(_) => {
                    metrics.store_up.set(agreement.has_room.into());
                    if down_throttle.reset() {
                        tracing::info!(store = store.describe(), "the store is responding again");
                    }
                }
                Err(error) => {
                    metrics.store_up.set(0);
                    if down_throttle.is_due() {
                        tracing::warn!(%error, "cannot claim minutes; retrying in the next round");
                    }
                }
            }
            self.log_rollbacks();
            states.late().report(&mut late_throttle);
            self.warn_of_clock(&mut offset_throttle);
            let mut interval = self.shared.settings.interval;
            if closes_all {
                // The backlog also includes claims whose counts cannot be sent.
                let is_left = backlog.update(true).await;
                match claims {
                    Ok(0) if !is_left => break,
                    Ok(1..) => continue,
                    _ => interval = interval.min(LOOK_INTERVAL),
                }
            } else if backlog_throttle.is_due() {
                backlog.update(agreement.agrees).await;
            }
            tokio::select! {
                biased;
                () = self.pause_until(began + interval, &mut agreement) => {}
                () = stop.cancelled() => {}
                () = self.recorded.cancelled(), if self.is_alone && !closes_all => {}
            }
        }
        stop.cancel();
    }

    /// Sleeps until this instant. Keeps checking the store, so that the recorders learn in time that it may have lost data.
    /// Waits for each check to end, because nothing else may find that a server hangs.
    async fn pause_until(&self, until: Instant, agreement: &mut Agreement) {
        let Shared { store, node, metrics, .. } = &*self.shared;
        while until.saturating_duration_since(Instant::now()) > LOOK_INTERVAL {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let look = agreement.look((&**store, node, metrics), Duration::MAX);
            self.heartbeat.during(look).await;
        }
        tokio::time::sleep_until(until).await;
    }

    /// Checks the store, checks in at all due partitions and, if the settings agree, claims minutes. Returns the number of
    /// claims, or the last error.
    async fn round(&self, agreement: &mut Agreement) -> Result<usize, StoreError> {
        let Shared { store, node, metrics, claims: held, .. } = &*self.shared;
        let look = agreement.look((&**store, node, metrics), LOOK_WITHIN);
        let due = self.due_partitions(look).await.into_iter();
        let (agrees, now) = (agreement.agrees, Instant::now());
        let wanting = self.outboxes.iter().filter(|(_, outbox)| outbox.wants_lapsed(now, agrees));
        let wanting: Vec<_> = wanting.map(|(name, _)| name.clone()).collect();
        let calls: Vec<_> =
            due.map(|partition| self.ask(partition, agrees.then_some(&wanting[..]))).collect();
        let mut answers = stream::iter(calls).buffer_unordered(CONCURRENT);
        let mut claims = Vec::new();
        let mut failure = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(claimed) => claims.extend(claimed),
                Err(error) => failure = Some(error),
            }
        }
        let count = claims.len();
        metrics.claims.inc_by(count as u64);
        for claim in &claims {
            metrics.claims_taken_over.inc_by(claim.taken_over.into());
            held.add(claim);
        }
        self.pass_on(claims, &wanting);
        failure.map_or(Ok(count), Err)
    }

    /// Passes all claims to the tasks at once, so that outputs get a few large batches.
    fn pass_on(&self, claims: Vec<Claim>, wanting: &[OutputName]) {
        let (mut recent, mut old) = (Vec::new(), Vec::new());
        let mut to_send: BTreeMap<OutputName, Vec<Claim>> = BTreeMap::new();
        for claim in claims {
            match &claim.output {
                Some(output) => to_send.entry(output.clone()).or_default().push(claim),
                None if self.shared.is_recent(claim.minute) => recent.push(claim),
                None => old.push(claim),
            }
        }
        self.recent.deliver(recent, false);
        self.old.deliver(old, false);
        for (name, outbox) in &self.outboxes {
            outbox.deliver(to_send.remove(name).unwrap_or_default(), wanting.contains(name));
        }
    }

    async fn seal_all(&self, inbox: &Inbox, concurrent: usize, together: usize) {
        let stop = &self.shared.stop;
        while let Some(mut claims) = stop.run_until_cancelled(inbox.next(|_| true)).await {
            take_turns(&mut claims);
            for claims in claims.chunks(together) {
                let spans = &self.shared.node.spans;
                let seal = |claim| self.seal(claim).instrument(spans.log_of(claim.minute));
                let calls: Vec<_> = claims.iter().map(seal).collect();
                let sealed = stream::iter(calls).buffer_unordered(concurrent);
                let sealed: Vec<_> = sealed.collect().await;
                self.pass_on(sealed.into_iter().flatten().collect(), &[]);
            }
        }
    }

    /// Seals all counts for a claim. Returns the claims for sending them, or none if some could not be sealed.
    async fn seal(&self, claim: &Claim) -> Vec<Claim> {
        let Shared { store, settings, outputs, metrics, claims, partitions, .. } = &*self.shared;
        let (mut outputs, mut sources) = (&outputs[..], Vec::new());
        // Zeros in an older minute would close the next one, although its events may still be replayed from an archive.
        let is_recent = self.shared.is_recent(claim.minute.after(settings.zeros));
        let mut zeros = if is_recent { settings.zeros } else { 0 };
        if partitions.rollup(claim.partition).is_some() {
            let Some(settled) = self.settled(claim).await else {
                claims.release(std::slice::from_ref(claim), settings.interval).await;
                return Vec::new();
            };
            sources = settled;
            // Windows are sent to the outputs, but not added to windows.
            outputs = &outputs[..outputs.len() - 1];
            zeros = 0;
        }
        let request = SealRequest {
            series_max: COMPACT_SERIES,
            lease: settings.lease,
            outputs,
            sources: &sources,
            zeros,
        };
        let mut series = 0;
        let start = self.shared.node.clock.now_nanos();
        while !self.shared.stop.is_cancelled() {
            let done = match store.compact(claim, &request).await {
                Ok(done) => done,
                Err(error) => {
                    self.traced(claim, start, series, Some(error.to_string()));
                    self.shared.claim_failed(claim, &error);
                    break;
                }
            };
            metrics.series_sealed.inc_by(done.sealed);
            series += done.sealed;
            metrics.events_repeated.inc_by(done.repeated);
            self.found_inexact(claim, &done);
            let late = self.shared.states.of(claim.partition).witness.found_late(done.late);
            self.found_late(claim.partition, Some(claim.minute), late);
            if done.left == 0 {
                let is_old = !self.shared.is_recent(claim.minute);
                metrics.old_seals.inc_by(is_old.into());
                self.traced(claim, start, series, None);
                if !is_old && partitions.rollup(claim.partition).is_none() {
                    self.peaked(claim, series);
                }
                claims.remove(claim);
                for claim in &done.sending {
                    claims.add(claim);
                }
                return done.sending;
            }
        }
        Vec::new()
    }

    fn traced(&self, claim: &Claim, start: i64, series: u64, error: Option<String>) {
        let Node { spans, clock, .. } = &*self.shared.node;
        let attributes = || {
            vec![("eds.partition", number(claim.partition.index())), ("eds.series", number(series))]
        };
        spans.add_step("seal", claim.minute, [start, clock.now_nanos()], attributes, error);
    }

    fn peaked(&self, claim: &Claim, series: u64) {
        let Node { peaks, clock, .. } = &*self.shared.node;
        let seconds = (clock.now_nanos() / 1_000_000 - claim.minute.end_millis()) / 1000;
        peaks.series.fetch_max(series, Ordering::Relaxed);
        peaks.seal_seconds.fetch_max(u64::try_from(seconds).unwrap_or(0), Ordering::Relaxed);
    }

    /// Closes the minutes of a window in all partitions. Returns None unless all are closed and added to the window.
    async fn settled(&self, claim: &Claim) -> Option<Vec<(Partition, Vec<Minute>)>> {
        let Shared { store, partitions, states, .. } = &*self.shared;
        let FlushSettings { grace, window_hold: max_hold, lease, .. } = self.settings();
        let window = partitions.rollup(claim.partition)?.every.window(claim.minute);
        // After trouble, nodes may still have to record events of these minutes, or to restore that they are closed.
        let now = Instant::now();
        let may_close = |partition| {
            let PartitionState { settling, .. } = &*states.of(partition);
            settling.may_close(now) && settling.may_take_over(now)
        };
        if !partitions.all().all(may_close) {
            return None;
        }
        let calls = partitions.iter().map(|partition| async move {
            let request = ClaimRequest {
                generation: 0,
                grace,
                max_hold,
                lease,
                lapsed_max: 0,
                finished_max: 0,
                old_max: 0,
                known: states.of(partition).witness.known(Instant::now()),
            };
            (partition, store.settle(partition, window, &request).await)
        });
        let mut answers = stream::iter(calls).buffer_unordered(CONCURRENT);
        let mut sources = Some(Vec::new());
        while let Some((partition, answer)) = answers.next().await {
            let settled = answer.unwrap_or_else(|error| {
                tracing::debug!(%error, "cannot close the minutes of a window; retrying");
                None
            });
            if let Some(minutes) = &settled {
                // All other live nodes know.
                states.of(partition).witness.settled(window, minutes);
            }
            sources = sources.zip(settled).map(|(mut sources, settled)| {
                sources.push((partition, settled));
                sources
            });
        }
        sources
    }

    /// Returns the partitions at which to check in, once the store has been checked.
    async fn due_partitions(&self, checked: impl Future<Output = ()>) -> Vec<Partition> {
        let Shared { store, partitions, outputs, states, node, .. } = &*self.shared;
        let settings = self.settings();
        let FlushSettings { interval, grace, .. } = settings;
        let now = Instant::now();
        let (filling, others): (Vec<_>, Vec<_>) = partitions.all().partition(|&partition| {
            let mut state = states.of(partition);
            // Otherwise, trouble during the check would look like a first connection.
            state.settling.look(store.generation(partition), now, &settings);
            state.ask_times.fills(now)
        });
        // At the same time, because waiting for replies is most of what an idle node costs.
        let ((), have_work) = join(checked, store.have_work(&others, outputs)).await;
        // If this fails, all partitions count as having work, and their check-ins will return the same error.
        let have_work = have_work.unwrap_or_else(|_| vec![true; others.len()]);
        let filling = filling.into_iter().map(|partition| (partition, false));
        let all = others.into_iter().zip(have_work).chain(filling);
        let now = Instant::now();
        let due = all.filter(|&(partition, has_work)| {
            let mut state = states.of(partition);
            let lags = node.partitions.of(partition).lags || state.hands_back > 0;
            let settling = &mut state.settling;
            // The check may have found that the server lost its data.
            settling.look(store.generation(partition), now, &settings);
            let lags = settling.reports_lag(lags, now, grace);
            let has_settled = settling.may_close(now) && settling.may_take_over(now);
            // When everything is to be closed, all partitions are checked: the last replies may predate the last events.
            let must = lags
                || self.closes_all()
                || !state.witness.has_attested(store.generation(partition));
            state.ask_times.is_due(must, has_work || !has_settled, now, interval)
        });
        due.map(|(partition, _)| partition).collect()
    }

    /// Checks in at a partition. Unless `wanting` is `None`, also claims its minutes, and lapsed claims for those outputs.
    async fn ask(
        &self,
        partition: Partition,
        wanting: Option<&[OutputName]>,
    ) -> Result<Vec<Claim>, StoreError> {
        let result = self.check_in_and_claim(partition, wanting).await;
        if let Err(error) = &result {
            let mut state = self.shared.states.of(partition);
            state.settling.failed(Instant::now(), &self.settings());
            if matches!(error, StoreError::Forgot) {
                state.witness.forgotten();
            }
        }
        result
    }

    async fn check_in_and_claim(
        &self,
        partition: Partition,
        wanting: Option<&[OutputName]>,
    ) -> Result<Vec<Claim>, StoreError> {
        let Shared { store, node, .. } = &*self.shared;
        let generation = store.generation(partition);
        self.attest(partition, generation).await?;
        let (mut lags, mut news) = self.check_in(partition).await?;
        if !news.announced.is_empty() {
            // The node that announced a minute is waiting for this node to acknowledge it.
            (lags, news) = self.check_in(partition).await?;
        }
        // In a new generation, a server that does not know of this node's lag may have taken over.
        let is_another = store.generation(partition) != generation;
        let began_to_lag = !lags && node.partitions.of(partition).lags;
        match wanting {
            Some(wanting) if news.is_due && !is_another && !began_to_lag => {
                self.claim(partition, generation, wanting).await
            }
            _ => Ok(Vec::new()),
        }
    }

    async fn attest(&self, partition: Partition, generation: u64) -> Result<(), StoreError> {
        let Shared { store, states, node, .. } = &*self.shared;
        let testimony = {
            let mut state = states.of(partition);
            state.settling.look(generation, Instant::now(), &self.settings());
            state.witness.testimony(generation)
        };
        let Some(testimony) = testimony else {
            return Ok(());
        };
        let attested = store.attest(partition, &testimony).await?;
        let node::PartitionState { recorded, kept, .. } = node.partitions.of(partition);
        let rollback = {
            let mut state = states.of(partition);
            if let Some(contributions) = &self.shared.contributions {
                let is_kept = |window: &Bucket| window.partition == partition;
                if contributions.windows().iter().any(is_kept) {
                    state.hands_back += 1;
                    self.shared.hand_back.notify_one();
                }
            }
            let rollback = state.witness.attested(generation, attested, recorded);
            if rollback.is_some() {
                state.settling.went_back(Instant::now(), &self.settings());
            }
            rollback
        };
        if let Some(mut rollback) = rollback {
            rollback.events = rollback.events.saturating_sub(kept);
            states.forgot(rollback);
            // Another process of this node would report the same loss again.
            states.save().await;
        }
        Ok(())
    }

    /// Checks in and processes the store's reply. Returns whether this node reported lag, and the reply.
    async fn check_in(&self, partition: Partition) -> Result<(bool, News), StoreError> {
        let Shared { store, states, node, .. } = &*self.shared;
        let settings = self.settings();
        let FlushSettings { interval, grace, lease, .. } = settings;
        let recorded = node.partitions.of(partition).recorded;
        let asked = Instant::now();
        let (lags, known) = {
            let mut state = states.of(partition);
            let lags = node.partitions.of(partition).lags || state.hands_back > 0;
            (state.settling.reports_lag(lags, asked, grace), state.witness.known(asked))
        };
        let asked_nanos = node.clock.now_nanos();
        let check_in = CheckIn { known, lags, lease, alive: looked_within(interval) };
        let news = store.check_in(partition, &check_in).await?;
        let now = Instant::now();
        let mut state = states.of(partition);
        let jumped_ms = state.witness.learn(&news, recorded, asked, now);
        if jumped_ms > 0 {
            let ahead = Duration::from_millis(jumped_ms.unsigned_abs());
            state.settling.jumped(ahead, now, &settings);
        }
        state.ask_times.learn(&news, now, interval, grace);
        let late = state.witness.found_late(news.late);
        drop(state);
        self.found_late(partition, None, late);
        // The store's clock was read about halfway through the call.
        let nanos = i64::midpoint(asked_nanos, node.clock.now_nanos());
        node.clock.set_store_ahead_ms(news.now_ms.saturating_sub(nanos / 1_000_000));
        Ok((lags, news))
    }

    async fn claim(
        &self,
        partition: Partition,
        generation: u64,
        wanting: &[OutputName],
    ) -> Result<Vec<Claim>, StoreError> {
        let Shared { store, states, claims, partitions, .. } = &*self.shared;
        let FlushSettings { grace, mut max_hold, window_hold, lease, .. } = self.settings();
        if partitions.rollup(partition).is_some() {
            max_hold = window_hold;
        }
        let now = Instant::now();
        // No further old minutes are claimed until those already claimed have been sealed.
        let room = CLAIMS_MAX
            .saturating_sub(claims.to_seal(partition, |minute| !self.shared.is_recent(minute)));
        let most = |may: bool| if may { CLAIMS_MAX } else { 0 };
        let (lapsed_max, finished_max, known) = {
            let PartitionState { settling, witness, .. } = &*states.of(partition);
            (most(settling.may_take_over(now)), most(settling.may_close(now)), witness.known(now))
        };
        if lapsed_max + finished_max == 0 {
            return Ok(Vec::new());
        }
        let request = ClaimRequest {
            generation,
            grace,
            max_hold,
            lease,
            lapsed_max: lapsed_max.min(room),
            finished_max,
            old_max: room,
            known,
        };
        let sending: Vec<_> = wanting.iter().map(|name| (name.clone(), lapsed_max)).collect();
        store.claim(partition, &request, &sending).await
    }

    fn found_late(&self, partition: Partition, minute: Option<Minute>, events: u64) {
        if events == 0 {
            return;
        }
        self.shared.metrics.events_late.inc_by(events);
        let now = self.shared.node.clock.now_nanos();
        self.shared.states.late().add(partition, minute, events, now);
        let minute = minute.unwrap_or(Minute::of_nanos(now));
        self.shared.node.losses.add(LossCause::Late, minute, events);
        let partition = partition.index();
        tracing::debug!(partition, events, "events arrived after their counts were sealed");
    }

    fn found_inexact(&self, window: &Claim, done: &Compaction) {
        let Shared { metrics, node, partitions, .. } = &*self.shared;
        let Some(rollup) = partitions.rollup(window.partition) else {
            return;
        };
        if done.missing > 0 {
            node.losses.add(LossCause::Windows, window.minute, done.missing);
        }
        if done.estimated > 0 {
            metrics.window_estimates.inc_by(done.estimated);
            tracing::warn!(
                rollup = rollup.name,
                window = window.minute.shown(),
                groups = done.estimated,
                "numbers of users are estimates, because the window exceeds rollup.users_max or rollup.memory_max"
            );
        }
    }

    fn log_rollbacks(&self) {
        let Some((rollback, partitions)) = self.shared.states.take_rollbacks() else {
            return;
        };
        self.shared.metrics.store_rollbacks.inc();
        self.shared.metrics.events_forgotten.inc_by(rollback.events);
        let minute = Minute::of_nanos(rollback.to_ms.saturating_mul(1_000_000));
        self.shared.node.losses.add(LossCause::Forgotten, minute, rollback.events);
        // Some counts of these minutes may never be written.
        let unconfirmed = &rollback.unconfirmed;
        (self.shared.metrics.publications_unconfirmed).inc_by(unconfirmed.len() as u64);
        for minute in unconfirmed {
            self.shared.node.losses.add(LossCause::Unconfirmed, *minute, 1);
        }
        tracing::error!(
            store = self.shared.store.describe(),
            partitions,
            from = time_text(rollback.from_ms),
            to = time_text(rollback.to_ms),
            events = rollback.events,
            "the store lost acknowledged writes in this time range, possibly including events from this node \
             that it can no longer re-record; published minutes keep their values; `eds loss` lists the affected minutes"
        );
    }

    fn warn_of_clock(&self, throttle: &mut Throttle) {
        let offset_seconds = self.shared.node.clock.store_ahead_seconds();
        let warns = offset_seconds.abs() > self.shared.settings.grace.as_secs_f64() / 2.0;
        if warns && throttle.is_due() {
            tracing::warn!(
                offset_seconds,
                grace = %humantime::format_duration(self.shared.settings.grace),
                "the store's clock, which decides when minutes close, differs from this node's clock; {}",
                Cause::Clock.remedy()
            );
        }
    }
}

fn time_text(ms: i64) -> String {
    match DateTime::from_timestamp_millis(ms) {
        Some(time) if ms > 0 => time.to_rfc3339_opts(SecondsFormat::Millis, true),
        _ => "the beginning".to_owned(),
    }
}

#[cfg(test)]
#[path = "worker_tests.rs"]
mod tests;
