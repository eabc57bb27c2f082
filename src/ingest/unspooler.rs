//! [`Unspooler`]: the task that sends the events on disk to the recorders, oldest first.
//!
//! It owns the segments that it has taken, and deletes each when all of it is recorded. It waits for room in memory, for
//! the disk and for the recorders. It retries a segment that it cannot read, since the file may be whole. It stops when
//! `stop` is cancelled: events that no recorder has taken by then stay on disk.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesOrdered, StreamExt};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Delivery, QueueLimits, RETRY_MAX, RETRY_MIN};
use crate::diagnosis::LossCause;
use crate::event::{Batch, Minute, Partition, Partitions};
use crate::node::{Heartbeat, Node, Throttle};
use crate::spool::{Segment, Spool, is_gone, segment};
use crate::telemetry::Metrics;

/// The segments in memory at a time: one is recorded while the next is read.
const SEGMENTS: usize = 2;
/// The interval of checks whether memory has room.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The shortest interval of log lines about a segment that cannot be read.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The heartbeat interval while nothing is on disk.
const IDLE_BEAT: Duration = Duration::from_secs(1);

/// The task that sends the events on disk to the recorders.
#[derive(Debug)]
pub struct Unspooler {
    /// The disk.
    pub spool: Spool,
    /// How the series are spread.
    pub partitions: Partitions,
    /// The bounds of the queue in memory.
    pub limits: QueueLimits,
    /// The recorders, one a partition.
    pub recorders: Vec<mpsc::Sender<Delivery>>,
    /// The node, whose ledger it keeps.
    pub node: Arc<Node>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
    /// Reads a segment.
    pub read: fn(&Path) -> io::Result<Vec<u8>>,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

/// A segment in memory.
#[derive(Debug, Default)]
struct Loaded {
    batches: Vec<(Partition, Batch)>,
    contents: segment::Contents,
    /// Events that this process wrote and that cannot be read.
    missing: u64,
    /// The reason why the whole segment cannot be read.
    unreadable: Option<String>,
}

impl Loaded {
    fn is_damaged(&self) -> bool {
        self.contents.damaged > 0 || self.missing > 0 || self.unreadable.is_some()
    }
}

impl Unspooler {
    /// Sends segments to the recorders until it is stopped.
    pub async fn run(self) {
        let mut under_way = FuturesOrdered::new();
        let mut empty = false;
        while !self.stop.is_cancelled() {
            self.heartbeat.beat();
            if !empty && under_way.len() < SEGMENTS && self.has_room() {
                // Runs to its end: a segment is taken only once.
                match self.fetch(&mut under_way).await {
                    Some((number, loaded)) => under_way.push_back(self.bring(number, loaded)),
                    None => empty = true,
                }
            }
            let rest = if empty { IDLE_BEAT } else { LOOK_INTERVAL };
            tokio::select! {
                Some(()) = under_way.next() => {}
                () = self.spool.arrived(), if empty => empty = false,
                () = tokio::time::sleep(rest) => {}
                () = self.stop.cancelled() => {}
            }
        }
        // The batches at the recorders may wait for the store as long as the node does.
        while !matches!(tokio::time::timeout(IDLE_BEAT, under_way.next()).await, Ok(None)) {
            self.heartbeat.beat();
        }
    }

    /// Returns the next segment. The batches under way progress meanwhile: one may hold the place before a recorder that listeners
    /// wait for.
    async fn fetch(
        &self,
        under_way: &mut FuturesOrdered<impl Future<Output = ()>>,
    ) -> Option<(u64, Loaded)> {
        let mut fetched = std::pin::pin!(async {
            let taken = self.spool.take().await?;
            Some((taken.number, self.load(&taken).await?))
        });
        loop {
            self.heartbeat.beat();
            tokio::select! {
                fetched = &mut fetched => return fetched,
                Some(()) = under_way.next() => {}
                () = tokio::time::sleep(IDLE_BEAT) => {}
            }
        }
    }

    /// Returns whether memory has room because the store takes events again. Events in memory are older, so they go first.
    fn has_room(&self) -> bool {
        let totals = self.node.ledger.totals();
        totals.in_memory() <= self.limits.events / 2 && totals.queued_bytes <= self.limits.bytes / 2
    }

    /// Reads a segment, and retries until it can be read. A file is damaged only if it is gone or has other contents than were
    /// written: a system without descriptors, or a disk that fails for a while, proves nothing. `None` when the node stops.
    async fn read(&self, path: &Path) -> Option<Loaded> {
        let mut logged = Throttle::new(LOG_INTERVAL);
        let (mut pause, mut was_gone) = (RETRY_MIN, false);
        loop {
            let (owned, partitions, read) = (path.to_owned(), self.partitions.clone(), self.read);
            let reading =
                tokio::task::spawn_blocking(move || Ok(Loaded::of(&read(&owned)?, &partitions)));
            let error = match reading.await.map_err(io::Error::other).flatten() {
                Ok(loaded) => return Some(loaded),
                Err(error) => error,
            };
            // Twice: its whole directory may have been away, and come back in between.
            let gone = is_gone(path, &error);
            if gone && was_gone {
                return Some(Loaded::unreadable(&error));
            }
            was_gone = gone;
            self.metrics.spool_read_failures.inc();
            if !gone && logged.is_due() {
                tracing::error!(
                    segment = %path.display(),
                    %error,
                    "cannot read events that wait on disk; trying again, nothing is lost: make the file readable, or move it \
                     away if that is impossible, and its events are counted as lost"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = self.stop.cancelled() => return None,
            }
        }
    }

    /// Reads a segment, and enters its events into the ledger.
    async fn load(&self, taken: &Segment) -> Option<Loaded> {
        let mut loaded = self.read(&taken.path).await?;
        let segment::Contents { events, damaged, torn_bytes } = loaded.contents;
        match taken.events {
            None => {
                self.node.ledger.restored(events);
                self.metrics.spool_restored.inc_by(events);
            }
            Some(written) => {
                loaded.missing = written.saturating_sub(events);
                let lost = usize::try_from(loaded.missing).unwrap_or(usize::MAX);
                self.node.ledger.lost_in_spool(LossCause::SpoolFailed, lost);
            }
        }
        self.metrics.spool_damaged.inc_by(damaged);
        if loaded.is_damaged() {
            tracing::error!(
                segment = %taken.path.display(),
                frames = damaged,
                reason = loaded.unreadable.as_deref().unwrap_or("the bytes are not what was written"),
                "cannot read a part of the events on disk; they are lost, and the file is kept as .damaged"
            );
        } else if torn_bytes > 0 {
            tracing::warn!(
                segment = %taken.path.display(),
                bytes = torn_bytes,
                "the last events were not written completely when the node ended"
            );
        }
        let bytes = loaded.batches.iter().map(|(_, batch)| batch.bytes()).sum();
        self.node.ledger.unspooled(events, bytes);
        Some(loaded)
    }

    /// Sends the batches of a segment to the recorders, and waits until all are recorded.
    async fn bring(&self, number: u64, loaded: Loaded) {
        let damaged = loaded.is_damaged();
        let each = loaded.batches.into_iter();
        let brought = join_all(each.map(|(partition, batch)| self.bring_batch(partition, batch)));
        if brought.await.into_iter().all(|done| done) {
            self.spool.done(number, damaged).await;
        }
    }

    async fn bring_batch(&self, partition: Partition, batch: Batch) -> bool {
        let recorder = &self.recorders[partition.index()];
        let room = tokio::select! {
            biased;
            room = recorder.reserve() => room.ok(),
            () = self.stop.cancelled() => None,
        };
        let Some(room) = room else {
            self.node.ledger.stay_spooled(batch.events());
            self.node.ledger.released(batch.bytes());
            return false;
        };
        let (done, through) = oneshot::channel();
        let done = Some(done);
        room.send(Delivery { batch, done });
        through.await.is_ok()
    }
}

impl Loaded {
    fn unreadable(reason: &dyn std::fmt::Display) -> Self {
        Self { unreadable: Some(reason.to_string()), ..Self::default() }
    }

    fn of(bytes: &[u8], partitions: &Partitions) -> Self {
        let mut batches: Vec<Batch> = partitions.iter().map(|_| Batch::default()).collect();
        let contents = segment::read(bytes, |kept| {
            let minute = Minute::of_nanos(kept.timestamp);
            let batch = &mut batches[partitions.of(kept.series, minute).index()];
            // A batch has room for 4 GiB of names, and a segment is a few MiB.
            batch.push(minute, kept.series, kept.user, kept.timestamp);
        });
        let contents = match contents {
            Ok(contents) => contents,
            Err(error) => return Self::unreadable(&error),
        };
        let batches = partitions.iter().zip(batches);
        Self {
            batches: batches.filter(|(_, batch)| !batch.is_empty()).collect(),
            contents,
            ..Self::default()
        }
    }
}

#[cfg(test)]
#[path = "unspooler_tests.rs"]
mod tests;
