//! The time of day of a process, as a test sets it. `clock.c` is the other end.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use tempfile::TempDir;

/// For the processes that are started with its [`environment`](Self::environment), which share it, and see at once when it is set.
/// Clocks that measure durations are right in all of them.
#[derive(Debug)]
pub struct Clock {
    file: File,
    path: PathBuf,
    _directory: TempDir,
}

impl Clock {
    /// One that stands still, at so many µs since the epoch, until it is set.
    pub fn stopped_at(micros: i64) -> Self {
        Self::new(micros, 0)
    }

    /// One that is so many µs ahead of the right one.
    pub fn ahead_by(micros: i64) -> Self {
        Self::new(micros, 1)
    }

    fn new(micros: i64, is_offset: i64) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("clock");
        let file = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(&path)
            .unwrap();
        file.write_all_at(&is_offset.to_ne_bytes(), 8).unwrap();
        let clock = Self {
            file,
            path,
            _directory: directory,
        };
        clock.set(micros);
        clock
    }

    /// Eight aligned bytes, which nobody reads half of.
    pub fn set(&self, micros: i64) {
        self.file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    /// The variables with which a process has it.
    pub fn environment(&self) -> [(String, String); 2] {
        [
            ("LD_PRELOAD", env!("CLOCK_LIBRARY").to_owned()),
            ("TEST_CLOCK", self.path.display().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}
