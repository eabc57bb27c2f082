//! From datagrams to batches: splits, parses, judges, and gathers by partition. No I/O.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ArrivalStamps, Received};
use crate::event::datagram::{Piece, pieces};
use crate::event::{
    Batch, LineRules, Minute, Parser, Partition, Partitions, Precision, Rejection, Window,
};
use crate::node::{Intake, LedgerTotals};
use crate::spool::Spool;

/// What a sieve is made of.
#[derive(Debug, Clone)]
pub struct SieveSettings {
    /// The grammar.
    pub rules: LineRules,
    /// The ages that are accepted.
    pub window: Window,
    /// How the series are spread.
    pub partitions: Partitions,
    /// What may be on the way to the store.
    pub limits: QueueLimits,
}

/// What may be on the way to the store, in this node.
#[derive(Debug, Clone, Copy)]
pub struct QueueLimits {
    /// Events.
    pub events: u64,
    /// Their memory in bytes, roughly.
    pub bytes: u64,
}

/// Sorts events into one open batch a partition.
#[derive(Debug)]
pub struct Sieve {
    parser: Parser,
    precision: Precision,
    window: Window,
    partitions: Partitions,
    limits: QueueLimits,
    stamps: Arc<ArrivalStamps>,
    open: Vec<Batch>,
    overflow: Option<Overflow>,
    /// What was read since the ledger was told.
    intake: Intake,
    /// What the ledger said then.
    totals: LedgerTotals,
    samples: Vec<Sample>,
}

/// A line that was rejected, for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Sample {
    /// Why.
    pub reason: Rejection,
    /// Where it says it comes from, if that is known.
    pub source: Option<SocketAddr>,
    /// Its beginning, escaped.
    pub line: String,
}

/// What does not fit into memory, on its way to the disk.
#[derive(Debug)]
struct Overflow {
    spool: Spool,
    batch: Batch,
}

/// Where there is room for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    InMemory,
    OnDisk,
    Nowhere,
}

/// What may wait for the disk in a sieve, in bytes.
const OVERFLOW_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The bytes of a line or a datagram that are shown in the log.
const SAMPLE_BYTES: usize = 120;

impl Sieve {
    /// An empty sieve.
    #[must_use]
    pub fn new(settings: &SieveSettings, stamps: Arc<ArrivalStamps>) -> Self {
        Self {
            parser: Parser::new(&settings.rules),
            precision: settings.rules.precision,
            window: settings.window,
            partitions: settings.partitions.clone(),
            limits: settings.limits,
            stamps,
            open: settings
                .partitions
                .iter()
                .map(|_| Batch::default())
                .collect(),
            overflow: None,
            intake: Intake::default(),
            totals: LedgerTotals::default(),
            samples: Vec::new(),
        }
    }

    /// The same, but with a spool for what does not fit into memory.
    #[must_use]
    pub fn with_spool(mut self, spool: Option<Spool>) -> Self {
        let batch = Batch::default();
        self.overflow = spool.map(|spool| Overflow { spool, batch });
        self
    }

    /// Takes in a datagram that arrived now (nanoseconds since the epoch).
    pub fn datagram(&mut self, bytes: &[u8], truncated: bool, now: i64) {
        let datagram = Received {
            bytes,
            truncated,
            source: None,
        };
        self.datagram_within(usize::MAX, datagram, now);
    }

    /// The same for a source that may send so many lines more.
    pub fn datagram_within(&mut self, lines_max: usize, datagram: Received<'_>, now: i64) {
        let Received {
            bytes,
            truncated,
            source,
        } = datagram;
        for (place, piece) in pieces(bytes, truncated).enumerate() {
            let room = self.room();
            let taken = if place >= lines_max {
                Err(Rejection::RateLimited)
            } else if room == Room::Nowhere {
                self.intake.dropped += 1;
                continue;
            } else {
                match piece {
                    Piece::Line(line) => self.line(line, room, now),
                    Piece::Truncated => Err(Rejection::Truncated),
                }
            };
            if let Err(reason) = taken {
                self.intake.rejected[reason.index()] += 1;
                if self.samples.iter().all(|sample| sample.reason != reason) {
                    let line = if let Piece::Line(line) = piece {
                        line
                    } else {
                        bytes
                    };
                    self.samples.push(Sample {
                        reason,
                        source,
                        line: beginning(line).to_string(),
                    });
                }
            }
        }
    }

    /// Where there is room for an event. What is on disk is older, so new events go behind it.
    fn room(&self) -> Room {
        let Some(overflow) = &self.overflow else {
            return if self.is_full() {
                Room::Nowhere
            } else {
                Room::InMemory
            };
        };
        if !overflow.spool.is_spilling() {
            if !self.is_full() {
                return Room::InMemory;
            }
            overflow.spool.begin_spilling();
        }
        if overflow.batch.bytes() < OVERFLOW_BYTES_MAX {
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

    fn line(&mut self, line: &[u8], room: Room, now: i64) -> Result<(), Rejection> {
        let line = self.parser.parse(line)?;
        let timestamp = match line.timestamp {
            Some(timestamp) => timestamp,
            None => self.stamps.stamp(now),
        };
        self.window.judge(timestamp, now).map_err(|reason| {
            let number = timestamp / self.precision.nanos();
            self.precision.mistaken(number).unwrap_or(reason)
        })?;
        let minute = Minute::of_nanos(timestamp);
        if let (Room::OnDisk, Some(overflow)) = (room, &mut self.overflow) {
            if overflow
                .batch
                .push(minute, line.series, line.user, timestamp)
            {
                self.intake.spooled += 1;
            } else {
                self.intake.dropped += 1;
            }
            return Ok(());
        }
        let batch = &mut self.open[self.partitions.of(line.series, minute).index()];
        let before = batch.bytes();
        if batch.push(minute, line.series, line.user, timestamp) {
            self.intake.queued += 1;
            self.intake.queued_bytes += (batch.bytes() - before) as u64;
        } else {
            self.intake.dropped += 1;
        }
        Ok(())
    }

    /// What was read since this was last asked, for the ledger, whose answer goes to [`Sieve::told`].
    pub fn take_intake(&mut self) -> Intake {
        std::mem::take(&mut self.intake)
    }

    /// What the ledger says now.
    pub const fn told(&mut self, totals: LedgerTotals) {
        self.totals = totals;
    }

    /// The first line that was rejected for each reason since this was last asked.
    pub fn take_samples(&mut self) -> Vec<Sample> {
        std::mem::take(&mut self.samples)
    }

    /// The spool, and the open batch of events for it.
    pub fn overflow(&mut self) -> Option<(&Spool, &mut Batch)> {
        let overflow = self.overflow.as_mut()?;
        Some((&overflow.spool, &mut overflow.batch))
    }

    /// The open batch of a partition.
    pub fn open(&mut self, partition: Partition) -> &mut Batch {
        &mut self.open[partition.index()]
    }
}

/// The beginning of what somebody sent, as it may stand in the log.
pub(super) fn beginning(bytes: &[u8]) -> impl std::fmt::Display {
    bytes.get(..SAMPLE_BYTES).unwrap_or(bytes).escape_ascii()
}

#[cfg(test)]
#[path = "sieve_tests.rs"]
mod tests;
