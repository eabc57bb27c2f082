//! [`Recorder`]: the task that records the batches of one partition, one at a time. Recording is idempotent, so failed
//! attempts are retried. The task exits once its channel is closed and empty; on `abort`, it spools or drops what remains.
//! After a failure, a late reply, or a loss of data in the store, the node lags until the recorder's channel is empty.

mod attempt;
mod coverage;
mod known;
mod replay;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::attempt::{APPENDED, Bounds, Outcome, TOLD, own_series, transactions};
pub use self::known::CapSettings;
use self::known::Known;
pub use self::replay::Budget;
use self::replay::Replay;
use super::{Delivery, RETRY_MAX, RETRY_MIN};
use crate::diagnosis::{Cause, LossCause};
use crate::event::{Batch, OverflowSeries, Partition, Precision, Window};
use crate::node::{Heartbeat, Node};
use crate::spool::Spool;
use crate::store::{RecordRequest, Recording, StoreError};
use crate::telemetry::Metrics;

/// If the user cap is below this, series come near the cap so often that the recorder must keep track of their users.
const FEW_USERS: u64 = 1_000_000;
const IDLE_BEAT: Duration = Duration::from_secs(1);
/// Only one in this many failures is logged, i.e. about one every ten seconds.
const FAILURES_PER_LOG: u32 = 8;

/// The settings of a [`Recorder`].
#[derive(Debug, Clone, Copy)]
pub struct RecorderSettings {
    /// The accepted range of event ages. It is checked again here, because a batch may have had to wait.
    pub window: Window,
    /// The unit of timestamps in the input.
    pub precision: Precision,
    /// The caps on series and on users.
    pub caps: CapSettings,
    /// The maximum time for a reply before a node counts as lagging, which is well before other nodes close a minute.
    pub lagging_after: Duration,
    /// How far back a shared store may lose acknowledged events. Batches are kept for this long to re-record them.
    pub replay_window: Duration,
}

/// The task that records the batches of one partition in the store.
#[derive(Debug)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Recorder {
    pub partition: Partition,
    pub settings: RecorderSettings,
    pub batches: mpsc::Receiver<Delivery>,
    pub store: Arc<dyn Recording>,
    pub overflow: OverflowSeries,
    /// The spool for the events left over after an abort; if this is `None`, they are dropped.
    pub spool: Option<Spool>,
    /// The memory budget for known users.
    pub dedup: Arc<Budget>,
    /// The memory budget for the batches in the replay window.
    pub replay: Arc<Budget>,
    pub node: Arc<Node>,
    pub metrics: Arc<Metrics>,
    pub heartbeat: Heartbeat,
    /// When cancelled, the task stops waiting for the store.
    pub abort: CancellationToken,
}

struct State {
    known: Known,
    replay: Replay,
    bounds: &'static Bounds,
    lags: bool,
    /// The number of failed attempts since the store last accepted a transaction.
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// From a listener. The events are in the ledger's queue.
    Queue,
    /// From requests. The events are in the ledger's queue as well. A request reaches one node, while a datagram reaches all.
    Request,
    /// From disk. The events are in the ledger's queue as well, and stay on disk until they have been recorded.
    Spool,
    /// From the replay window. The events were recorded before, so they have left the ledger's queue.
    Replay,
}

impl Recorder {
    /// Records batches until the channel is closed and empty.
    pub async fn run(mut self) {
        // Near the user cap, the recorder asks for the number of users. This is a network call if the store is remote.
        let users_max = self.settings.caps.users_max;
        let store = self.store.capabilities();
        let is_near_cap = (1..FEW_USERS).contains(&users_max) && store.is_remote;
        let is_told = is_near_cap || !store.finds_new_users;
        let users = is_told.then(|| Arc::clone(&self.dedup));
        let overflow = self.overflow.clone();
        // An in-process store loses data only together with this process, so there is nothing to re-record.
        let replay_window = self.settings.replay_window * u32::from(store.is_remote);
        let mut state = State {
            known: Known::new(self.partition, self.settings.caps, overflow, users),
            replay: Replay::new(replay_window, Arc::clone(&self.replay)),
            bounds: if is_told { &TOLD } else { &APPENDED },
            lags: false,
            failures: 0,
        };
        loop {
            self.heartbeat.beat();
            match tokio::time::timeout(IDLE_BEAT, self.batches.recv()).await {
                Ok(Some(delivery)) => self.record_delivery(&mut state, delivery).await,
                Ok(None) => return,
                Err(_idle) => {}
            }
            // The knowledge of a minute must expire on time, whether the recorder is busy or idle.
            state.known.expire(Instant::now());
            // Re-recording comes before expiry, because the store may have been down for longer than the replay window.
            self.record_again(&mut state).await;
            let generation = self.store.generation(self.partition);
            state.replay.expire(generation, Instant::now());
            let kept = state.replay.events();
            self.node.partitions.change(self.partition, |state| state.kept = kept);
            if self.batches.is_empty() {
                self.set_lags(&mut state.lags, false);
            }
        }
    }

    async fn record_delivery(&self, state: &mut State, delivery: Delivery) {
        let Delivery { batch, is_spooled, done } = delivery;
        let generation = self.store.generation(self.partition);
        let origin = match is_spooled {
            true => Origin::Spool,
            false if done.is_empty() => Origin::Queue,
            false => Origin::Request,
        };
        let is_recorded = self.record(state, &batch, origin).await;
        self.node.ledger.released(batch.bytes());
        for done in done.into_iter().filter(|_| is_recorded) {
            // A receiver is gone if its request has timed out.
            let _ = done.send(());
        }
        if !state.replay.keep(batch, generation, Instant::now()) {
            self.metrics.replay_cut.inc();
        }
    }

    /// Re-records batches not acknowledged by the store's current generation. The node counts as lagging until this is done.
    async fn record_again(&self, state: &mut State) {
        let mut batches = 0;
        while !self.abort.is_cancelled() {
            let generation = self.store.generation(self.partition);
            let Some(kept) = state.replay.take_forgotten(generation) else {
                break;
            };
            if batches == 0 {
                tracing::info!(
                    partition = self.partition.index(),
                    batches = state.replay.len() + 1,
                    "the store may have lost data; re-recording the most recent batches"
                );
            }
            batches += 1;
            self.set_lags(&mut state.lags, true);
            self.record(state, &kept.batch, Origin::Replay).await;
            self.metrics.events_replayed.inc_by(kept.batch.events() as u64);
            let now = Instant::now();
            state.replay.put_back(kept, generation, now);
            if self.store.generation(self.partition) == generation {
                state.replay.expire(generation, now);
            }
        }
    }

    /// Records a batch in one or more transactions. Returns false if an abort left some of its events unrecorded.
    async fn record(&self, state: &mut State, batch: &Batch, origin: Origin) -> bool {
        let began = Instant::now();
        let mut is_recorded = true;
        let Node { spans, clock, .. } = &*self.node;
        let mut minutes = BTreeMap::new();
        let start = clock.now_nanos();
        for requests in transactions(batch, state.bounds) {
            if spans.is_enabled() {
                for request in &requests {
                    *minutes.entry(request.minute).or_default() += request.occurrences.len();
                }
            }
            is_recorded &= self.record_requests(state, requests, origin).await;
        }
        if is_recorded {
            let times = [start, clock.now_nanos()];
            for (minute, events) in minutes {
                spans.recorded(minute, times, events);
            }
        }
        self.metrics.record_seconds.observe(began.elapsed().as_secs_f64());
        is_recorded
    }

    async fn record_requests<'a>(
        &'a self,
        state: &mut State,
        mut requests: Vec<RecordRequest<'a>>,
        origin: Origin,
    ) -> bool {
        loop {
            let answer = {
                self.heartbeat.beat();
                let lags_at = Instant::now() + self.settings.lagging_after;
                let attempt = self.attempt(&mut state.known, &mut requests, origin);
                let mut attempt = pin!(self.heartbeat.during(attempt));
                loop {
                    tokio::select! {
                        // A reply that has already arrived is processed, even if the node is aborting.
                        biased;
                        answer = &mut attempt => break Some(answer),
                        () = tokio::time::sleep_until(lags_at), if !state.lags => {
                            self.set_lags(&mut state.lags, true);
                        }
                        () = self.abort.cancelled() => break None,
                    }
                }
            };
            match answer {
                Some(Ok(Outcome::Replaced)) => continue,
                Some(Ok(Outcome::Emptied)) => return true,
                Some(Ok(Outcome::Done)) => {
                    if std::mem::take(&mut state.failures) > 0 {
                        let partition = self.partition.index();
                        tracing::info!(partition, "the store is accepting events again");
                    }
                    return true;
                }
                Some(Err(error)) => {
                    let pause = tokio::time::sleep(self.failed(state, &error));
                    if self.abort.run_until_cancelled(pause).await.is_some() {
                        continue;
                    }
                }
                None => {}
            }
            self.leave(&requests, origin).await;
            return false;
        }
    }

    fn failed(&self, state: &mut State, error: &StoreError) -> Duration {
        self.metrics.record_failures.inc();
        self.metrics.store_up.set(0);
        if state.failures.is_multiple_of(FAILURES_PER_LOG) {
            let partition = self.partition.index();
            tracing::warn!(partition, %error, "cannot record events: this node {}", Cause::NodeCannotRecord.what());
        }
        self.set_lags(&mut state.lags, true);
        state.failures = state.failures.saturating_add(1);
        let pause = RETRY_MIN.saturating_mul(1 << state.failures.min(8));
        pause.min(RETRY_MAX).mul_f64(self.node.rng.jitter())
    }

    fn set_lags(&self, lags: &mut bool, now_lags: bool) {
        if *lags != now_lags {
            *lags = now_lags;
            self.node.partitions.change(self.partition, |state| state.lags = now_lags);
        }
    }

    /// Spools the events left over after an abort, or drops them if there is no spool. Events from disk remain on disk.
    async fn leave(&self, requests: &[RecordRequest<'_>], origin: Origin) {
        let ledger = &self.node.ledger;
        let events = requests.iter().map(|request| request.occurrences.len()).sum();
        match (origin, &self.spool) {
            (Origin::Replay, _) => {}
            (Origin::Spool, _) => ledger.stay_spooled(events),
            (Origin::Queue | Origin::Request, None) => ledger.dropped(LossCause::Shutdown, events),
            (Origin::Queue | Origin::Request, Some(spool)) => {
                ledger.to_be_spooled(events);
                let mut rest = Batch::default();
                for request in requests {
                    for event in request.occurrences {
                        let user = request.batch.user(event);
                        if !rest.push(request.minute, own_series(request), user, event.timestamp) {
                            ledger.refused_by_spool(LossCause::SpoolFailed, 1);
                        }
                    }
                }
                match spool.reserve().await {
                    Some(place) => place.keep(rest),
                    None => ledger.refused_by_spool(LossCause::SpoolFailed, rest.events()),
                }
            }
        }
    }
}
