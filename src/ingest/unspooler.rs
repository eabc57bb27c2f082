//! [`Unspooler`]: the task that sends the events on disk to the recorders, oldest first, and then deletes their segments.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{self, FutureExt as _, join_all};
use futures_util::stream::{self, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Delivery, QueueLimits, RETRY_MAX, RETRY_MIN};
use crate::diagnosis::LossCause;
use crate::event::{Batch, Minute, Partition, Partitions};
use crate::node::{Heartbeat, Node, Throttle};
use crate::spool::{Segment, Spool, is_gone, segment};
use crate::telemetry::Metrics;

/// Maximum number of segments in memory: while one is being recorded, the next is read.
const SEGMENTS: usize = 2;
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const LOG_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Unspooler {
    pub(crate) spool: Spool,
    pub(crate) partitions: Partitions,
    pub(crate) limits: QueueLimits,
    pub(crate) recorders: Vec<mpsc::Sender<Delivery>>,
    pub(crate) node: Arc<Node>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) read: fn(&Path) -> io::Result<Vec<u8>>,
    pub(crate) stop: CancellationToken,
}

type Loaded = (Vec<(Partition, Batch)>, segment::Contents);

#[derive(Debug)]
struct Fetched {
    segment: Segment,
    batches: Vec<(Partition, Batch)>,
    is_damaged: bool,
}

impl Unspooler {
    /// Runs until `stop` is cancelled and the recorders have recorded or abandoned every batch sent to them.
    pub(crate) async fn run(self) {
        let segments = stream::unfold((), |()| async { Some((self.fetch().await?, ())) });
        // Batches must progress while a segment is being read, because they may hold channel slots that listeners wait for.
        let recording = segments.map(|fetched| self.bring(fetched)).buffered(SEGMENTS);
        self.heartbeat.during(recording.for_each(|()| future::ready(())).boxed()).await;
    }

    /// Returns the next segment once memory has room, or `None` on shutdown. Not cancel safe: a taken segment could be lost.
    async fn fetch(&self) -> Option<Fetched> {
        loop {
            let room = async {
                while !self.has_room() {
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
            };
            self.stop.run_until_cancelled(room).await?;
            if let Some(segment) = self.spool.take().await {
                return self.load(segment).await;
            }
            self.stop.run_until_cancelled(self.spool.arrived()).await?;
        }
    }

    /// Returns whether memory is at most half full. Events in memory are older than those on disk, so they go first.
    fn has_room(&self) -> bool {
        let totals = self.node.ledger.totals();
        totals.in_memory() <= self.limits.events / 2 && totals.queued_bytes <= self.limits.bytes / 2
    }

    /// Reads a segment, retrying until that succeeds. Returns a message if the file is gone or is not a segment, and `None`
    /// if the node is stopping. Other errors, such as a lack of file descriptors, do not prove that the segment is damaged.
    async fn read(&self, path: &Path) -> Option<Result<Loaded, String>> {
        let mut logged = Throttle::new(LOG_INTERVAL);
        let (mut pause, mut was_gone) = (RETRY_MIN, false);
        loop {
            let (owned, partitions, read) = (path.to_owned(), self.partitions.clone(), self.read);
            let reading =
                tokio::task::spawn_blocking(move || Ok(batches(&read(&owned)?, &partitions)));
            let error = match reading.await.map_err(io::Error::other).flatten() {
                Ok(loaded) => return Some(loaded.map_err(|error| error.to_string())),
                Err(error) => error,
            };
            // A missing file counts as gone only the second time, because its directory may have been missing at first.
            let gone = is_gone(path, &error);
            if gone && was_gone {
                return Some(Err(error.to_string()));
            }
            was_gone = gone;
            self.metrics.spool_read_failures.inc();
            if !gone && logged.is_due() {
                tracing::error!(
                    segment = %path.display(),
                    %error,
                    "cannot read spooled events; retrying, and no events have been lost yet: make the file readable or, \
                     if that is impossible, move it elsewhere; its events will then be counted as lost"
                );
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                () = self.stop.cancelled() => return None,
            }
        }
    }

    /// Reads a segment and enters its events in the ledger. Returns `None` if the node is stopping.
    async fn load(&self, segment: Segment) -> Option<Fetched> {
        let (loaded, unreadable) = match self.read(&segment.path).await? {
            Ok(loaded) => (loaded, None),
            Err(reason) => (Loaded::default(), Some(reason)),
        };
        let (batches, segment::Contents { events, damaged, torn_bytes }) = loaded;
        // The number of events that this process wrote to the segment but cannot read.
        let missing = segment.events.map_or(0, |written| written.saturating_sub(events));
        if segment.events.is_none() {
            self.node.ledger.restored(events);
            self.metrics.spool_restored.inc_by(events);
        }
        let lost = usize::try_from(missing).unwrap_or(usize::MAX);
        self.node.ledger.lost_in_spool(LossCause::SpoolFailed, lost);
        self.metrics.spool_damaged.inc_by(damaged);
        let is_damaged = damaged > 0 || missing > 0 || unreadable.is_some();
        let path = segment.path.display();
        if is_damaged {
            tracing::error!(
                segment = %path,
                frames = damaged,
                reason = unreadable.as_deref().unwrap_or("the file's contents changed"),
                "some spooled events could not be read and are lost; the file is kept with the extension .damaged"
            );
        } else if torn_bytes > 0 {
            tracing::warn!(
                segment = %path,
                bytes = torn_bytes,
                "the last events in this segment were not fully written before the node exited"
            );
        }
        let bytes = batches.iter().map(|(_, batch)| batch.bytes()).sum();
        self.node.ledger.unspooled(events, bytes);
        Some(Fetched { segment, batches, is_damaged })
    }

    /// Sends the batches of a segment to the recorders, waits until all are recorded, and then removes the segment.
    async fn bring(&self, fetched: Fetched) {
        let Fetched { segment, batches, is_damaged } = fetched;
        let each = batches.into_iter();
        let brought = join_all(each.map(|(partition, batch)| self.bring_batch(partition, batch)));
        if brought.await.into_iter().all(|done| done) {
            self.spool.done(segment, is_damaged).await;
        }
    }

    async fn bring_batch(&self, partition: Partition, batch: Batch) -> bool {
        let room = self.recorders[partition.index()].reserve();
        let Some(Ok(room)) = self.stop.run_until_cancelled(room).await else {
            self.node.ledger.stay_spooled(batch.events());
            self.node.ledger.released(batch.bytes());
            return false;
        };
        let (done, recorded) = oneshot::channel();
        room.send(Delivery { batch, is_spooled: true, done: vec![done] });
        recorded.await.is_ok()
    }
}

fn batches(bytes: &[u8], partitions: &Partitions) -> Result<Loaded, segment::NotASegment> {
    let mut batches: Vec<Batch> = partitions.iter().map(|_| Batch::default()).collect();
    let contents = segment::read(bytes, |series, user, timestamp| {
        let minute = Minute::of_nanos(timestamp);
        let batch = &mut batches[partitions.of(series, minute).index()];
        // This cannot fail: a batch has room for 4 GiB of names, and a segment has only a few MiB.
        batch.push(minute, series, user, timestamp);
    })?;
    let batches = partitions.iter().zip(batches);
    Ok((batches.filter(|(_, batch)| !batch.is_empty()).collect(), contents))
}

#[cfg(test)]
#[path = "unspooler_tests.rs"]
mod tests;
