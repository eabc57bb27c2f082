//! [`Keeper`], the thread that owns the directory, and [`Spool`], by which others reach it.
//!
//! It waits for orders and for the disk, never for the store. It stops when the last [`Spool`] is dropped and
//! every order is carried out; then everything it wrote is on the disk.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio::sync::oneshot;

use super::State;
use super::directory::Directory;
use super::{SpoolError, SpoolSettings};
use crate::diagnosis::{Cause, LossCause};
use crate::event::Batch;
use crate::node::{Heartbeat, Node, Throttle};
use crate::telemetry::Metrics;

/// The batches that may wait for the disk.
const ORDERS: usize = 8;
/// How long what was written may be in the kernel's hands alone, while the disk keeps up.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long writing is tried again while there is no descriptor or no memory for it. Meanwhile listeners keep what memory
/// has room for; later what cannot be written is dropped at once, until something can.
const SHORTAGE_MAX: Duration = Duration::from_secs(10);
/// The pause before writing is tried again.
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
/// How often the log says that events are lost here, or wait.
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
    /// Since when there is no descriptor or no memory.
    short_since: Option<Instant>,
}

/// What others hold of the spool.
#[derive(Debug, Clone)]
pub struct Spool {
    orders: mpsc::Sender<Order>,
    state: Arc<State>,
}

/// A segment to be recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Its number, for [`Spool::done`].
    pub number: u64,
    /// Where it lies.
    pub path: PathBuf,
    /// How many events this process wrote into it; `None` when it was another.
    pub events: Option<u64>,
}

#[derive(Debug)]
enum Order {
    Keep(Batch),
    Take(oneshot::Sender<Option<Taken>>),
    Done { number: u64, keep: bool },
}

impl Keeper {
    /// Takes the directory, which must be this process' alone.
    pub fn open(
        settings: &SpoolSettings,
        node: Arc<Node>,
        metrics: Arc<Metrics>,
    ) -> Result<(Self, Spool), SpoolError> {
        let directory = Directory::open(settings)?;
        if !directory.is_empty() {
            tracing::info!(
                directory = %settings.directory.display(),
                bytes = directory.bytes(),
                "taking up the events that an earlier run left on disk"
            );
        }
        let (sender, orders) = mpsc::channel(ORDERS);
        let state = Arc::new(State::default());
        let keeper = Self {
            directory,
            orders,
            state: Arc::clone(&state),
            heartbeat: node.progress.watch("the keeper of the spool"),
            node,
            metrics,
            logged: Throttle::new(LOG_INTERVAL),
            short_since: None,
        };
        keeper.report_state();
        let orders = sender;
        Ok((keeper, Spool { orders, state }))
    }

    /// Carries out orders until nobody is left to give any. Blocks; must be called inside a tokio runtime.
    pub fn run(mut self) {
        let runtime = Handle::current();
        let mut synced = Instant::now();
        loop {
            self.heartbeat.beat();
            let next = tokio::time::timeout(SYNC_INTERVAL, self.orders.recv());
            let order = runtime.block_on(next);
            // A disk that hangs holds up nobody else; a node that ended because of it would lose what is in memory.
            self.heartbeat.rest();
            match order {
                Ok(Some(order)) => self.carry_out(order),
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

    fn carry_out(&mut self, order: Order) {
        match order {
            Order::Keep(batch) => self.keep(&batch),
            Order::Take(answer) => {
                let taken = self.directory.take().map(|(segment, path)| Taken {
                    number: segment.number,
                    path,
                    events: segment.events,
                });
                if !self.directory.has_more() {
                    // Whatever is still on its way here is not of this overflow, but its last drops. To wait until
                    // nothing comes would be to wait for ever, where new drops come faster than the disk syncs.
                    self.state.spill(false);
                }
                // Whoever asked is gone only when the node ends; then the segment is for the next.
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
        // Also when nothing was kept. Whoever waits for this then finds nothing, which ends the spilling: events whose
        // disk is full are better off in memory.
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
        self.node.lag.set_on_disk(!self.directory.is_empty());
        let bytes = i64::try_from(self.directory.bytes()).unwrap_or(i64::MAX);
        self.metrics.spool_bytes.set(bytes);
    }
}

impl Spool {
    /// Whether new events go to the disk, behind those that are there.
    #[must_use]
    pub fn is_spilling(&self) -> bool {
        self.state.spilling()
    }

    /// From now on new events go to the disk, until it is empty.
    pub fn begin_spilling(&self) {
        self.state.spill(true);
    }

    /// Gives a batch to the disk, whose events the ledger holds for spooled. Gives it back when the disk is busy.
    pub fn try_keep(&self, batch: Batch) -> Result<(), Batch> {
        match self.orders.try_send(Order::Keep(batch)) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(order) | TrySendError::Closed(order)) => match order {
                Order::Keep(batch) => Err(batch),
                // It was what was sent.
                Order::Take(_) | Order::Done { .. } => Ok(()),
            },
        }
    }

    /// The same, but waits until the disk is ready. Gives the batch back when there is no keeper.
    pub async fn keep(&self, batch: Batch) -> Result<(), Batch> {
        match self.orders.send(Order::Keep(batch)).await {
            Err(mpsc::error::SendError(Order::Keep(batch))) => Err(batch),
            _ => Ok(()),
        }
    }

    /// The oldest segment that was not taken yet; when no other is left, new events need not spill any more.
    pub async fn take(&self) -> Option<Taken> {
        let (answer, taken) = oneshot::channel();
        self.orders.send(Order::Take(answer)).await.ok()?;
        taken.await.ok()?
    }

    /// Waits until something was to be written after the last [`Spool::take`].
    pub async fn arrived(&self) {
        self.state.arrived.notified().await;
    }

    /// Everything in this segment is recorded that can be: it is deleted, or, where a part of it could not be read,
    /// kept under another name for whoever can make something of it.
    pub async fn done(&self, number: u64, keep: bool) {
        // Without a keeper the segment stays, and is recorded again: nothing is lost by it.
        let _ = self.orders.send(Order::Done { number, keep }).await;
    }
}

#[cfg(test)]
impl Keeper {
    /// One with room for a MiB, for the tests of all that has a spool.
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
