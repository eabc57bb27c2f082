//! From datagrams to batches: splits, parses, judges, and gathers by partition. No I/O.

use std::net::SocketAddr;
use std::sync::Arc;

use super::{ArrivalStamps, Received};
use crate::event::datagram::{Piece, pieces};
use crate::event::{
    Batch, LineRules, Minute, Parser, Partition, Partitions, Precision, Rejection, Window,
};
use crate::spool::Spool;
use crate::telemetry::{Intake, LedgerTotals};

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
            partitions: settings.partitions,
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
        let batch = &mut self.open[self.partitions.of(line.series).index()];
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
mod tests {
    use std::num::NonZeroU16;
    use std::time::Duration;

    use super::*;
    use crate::spool::Keeper;
    use crate::telemetry::{Ledger, Metrics};

    const NOW: i64 = 1_480_876_710_000_000_000;

    fn sieve(events: u64) -> Sieve {
        let settings = SieveSettings {
            rules: LineRules::default(),
            window: Window::new(Duration::from_secs(3600), Duration::from_secs(60)),
            partitions: Partitions::new(NonZeroU16::new(4).unwrap()),
            limits: QueueLimits {
                events,
                bytes: 1 << 20,
            },
        };
        Sieve::new(&settings, Arc::default())
    }

    fn queued(sieve: &mut Sieve) -> usize {
        let partitions = sieve.partitions;
        partitions
            .iter()
            .map(|partition| sieve.open(partition).events())
            .sum()
    }

    #[test]
    fn one_bad_line_costs_one_line() {
        let mut sieve = sieve(100);
        let text = b"a=1 value=u 1480876707352348928\nbroken\na=1 value=v 1\n# note\na=2 value=w\n";
        sieve.datagram(text, false, NOW);
        let intake = sieve.take_intake();
        assert_eq!(intake.queued, 2);
        assert_eq!(intake.rejected[Rejection::UserMissing.index()], 1);
        assert_eq!(intake.rejected[Rejection::TooOld.index()], 1);
        assert_eq!(queued(&mut sieve), 2);
        let samples = sieve.take_samples();
        let samples: Vec<_> = samples.iter().map(|it| (it.reason, &*it.line)).collect();
        let expected = [
            (Rejection::UserMissing, "broken"),
            (Rejection::TooOld, "a=1 value=v 1"),
        ];
        assert_eq!(samples, expected);
        assert_eq!(sieve.take_samples(), []);
    }

    #[test]
    fn a_stamp_that_would_fit_another_precision_is_told_so() {
        let mut sieve = sieve(100);
        for (number, reason) in [
            ("1480876707", Rejection::TimestampInSeconds),
            ("1480876707352", Rejection::TimestampInMilliseconds),
            ("1480876707352348", Rejection::TimestampInMicroseconds),
            ("1380876707352348928", Rejection::TooOld),
            ("1580876707352348928", Rejection::TooFarAhead),
            ("14808767", Rejection::TooOld),
        ] {
            sieve.datagram(format!("a=1 value=u {number}").as_bytes(), false, NOW);
            assert_eq!(sieve.take_sample().unwrap().0, reason, "{number}");
        }
        let words = Rejection::TimestampInMilliseconds.to_string();
        assert!(words.contains("input.timestamp_precision"), "{words}");
    }

    #[test]
    fn lines_beyond_the_rate_of_their_source_are_rejected() {
        let mut sieve = sieve(100);
        let text = b"a=1 value=u\n\nbroken\n# note\na=1 value=v\na=1 value=w";
        let datagram = Received {
            bytes: text,
            truncated: false,
            source: None,
        };
        sieve.datagram_within(2, datagram, NOW);
        let intake = sieve.take_intake();
        assert_eq!(intake.queued, 1);
        assert_eq!(intake.rejected[Rejection::UserMissing.index()], 1);
        assert_eq!(intake.rejected[Rejection::RateLimited.index()], 2);
    }

    #[test]
    fn what_is_beyond_the_queue_is_dropped_and_counted() {
        let mut sieve = sieve(3);
        let ledger = Ledger::default();
        for _ in 0..2 {
            sieve.datagram(b"a=1 value=u\na=1 value=u\n", false, NOW);
        }
        let totals = ledger.take_in(&sieve.take_intake());
        sieve.told(totals);
        sieve.datagram(b"a=1 value=u", false, NOW);
        assert_eq!(sieve.take_intake().dropped, 1);
        assert_eq!(
            (totals.received, totals.queued, queued(&mut sieve)),
            (4, 3, 3)
        );
    }

    #[test]
    fn what_the_disk_does_not_take_goes_to_memory_when_that_has_room_again() {
        let home = tempfile::TempDir::new().unwrap();
        let ledger = Arc::new(Ledger::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&ledger)));
        // A keeper that never gets to its orders.
        let (_keeper, spool) = Keeper::of_a_mib(home.path(), &ledger, &metrics);
        let mut sieve = sieve(1).with_spool(Some(spool));
        let line = format!("a=1 value={}", "u".repeat(200));
        while sieve.intake.dropped == 0 {
            sieve.datagram(line.as_bytes(), false, NOW);
        }
        assert!(sieve.intake.spooled > 10_000);
        // The recorders have made room.
        sieve.take_intake();
        sieve.told(LedgerTotals::default());
        sieve.datagram(line.as_bytes(), false, NOW);
        let intake = sieve.take_intake();
        assert_eq!((intake.queued, intake.spooled, intake.dropped), (1, 0, 0));
    }
}
