//! The time of day of a process, as a test sets it. `clock.c` is the other end.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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

    /// One that runs as the right one does, and is at this second of a minute now.
    pub fn at_second(second: i64) -> Self {
        Self::ahead_by((second * 1_000_000 - right_micros()).rem_euclid(60_000_000))
    }

    /// One that is this many seconds ahead of this one, which runs.
    #[must_use]
    pub fn ahead_of(&self, seconds: i64) -> Self {
        Self::ahead_by(self.read(0) + seconds * 1_000_000)
    }

    /// Sets it this many seconds further, or back.
    pub fn advance(&self, seconds: i64) {
        self.set(self.read(0) + seconds * 1_000_000);
    }

    /// The time that it shows.
    pub fn now(&self) -> SystemTime {
        let is_offset = self.read(8) == 1;
        let micros = self.read(0) + if is_offset { right_micros() } else { 0 };
        UNIX_EPOCH + Duration::from_micros(micros.try_into().expect("it is after 1970"))
    }

    /// The same in nanoseconds since the epoch.
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
        let file = OpenOptions::new()
            .create_new(true)
            .read(true)
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

fn right_micros() -> i64 {
    let since = UNIX_EPOCH.elapsed().expect("it is after 1970");
    since.as_micros().try_into().expect("centuries from now")
}
