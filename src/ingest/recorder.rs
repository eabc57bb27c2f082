//! [`Recorder`]: the task that brings the batches of one partition to the store.
//!
//! It owns the order of its partition: it begins a batch when the store has confirmed the last one. [`Course`] decides
//! when it tries again; recording is idempotent, so it does not matter whether a failed attempt was carried out. When
//! the store may have forgotten something, it records the batches of the last seconds again. It stops when all
//! listeners have closed its channel and everything in it is recorded; when `abort` is cancelled it spools or drops
//! what is left.

mod attempt;
mod course;
mod parts;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::course::{Course, Input, Next};
use self::parts::{APPENDED, Origin, Part, TOLD, transactions};
use super::Delivery;
use super::caps::{CapSettings, Caps};
use super::coverage::Coverage;
use super::dedup::{Dedup, DedupBudget};
use super::replay::{Replay, ReplayWindow};
use crate::diagnosis::{Cause, LossCause};
use crate::event::{Batch, OverflowSeries, Partition, Precision, Window};
use crate::node::{Heartbeat, Node};
use crate::spool::Spool;
use crate::store::{Recording, StoreError};
use crate::telemetry::Metrics;

/// Where a series may have fewer users than this, one is near its cap often enough to know them.
const FEW_USERS: u64 = 1_000_000;
/// How often an idle recorder beats.
const IDLE_BEAT: Duration = Duration::from_secs(1);
/// A failure is logged at once, and then one in so many: about every ten seconds.
const FAILURES_PER_LOG: u32 = 8;

/// How a recorder behaves.
#[derive(Debug, Clone, Copy)]
pub struct RecorderSettings {
    /// The ages that are accepted, checked again when a batch had to wait.
    pub window: Window,
    /// The unit of the timestamps in the input.
    pub precision: Precision,
    /// What a series and a minute may hold.
    pub caps: CapSettings,
    /// A node that waits longer than this for an answer lags. Well below the grace, after which others seal the
    /// minute.
    pub lagging_after: Duration,
}

/// The task that brings the batches of one partition to the store.
#[derive(Debug)]
pub struct Recorder {
    /// Its partition.
    pub partition: Partition,
    /// How it behaves.
    pub settings: RecorderSettings,
    /// The batches to record.
    pub batches: mpsc::Receiver<Delivery>,
    /// Where it records them.
    pub store: Arc<dyn Recording>,
    /// The series that takes the events of series beyond the cap.
    pub overflow: OverflowSeries,
    /// Where batches go that an abort leaves; `None`: they are dropped.
    pub spool: Option<Spool>,
    /// The memory for users that the store has.
    pub dedup: Arc<DedupBudget>,
    /// How long it keeps what it recorded.
    pub replay: Arc<ReplayWindow>,
    /// Whose clock it reads, and where it reports what became of events.
    pub node: Arc<Node>,
    /// Where it counts the rest.
    pub metrics: Arc<Metrics>,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
    /// When cancelled, it waits for the store no more.
    pub abort: CancellationToken,
}

/// What a recorder knows.
struct State {
    course: Course,
    known: Known,
    replay: Replay,
}

/// What it knows of the store's sets.
struct Known {
    caps: Caps,
    /// `None`: the store finds out by itself which users are new.
    dedup: Option<Dedup>,
    coverage: Coverage,
}

impl Recorder {
    /// Records until the channel is closed and empty.
    pub async fn run(mut self) {
        let caps = Caps::new(self.partition, self.settings.caps, self.overflow.clone());
        // Near their cap the store has to be asked how many users there are, which for a store elsewhere costs a call.
        let users_max = self.settings.caps.users_max;
        let store = self.store.capabilities();
        let is_near_cap = (1..FEW_USERS).contains(&users_max) && store.is_remote;
        let is_told = is_near_cap || !store.finds_new_users;
        let mut state = State {
            course: Course::new(self.settings.lagging_after),
            known: Known {
                caps,
                dedup: is_told.then(|| Dedup::new(Arc::clone(&self.dedup))),
                coverage: Coverage::default(),
            },
            replay: Replay::new(Arc::clone(&self.replay)),
        };
        loop {
            self.heartbeat.beat();
            match tokio::time::timeout(IDLE_BEAT, self.batches.recv()).await {
                Ok(Some(delivery)) => self.record_delivery(&mut state, delivery).await,
                Ok(None) => return,
                Err(_idle) => {}
            }
            // Busy or idle: what is known of a minute expires on time.
            let now = Instant::now();
            if let Some(dedup) = &mut state.known.dedup {
                dedup.expire(now);
            }
            state.known.caps.expire(now);
            // In this order: the store may have been away for longer than the window.
            self.record_again(&mut state).await;
            let generation = self.store.generation(self.partition);
            state.replay.expire(generation, Instant::now());
            let kept = state.replay.events();
            self.node.confirmed.keep(self.partition, kept);
            if self.batches.is_empty() {
                self.step(&mut state.course, Input::Drained);
            }
        }
    }

    async fn record_delivery(&self, state: &mut State, Delivery { batch, done }: Delivery) {
        let generation = self.store.generation(self.partition);
        let origin = match done {
            Some(_) => Origin::Spool,
            None => Origin::Queue,
        };
        let all = self.record(state, &batch, origin).await;
        self.node.ledger.released(batch.bytes());
        if let (true, Some(done)) = (all, done) {
            // Nobody listens when the node ends; then the disk still has the batch.
            let _ = done.send(());
        }
        if !state.replay.keep(batch, generation, Instant::now()) {
            self.metrics.replay_cut.inc();
        }
    }

    /// Records the batches of the last seconds again if the store is not the one that confirmed them. Until that is done the node
    /// lags. What the store confirms while this takes longer than the window is not recorded a third time.
    async fn record_again(&self, state: &mut State) {
        let mut batches = 0;
        while !self.abort.is_cancelled() {
            let generation = self.store.generation(self.partition);
            let Some(batch) = state.replay.take_forgotten(generation) else {
                break;
            };
            if batches == 0 {
                tracing::info!(
                    partition = self.partition.index(),
                    batches = state.replay.len() + 1,
                    "the store may have forgotten something; recording the last batches again"
                );
            }
            batches += 1;
            self.step(&mut state.course, Input::Forgotten);
            self.record(state, &batch, Origin::Replay).await;
            self.metrics.events_replayed.inc_by(batch.events() as u64);
            let now = Instant::now();
            state.replay.put_last(batch, generation, now);
            if self.store.generation(self.partition) == generation {
                state.replay.expire(generation, now);
            }
        }
    }

    /// Records a batch in transactions. Returns false when some of it was aborted.
    async fn record(&self, state: &mut State, batch: &Batch, origin: Origin) -> bool {
        let began = Instant::now();
        let mut all = true;
        let bounds = match state.known.dedup {
            Some(_) => &TOLD,
            None => &APPENDED,
        };
        for parts in transactions(batch, bounds) {
            all &= self.record_parts(state, batch, parts, origin).await;
        }
        self.metrics.record_seconds.observe(began.elapsed().as_secs_f64());
        all
    }

    /// Records the parts in one transaction, and returns when that is done, or, with false, aborted.
    async fn record_parts<'a>(
        &'a self,
        State { course, known, .. }: &mut State,
        batch: &'a Batch,
        mut parts: Vec<Part<'a>>,
        origin: Origin,
    ) -> bool {
        let mut next = self.step(course, Input::Begin);
        while next == Some(Next::Attempt) {
            self.heartbeat.beat();
            let attempt = self.attempt(known, batch, &mut parts, origin);
            let mut attempt = pin!(self.heartbeat.during(attempt).fuse());
            next = loop {
                let input = tokio::select! {
                    // An answer that is there counts, although the node aborts.
                    biased;
                    answer = &mut attempt => self.heard(answer, course.failures()),
                    () = sleep_until(course.wakes_at()) => Input::Tick,
                    () = self.abort.cancelled() => Input::Abort,
                };
                let next = self.step(course, input);
                if next.is_some() {
                    break next;
                }
            };
        }
        if next == Some(Next::Abort) {
            self.leave(batch, &parts, origin).await;
        }
        next == Some(Next::Finish)
    }

    fn step(&self, course: &mut Course, input: Input) -> Option<Next> {
        let lagged = course.is_lagging();
        let next = course.on(input, Instant::now());
        if course.is_lagging() != lagged {
            self.node.lag.set(self.partition, !lagged);
        }
        next
    }

    /// What an answer of the store means. Logs a failure, and the end of failures.
    fn heard(&self, answer: Result<Input, StoreError>, failures: u32) -> Input {
        let partition = self.partition.index();
        match answer {
            Ok(input) => {
                if failures > 0 && input == Input::Done {
                    tracing::info!(partition, "the store records again");
                }
                input
            }
            Err(error) => {
                self.metrics.record_failures.inc();
                self.metrics.store_up.set(0);
                if failures.is_multiple_of(FAILURES_PER_LOG) {
                    tracing::warn!(partition, %error, "cannot record: this node {}", Cause::NodeCannotRecord.what());
                }
                let jitter = self.node.rng.jitter();
                Input::Failed { jitter }
            }
        }
    }

    /// Leaves what is not recorded to the disk, if there is one.
    async fn leave(&self, batch: &Batch, parts: &[Part<'_>], origin: Origin) {
        let ledger = &self.node.ledger;
        let events = parts.iter().map(Part::events).sum();
        match (origin, &self.spool) {
            (Origin::Replay, _) => {}
            (Origin::Spool, _) => ledger.stay_spooled(events),
            (Origin::Queue, None) => ledger.dropped(LossCause::Shutdown, events),
            (Origin::Queue, Some(spool)) => {
                ledger.to_be_spooled(events);
                let mut rest = Batch::default();
                let lost = parts.iter().map(|part| part.copy(batch, &mut rest)).sum();
                ledger.refused_by_spool(LossCause::SpoolFailed, lost);
                if let Err(rest) = spool.keep(rest).await {
                    ledger.refused_by_spool(LossCause::SpoolFailed, rest.events());
                }
            }
        }
    }
}

/// Waits for a time, or for ever.
async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
