//! [`Part`]: the records of a share of the users, in memory or in a temporary file.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::cells::{Cell, Cells};
use crate::node::lock;

/// The number of parts. A part has the users whose fingerprints begin with the same byte.
pub(super) const COUNT: usize = 256;
/// The number of records that a thread collects for a part before it adds them.
const BUFFERED: usize = 2048;
const RECORD_BYTES: usize = size_of::<Record>();
/// The number of bits for the time within a minute, in nanoseconds.
const OFFSET_BITS: u32 = 36;

/// The fingerprint of the user, and the cell and the time of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Record {
    user: u64,
    /// The cell, and in the lower bits the nanoseconds since the start of its minute.
    rest: u64,
}

impl Record {
    pub(super) const fn new(user: u64, cell: Cell, offset: u64) -> Self {
        Self { user, rest: (cell as u64) << OFFSET_BITS | offset }
    }

    fn cell(self) -> Cell {
        // The result has at most 28 bits.
        Cell::try_from(self.rest >> OFFSET_BITS).unwrap_or(Cell::MAX)
    }

    fn bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.user.to_le_bytes());
        bytes[8..].copy_from_slice(&self.rest.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (user, rest) = bytes.split_first_chunk()?;
        let rest = rest.first_chunk()?;
        Some(Self { user: u64::from_le_bytes(*user), rest: u64::from_le_bytes(*rest) })
    }
}

/// The memory for records of all parts.
#[derive(Debug)]
pub(super) struct Room {
    left: AtomicUsize,
    directory: PathBuf,
    spilled: AtomicU64,
}

impl Room {
    pub(super) fn new(bytes: usize, directory: PathBuf) -> Self {
        // Half of the memory is for counting the parts, and for lists that grow.
        Self { left: AtomicUsize::new(bytes / 2), directory, spilled: AtomicU64::new(0) }
    }

    pub(super) fn spilled(&self) -> u64 {
        self.spilled.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> bool {
        let take = |left: usize| left.checked_sub(bytes);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
    }
}

#[derive(Debug, Default)]
pub(super) struct Part {
    records: Vec<Record>,
    /// An unnamed file, which disappears with the process.
    file: Option<File>,
    in_file: usize,
}

impl Part {
    fn add(&mut self, records: &[Record], room: &Room) -> io::Result<()> {
        if room.take(records.len() * RECORD_BYTES) {
            self.records.extend_from_slice(records);
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile_in(&room.directory)?),
        };
        let bytes: Vec<u8> = records.iter().flat_map(|record| record.bytes()).collect();
        file.write_all(&bytes)?;
        room.spilled.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.in_file += records.len();
        Ok(())
    }

    /// Counts the distinct users and events, with at most about `budget` bytes of memory.
    pub(super) fn count(mut self, cells: &Cells, budget: usize) -> io::Result<()> {
        let bytes = (self.records.len() + self.in_file) * RECORD_BYTES;
        let passes = bytes.div_ceil(budget.max(1)).max(1) as u64;
        // The users of cells and windows, if there are several passes.
        let mut found = vec![Vec::new(); 1 + cells.rollups()];
        for pass in 0..passes {
            let is_of_pass = |record: &Record| passes == 1 || mixed(record.rest) % passes == pass;
            let mut records = if passes == 1 {
                std::mem::take(&mut self.records)
            } else {
                self.records.iter().copied().filter(is_of_pass).collect()
            };
            self.read_file(&mut records, is_of_pass)?;
            records.sort_unstable();
            records.dedup();
            count_sorted(&records, cells, (passes > 1).then_some(&mut found));
            for users in &mut found {
                users.sort_unstable();
                users.dedup();
            }
        }
        for (place, users) in found.iter().enumerate() {
            for (_, number) in users {
                match place.checked_sub(1) {
                    None => cells.add(*number, 1, 0),
                    Some(rollup) => cells.add_user(rollup, *number),
                }
            }
        }
        Ok(())
    }

    fn read_file(
        &mut self,
        records: &mut Vec<Record>,
        is_wanted: impl Fn(&Record) -> bool,
    ) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.rewind()?;
        let mut file = io::BufReader::with_capacity(1 << 20, file);
        let mut bytes = vec![0; BUFFERED * RECORD_BYTES];
        let mut left = self.in_file;
        while left > 0 {
            let some = left.min(BUFFERED);
            let bytes = &mut bytes[..some * RECORD_BYTES];
            file.read_exact(bytes)?;
            let read = bytes.chunks_exact(RECORD_BYTES).filter_map(Record::read);
            records.extend(read.filter(&is_wanted));
            left -= some;
        }
        Ok(())
    }
}

/// The users of cells or windows: fingerprint and number.
type Users = Vec<(u64, u32)>;

/// Adds the counts of sorted records without duplicates. Users are added to `found` instead, if it is given: first the
/// users of cells, and then of the windows of each rollup.
fn count_sorted(records: &[Record], cells: &Cells, mut found: Option<&mut Vec<Users>>) {
    let mut windows: Vec<u32> = Vec::new();
    for of_user in records.chunk_by(|record, next| record.user == next.user) {
        let user = of_user[0].user;
        let of_cells = || of_user.chunk_by(|record, next| record.cell() == next.cell());
        for of_cell in of_cells() {
            let (cell, events) = (of_cell[0].cell(), of_cell.len() as u64);
            cells.add(cell, u64::from(found.is_none()), events);
            if let Some(found) = &mut found {
                found[0].push((user, cell));
            }
        }
        for rollup in 0..cells.rollups() {
            windows.clear();
            windows
                .extend(of_cells().filter_map(|of_cell| cells.window(rollup, of_cell[0].cell())));
            windows.sort_unstable();
            windows.dedup();
            for window in &windows {
                match &mut found {
                    Some(found) => found[1 + rollup].push((user, *window)),
                    None => cells.add_user(rollup, *window),
                }
            }
        }
    }
}

/// Spreads numbers over all values.
const fn mixed(number: u64) -> u64 {
    (number ^ number >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20
}

/// The records that a thread has collected for each part.
#[derive(Debug)]
pub(super) struct Buffers<'a> {
    parts: &'a [Mutex<Part>],
    room: &'a Room,
    of_parts: Vec<Vec<Record>>,
}

impl<'a> Buffers<'a> {
    pub(super) fn new(parts: &'a [Mutex<Part>], room: &'a Room) -> Self {
        let of_parts = parts.iter().map(|_| Vec::with_capacity(BUFFERED)).collect();
        Self { parts, room, of_parts }
    }

    pub(super) fn push(&mut self, record: Record) -> io::Result<()> {
        let place = usize::from(record.user.to_be_bytes()[0]);
        let buffer = &mut self.of_parts[place];
        buffer.push(record);
        if buffer.len() == BUFFERED {
            lock(&self.parts[place]).add(buffer, self.room)?;
            buffer.clear();
        }
        Ok(())
    }

    pub(super) fn flush(&mut self) -> io::Result<()> {
        for (part, buffer) in self.parts.iter().zip(&mut self.of_parts) {
            lock(part).add(buffer, self.room)?;
            buffer.clear();
        }
        Ok(())
    }
}
