//! [`Writes`]: records the events of requests, whose clients wait for the answer. Events of concurrent requests share a batch
//! per partition: while one batch is being recorded, the next one collects events. Without a linger, no event waits for others
//! to arrive. If a partition's store does not respond and there is a spool, its events are written to disk instead.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::DefaultHashBuilder;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::{BatcherSettings, Delivery, LineBatcher, QueueLimits};
use crate::diagnosis::LossCause;
use crate::event::{Minute, Partitions, Precision, Rejection};
use crate::node::{Node, lock};
use crate::spool::Spool;
use crate::store::off_runtime;

/// How the lines of a request are read.
#[derive(Debug)]
pub(crate) struct Terms {
    /// The unit of the timestamps.
    pub(crate) precision: Precision,
    /// Whether lines without a timestamp get the time of their arrival.
    pub(crate) stamps: bool,
    /// The limit on the number of series of the request's token, if there is one.
    pub(crate) quota: Option<SeriesQuota>,
    /// The client's address.
    pub(crate) source: Option<SocketAddr>,
}

/// Hashes of the series in each minute.
type Seen = Vec<(Minute, HashSet<u64>)>;

/// A limit on the number of series in the same minute, across all requests with a token.
#[derive(Debug, Clone)]
pub(crate) struct SeriesQuota {
    most: usize,
    /// Hashes of the series of the most recent minutes, with their minutes.
    seen: Arc<Mutex<Seen>>,
    hasher: DefaultHashBuilder,
}

impl SeriesQuota {
    /// The number of minutes whose series are remembered. Older minutes start again.
    const MINUTES: usize = 4;

    pub(crate) fn new(most: usize) -> Self {
        Self { most, seen: Arc::default(), hasher: DefaultHashBuilder::default() }
    }

    /// Returns whether a series may have events in a minute.
    pub(super) fn admits(&self, minute: Minute, series: &str) -> bool {
        let mut seen = lock(&self.seen);
        let place = seen.iter().position(|(of, _)| *of == minute).unwrap_or_else(|| {
            if seen.len() == Self::MINUTES {
                seen.remove(0);
            }
            seen.push((minute, HashSet::new()));
            seen.len() - 1
        });
        let series = self.hasher.hash_one(series);
        let of_minute = &mut seen[place].1;
        of_minute.contains(&series) || (of_minute.len() < self.most && of_minute.insert(series))
    }
}

/// A rejected line of a request.
#[derive(Debug)]
pub(crate) struct Refused {
    /// The number of the line in the body, counted from 1.
    pub(crate) line: usize,
    pub(crate) reason: Rejection,
    /// The start of the line, escaped.
    pub(crate) text: String,
}

impl Refused {
    /// The maximum number of rejected lines that are reported.
    pub(super) const MAX: usize = 10;
}

/// The outcome of a request.
#[derive(Debug)]
pub(crate) struct Written {
    /// The first rejected lines.
    pub(crate) refused: Vec<Refused>,
    /// The number of rejected lines.
    pub(crate) refused_lines: usize,
    /// Whether all other events are in the store or on disk.
    pub(crate) is_recorded: bool,
}

/// Records the events of requests.
#[derive(Debug)]
pub(crate) struct Writes {
    open: Arc<Mutex<Open>>,
    arrived: Vec<Arc<Notify>>,
    partitions: Partitions,
    limits: QueueLimits,
    has_spool: bool,
    pub(crate) node: Arc<Node>,
    /// Cancelled when no more requests arrive.
    closed: CancellationToken,
}

#[derive(Debug)]
struct Open {
    batcher: LineBatcher,
    /// The requests with events in each open batch.
    waiting: Vec<Vec<oneshot::Sender<()>>>,
}

impl Writes {
    /// Returns the writes, and the tasks that record their events, which end once the writes are [closed](Self::close).
    pub(crate) fn new(
        settings: &BatcherSettings,
        batcher: LineBatcher,
        recorders: &[mpsc::Sender<Delivery>],
        spool: Option<Spool>,
        linger: Duration,
        node: Arc<Node>,
    ) -> (Self, Vec<impl Future<Output = ()> + Send + use<>>) {
        let places = recorders.len() + 1;
        let writes = Self {
            open: Arc::new(Mutex::new(Open {
                batcher: batcher.with_spool(spool.clone()),
                waiting: (0..places).map(|_| Vec::new()).collect(),
            })),
            arrived: (0..places).map(|_| Arc::default()).collect(),
            partitions: settings.partitions.clone(),
            limits: settings.limits,
            has_spool: spool.is_some(),
            node,
            closed: CancellationToken::new(),
        };
        let outlets = recorders.iter().cloned().map(Outlet::Recorder);
        let outlets = outlets.chain(spool.map(Outlet::Spool)).enumerate();
        let tasks = outlets.map(|(place, outlet)| {
            let committer = Committer {
                place,
                outlet,
                open: Arc::clone(&writes.open),
                arrived: Arc::clone(&writes.arrived[place]),
                linger,
                node: Arc::clone(&writes.node),
                closed: writes.closed.clone(),
            };
            committer.run()
        });
        let tasks = tasks.collect();
        (writes, tasks)
    }

    /// Returns whether memory has room for more events.
    pub(crate) fn has_room(&self) -> bool {
        let totals = self.node.ledger.totals();
        totals.in_memory() < self.limits.events && totals.queued_bytes < self.limits.bytes
    }

    /// Adds the lines of a request, and waits until all events are recorded, or dropped because the node is exiting.
    pub(crate) async fn write<B>(&self, body: B, terms: Terms) -> Written
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let now_nanos = self.node.clock.now_nanos();
        let states = &self.node.partitions;
        let is_lagging = |partition| self.has_spool && states.of(partition).lags;
        let to_disk: Vec<_> = self.partitions.iter().map(is_lagging).collect();
        let (open, arrived) = (Arc::clone(&self.open), self.arrived.clone());
        let add = move || {
            let mut locked = lock(&open);
            let Open { batcher, waiting } = &mut *locked;
            let before: Vec<_> = batcher.pending().collect();
            let (refused, refused_lines) =
                batcher.add_request(body.as_ref(), &terms, &to_disk, now_nanos);
            let mut recorded = Vec::new();
            for (place, (before, after)) in before.iter().zip(batcher.pending()).enumerate() {
                if after > *before {
                    let (done, is_done) = oneshot::channel();
                    waiting[place].push(done);
                    recorded.push((place, is_done));
                }
            }
            let samples = batcher.take_samples();
            // The tasks need the lock, and must learn of the events even if the request is cancelled.
            drop(locked);
            for (place, _) in &recorded {
                arrived[*place].notify_one();
            }
            (refused, refused_lines, recorded, samples)
        };
        let (refused, refused_lines, recorded, samples) = off_runtime(add).await;
        let totals = self.node.ledger.totals();
        for (reason, example) in samples {
            self.node.notices.rejected(reason, totals.rejected[reason.index()], example);
        }
        // Batches finish in about the order of their partitions, so waiting for the last one first takes few wake-ups.
        let mut is_recorded = true;
        for (_, is_done) in recorded.into_iter().rev() {
            is_recorded &= is_done.await.is_ok();
        }
        Written { refused, refused_lines, is_recorded }
    }

    /// Makes the tasks end once all events are recorded. No request may arrive after this.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

#[derive(Debug)]
enum Outlet {
    Recorder(mpsc::Sender<Delivery>),
    Spool(Spool),
}

/// The task that sends the batches of one partition to its recorder, or those for the disk to the spool.
#[derive(Debug)]
struct Committer {
    place: usize,
    outlet: Outlet,
    open: Arc<Mutex<Open>>,
    arrived: Arc<Notify>,
    /// Time that a batch waits for the events of other requests.
    linger: Duration,
    node: Arc<Node>,
    closed: CancellationToken,
}

impl Committer {
    async fn run(self) {
        loop {
            let arrived = self.arrived.notified();
            if self.is_empty() {
                if self.closed.run_until_cancelled(arrived).await.is_none() && self.is_empty() {
                    return;
                }
                continue;
            }
            if !self.linger.is_zero() {
                self.closed.run_until_cancelled(sleep(self.linger)).await;
            }
            self.commit().await;
        }
    }

    fn is_empty(&self) -> bool {
        lock(&self.open).waiting[self.place].is_empty()
    }

    /// Sends the open batch, and waits until it has been processed. Until then, the next slot is free for listeners.
    async fn commit(&self) {
        let (done, is_done) = oneshot::channel();
        let take = || {
            let mut open = lock(&self.open);
            let mut waiting = std::mem::take(&mut open.waiting[self.place]);
            waiting.push(done);
            Some((open.batcher.take(self.place)?, waiting))
        };
        match &self.outlet {
            Outlet::Recorder(recorder) => {
                let slot = recorder.reserve().await;
                let Some((batch, done)) = take() else { return };
                if let Ok(slot) = slot {
                    slot.send(Delivery { batch, is_spooled: false, done });
                } else {
                    // A recorder exits early only if the node aborts, and then nothing records this batch.
                    self.node.ledger.dropped(LossCause::Shutdown, batch.events());
                    self.node.ledger.released(batch.bytes());
                }
            }
            Outlet::Spool(spool) => {
                let slot = spool.reserve().await;
                let Some((batch, done)) = take() else { return };
                match slot {
                    Some(slot) => slot.keep_synced(batch, done),
                    None => {
                        self.node.ledger.refused_by_spool(LossCause::SpoolFailed, batch.events());
                    }
                }
            }
        }
        // An error means that the batch was not recorded; its requests have learned the same.
        let _ = is_done.await;
    }
}
