//! [`Keeper`], the thread that owns the directory, and [`Spool`], the handle of all other threads.
//!
//! The keeper waits for orders and for the disk, never for the store. It stops when the last [`Spool`] is dropped and
//! all orders are executed; then all its writes are synced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::SendError, error::TrySendError};
use tokio::sync::{Notify, oneshot};

use super::directory::{Directory, Segment, SpoolSettings};
use crate::diagnosis::{Cause, LossCause};
use crate::event::Batch;
use crate::node::{Heartbeat, Node, Throttle};
use crate::telemetry::{Metrics, gauge};

/// The capacity of the queue of orders.
const ORDERS: usize = 8;
/// The interval of syncs, while the disk keeps up.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long writes are retried without a free descriptor or memory. In that time listeners keep events in memory while it has
/// room; after it events are dropped at once, until a write succeeds.
const SHORTAGE_MAX: Duration = Duration::from_secs(10);
/// The pause before such a retry.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// The minimum interval of log lines about lost or delayed events.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The thread that owns the directory.
#[derive(Debug)]
pub struct Keeper {
    directory: Directory,
    orders: mpsc::Receiver<Order>,
    state: Arc<State>,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    heartbeat: Heartbeat,
    logged: Throttle,
    /// The beginning of a shortage of descriptors or memory.
    short_since: Option<Instant>,
}

/// A handle of the spool.
#[derive(Debug, Clone)]
pub struct Spool {
    orders: mpsc::Sender<Order>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_spilling: AtomicBool,
    /// Notified of each attempt to write a batch.
    arrived: Notify,
}

#[derive(Debug)]
enum Order {
    Keep(Batch),
    Take(oneshot::Sender<Option<Segment>>),
    Done { number: u64, keep: bool },
}

impl Keeper {
    /// Opens the directory, which no other process may use.
    pub fn open(
        settings: &SpoolSettings,
        node: Arc<Node>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<(Self, Spool)> {
        let directory = Directory::open(settings)?;
        if !directory.is_empty() {
            tracing::info!(
                directory = %settings.directory.display(),
                bytes = directory.bytes(),
                "taking up the events that an earlier run left on disk"
            );
        }
        let (sender, orders) = mpsc::channel(ORDERS);
        let state = Arc::<State>::default();
        let spool = Spool { orders: sender, state: Arc::clone(&state) };
        let keeper = Self {
            directory,
            orders,
            state,
            heartbeat: node.progress.watch("the keeper of the spool"),
            node,
            metrics,
            logged: Throttle::new(LOG_INTERVAL),
            short_since: None,
        };
        keeper.report_state();
        Ok((keeper, spool))
    }

    /// Executes orders until all handles are dropped. Blocks; must be called inside a tokio runtime.
    pub fn run(mut self) {
        let runtime = Handle::current();
        let mut synced = Instant::now();
        loop {
            self.heartbeat.beat();
            let next = tokio::time::timeout(SYNC_INTERVAL, self.orders.recv());
            let order = runtime.block_on(next);
            // A disk that hangs blocks no other thread, and a restart because of it would lose the events in memory.
            self.heartbeat.rest();
            match order {
                Ok(Some(order)) => self.execute(order),
                Ok(None) => break,
                Err(_idle) => {}
            }
            if synced.elapsed() >= SYNC_INTERVAL {
                self.sync();
                synced = Instant::now();
            }
        }
        self.sync();
    }

    fn execute(&mut self, order: Order) {
        match order {
            Order::Keep(batch) => self.keep(&batch),
            Order::Take(answer) => {
                let taken = self.directory.take();
                if !self.directory.has_more() {
                    // Batches still in the queue are the last ones of this overflow. Waiting for an empty queue could
                    // take forever, if events arrive faster than the disk syncs.
                    self.state.is_spilling.store(false, Ordering::Relaxed);
                }
                // The receiver is dropped only at the end of the node; then the next one takes the segment.
                let _ = answer.send(taken);
            }
            Order::Done { number, keep } => {
                if let Err(error) = self.directory.done(number, keep) {
                    tracing::warn!(%error, segment = number, "cannot put away a segment that is recorded");
                }
            }
        }
        self.report_state();
    }

    fn keep(&mut self, batch: &Batch) {
        let (logged, short_since) = (&mut self.logged, &mut self.short_since);
        let appended = self.directory.append(batch, |error| {
            if logged.is_due() {
                tracing::error!(
                    %error,
                    "cannot write to input.spool_dir; trying again for {SHORTAGE_MAX:?}, then events are dropped; {}; if there are too \
                     many open files, {}",
                    LossCause::SpoolFailed.remedy(),
                    Cause::FewDescriptors.remedy()
                );
            }
            std::thread::sleep(SHORTAGE_PAUSE);
            short_since.get_or_insert_with(Instant::now).elapsed() < SHORTAGE_MAX
        });
        if appended.kept > 0 {
            self.short_since = None;
        }
        self.node.ledger.refused_by_spool(LossCause::SpoolFull, appended.full);
        self.node.ledger.refused_by_spool(LossCause::SpoolFailed, appended.failed);
        self.node.ledger.written(appended.kept);
        self.metrics.spool_written.inc_by(appended.kept as u64);
        // Also when nothing was kept: the unspooler then finds no segment, which ends spilling, so that events go to memory
        // while the disk is full.
        self.state.arrived.notify_one();
        let lost = appended.full + appended.failed;
        if lost > 0
            && let Some(error) = appended.error
            && self.logged.is_due()
        {
            tracing::error!(%error, events = lost, "cannot write to input.spool_dir; events are dropped");
        }
    }

    fn sync(&mut self) {
        if let Err(error) = self.directory.sync() {
            tracing::warn!(%error, "what is in input.spool_dir may not outlive this machine's next crash");
        }
    }

    fn report_state(&self) {
        self.node.partitions.set_spooling(!self.directory.is_empty());
        self.metrics.spool_bytes.set(gauge(self.directory.bytes()));
    }
}

impl Spool {
    /// Returns whether new events must go to the disk, behind the events there.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.state.is_spilling.load(Ordering::Relaxed)
    }

    /// Sends new events to the disk until all segments are taken.
    pub fn begin_spilling(&self) {
        self.state.is_spilling.store(true, Ordering::Relaxed);
    }

    /// Writes a batch to the disk. Its events must be spooled in the ledger. Returns the batch if the disk is busy.
    pub fn try_keep(&self, batch: Batch) -> Result<(), Batch> {
        match self.orders.try_send(Order::Keep(batch)) {
            Err(
                TrySendError::Full(Order::Keep(batch)) | TrySendError::Closed(Order::Keep(batch)),
            ) => Err(batch),
            _ => Ok(()),
        }
    }

    /// Like [`Self::try_keep`], but waits for the disk. Returns the batch if there is no keeper.
    pub async fn keep(&self, batch: Batch) -> Result<(), Batch> {
        match self.orders.send(Order::Keep(batch)).await {
            Err(SendError(Order::Keep(batch))) => Err(batch),
            _ => Ok(()),
        }
    }

    /// Takes the oldest segment. Spilling ends when it is the last one.
    pub async fn take(&self) -> Option<Segment> {
        let (answer, taken) = oneshot::channel();
        self.orders.send(Order::Take(answer)).await.ok()?;
        taken.await.ok()?
    }

    /// Waits for an attempt to write a batch after the last [`Spool::take`].
    pub async fn arrived(&self) {
        self.state.arrived.notified().await;
    }

    /// Deletes a segment whose events are recorded, or renames it if `keep` is set because a part of it is unreadable.
    pub async fn done(&self, number: u64, keep: bool) {
        // Without a keeper the segment stays, and recording it again changes nothing.
        let _ = self.orders.send(Order::Done { number, keep }).await;
    }
}

#[cfg(test)]
impl Keeper {
    /// Opens a spool of one MiB, for tests.
    pub(crate) fn of_a_mib(
        directory: &std::path::Path,
        node: &Arc<Node>,
        metrics: &Arc<Metrics>,
    ) -> (Self, Spool) {
        let settings = SpoolSettings { directory: directory.to_owned(), bytes_max: 1 << 20 };
        Self::open(&settings, Arc::clone(node), Arc::clone(metrics))
            .expect("a directory of the test's own")
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
