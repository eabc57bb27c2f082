//! [`LineBatcher`]: parses datagrams, and adds each event to its partition's open batch or, if memory is full, to that for
//! the disk. Events enter the ledger before their batch is sent. A batcher never blocks, and its caller passes in the time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

use super::writes::{Refused, SeriesQuota, Terms};
use super::{ArrivalStamps, Delivery, Received};
use crate::diagnosis::LossCause;
use crate::event::datagram::{Piece, pieces};
use crate::event::{
    Batch, LineRules, LookedUp, Minute, OpenBatch, Parser, Partitions, Rejection, Window,
};
use crate::node::{Example, Intake, LedgerTotals, Node};
use crate::spool::Spool;

/// Maximum size of the open batch for the disk, in bytes. Beyond this, events go to memory or are dropped.
const OVERFLOW_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Number of events at which a batch is sent regardless of its age.
const BATCH_EVENTS: usize = 16_384;
/// Average number of events per series per minute at which a batch need not grow, because its commands are efficient.
const SERIES_EVENTS: usize = 4096;
/// Number of groups of partitions that take turns, so that a node does not send the events of a whole [`Linger::most`] at once.
const TURNS: u32 = 2;
/// Size in bytes at which a batch for the disk is sent regardless of its age.
const OVERFLOW_BYTES: usize = 1024 * 1024;

/// The settings of a [`LineBatcher`].
#[derive(Debug, Clone)]
pub struct BatcherSettings {
    /// The rules for parsing lines.
    pub rules: LineRules,
    /// The accepted range of event ages.
    pub window: Window,
    /// How series are assigned to partitions.
    pub partitions: Partitions,
    /// The limits on the events in memory.
    pub limits: QueueLimits,
}

/// Limits on the events in this node's memory. Beyond these, events go to disk or are dropped.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    /// Maximum number of events.
    pub events: u64,
    /// Maximum approximate size of the events, in bytes.
    pub bytes: u64,
}

/// The time an event waits for others to join its batch.
#[derive(Debug, Clone, Copy)]
pub struct Linger {
    /// The time if a batch has many events per series, if a minute in it has ended, or if the queue is a third full.
    pub least: Duration,
    /// The maximum time otherwise. It is longer, because fewer commands with more events each cost the store less.
    pub most: Duration,
}

impl Linger {
    /// Returns whether the partition with this index has had a turn between two times. It has one every [`Self::most`].
    fn had_turn(self, index: u32, began: Instant, [since, now]: [Instant; 2]) -> bool {
        let offset = self.most / TURNS * (index % TURNS);
        let turns = |at: Instant| (at - began + offset).as_nanos() / self.most.as_nanos();
        self.most.is_zero() || turns(since) < turns(now)
    }
}

#[derive(Debug, Default)]
struct Open {
    batch: OpenBatch,
    /// When [`Self::since`] first found events in the batch.
    since: Option<Instant>,
}

impl Open {
    /// Returns when a call of this function first found events in the batch, or None if it is empty.
    fn since(&mut self, now: Instant) -> Option<Instant> {
        (self.batch.events() > 0).then(|| *self.since.get_or_insert(now))
    }

    fn take(&mut self) -> OpenBatch {
        self.since = None;
        self.batch.take()
    }
}

/// Collects the events of one listener in open batches, and sends these to the recorders or to the disk.
#[derive(Debug)]
pub struct LineBatcher {
    parser: Parser,
    settings: BatcherSettings,
    arrivals: Arc<ArrivalStamps>,
    began: Instant,
    open: Vec<Open>,
    overflow: Option<Overflow>,
    /// Whether to accept events beyond the limits, because the reader checks for room before each read.
    takes_all: bool,
    /// Whether lines without a timestamp get one.
    stamps: bool,
    /// The partitions whose events go to the disk although there is room in memory.
    to_disk: Vec<bool>,
    recorders: Vec<mpsc::Sender<Delivery>>,
    node: Arc<Node>,
    /// The lines read since the last commit.
    intake: Intake,
    /// The ledger's totals at the last commit.
    totals: LedgerTotals,
    samples: BTreeMap<Rejection, Example>,
}

#[derive(Debug)]
struct Overflow {
    spool: Spool,
    open: Open,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    InMemory,
    OnDisk,
    Nowhere,
}

impl LineBatcher {
    /// Creates an empty batcher. `recorders` must contain one sender per partition.
    #[must_use]
    pub fn new(
        settings: &BatcherSettings,
        stamps: Arc<ArrivalStamps>,
        node: Arc<Node>,
        recorders: Vec<mpsc::Sender<Delivery>>,
    ) -> Self {
        Self {
            parser: Parser::new(&settings.rules),
            settings: settings.clone(),
            arrivals: stamps,
            began: Instant::now(),
            open: recorders.iter().map(|_| Open::default()).collect(),
            overflow: None,
            takes_all: false,
            stamps: true,
            to_disk: vec![false; recorders.len()],
            recorders,
            node,
            intake: Intake::default(),
            totals: LedgerTotals::default(),
            samples: BTreeMap::new(),
        }
    }

    pub(crate) fn with_spool(mut self, spool: Option<Spool>) -> Self {
        let open = Open::default();
        self.overflow = spool.map(|spool| Overflow { spool, open });
        self
    }

    /// Makes this batcher accept events beyond the limits, for sockets that are not read while there is no room.
    pub(crate) const fn taking_all(mut self) -> Self {
        self.takes_all = true;
        self
    }

    /// [Commits](Self::commit) and returns whether there is room in memory.
    pub(crate) fn has_room(&mut self) -> bool {
        self.commit();
        !self.is_full()
    }

    /// Adds a datagram's lines, which arrived at `now_nanos`. Rejects lines after the first `lines_max` as rate-limited.
    pub fn add(&mut self, datagram: Received<'_>, lines_max: usize, now_nanos: i64) {
        let Received { bytes, truncated, source } = datagram;
        let mut all = pieces(bytes, truncated);
        let mut lines = 0;
        while let Some(group) = self.parser.look_up_lines(&mut all) {
            for (piece, looked_up) in group.into_iter().flatten() {
                lines += 1;
                let room = self.room();
                let added = match piece {
                    _ if lines > lines_max => Err(Rejection::RateLimited),
                    _ if room == Room::Nowhere => {
                        self.intake.dropped += 1;
                        Ok(())
                    }
                    Piece::Line(line) => {
                        let added = self.add_line(line, looked_up, room, now_nanos, None);
                        match added.err().and_then(|_| self.parser.statsd_set(line)) {
                            Some(set) => {
                                self.add_line(&set, LookedUp::default(), room, now_nanos, None)
                            }
                            None => added,
                        }
                    }
                    Piece::Truncated => Err(Rejection::Truncated),
                };
                if let Err(reason) = added {
                    self.intake.rejected[reason.index()] += 1;
                    let line = if let Piece::Line(line) = piece { line } else { bytes };
                    (self.samples.entry(reason))
                        .or_insert_with(|| Example::new(source.address(), line));
                }
            }
        }
    }

    /// Adds the lines of a request. Events for the partitions in `to_disk` go to the disk, if there is a spool. Returns the
    /// first rejected lines, and the number of all of them.
    pub(super) fn add_request(
        &mut self,
        body: &[u8],
        terms: &Terms,
        to_disk: &[bool],
        now_nanos: i64,
    ) -> (Vec<Refused>, usize) {
        let Terms { precision, stamps, quota, source } = terms;
        self.parser.set_precision(*precision);
        self.settings.rules.precision = *precision;
        self.stamps = *stamps;
        self.to_disk.copy_from_slice(to_disk);
        let (mut refused, mut count) = (Vec::new(), 0);
        let (mut line_number, mut counted) = (1, 0);
        let mut all = pieces(body, false);
        while let Some(group) = self.parser.look_up_lines(&mut all) {
            for (piece, looked_up) in group.into_iter().flatten() {
                let Piece::Line(line) = piece else { continue };
                let is_spilling =
                    self.overflow.as_ref().is_some_and(|overflow| overflow.spool.is_spilling());
                let room = if is_spilling { Room::OnDisk } else { Room::InMemory };
                let added = self.add_line(line, looked_up, room, now_nanos, quota.as_ref());
                let Err(reason) = added else {
                    continue;
                };
                self.intake.rejected[reason.index()] += 1;
                let example = Example::new(*source, line);
                count += 1;
                if refused.len() < Refused::MAX {
                    let at = line.as_ptr().addr() - body.as_ptr().addr();
                    line_number += memchr::memchr_iter(b'\n', &body[counted..at]).count();
                    counted = at;
                    refused.push(Refused { line: line_number, reason, text: example.line.clone() });
                }
                self.samples.entry(reason).or_insert(example);
            }
        }
        self.commit();
        (refused, count)
    }

    /// Returns the number of events in each recorder's open batch, and in the one for the disk.
    pub(super) fn pending(&self) -> impl Iterator<Item = usize> {
        let on_disk = self.overflow.as_ref().map_or(0, |overflow| overflow.open.batch.events());
        self.open.iter().map(|open| open.batch.events()).chain([on_disk])
    }

    /// Takes the open batch of a recorder or, with the index after the last recorder, the one for the disk.
    pub(super) fn take(&mut self, place: usize) -> Option<Batch> {
        let open = match self.open.get_mut(place) {
            Some(open) => open,
            None => &mut self.overflow.as_mut()?.open,
        };
        (open.batch.events() > 0).then(|| open.take().close())
    }

    /// Returns where there is room for an event. While older events are on disk, new events go there too, to keep the order.
    fn room(&self) -> Room {
        let Some(overflow) = &self.overflow else {
            return if self.is_full() && !self.takes_all { Room::Nowhere } else { Room::InMemory };
        };
        if !overflow.spool.is_spilling() {
            if !self.is_full() {
                return Room::InMemory;
            }
            overflow.spool.begin_spilling();
        }
        if overflow.open.batch.bytes() < OVERFLOW_BYTES_MAX {
            Room::OnDisk
        } else if self.is_full() {
            Room::Nowhere
        } else {
            // The disk is hanging or too slow. Recording events out of order is better than dropping them.
            Room::InMemory
        }
    }

    fn is_full(&self) -> bool {
        self.totals.in_memory() + self.intake.queued >= self.settings.limits.events
            || self.totals.queued_bytes + self.intake.queued_bytes >= self.settings.limits.bytes
    }

    fn add_line(
        &mut self,
        line: &[u8],
        looked_up: LookedUp,
        room: Room,
        now_nanos: i64,
        quota: Option<&SeriesQuota>,
    ) -> Result<(), Rejection> {
        let line = self.parser.parse_hinted(line, looked_up)?;
        if line.timestamp.is_none() && !self.stamps {
            return Err(Rejection::TimestampMissing);
        }
        let timestamp = line.timestamp.unwrap_or_else(|| {
            let at_ms = self.node.clock.store_ms_at(now_nanos);
            self.node.unstamped.add(line.series, line.user, at_ms);
            self.arrivals.stamp(now_nanos, 1)
        });
        let precision = self.settings.rules.precision;
        self.settings.window.judge(timestamp, now_nanos).map_err(|reason| {
            let number = timestamp / precision.nanos();
            precision.mistaken(number).unwrap_or(reason)
        })?;
        let minute = Minute::of_nanos(timestamp);
        if quota.is_some_and(|quota| !quota.admits(minute, line.series)) {
            return Err(Rejection::TooManySeries);
        }
        let partition = line.hint.partition(&self.settings.partitions, line.series, minute);
        let (batch, is_in_memory) = match (room, &mut self.overflow) {
            (room, Some(overflow)) if room == Room::OnDisk || self.to_disk[partition.index()] => {
                (&mut overflow.open.batch, false)
            }
            _ => (&mut self.open[partition.index()].batch, true),
        };
        let before = batch.bytes();
        if !batch.push(minute, (line.series, line.hint), line.user, timestamp) {
            self.intake.dropped += 1;
        } else if is_in_memory {
            self.intake.queued += 1;
            self.intake.queued_bytes += (batch.bytes() - before) as u64;
        } else {
            self.intake.spooled += 1;
        }
        Ok(())
    }

    /// Enters the lines read since the last commit in the ledger, and reads its totals, which show whether memory has room.
    pub fn commit(&mut self) {
        self.totals = self.node.ledger.take_in(&std::mem::take(&mut self.intake));
    }

    /// Sends all batches that are large or have reached this age. A batch whose recorder is busy keeps growing.
    pub fn hand_over(&mut self, age: Duration, now: Instant) {
        self.hand_over_due(Linger { least: age, most: age }, now, i64::MIN);
    }

    /// Sends all batches that are large or have lingered long enough, like [`Self::hand_over`].
    pub fn hand_over_due(&mut self, linger: Linger, now: Instant, now_nanos: i64) {
        self.commit();
        // Minutes are closed by the store's clock.
        let ahead_ms = self.node.clock.store_ahead_ms().unwrap_or(0);
        let store_ms = now_nanos.div_euclid(1_000_000) + ahead_ms;
        let fills = self.totals.in_memory() >= self.settings.limits.events / 3
            || self.totals.queued_bytes >= self.settings.limits.bytes / 3;
        let most = if fills { linger.least } else { linger.most };
        let linger = Linger { most, ..linger };
        for ((open, recorder), index) in self.open.iter_mut().zip(&self.recorders).zip(0..) {
            let Some(since) = open.since(now) else {
                continue;
            };
            let (batch, events) = (&open.batch, open.batch.events());
            let is_over = batch.earliest().is_some_and(|minute| minute.end_millis() <= store_ms);
            let is_urgent = is_over || events >= batch.groups() * SERIES_EVENTS;
            if events < BATCH_EVENTS
                && !(is_urgent && now - since >= linger.least)
                && !linger.had_turn(index, self.began, [since, now])
            {
                continue;
            }
            match recorder.try_reserve() {
                Ok(permit) => permit.send(open.take().close().into()),
                Err(TrySendError::Full(())) => {}
                Err(TrySendError::Closed(())) => {
                    // A recorder exits before its listeners only if the node aborts, and then nothing records this batch.
                    let batch = open.take();
                    self.node.ledger.dropped(LossCause::Shutdown, batch.events());
                    self.node.ledger.released(batch.bytes());
                }
            }
        }
        if let Some(Overflow { open, spool }) = &mut self.overflow
            && let Some(since) = open.since(now)
            && (open.batch.bytes() >= OVERFLOW_BYTES || now - since >= linger.least)
            && let Some(place) = spool.try_reserve()
        {
            place.keep(open.take().close());
        }
    }

    /// Returns the number of events in the open batches for the recorders, and the number in the open batch for the disk.
    #[must_use]
    pub fn open_events(&self) -> (usize, usize) {
        let events = self.open.iter().map(|open| open.batch.events());
        let overflow = self.overflow.as_ref();
        let on_disk = overflow.map_or(0, |overflow| overflow.open.batch.events());
        (events.sum(), on_disk)
    }

    pub(crate) fn drop_overflow(&mut self) {
        if let Some(overflow) = &mut self.overflow {
            let lost = overflow.open.take().events();
            (self.node.ledger).refused_by_spool(LossCause::SpoolFailed, lost);
        }
    }

    /// Returns the first line rejected for each reason since the last call.
    pub fn take_samples(&mut self) -> BTreeMap<Rejection, Example> {
        std::mem::take(&mut self.samples)
    }
}

#[cfg(test)]
#[path = "line_batcher_tests.rs"]
mod tests;
