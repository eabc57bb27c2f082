//! `eds count`: counts the events in files as the service would, without Redis. Every event becomes a record of 16 bytes with
//! a fingerprint of its user. Records are divided by user, so that the counts of all parts, and also of windows, add up; parts
//! that do not fit in memory go to temporary files.

mod cells;
mod compare;
mod input;
mod parts;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use self::cells::Cells;
pub(crate) use self::compare::{CompareError, Database, compare};
use self::input::Chunks;
pub(crate) use self::input::InputError;
use self::parts::{Part, Record};
use crate::event::datagram::{Piece, pieces};
use crate::event::{
    Every, LineRules, Minute, OpenBatch, Parser, Partition, Period, Quality, Rejection, Rollup,
};
use crate::node::{Example, lock};
use crate::output::SealedCounts;
use crate::output::line_protocol::lines;

/// The number of chunks that wait for each thread.
const CHUNKS_AHEAD: usize = 2;

/// What to count, and how.
#[derive(Debug)]
pub(crate) struct Options {
    /// The files to read, in any order; `-` is standard input.
    pub(crate) files: Vec<PathBuf>,
    pub(crate) rules: LineRules,
    pub(crate) rollups: Vec<Rollup>,
    pub(crate) threads: usize,
    /// The maximum memory for records, in bytes.
    pub(crate) memory: usize,
    /// The directory for temporary files.
    pub(crate) directory: PathBuf,
}

/// The counts of all minutes and windows.
#[derive(Debug)]
pub(crate) struct Counted {
    cells: Cells,
    rollups: Vec<Rollup>,
    /// Each reason for which lines were rejected, the number of lines, and an example.
    pub(crate) rejected: Vec<(Rejection, u64, Example)>,
    /// The number of events, including duplicates.
    pub(crate) events: u64,
    pub(crate) distinct: u64,
    /// The number of bytes that were written to temporary files.
    pub(crate) spilled: u64,
}

/// The counts of minutes or of the windows of a rollup.
struct Length<'a> {
    every: Every,
    /// The suffix of the names of the measurements.
    suffix: Arc<str>,
    /// By start and series.
    counts: Box<dyn Iterator<Item = SealedCounts> + 'a>,
}

#[derive(Debug, Default)]
struct Rejected(Vec<(Rejection, u64, Example)>);

impl Rejected {
    fn add(&mut self, reason: Rejection, count: u64, example: impl FnOnce() -> Example) {
        match self.0.iter_mut().find(|(known, ..)| *known == reason) {
            Some((_, total, _)) => *total += count,
            None => self.0.push((reason, count, example())),
        }
    }
}

/// Counts the events in the files. `read` is called with the number of bytes that have been read, before decompression.
pub(crate) fn count(options: &Options, read: impl Fn(u64) + Sync) -> Result<Counted, InputError> {
    let parts: Vec<_> = (0..parts::COUNT).map(|_| Mutex::new(Part::default())).collect();
    let room = parts::Room::new(options.memory, options.directory.clone());
    let cells = Mutex::new(Cells::default());
    let (sender, chunks) = mpsc::sync_channel::<Vec<u8>>(options.threads * CHUNKS_AHEAD);
    // A thread that fails removes the receiver, so that reading ends.
    let chunks = Mutex::new(Some(chunks));
    let totals = Mutex::new((0, Rejected::default()));
    let count_chunks = || {
        let mut worker = Worker::new(&options.rules, &parts, &room, &cells);
        loop {
            let next = lock(&chunks).as_ref().and_then(|chunks| chunks.recv().ok());
            let Some(chunk) = next else { break };
            worker.take(&chunk).inspect_err(|_| drop(lock(&chunks).take()))?;
        }
        let (events, rejected) = worker.end()?;
        let mut totals = lock(&totals);
        totals.0 += events;
        for (reason, count, example) in rejected.0 {
            totals.1.add(reason, count, || example);
        }
        Ok(())
    };
    on_threads(options.threads, count_chunks, move || feed(options, &read, &sender))?;
    let (events, Rejected(rejected)) = totals.into_inner().unwrap_or_default();
    let mut cells = cells.into_inner().unwrap_or_default();
    cells.begin(&options.rollups);
    let (budget, next) = (options.memory / options.threads, AtomicUsize::new(0));
    let count_parts = || {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            std::mem::take(&mut *lock(part)).count(&cells, budget)?;
        }
        Ok(())
    };
    on_threads(options.threads, count_parts, || Ok(()))?;
    let distinct = cells.events();
    let rollups = options.rollups.clone();
    Ok(Counted { cells, rollups, rejected, events, distinct, spilled: room.spilled() })
}

/// Runs `work` on this number of threads, and `beside` on this one, until all have ended. Returns the first error.
fn on_threads(
    threads: usize,
    work: impl Fn() -> io::Result<()> + Sync,
    beside: impl FnOnce() -> Result<(), InputError>,
) -> Result<(), InputError> {
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        let done = beside();
        for worker in workers {
            let ended = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.map_err(InputError::Temporary)?;
        }
        done
    })
}

fn feed(
    options: &Options,
    read: &(impl Fn(u64) + Sync),
    sender: &mpsc::SyncSender<Vec<u8>>,
) -> Result<(), InputError> {
    for file in &options.files {
        let mut chunks = Chunks::open(file)?;
        while let Some(chunk) = chunks.next(read)? {
            if sender.send(chunk).is_err() {
                // The workers have failed, and report why.
                return Ok(());
            }
        }
    }
    Ok(())
}

#[derive(Debug)]
struct Worker<'a> {
    parser: Parser,
    batch: OpenBatch,
    buffers: parts::Buffers<'a>,
    cells: &'a Mutex<Cells>,
    rejected: Rejected,
    events: u64,
}

impl<'a> Worker<'a> {
    fn new(
        rules: &LineRules,
        parts: &'a [Mutex<Part>],
        room: &'a parts::Room,
        cells: &'a Mutex<Cells>,
    ) -> Self {
        Self {
            parser: Parser::new(rules),
            batch: OpenBatch::default(),
            buffers: parts::Buffers::new(parts, room),
            cells,
            rejected: Rejected::default(),
            events: 0,
        }
    }

    fn take(&mut self, chunk: &[u8]) -> io::Result<()> {
        let mut all = pieces(chunk, false);
        while let Some(group) = self.parser.look_up_lines(&mut all) {
            for (piece, looked_up) in group.into_iter().flatten() {
                let Piece::Line(line) = piece else { continue };
                let Self { parser, batch, rejected, .. } = self;
                let mut refuse = |reason| rejected.add(reason, 1, || Example::new(None, line));
                let parsed = match parser.parse_hinted(line, looked_up) {
                    Ok(parsed) => parsed,
                    Err(reason) => {
                        refuse(reason);
                        continue;
                    }
                };
                let Some(timestamp) = parsed.timestamp else {
                    refuse(Rejection::TimestampMissing);
                    continue;
                };
                let minute = Minute::of_nanos(timestamp);
                let series = (parsed.series, parsed.hint);
                let is_added = batch.push(minute, series, parsed.user, timestamp);
                debug_assert!(is_added, "a chunk has less than 4 GiB of users");
            }
        }
        self.close()
    }

    fn close(&mut self) -> io::Result<()> {
        let batch = std::mem::take(&mut self.batch).close();
        self.events += batch.events() as u64;
        for group in batch.groups() {
            let cell = lock(self.cells).of(&group.series, group.minute);
            let start = group.minute.start_nanos();
            for event in &group.occurrences {
                let user = xxhash_rust::xxh3::xxh3_64(batch.user(event).as_bytes());
                let offset = event.timestamp - start;
                self.buffers.push(Record::new(user, cell, offset.unsigned_abs()))?;
            }
        }
        Ok(())
    }

    fn end(mut self) -> io::Result<(u64, Rejected)> {
        self.buffers.flush()?;
        Ok((self.events, self.rejected))
    }
}

impl Counted {
    /// Returns the counts of minutes, and then those of the windows of each rollup.
    fn lengths(&self) -> impl Iterator<Item = Length<'_>> {
        let minutes = self.cells.minutes().map(|(minute, series, unique, cumulative)| {
            sealed(Period::from(minute), series, unique, cumulative)
        });
        let minutes = Length { every: Every::MINUTE, suffix: "".into(), counts: Box::new(minutes) };
        let windows = self.rollups.iter().enumerate().map(|(place, rollup)| {
            let counts = self.cells.windows(place).map(|(start, group, unique, cumulative)| {
                let period = Period { start, suffix: rollup.suffix.clone() };
                sealed(period, group, unique, cumulative)
            });
            let counts = Box::new(counts);
            Length { every: rollup.every, suffix: rollup.suffix.clone(), counts }
        });
        std::iter::once(minutes).chain(windows)
    }

    /// Returns all counts, first of minutes and then of windows.
    pub(crate) fn counts(&self) -> impl Iterator<Item = SealedCounts> {
        self.lengths().flat_map(|length| length.counts)
    }

    /// Writes all counts as line protocol, as an output does.
    pub(crate) fn write_lines(&self, to: &mut impl Write) -> io::Result<()> {
        for counts in self.counts() {
            to.write_all(lines(&counts).map_err(io::Error::other)?.as_bytes())?;
        }
        Ok(())
    }

    /// Writes all counts as a table.
    pub(crate) fn write_table(&self, to: &mut impl Write) -> io::Result<()> {
        writeln!(to, "{:<20} {:>12} {:>12}  series", "start", "users", "events")?;
        for SealedCounts { period, series, unique, cumulative, .. } in self.counts() {
            let window = period.suffix.trim_start_matches('_');
            let colon = if window.is_empty() { "" } else { ": " };
            let start = period.start.shown();
            writeln!(to, "{start:<20} {unique:>12} {cumulative:>12}  {window}{colon}{series}")?;
        }
        Ok(())
    }
}

fn sealed(period: Period, series: &str, unique: u64, cumulative: u64) -> SealedCounts {
    SealedCounts {
        partition: Partition::default(),
        minute: period.start,
        period,
        series: series.to_owned(),
        unique,
        cumulative,
        quality: Quality::default(),
    }
}
