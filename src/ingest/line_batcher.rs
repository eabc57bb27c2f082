//! [`LineBatcher`]: owns the open batches, one for each partition and one for the disk.
//!
//! It splits datagrams into lines, parses and judges them, and adds each event to a batch. Where memory has no room
//! events go to the disk, or are dropped. Batches that are due go to the recorders and to the disk ([`hand_over`]),
//! after the ledger has their events. It reads no clock and waits for nothing.

mod hand_over;

use std::sync::Arc;

use tokio::sync::mpsc;

pub use self::hand_over::Linger;
use self::hand_over::Open;
use super::{ArrivalStamps, Delivery, Received};
use crate::event::datagram::{Piece, pieces};
use crate::event::{LineRules, Minute, Parser, Partitions, Precision, Rejection, Window};
use crate::node::{Intake, LedgerTotals, Node, RefusedLine, Samples};
use crate::spool::Spool;

/// The most bytes that wait for the disk.
const OVERFLOW_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The bytes of a line or a datagram that the log shows.
const SAMPLE_BYTES: usize = 120;

/// How lines become batches.
#[derive(Debug, Clone)]
pub struct BatcherSettings {
    /// The grammar.
    pub rules: LineRules,
    /// The ages that are accepted.
    pub window: Window,
    /// How the series are spread.
    pub partitions: Partitions,
    /// What may wait for the store.
    pub limits: QueueLimits,
}

/// What may wait for the store in this node's memory.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    /// Events.
    pub events: u64,
    /// Their memory in bytes, roughly.
    pub bytes: u64,
}

/// See the module.
#[derive(Debug)]
pub struct LineBatcher {
    parser: Parser,
    precision: Precision,
    window: Window,
    partitions: Partitions,
    limits: QueueLimits,
    stamps: Arc<ArrivalStamps>,
    open: Vec<Open>,
    overflow: Option<Overflow>,
    /// Whether all that is read is taken: whoever reads looks for room before.
    takes_all: bool,
    /// The recorders, one a partition.
    recorders: Vec<mpsc::Sender<Delivery>>,
    node: Arc<Node>,
    /// What was added since the last commit.
    intake: Intake,
    /// The ledger's totals at the last commit.
    totals: LedgerTotals,
    samples: Samples<Rejection>,
}

/// What does not fit into memory, on its way to the disk.
#[derive(Debug)]
struct Overflow {
    spool: Spool,
    open: Open,
}

/// Where there is room for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    InMemory,
    OnDisk,
    Nowhere,
}

impl LineBatcher {
    /// A batcher with no events. `recorders` has one a partition.
    #[must_use]
    pub fn new(
        settings: &BatcherSettings,
        stamps: Arc<ArrivalStamps>,
        node: Arc<Node>,
        recorders: Vec<mpsc::Sender<Delivery>>,
    ) -> Self {
        Self {
            parser: Parser::new(&settings.rules),
            precision: settings.rules.precision,
            window: settings.window,
            partitions: settings.partitions.clone(),
            limits: settings.limits,
            stamps,
            open: recorders.iter().map(|_| Open::default()).collect(),
            overflow: None,
            takes_all: false,
            recorders,
            node,
            intake: Intake::default(),
            totals: LedgerTotals::default(),
            samples: Samples::default(),
        }
    }

    /// The same, with a spool for what does not fit into memory.
    #[must_use]
    pub fn with_spool(mut self, spool: Option<Spool>) -> Self {
        let open = Open::default();
        self.overflow = spool.map(|spool| Overflow { spool, open });
        self
    }

    /// The same, for a socket that is read only while there is room: what was read is taken, be it more than there is room
    /// for, and nothing of it goes to the disk.
    #[must_use]
    pub const fn taking_all(mut self) -> Self {
        self.takes_all = true;
        self
    }

    /// Whether there is room in memory. Enters what was added into the ledger.
    pub fn has_room(&mut self) -> bool {
        self.commit();
        !self.is_full()
    }

    /// Adds the lines of a datagram that arrived at this time, in nanoseconds since the epoch. Its source may send
    /// `lines_max` of them.
    pub fn add(&mut self, datagram: Received<'_>, lines_max: usize, now_nanos: i64) {
        let Received { bytes, truncated, source } = datagram;
        for (place, piece) in pieces(bytes, truncated).enumerate() {
            let room = self.room();
            let added = if place >= lines_max {
                Err(Rejection::RateLimited)
            } else if room == Room::Nowhere {
                self.intake.dropped += 1;
                continue;
            } else {
                match piece {
                    Piece::Line(line) => self.add_line(line, room, now_nanos),
                    Piece::Truncated => Err(Rejection::Truncated),
                }
            };
            if let Err(reason) = added {
                self.intake.rejected[reason.index()] += 1;
                self.samples.add(reason, source.address(), || {
                    let line = if let Piece::Line(line) = piece { line } else { bytes };
                    beginning(line).to_string()
                });
            }
        }
    }

    /// Where there is room for an event. Events on disk are older, so new ones go there, too.
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
            // The disk hangs, or is too slow: out of order is better than not at all.
            Room::InMemory
        }
    }

    fn is_full(&self) -> bool {
        self.totals.in_memory() + self.intake.queued >= self.limits.events
            || self.totals.queued_bytes + self.intake.queued_bytes >= self.limits.bytes
    }

    fn add_line(&mut self, line: &[u8], room: Room, now_nanos: i64) -> Result<(), Rejection> {
        let line = self.parser.parse_hinted(line)?;
        let timestamp = line.timestamp.unwrap_or_else(|| {
            let at_ms = self.node.clock.store_ms_at(now_nanos);
            self.node.unstamped.add(line.series, line.user, at_ms);
            self.stamps.stamp(now_nanos, 1)
        });
        self.window.judge(timestamp, now_nanos).map_err(|reason| {
            let number = timestamp / self.precision.nanos();
            self.precision.mistaken(number).unwrap_or(reason)
        })?;
        let minute = Minute::of_nanos(timestamp);
        let partition = line.hint.partition(&self.partitions, line.series, minute);
        let series = (line.series, line.hint);
        if let (Room::OnDisk, Some(Overflow { open, .. })) = (room, &mut self.overflow) {
            if open.batch.push(minute, series, line.user, timestamp) {
                self.intake.spooled += 1;
            } else {
                self.intake.dropped += 1;
            }
            return Ok(());
        }
        let batch = &mut self.open[partition.index()].batch;
        let before = batch.bytes();
        if batch.push(minute, series, line.user, timestamp) {
            self.intake.queued += 1;
            self.intake.queued_bytes += (batch.bytes() - before) as u64;
        } else {
            self.intake.dropped += 1;
        }
        Ok(())
    }

    /// The first rejected line of each reason since the last call.
    pub fn take_samples(&mut self) -> Vec<RefusedLine<Rejection>> {
        self.samples.take()
    }
}

/// The beginning of what somebody sent, escaped for the log.
#[must_use]
pub fn beginning(bytes: &[u8]) -> impl std::fmt::Display {
    bytes.get(..SAMPLE_BYTES).unwrap_or(bytes).escape_ascii()
}

#[cfg(test)]
#[path = "line_batcher_tests.rs"]
mod tests;
