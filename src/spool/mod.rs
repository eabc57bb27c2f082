//! Keeps events on disk if there is no room in memory while the store is unavailable. A `Keeper` is a thread that owns the
//! directory; other threads use a [`Spool`]. A segment is deleted once all its events have been recorded. The keeper never
//! waits for the store. It exits once the last [`Spool`] has been dropped, all commands have run, and their writes are synced.

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

const COMMANDS: usize = 8;
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// How long writes are retried while file descriptors or memory are short. Then, events are dropped until a write succeeds.
const SHORTAGE_MAX: Duration = Duration::from_secs(10);
const SHORTAGE_PAUSE: Duration = Duration::from_millis(50);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Keeper {
    directory: Directory,
    commands: mpsc::Receiver<Command>,
    state: Arc<State>,
    node: Arc<Node>,
    metrics: Arc<Metrics>,
    heartbeat: Heartbeat,
    logged: Throttle,
    /// When the shortage of file descriptors or memory began; `None` if there is none.
    short_since: Option<Instant>,
}

/// A handle to the spool, which sends commands to the keeper.
#[derive(Debug, Clone)]
pub struct Spool {
    commands: mpsc::Sender<Command>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_spilling: AtomicBool,
    /// Notified after each attempt to write a batch.
    arrived: Notify,
}

type Command = Box<dyn FnOnce(&mut Keeper) + Send>;

impl Keeper {
    /// Opens the directory. Returns its keeper and a handle to it. Fails if another process is using the directory.
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
                "found events spooled by an earlier process; recording them"
            );
        }
        let (sender, commands) = mpsc::channel(COMMANDS);
        let state = Arc::<State>::default();
        let spool = Spool { commands: sender, state: Arc::clone(&state) };
        let keeper = Self {
            directory,
            commands,
            state,
            heartbeat: node.progress.watch("the spool keeper"),
            node,
            metrics,
            logged: Throttle::new(LOG_INTERVAL),
            short_since: None,
        };
        keeper.report_state();
        Ok((keeper, spool))
    }

    /// Runs commands until all handles are dropped. Blocks, so call it with `spawn_blocking`.
    pub(crate) fn run(mut self) {
        let runtime = Handle::current();
        let mut synced = Instant::now();
        loop {
            self.heartbeat.beat();
            let next = tokio::time::timeout(SYNC_INTERVAL, self.commands.recv());
            let command = runtime.block_on(next);
            // The watchdog ignores this thread while it uses the disk: a restart would lose the events in memory.
            self.heartbeat.rest();
            match command {
                Ok(Some(command)) => {
                    command(&mut self);
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
            // Spilling ends even if batches are queued, because the queue may never be empty if events outpace the disk.
            self.state.is_spilling.store(false, Ordering::Relaxed);
        }
        taken
    }

    fn done(&mut self, segment: &Segment, keep: bool) {
        if let Err(error) = self.directory.done(segment, keep) {
            let path = segment.path.display();
            tracing::warn!(%error, segment = %path, "cannot delete or rename a segment whose events have been recorded");
        }
    }

    /// Writes a batch to disk. Returns whether all its events were written.
    fn keep(&mut self, batch: &Batch) -> bool {
        let (logged, short_since) = (&mut self.logged, &mut self.short_since);
        let appended = self.directory.append(batch, |error| {
            if logged.is_due() {
                tracing::error!(
                    %error,
                    "cannot write to input.spool_dir; retrying for {SHORTAGE_MAX:?} before dropping events; {}; if too many files are \
                     open, {}",
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
        // Notifies the unspooler even if nothing was written, because spilling ends if it finds no segment to take.
        self.state.arrived.notify_one();
        let lost = appended.full + appended.failed;
        if lost > 0
            && let Some(error) = appended.error
            && self.logged.is_due()
        {
            tracing::error!(%error, events = lost, "cannot write to input.spool_dir; dropped events");
        }
        lost == 0
    }

    fn sync(&mut self) -> bool {
        let synced = self.directory.sync();
        if let Err(error) = &synced {
            tracing::warn!(%error, "cannot sync input.spool_dir; spooled events may be lost if this machine crashes");
        }
        synced.is_ok()
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

    /// Makes new events go to disk until all segments have been taken.
    pub(crate) fn begin_spilling(&self) {
        self.state.is_spilling.store(true, Ordering::Relaxed);
    }

    pub(crate) fn try_reserve(&self) -> Option<Place<'_>> {
        self.commands.try_reserve().ok().map(Place)
    }

    /// Waits for a slot in the keeper's queue. Returns `None` if the keeper has exited.
    pub(crate) async fn reserve(&self) -> Option<Place<'_>> {
        self.commands.reserve().await.ok().map(Place)
    }

    /// Takes the oldest segment; returns `None` if there is none. Spilling ends when the last segment is taken.
    pub(crate) async fn take(&self) -> Option<Segment> {
        let (answer, taken) = oneshot::channel();
        // The receiver is dropped only when the node exits; the next process then takes the segment.
        let command: Command = Box::new(|keeper| drop(answer.send(keeper.take())));
        self.commands.send(command).await.ok()?;
        taken.await.ok()?
    }

    /// Waits until the keeper has attempted to write a batch since the last call.
    pub(crate) async fn arrived(&self) {
        self.state.arrived.notified().await;
    }

    /// Deletes a segment whose events have been recorded, or renames it if `keep` is set because part of it is unreadable.
    pub(crate) async fn done(&self, segment: Segment, keep: bool) {
        // If the keeper has exited, the next process re-records the segment, which does not change any counts.
        let _ = self.commands.send(Box::new(move |keeper| keeper.done(&segment, keep))).await;
    }
}

/// A reserved slot in the keeper's queue.
#[derive(Debug)]
pub(crate) struct Place<'a>(mpsc::Permit<'a, Command>);

impl Place<'_> {
    /// Sends a batch to the keeper, which writes it to disk. The ledger must already count its events as spooled.
    pub(crate) fn keep(self, batch: Batch) {
        self.0.send(Box::new(move |keeper| {
            keeper.keep(&batch);
        }));
    }

    /// Like [`Self::keep`], but notifies `done` once all events are synced to the disk, or drops it if that fails.
    pub(crate) fn keep_synced(self, batch: Batch, done: Vec<oneshot::Sender<()>>) {
        self.0.send(Box::new(move |keeper| {
            if keeper.keep(&batch) && keeper.sync() {
                for done in done {
                    // A receiver is gone if its request has timed out.
                    let _ = done.send(());
                }
            }
        }));
    }
}

#[cfg(test)]
impl Keeper {
    pub(crate) fn of_a_mib(
        directory: &std::path::Path,
        node: &Arc<Node>,
        metrics: &Arc<Metrics>,
    ) -> (Self, Spool) {
        let settings = SpoolSettings { directory: directory.to_owned(), bytes_max: 1 << 20 };
        Self::open(&settings, Arc::clone(node), Arc::clone(metrics))
            .expect("a directory used only by this test")
    }
}

#[cfg(test)]
#[path = "keeper_tests.rs"]
mod tests;
