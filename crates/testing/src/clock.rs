//! A wall clock that a test sets for its processes. In each process, `clock.c` reads it from a file.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

/// The wall clock of all processes that are started with its [`environment`](Self::environment). A change of the clock takes
/// effect immediately. Monotonic clocks are not affected.
#[derive(Debug)]
pub struct Clock {
    file: File,
    path: PathBuf,
    _directory: TempDir,
}

impl Clock {
    /// Returns a stopped clock at this time, in µs since the epoch.
    pub fn stopped_at(micros: i64) -> Self {
        Self::new(micros, 0)
    }

    /// Returns a running clock with this offset from the system clock, in µs.
    pub fn ahead_by(micros: i64) -> Self {
        Self::new(micros, 1)
    }

    /// Returns a running clock that currently shows this second of a minute, 0 to 59.
    pub fn at_second(second: i64) -> Self {
        Self::ahead_by((second * 1_000_000 - right_micros()).rem_euclid(60_000_000))
    }

    /// Returns a running clock with this offset in seconds from this clock, which must be running as well.
    #[must_use]
    pub fn ahead_of(&self, seconds: i64) -> Self {
        Self::ahead_by(self.read(0) + seconds * 1_000_000)
    }

    /// Moves the clock forward by this many seconds, or back if the number is negative.
    pub fn advance(&self, seconds: i64) {
        self.set(self.read(0) + seconds * 1_000_000);
    }

    /// Returns the current time of this clock.
    pub fn now(&self) -> SystemTime {
        let is_offset = self.read(8) == 1;
        let micros = self.read(0) + if is_offset { right_micros() } else { 0 };
        UNIX_EPOCH + Duration::from_micros(micros.try_into().expect("it is after 1970"))
    }

    /// Returns [`Self::now`] in ns since the epoch.
    pub fn now_ns(&self) -> i64 {
        let since = self.now().duration_since(UNIX_EPOCH).unwrap();
        since.as_nanos().try_into().unwrap()
    }

    fn read(&self, at: u64) -> i64 {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        i64::from_ne_bytes(bytes)
    }

    fn new(micros: i64, is_offset: i64) -> Self {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("clock");
        let file = OpenOptions::new().create_new(true).read(true).write(true).open(&path).unwrap();
        file.write_all_at(&is_offset.to_ne_bytes(), 8).unwrap();
        let clock = Self { file, path, _directory: directory };
        clock.set(micros);
        clock
    }

    /// Sets the time of a stopped clock or the offset of a running one, in µs. Eight aligned bytes are written at once, so
    /// no reader sees a partial change.
    pub fn set(&self, micros: i64) {
        self.file.write_all_at(&micros.to_ne_bytes(), 0).unwrap();
    }

    /// Returns the environment variables with which a process uses this clock.
    pub fn environment(&self) -> [(String, String); 2] {
        [
            ("LD_PRELOAD", env!("CLOCK_LIBRARY").to_owned()),
            ("TEST_CLOCK", self.path.display().to_string()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
    }
}

fn right_micros() -> i64 {
    let since = UNIX_EPOCH.elapsed().expect("it is after 1970");
    since.as_micros().try_into().expect("the clock fits")
}
