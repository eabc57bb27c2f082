//! Events on disk, for which there is no room in memory while the store is unavailable. A `Keeper` is a thread that owns the
//! directory; all others use it through a [`Spool`]. A segment is deleted only once all its events have been recorded. The keeper
//! never waits for the store, and exits when the last [`Spool`] has been dropped and all orders are executed and synced.

mod directory;
pub mod segment;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};

use self::directory::Directory;
pub(crate) use self::directory::{Segment, SpoolSettings, is_gone};
use crate::diagnosis::{Cause, LossCause};
use crate::event::Batch;
use crate::node::{Heartbeat, Node, Throttle};
use crate::telemetry::{Metrics, gauge};

const ORDERS: usize = 8;
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long writes are retried without free descriptors or memory. After that, events are dropped until a write succeeds.
const SHORTAGE_MAX: Duration = Duration::from_secs(10);
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Keeper {
    directory: Directory,
    orders: mpsc::Receiver<Order>,
    state: Arc<State>,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    heartbeat: Heartbeat,
    logged: Throttle,
    /// When the shortage of descriptors or memory began.
    short_since: Option<Instant>,
}

/// A handle to the spool.
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

type Order = Box<dyn FnOnce(&mut Keeper) + Send>;

impl Keeper {
    /// Opens the directory, which no other process may be using.
    pub(crate) fn open(
        settings: &SpoolSettings,
        node: Arc<Node>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<(Self, Spool)> {
        let directory = Directory::open(settings)?;
        if !directory.is_empty() {
            tracing::info!(
                directory = %settings.directory.display(),
                bytes = directory.bytes(),
                "found spooled events of an earlier process; recording them"
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

    /// Executes orders until all handles are dropped. Blocks, and must be called inside a tokio runtime.
    pub(crate) fn run(mut self) {
        let runtime = Handle::current();
        let mut synced = Instant::now();
        loop {
            self.heartbeat.beat();
            let next = tokio::time::timeout(SYNC_INTERVAL, self.orders.recv());
            let order = runtime.block_on(next);
            // A hanging disk does not block any other thread, and a restart because of it would lose the events in memory.
            self.heartbeat.rest();
            match order {
                Ok(Some(order)) => {
                    order(&mut self);
                    self.report_state();
                }
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

    fn take(&mut self) -> Option<Segment> {
        let taken = self.directory.take();
        if !self.directory.has_more() {
            // Batches still in the queue are the last ones of this overflow. Waiting for an empty queue could take forever if
            // events arrive faster than the disk syncs.
            self.state.is_spilling.store(false, Ordering::Relaxed);
        }
        taken
    }

    fn done(&mut self, segment: &Segment, keep: bool) {
        if let Err(error) = self.directory.done(segment, keep) {
            let path = segment.path.display();
            tracing::warn!(%error, segment = %path, "cannot delete or rename a segment that is recorded");
        }
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
        // Even if nothing was kept: the unspooler then finds no segment, which ends spilling, so that events go to memory
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
            tracing::warn!(%error, "cannot sync input.spool_dir; a crash of this machine may lose spooled events");
        }
    }

    fn report_state(&self) {
        self.node.partitions.set_spooling(!self.directory.is_empty());
        self.metrics.spool_bytes.set(gauge(self.directory.bytes()));
    }
}

impl Spool {
    /// Returns whether new events must go to disk, behind the events already there.
    pub(crate) fn is_spilling(&self) -> bool {
        self.state.is_spilling.load(Ordering::Relaxed)
    }

    /// Sends new events to disk until all segments have been taken.
    pub(crate) fn begin_spilling(&self) {
        self.state.is_spilling.store(true, Ordering::Relaxed);
    }

    pub(crate) fn try_reserve(&self) -> Option<Place<'_>> {
        self.orders.try_reserve().ok().map(Place)
    }

    /// Waits for a slot in the disk queue. Returns `None` if there is no keeper.
    pub(crate) async fn reserve(&self) -> Option<Place<'_>> {
        self.orders.reserve().await.ok().map(Place)
    }

    /// Takes the oldest segment. Spilling ends with the last one.
    pub(crate) async fn take(&self) -> Option<Segment> {
        let (answer, taken) = oneshot::channel();
        // The receiver is dropped only when the node exits; the next process then takes the segment.
        let order: Order = Box::new(|keeper| drop(answer.send(keeper.take())));
        self.orders.send(order).await.ok()?;
        taken.await.ok()?
    }

    /// Waits for an attempt to write a batch after the last [`Spool::take`].
    pub(crate) async fn arrived(&self) {
        self.state.arrived.notified().await;
    }

    /// Deletes a segment whose events have been recorded, or renames it if `keep` is set because part of it is unreadable.
    pub(crate) async fn done(&self, segment: Segment, keep: bool) {
        // Without a keeper, the segment stays, and re-recording it does not change anything.
        let _ = self.orders.send(Box::new(move |keeper| keeper.done(&segment, keep))).await;
    }
}

/// A slot in the disk queue.
#[derive(Debug)]
pub(crate) struct Place<'a>(mpsc::Permit<'a, Order>);

impl Place<'_> {
    /// Writes a batch to disk. Its events must already be marked as spooled in the ledger.
    pub(crate) fn keep(self, batch: Batch) {
        self.0.send(Box::new(move |keeper| keeper.keep(&batch)));
    }
}

#[cfg(test)]
impl Keeper {
    /// Opens a 1 MiB spool for tests.
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
