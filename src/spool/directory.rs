//! [`Directory`]: the numbered segment files of one node, and their size limit. A file never changes after the next one has
//! been created. A lock file keeps other processes out. All calls block on the disk, so only the keeper's thread makes them.

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::anyhow;

use super::segment::{self, Frame, MAGIC};
use crate::event::Batch;
use crate::node::files;

/// Size in bytes at which a new segment is started. It is limited because a segment is read into memory as a whole.
const SEGMENT_BYTES: u64 = 8 * 1024 * 1024;
/// Minimum number of segments that fit in the size limit, so that space is freed before all events have been recorded.
const SEGMENTS_MIN: u64 = 4;
const EXTENSION: &str = "spool";
/// The extension of a segment that could not be read completely. Such segments are ignored.
const DAMAGED: &str = "damaged";
const LOCK: &str = "lock";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SpoolSettings {
    /// The directory, which no other node may use.
    pub(crate) directory: PathBuf,
    pub(crate) bytes_max: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) path: PathBuf,
    /// Number of events that this process wrote to the segment; `None` if an earlier process wrote it.
    pub(crate) events: Option<u64>,
    bytes: u64,
}

/// The result of appending a batch: how many of its events were kept or lost, and the last write error.
#[derive(Debug, Default)]
pub(super) struct Appended {
    pub(super) kept: usize,
    /// Lost because of the size limit.
    pub(super) full: usize,
    /// Lost because they could not be encoded or written.
    pub(super) failed: usize,
    pub(super) error: Option<io::Error>,
}

#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    bytes_max: u64,
    segment_bytes: u64,
    bytes: u64,
    next: u64,
    growing: Option<(File, Segment)>,
    closed: VecDeque<Segment>,
    /// Number of segments whose events are being recorded.
    taken: usize,
    is_unsynced: bool,
    sync_failed: Option<io::Error>,
    /// Kept open so that a sync does not need another file descriptor.
    opened: File,
    _lock: File,
}

impl Directory {
    /// Opens and locks the directory, and finds the segments left by earlier processes.
    pub(super) fn open(settings: &SpoolSettings) -> anyhow::Result<Self> {
        let path = settings.directory.clone();
        let shown = path.display();
        let failed = |error: io::Error| {
            anyhow!(
                "cannot use {shown} (input.spool_dir): {error}; use a directory that the service's user may write to"
            )
        };
        let opened = files::open_directory(&path).map_err(failed)?;
        let lock = files::open_lock(&path.join(LOCK)).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => anyhow!(
                "{shown} (input.spool_dir) is in use by another process; give each node its own directory"
            ),
            TryLockError::Error(error) => failed(error),
        })?;
        let mut closed = Vec::new();
        let mut last = 0;
        for entry in fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let found = entry.path();
            let Some(number) = number(&found) else {
                continue;
            };
            // The numbers of damaged segments are not reused, so that renaming a new segment cannot replace an old one.
            last = last.max(number);
            if found == path_of(&path, number) {
                let bytes = entry.metadata().map_err(failed)?.len();
                closed.push(Segment { path: found, events: None, bytes });
            }
        }
        // Sorting by path sorts by number, because all numbers have the same length.
        closed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(Self {
            bytes_max: settings.bytes_max,
            segment_bytes: SEGMENT_BYTES.min(settings.bytes_max / SEGMENTS_MIN),
            bytes: closed.iter().map(|segment| segment.bytes).sum(),
            next: last.saturating_add(1),
            growing: None,
            closed: closed.into(),
            taken: 0,
            is_unsynced: false,
            sync_failed: None,
            opened,
            _lock: lock,
            path,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether there are no segments, not even one whose events are being recorded.
    pub(super) fn is_empty(&self) -> bool {
        !self.has_more() && self.taken == 0
    }

    pub(super) fn has_more(&self) -> bool {
        self.growing.is_some() || !self.closed.is_empty()
    }

    /// Appends as much of a batch as the size limit permits. `again` decides whether to retry after a shortage.
    pub(super) fn append(
        &mut self,
        batch: &Batch,
        mut again: impl FnMut(&io::Error) -> bool,
    ) -> Appended {
        let (frames, unwritten) = segment::frames(batch);
        let mut appended = Appended { failed: unwritten, ..Appended::default() };
        for frame in &frames {
            if self.bytes + (MAGIC.len() + frame.bytes.len()) as u64 > self.bytes_max {
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
        let (file, segment) = if let Some(growing) = &mut self.growing {
            growing
        } else {
            let begun = self.begin()?;
            self.growing.insert(begun)
        };
        let magic = if segment.bytes == 0 { MAGIC } else { &[] };
        let written = file.write_all(magic).and_then(|()| file.write_all(&frame.bytes));
        if written.is_ok() {
            let bytes = (magic.len() + frame.bytes.len()) as u64;
            segment.bytes += bytes;
            self.bytes += bytes;
            segment.events = segment.events.map(|events| events + frame.events as u64);
        } else {
            // Removes a partially written frame, which would hide all frames after it.
            let _ = file.set_len(segment.bytes);
        }
        self.is_unsynced = true;
        if written.is_err() || segment.bytes >= self.segment_bytes {
            self.close();
        }
        written
    }

    fn begin(&mut self) -> io::Result<(File, Segment)> {
        let path = path_of(&self.path, self.next);
        let file = files::create(&path)?;
        self.next += 1;
        // The directory is synced because the new file might otherwise be gone after a machine crash.
        self.sync_failed = self.opened.sync_all().err().or(self.sync_failed.take());
        Ok((file, Segment { path, events: Some(0), bytes: 0 }))
    }

    fn close(&mut self) {
        if let Some((file, segment)) = self.growing.take() {
            if segment.bytes == 0 {
                // The segment is empty, for example because a full disk had room for a new file but not for any events.
                let _ = fs::remove_file(segment.path);
                return;
            }
            self.closed.push_back(segment);
            self.is_unsynced = false;
            self.sync_failed = file.sync_data().err().or(self.sync_failed.take());
        }
    }

    /// Syncs the written events, so that they survive a machine crash. Fails if any sync has failed since the last call.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        if let (Some((file, _)), true) = (&self.growing, self.is_unsynced) {
            self.is_unsynced = false;
            file.sync_data()?;
        }
        self.sync_failed.take().map_or(Ok(()), Err)
    }

    pub(super) fn take(&mut self) -> Option<Segment> {
        if self.closed.is_empty() {
            self.close();
        }
        let segment = self.closed.pop_front()?;
        self.taken += 1;
        Some(segment)
    }

    /// Deletes a segment that was taken, or renames it if `keep` is set.
    pub(super) fn done(&mut self, segment: &Segment, keep: bool) -> io::Result<()> {
        self.taken -= 1;
        self.bytes -= segment.bytes;
        let path = &segment.path;
        let removed = if keep {
            fs::rename(path, path.with_extension(DAMAGED))
        } else {
            fs::remove_file(path)
        };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Returns whether the error was caused by a temporary shortage in the process or the system rather than by the disk.
fn is_shortage(error: &io::Error) -> bool {
    let codes = [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::EAGAIN, libc::EINTR];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Returns whether this read error means that the segment is gone although its directory still exists.
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
