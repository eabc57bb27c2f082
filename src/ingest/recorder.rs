//! [`Recorder`]: the task that brings the batches of one partition to the store.
//!
//! It owns the order of its partition: the next batch is not begun before the store has confirmed the last. It
//! waits for batches and for the store, and tries again until the store has a batch; recording is idempotent,
//! so it does not matter whether an attempt that failed was carried out. When the store may have forgotten
//! something it gives the batches of the last seconds again. From a failure, or an answer that is long in coming, until the queue is through it says that
//! it is behind, which keeps minutes open. It stops when all listeners have let
//! go of its channel and everything in it is recorded, or, giving up what is left, when `abandon` is cancelled.

mod attempt;
mod giving_up;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caps::{CapSettings, Caps};
use super::dedup::{Dedup, DedupBudget};
use super::parts::{Origin, Part};
use super::replay::{Replay, ReplayWindow};
use super::{Delivery, RETRY_MAX, RETRY_MIN};
use crate::event::{Batch, OverflowSeries, Partition, Rejection, Window};
use crate::node::{Heartbeat, Node};
use crate::spool::Spool;
use crate::store::{Store, StoreError};
use crate::telemetry::Metrics;

/// The events of a transaction, at most. Redis serves nobody else while it carries one out, a few ms.
const TRANSACTION_EVENTS: usize = 8192;
/// How often it gives a sign of life while it has nothing to do.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// How a recorder behaves.
#[derive(Debug, Clone, Copy)]
pub struct RecorderSettings {
    /// The ages that are accepted, looked at again when a batch had to wait.
    pub window: Window,
    /// What a series and a minute may hold.
    pub caps: CapSettings,
    /// A node that waits for an answer for longer than this is behind. Well below the grace, after which others close
    /// the minute.
    pub behind_after: Duration,
}

/// The task that brings the batches of one partition to the store.
#[derive(Debug)]
pub struct Recorder {
    partition: Partition,
    settings: RecorderSettings,
    batches: mpsc::Receiver<Delivery>,
    store: Arc<dyn Store>,
    spool: Option<Spool>,
    dedup: Dedup,
    replay: Replay,
    /// The store's generation that has all batches of `replay`.
    replayed: u64,
    /// Whether the store did not take a batch, and the queue is not through since.
    behind: bool,
    caps: Caps,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    heartbeat: Arc<Heartbeat>,
    abandon: CancellationToken,
}

impl Recorder {
    /// A recorder of this partition.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a part that it alone uses"
    )]
    #[must_use]
    pub fn new(
        partition: Partition,
        settings: RecorderSettings,
        batches: mpsc::Receiver<Delivery>,
        store: Arc<dyn Store>,
        budget: Arc<DedupBudget>,
        window: Arc<ReplayWindow>,
        node: Arc<Node>,
        metrics: Arc<Metrics>,
        heartbeat: Heartbeat,
        abandon: CancellationToken,
    ) -> Self {
        Self {
            partition,
            settings,
            batches,
            store,
            spool: None,
            dedup: Dedup::new(budget),
            replay: Replay::new(window),
            replayed: 0,
            behind: false,
            caps: Caps::new(partition, settings.caps),
            node,
            metrics,
            heartbeat: Arc::new(heartbeat),
            abandon,
        }
    }

    /// The same, but what it has no place for goes to these series.
    #[must_use]
    pub fn with_overflow(mut self, overflow: OverflowSeries) -> Self {
        self.caps.overflow = overflow;
        self
    }

    /// The same, but what it has to give up goes to the disk.
    #[must_use]
    pub fn with_spool(mut self, spool: Option<Spool>) -> Self {
        self.spool = spool;
        self
    }

    /// Records until the channel is closed and empty.
    pub async fn run(mut self) {
        loop {
            self.heartbeat.beat();
            match tokio::time::timeout(IDLE_BEAT, self.batches.recv()).await {
                Ok(Some(Delivery { batch, done })) => {
                    let generation = self.store.generation(self.partition);
                    let origin = match done {
                        Some(_) => Origin::Spool,
                        None => Origin::Queue,
                    };
                    let through = self.record(&batch, origin).await;
                    self.node.ledger.released(batch.bytes());
                    if let (true, Some(done)) = (through, done) {
                        // Nobody waits any more when the node ends; the disk then has it once too often.
                        let _ = done.send(());
                    }
                    if self.replay.len() == 0 {
                        self.replayed = generation;
                    }
                    if !self.replay.keep(batch, Instant::now()) {
                        self.metrics.replay_cut.inc();
                    }
                }
                Ok(None) => return,
                Err(_idle) => {}
            }
            // Busy or idle: what is kept of a minute goes on time.
            self.dedup.expire(Instant::now());
            self.caps.expire(Instant::now());
            // In this order: the store may have been away for longer than the window.
            self.replay_what_may_be_forgotten().await;
            self.replay.forget(Instant::now());
            let kept = self.replay.events();
            self.node.confirmed.keep(self.partition, kept);
            if self.behind && self.batches.is_empty() {
                self.set_behind(false);
            }
        }
    }

    /// Records the batches of the last seconds again if the store is not what it was when it confirmed them.
    async fn replay_what_may_be_forgotten(&mut self) {
        let mut generation = self.store.generation(self.partition);
        while self.replayed != generation && !self.abandon.is_cancelled() {
            let batches = self.replay.len();
            if batches > 0 {
                tracing::info!(
                    partition = self.partition.index(),
                    batches,
                    "the store may have forgotten something; recording the last batches again"
                );
            }
            for _ in 0..batches {
                let Some(batch) = self.replay.take_first() else {
                    break;
                };
                self.record(&batch, Origin::Replay).await;
                self.metrics.events_replayed.inc_by(batch.events() as u64);
                self.replay.put_last(batch, Instant::now());
            }
            self.replayed = generation;
            generation = self.store.generation(self.partition);
        }
    }

    /// Answers whether every event was recorded or rejected, and none given up.
    async fn record(&mut self, batch: &Batch, origin: Origin) -> bool {
        let began = Instant::now();
        let mut through = true;
        let mut parts: Vec<Part<'_>> = Vec::new();
        let mut events = 0;
        for group in batch.groups() {
            let count = group.occurrences.len();
            let mut from = 0;
            while from < count {
                let to = count.min(from + TRANSACTION_EVENTS - events);
                parts.push(Part { group, from, to });
                events += to - from;
                from = to;
                if events == TRANSACTION_EVENTS {
                    through &= self
                        .record_parts(batch, std::mem::take(&mut parts), origin)
                        .await;
                    events = 0;
                }
            }
        }
        if !parts.is_empty() {
            through &= self.record_parts(batch, parts, origin).await;
        }
        self.metrics
            .record_seconds
            .observe(began.elapsed().as_secs_f64());
        through
    }

    /// Records the parts in one transaction, and does not come back before it is done or given up; answers which.
    async fn record_parts(&mut self, batch: &Batch, parts: Vec<Part<'_>>, origin: Origin) -> bool {
        let mut parts = parts;
        let overflow = self.caps.overflow.clone();
        let abandon = self.abandon.clone();
        let heartbeat = Arc::clone(&self.heartbeat);
        let mut failures = 0_u32;
        loop {
            heartbeat.beat();
            // A batch may have waited long behind the one before it, or for the store: the counts that its events
            // must meet are not kept for ever.
            self.reject_what_is_too_old(&mut parts, origin);
            if parts.is_empty() {
                return true;
            }
            let generation = self.store.generation(self.partition);
            self.dedup.follow(generation);
            self.caps.follow(generation);
            let (node, partition) = (Arc::clone(&self.node), self.partition);
            let until_behind = tokio::time::sleep(self.settings.behind_after);
            let mut hangs = false;
            let hanging = async {
                until_behind.await;
                hangs = true;
                node.lag.set(partition, true);
                std::future::pending::<()>().await;
            };
            let result = tokio::select! {
                // An answer that is there counts, although the node gives up.
                biased;
                result = heartbeat.during(self.attempt(batch, &overflow, &mut parts, origin, generation)) => result,
                () = hanging => unreachable!("it goes on for ever"),
                () = abandon.cancelled() => {
                    self.give_up(batch, &parts, origin).await;
                    return false;
                }
            };
            self.behind |= hangs;
            match result {
                Ok(None) => {}
                // Another Redis may have taken it than the one that dedup knows, and lack the users that were
                // left out: once more, with all of them.
                Ok(Some(_))
                    if self.store.generation(self.partition) != generation
                        && !self.dedup.is_empty() => {}
                Ok(Some((recordings, repeated, learnt))) => {
                    self.confirmed(&recordings, repeated, origin);
                    let now = Instant::now();
                    self.dedup.insert(&learnt, now);
                    for recording in &recordings {
                        self.dedup.touch(recording.minute, now);
                    }
                    if failures > 0 {
                        tracing::info!(
                            partition = self.partition.index(),
                            "the store records again"
                        );
                    }
                    return true;
                }
                Err(error) => {
                    self.failed(&error, failures);
                    failures = failures.saturating_add(1);
                    let pause = longest_pause(failures).mul_f64(self.node.rng.jitter());
                    tokio::select! {
                        biased;
                        () = tokio::time::sleep(pause) => {}
                        () = abandon.cancelled() => {
                            self.give_up(batch, &parts, origin).await;
                            return false;
                        }
                    }
                }
            }
        }
    }

    fn set_behind(&mut self, behind: bool) {
        self.behind = behind;
        self.node.lag.set(self.partition, behind);
    }

    fn failed(&mut self, error: &StoreError, failures: u32) {
        if !self.behind {
            self.set_behind(true);
        }
        self.metrics.record_failures.inc();
        self.metrics.store_up.set(0);
        // Once at the beginning, and then about every ten seconds.
        if failures.is_multiple_of(8) {
            tracing::warn!(
                partition = self.partition.index(),
                %error,
                "cannot record; the events wait in this node"
            );
        }
    }

    fn reject_what_is_too_old(&self, parts: &mut Vec<Part<'_>>, origin: Origin) {
        let now = self.node.clock.now_nanos();
        parts.retain(|part| {
            let last_instant = part.group.minute.end_millis().saturating_mul(1_000_000);
            let keep = self.settings.window.judge(last_instant, now) != Err(Rejection::TooOld);
            if !keep && origin != Origin::Replay {
                let series = &part.group.series;
                self.rejected(Rejection::TooOld, part.events(), series);
            }
            keep
        });
    }
}

fn longest_pause(failures: u32) -> Duration {
    RETRY_MIN
        .saturating_mul(1 << failures.min(8))
        .min(RETRY_MAX)
}
