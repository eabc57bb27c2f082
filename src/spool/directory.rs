//! [`Directory`]: the segment files of one node, and the bound on them.
//!
//! The files are numbered and never change once another was begun. A lock keeps a second process out. Blocks;
//! only the keeper's thread uses it.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::SpoolSettings;
use super::segment::{self, Frame};
use crate::event::Batch;
use crate::node::files;

/// A segment of so many bytes is followed by another. It is read into memory as a whole.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// The segments that fit below the bound, at least, so that room comes back before all of it is read.
const SEGMENTS_MIN: u64 = 4;
const EXTENSION: &str = "spool";
/// The extension of a segment that could not be read whole. It is not looked at again.
const DAMAGED: &str = "damaged";
const LOCK: &str = "lock";

/// A directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// Another process has it.
    #[error(
        "{} (input.spool_dir) is in use by another process; give each node a directory of its own",
        .0.display()
    )]
    InUse(PathBuf),
    /// It cannot be made, read or written.
    #[error(
        "cannot use {} (input.spool_dir): {source}; name a directory that the service's user may write to",
        .path.display()
    )]
    Io {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A segment that nobody writes to any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) number: u64,
    pub(super) bytes: u64,
    /// How many events were written; `None` when that was by an earlier process.
    pub(super) events: Option<u64>,
}

#[derive(Debug)]
struct Growing {
    file: File,
    segment: Closed,
}

/// How many events were kept, and what became of the others.
#[derive(Debug, Default)]
pub(super) struct Appended {
    pub(super) kept: usize,
    /// For which there is no room.
    pub(super) full: usize,
    /// Which could not be written, and why.
    pub(super) failed: usize,
    pub(super) error: Option<io::Error>,
}

/// The segments of one node.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    bytes_max: u64,
    segment_bytes: u64,
    /// Of all segments.
    bytes: u64,
    next: u64,
    growing: Option<Growing>,
    closed: VecDeque<Closed>,
    taken: BTreeMap<u64, Closed>,
    unsynced: bool,
    sync_failed: Option<io::Error>,
    /// The directory itself, so that syncing it needs no other descriptor.
    opened: File,
    /// Held as long as this is.
    _lock: File,
}

impl Directory {
    /// Takes a directory, with the segments that are in it.
    pub(super) fn open(settings: &SpoolSettings) -> Result<Self, SpoolError> {
        let path = settings.directory.clone();
        let failed = |source| SpoolError::Io { path: path.clone(), source };
        let opened = files::open_directory(&path).map_err(failed)?;
        let lock = files::open_lock(&path.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => SpoolError::InUse(path.clone()),
            TryLockError::Error(source) => failed(source),
        })?;
        let mut closed = Vec::new();
        let mut last = 0;
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let found = entry.path();
            let Some(number) = number(&found) else {
                continue;
            };
            // Also of what is kept as damaged, which another of the same number would replace.
            last = last.max(number);
            if found == path_of(&path, number) {
                closed.push(Closed {
                    number,
                    bytes: entry.metadata().map_err(failed)?.len(),
                    events: None,
                });
            }
        }
        closed.sort_unstable_by_key(|segment| segment.number);
        Ok(Self {
            bytes_max: settings.bytes_max,
            segment_bytes: SEGMENT_BYTES.min(settings.bytes_max / SEGMENTS_MIN),
            bytes: closed.iter().map(|segment| segment.bytes).sum(),
            next: last.saturating_add(1),
            growing: None,
            closed: closed.into(),
            taken: BTreeMap::new(),
            unsynced: false,
            sync_failed: None,
            opened,
            _lock: lock,
            path,
        })
    }

    /// The bytes of all segments.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing is in it, not even what is being recorded.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_more() && self.taken.is_empty()
    }

    /// Whether there is a segment that is not taken yet.
    pub(super) fn has_more(&self) -> bool {
        self.growing.is_some() || !self.closed.is_empty()
    }

    /// Writes a batch behind all others, as much of it as there is room for. What failed for want of a descriptor or
    /// of memory is tried again for as long as `again` wants.
    pub(super) fn append(
        &mut self,
        batch: &Batch,
        mut again: impl FnMut(&io::Error) -> bool,
    ) -> Appended {
        let (frames, unwritten) = segment::frames(batch);
        let mut appended = Appended { failed: unwritten, ..Appended::default() };
        for frame in &frames {
            if self.bytes + (segment::MAGIC.len() + frame.bytes.len()) as u64 > self.bytes_max {
                appended.full += frame.events;
                continue;
            }
            let mut written = self.write(frame);
            while written.as_ref().is_err_and(|error| is_shortage(error) && again(error)) {
                written = self.write(frame);
            }
            match written {
                Ok(()) => appended.kept += frame.events,
                Err(error) => {
                    appended.failed += frame.events;
                    appended.error = Some(error);
                }
            }
        }
        appended
    }

    fn write(&mut self, frame: &Frame) -> io::Result<()> {
        let before = self.growing.as_ref().map_or(0, |it| it.segment.bytes);
        let growing = match &mut self.growing {
            Some(growing) => growing,
            none => {
                let begun = Growing::begin(&self.path, &mut self.next)?;
                // A file is found after the machine's crash only when its directory was synced, too.
                self.sync_failed = self.opened.sync_all().err().or(self.sync_failed.take());
                none.insert(begun)
            }
        };
        let written = growing.append(frame);
        self.bytes += growing.segment.bytes - before;
        self.unsynced = true;
        if written.is_err() || growing.segment.bytes >= self.segment_bytes {
            self.close();
        }
        written
    }

    fn close(&mut self) {
        if let Some(Growing { file, segment }) = self.growing.take() {
            if segment.events == Some(0) {
                // A full disk has room for the beginning of ever new segments.
                self.bytes -= segment.bytes;
                let _ = fs::remove_file(path_of(&self.path, segment.number));
                return;
            }
            self.closed.push_back(segment);
            self.unsynced = false;
            self.sync_failed = file.sync_data().err().or(self.sync_failed.take());
        }
    }

    /// Sees to it that what was written outlives the machine, too. Answers what kept a segment from it.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let (Some(growing), true) = (&self.growing, self.unsynced) {
            self.unsynced = false;
            growing.file.sync_data()?;
        }
        self.sync_failed.take().map_or(Ok(()), Err)
    }

    /// The oldest segment that is not taken yet, and where it lies.
    pub(super) fn take(&mut self) -> Option<(Closed, PathBuf)> {
        if self.closed.is_empty() {
            self.close();
        }
        let segment = self.closed.pop_front()?;
        let path = path_of(&self.path, segment.number);
        self.taken.insert(segment.number, segment.clone());
        Some((segment, path))
    }

    /// Deletes a segment that was taken, or renames it to keep it.
    pub(super) fn done(&mut self, number: u64, keep: bool) -> io::Result<()> {
        let Some(segment) = self.taken.remove(&number) else {
            return Ok(());
        };
        self.bytes -= segment.bytes;
        let path = path_of(&self.path, number);
        let put_away = if keep {
            fs::rename(&path, path.with_extension(DAMAGED))
        } else {
            fs::remove_file(&path)
        };
        match put_away {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

impl Growing {
    fn begin(directory: &Path, next: &mut u64) -> io::Result<Self> {
        let number = *next;
        let path = path_of(directory, number);
        let mut file = files::create(&path)?;
        *next += 1;
        if let Err(error) = file.write_all(segment::MAGIC) {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let segment = Closed { number, bytes: segment::MAGIC.len() as u64, events: Some(0) };
        Ok(Self { file, segment })
    }

    fn append(&mut self, frame: &Frame) -> io::Result<()> {
        if let Err(error) = self.file.write_all(&frame.bytes) {
            // A part of a frame would hide what comes behind it.
            let _ = self.file.set_len(self.segment.bytes);
            return Err(error);
        }
        self.segment.bytes += frame.bytes.len() as u64;
        if let Some(events) = &mut self.segment.events {
            *events += frame.events as u64;
        }
        Ok(())
    }
}

/// Whether the process or the system lacks something that comes back, and the disk is not to blame.
fn is_shortage(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Whether a segment is not there any more, although its directory is: somebody took it away.
pub(crate) fn is_gone(segment: &Path, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && segment.with_file_name(LOCK).exists()
}

fn path_of(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}.{EXTENSION}"))
}

fn number(path: &Path) -> Option<u64> {
    let extension = path.extension()?;
    if extension != EXTENSION && extension != DAMAGED {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

#[cfg(test)]
#[path = "directory_tests.rs"]
mod tests;
