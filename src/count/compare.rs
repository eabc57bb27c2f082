//! [`compare`]: compares counts with the points in a database, and adds the points that are missing. Points are read in slices
//! of time, so that memory does not depend on how much the database holds.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Write};
use std::ops::Range;

use super::{Counted, Length};
use crate::event::{Every, Minute};
use crate::output::influxdb::{FoundPoint, PointReader, ReadError};
use crate::output::line_protocol::{CUMULATIVE_MEASUREMENT, UNIQUE_MEASUREMENT, lines};
use crate::output::server::{Settings, SettingsError, Writer};
use crate::output::{SealedCounts, WriteError};

/// The number of counts after which a slice ends, as a multiple of the points in a write. A slice has at least a minute.
const SLICE_WRITES: usize = 20;
/// The maximum number of minutes that a query asks for.
const QUERY_MINUTES: i64 = 1440;
const MEASUREMENTS: [&str; 2] = [UNIQUE_MEASUREMENT, CUMULATIVE_MEASUREMENT];

/// The database to compare with.
#[derive(Debug)]
pub(crate) struct Database {
    pub(crate) settings: Settings,
    /// The maximum number of points in one write.
    pub(crate) lines_max: usize,
    /// Whether to write missing points.
    pub(crate) is_filled: bool,
    /// Missing points of minutes and windows that end in this minute or later are not written, because nodes may still
    /// publish them.
    pub(crate) first_open: Minute,
}

/// The number of points by result.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    counted: u64,
    missing: u64,
    different: u64,
    uncounted: u64,
    filled: u64,
}

/// Why the comparison ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CompareError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot connect to the database: {0}")]
    Settings(#[from] SettingsError),
    #[error(
        "{error}; {filled} points were written before. Run the command again: it writes only what is still missing"
    )]
    Write { error: WriteError, filled: u64 },
    #[error("cannot print the differences: {0}")]
    Print(#[from] io::Error),
    #[error("there are no events to compare")]
    NoEvents,
}

impl Compared {
    /// Returns whether the database has exactly the points that were counted, possibly after filling.
    pub(crate) const fn is_equal(&self) -> bool {
        self.missing + self.different + self.uncounted == 0
    }
}

impl fmt::Display for Compared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counted, missing, different, uncounted, filled } = self;
        write!(
            f,
            "{counted} points compared: {missing} missing, {different} different, {uncounted} not counted; {filled} filled"
        )
    }
}

/// Compares all counts with the points in a database, and writes a line for each difference to `out`.
pub(crate) async fn compare(
    counted: &Counted,
    database: &Database,
    out: &mut impl Write,
) -> Result<Compared, CompareError> {
    let covered = counted.cells.range().ok_or(CompareError::NoEvents)?;
    let reader = PointReader::connect(&database.settings).await?;
    let writer = Writer::new(&database.settings, "ns")?;
    let report = Report { covered, out, compared: Compared::default() };
    let mut comparison = Comparison { database, reader, writer, report };
    for length in counted.lengths() {
        comparison.compare(length).await?;
    }
    Ok(comparison.report.compared)
}

/// All counts of one length in a range of time.
struct Slice<'a> {
    every: Every,
    suffix: &'a str,
    range: Range<Minute>,
    counts: Vec<SealedCounts>,
}

/// One of the two points of a count, by the index of the measurement.
type Kind = usize;

struct Comparison<'a, W> {
    database: &'a Database,
    reader: PointReader,
    writer: Writer,
    report: Report<'a, W>,
}

impl<W: Write> Comparison<'_, W> {
    async fn compare(&mut self, length: Length<'_>) -> Result<(), CompareError> {
        let Length { every, suffix, counts } = length;
        let [first, last] = self.report.covered;
        let slice_counts = SLICE_WRITES * self.database.lines_max;
        let mut counts = counts.peekable();
        let mut start = every.window(first)[0];
        loop {
            let mut slice: Vec<SealedCounts> = Vec::new();
            let has_room = |slice: &[SealedCounts], next: &SealedCounts| {
                slice.len() < slice_counts
                    || slice.last().is_some_and(|last| last.period.start == next.period.start)
            };
            while let Some(next) = counts.next_if(|next| has_room(&slice, next)) {
                slice.push(next);
            }
            let next = counts.peek().map(|next| next.period.start);
            let range = start..next.unwrap_or_else(|| after(last, 1));
            start = range.end;
            self.compare_slice(&Slice { every, suffix: &suffix, range, counts: slice }).await?;
            if next.is_none() {
                return Ok(());
            }
        }
    }

    async fn compare_slice(&mut self, slice: &Slice<'_>) -> Result<(), CompareError> {
        let found = self.read(slice, true).await?;
        let mut absent: Vec<(&SealedCounts, usize, Kind)> = Vec::new();
        for (place, (counts, found)) in slice.counts.iter().zip(found).enumerate() {
            for kind in (0..found.len()).filter(|kind| !found[*kind]) {
                match self.why_not_filled(slice, counts) {
                    Some(why) => self.report.missing(slice, counts, kind, why)?,
                    None => absent.push((counts, place, kind)),
                }
            }
        }
        self.report.compared.counted += MEASUREMENTS.len() as u64 * slice.counts.len() as u64;
        if absent.is_empty() {
            return Ok(());
        }
        // While another client writes a new tag, InfluxDB 1 may return points without this tag. They are absent only if they
        // are not found twice.
        let found = self.read(slice, false).await?;
        let (appeared, absent): (Vec<_>, Vec<_>) =
            absent.into_iter().partition(|(_, place, kind)| found[*place][*kind]);
        for (counts, _, kind) in appeared {
            self.report.missing(slice, counts, kind, "; not filled, because it is there now")?;
        }
        for some in absent.chunks(self.database.lines_max) {
            self.fill(slice, some).await?;
        }
        Ok(())
    }

    /// Returns which points of the slice are in the database. Reports other differences if `is_first`.
    async fn read(
        &mut self,
        slice: &Slice<'_>,
        is_first: bool,
    ) -> Result<Vec<[bool; MEASUREMENTS.len()]>, CompareError> {
        let places: HashMap<(i64, &str), usize> = (slice.counts.iter().enumerate())
            .map(|(place, counts)| ((counts.period.start.start_nanos(), &*counts.series), place))
            .collect();
        let mut found = vec![[false; MEASUREMENTS.len()]; slice.counts.len()];
        for (kind, name) in MEASUREMENTS.iter().enumerate() {
            let measurement = format!("{name}{}", slice.suffix);
            let mut start = slice.range.start;
            while start < slice.range.end {
                let end = after(start, QUERY_MINUTES).min(slice.range.end);
                let mut points = self.reader.read(&measurement, start..end).await?;
                while let Some(some) = points.next().await? {
                    for point in some {
                        let place = places.get(&(point.nanos, &*point.series)).copied();
                        if let Some(place) = place {
                            found[place][kind] = true;
                        }
                        if is_first {
                            let counts = place.map(|place| &slice.counts[place]);
                            self.report.check(slice, counts, kind, &point)?;
                        }
                    }
                }
                start = end;
            }
        }
        Ok(found)
    }

    /// Returns why a missing point must not be written.
    fn why_not_filled(&self, slice: &Slice<'_>, counts: &SealedCounts) -> Option<&'static str> {
        let [_, last] = slice.every.window(counts.period.start);
        if !self.database.is_filled {
            Some("")
        } else if !self.report.is_whole(slice, counts.period.start) {
            Some("; not filled, because the files may have only a part of its events")
        } else if last >= self.database.first_open {
            Some("; not filled, because nodes may still publish it")
        } else {
            None
        }
    }

    async fn fill(
        &mut self,
        slice: &Slice<'_>,
        absent: &[(&SealedCounts, usize, Kind)],
    ) -> Result<(), CompareError> {
        let mut body = String::new();
        for (counts, _, kind) in absent {
            body.extend(lines(counts).map_err(io::Error::other)?.split_inclusive('\n').nth(*kind));
        }
        let filled = self.report.compared.filled;
        let written = self.writer.write(body).await;
        written.map_err(|error| CompareError::Write { error, filled })?;
        for (counts, _, kind) in absent {
            self.report.compared.filled += 1;
            let detail = format!("counted {}", number(counts, *kind));
            self.report.print(
                "filled",
                slice,
                *kind,
                &counts.series,
                counts.period.start,
                &detail,
            )?;
        }
        Ok(())
    }
}

struct Report<'a, W> {
    /// The first and the last minute with events. The files may have only some events of these minutes.
    covered: [Minute; 2],
    out: &'a mut W,
    compared: Compared,
}

impl<W: Write> Report<'_, W> {
    /// Returns whether the files have all events of the minute or window that begins here.
    fn is_whole(&self, slice: &Slice<'_>, start: Minute) -> bool {
        let ([first, last], [start, end]) = (self.covered, slice.every.window(start));
        first < start && end < last
    }

    /// Checks a point in the database, given its counts.
    fn check(
        &mut self,
        slice: &Slice<'_>,
        counts: Option<&SealedCounts>,
        kind: Kind,
        point: &FoundPoint,
    ) -> io::Result<()> {
        let counted = counts.map_or(0, |counts| number(counts, kind));
        #[expect(clippy::cast_precision_loss, reason = "the database has no more precise numbers")]
        let difference = point.value - counted as f64;
        let start = Minute::of_nanos(point.nanos);
        // Without events, nodes write either no point or a zero. With only some of the events, the numbers are lower.
        if difference.abs() < 0.5 || (difference > 0.0 && !self.is_whole(slice, start)) {
            return Ok(());
        }
        let found = point.value;
        if counts.is_some() {
            self.compared.different += 1;
            let detail = format!("counted {counted}, found {found}");
            self.print("different", slice, kind, &point.series, start, &detail)
        } else {
            self.compared.uncounted += 1;
            self.print("uncounted", slice, kind, &point.series, start, &format!("found {found}"))
        }
    }

    fn missing(
        &mut self,
        slice: &Slice<'_>,
        counts: &SealedCounts,
        kind: Kind,
        why: &str,
    ) -> io::Result<()> {
        self.compared.missing += 1;
        let detail = format!("counted {}{why}", number(counts, kind));
        self.print("missing", slice, kind, &counts.series, counts.period.start, &detail)
    }

    fn print(
        &mut self,
        what: &str,
        slice: &Slice<'_>,
        kind: Kind,
        series: &str,
        start: Minute,
        detail: &str,
    ) -> io::Result<()> {
        let (start, measurement, suffix) = (start.shown(), MEASUREMENTS[kind], slice.suffix);
        let comma = if series.is_empty() { "" } else { "," };
        writeln!(self.out, "{what:<9} {start} {measurement}{suffix}{comma}{series}: {detail}")
    }
}

const fn number(counts: &SealedCounts, kind: Kind) -> u64 {
    if kind == 0 { counts.unique } else { counts.cumulative }
}

/// Returns the minute this many minutes later.
fn after(minute: Minute, minutes: i64) -> Minute {
    Minute::from_epoch_minutes(minute.epoch_minutes() + minutes).unwrap_or(Minute::MAX)
}
