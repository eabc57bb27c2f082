//! The layout `log`: a process appends what it records to a log of its own per partition and minute, whatever the number of
//! series, and whoever seals the minute counts the fingerprints in all of them.
//!
//! `frame` is what is appended, `recording` appends it, `pieces` reads it, `tally` counts in bounded memory, `sealing` does so for
//! a claim, and `looking` for those who ask before a minute is sealed.
//!
//! A log is cut once it is counted, and then nothing more comes to it: `append.lua` refuses a process whose log was cut, is gone or
//! is not as long as the process knows, and the process begins another one. It does so after every failure, too, so no log has a
//! gap, and what two logs have both counts once.

mod frame;
mod looking;
mod pieces;
mod recording;
mod sealing;
mod tally;

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;

use self::looking::{Looks, SeriesUsers};
use self::recording::Log;
use self::sealing::Sealing;
use super::keys::PartitionKeys;
use crate::event::{Minute, Partition};

/// The logs that are counted at the same time, each in the memory of a [`tally`].
const COUNTED_AT_ONCE: usize = 2;
/// The series whose users are read at the same time.
const ASKED_AT_ONCE: usize = 1;

/// What a process knows of the logs. Who works with a part of it takes that out and puts it back after success: what is lost by
/// a failure is found out again, or begun anew.
#[derive(Debug)]
pub(super) struct Logs {
    /// The process's own logs, and the number of the next one.
    own: Taken<(Partition, Minute), Log>,
    next: AtomicU64,
    /// The generation in which the server of a partition was given `append.lua`.
    given: Taken<Partition, u64>,
    sealing: Taken<(Partition, Minute), Sealing>,
    users: Taken<(Partition, Minute, String), SeriesUsers>,
    looks: Looks,
    counting: Semaphore,
    asking: Semaphore,
    /// The time-out of an answer.
    response: Duration,
}

impl Logs {
    /// Returns what a process knows that begins, for a time-out of answers.
    pub(super) fn new(response: Duration) -> Self {
        Self {
            own: Taken::default(),
            next: AtomicU64::new(0),
            given: Taken::default(),
            sealing: Taken::default(),
            users: Taken::default(),
            looks: Looks::default(),
            counting: Semaphore::new(COUNTED_AT_ONCE),
            asking: Semaphore::new(ASKED_AT_ONCE),
            response,
        }
    }
}

/// Things that are taken out while somebody works with them.
#[derive(Debug)]
struct Taken<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Taken<K, V> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + std::hash::Hash, V> Taken<K, V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<K, V>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, key: &K) -> Option<V> {
        self.lock().remove(key)
    }

    /// Drops, besides, what is not to be kept any longer.
    fn put(&self, key: K, value: V, is_kept: impl Fn(&V) -> bool) {
        let mut all = self.lock();
        all.retain(|_, other| is_kept(other));
        all.insert(key, value);
    }
}

/// The names of the keys of a minute's logs.
struct LogKeys {
    base: String,
    /// The names of the logs.
    logs: String,
    /// Those that are counted, and up to where.
    cut: String,
}

impl LogKeys {
    fn new(keys: &PartitionKeys, minute: Minute) -> Self {
        let base = keys.minute(minute);
        Self { logs: format!("{base}logs"), cut: format!("{base}cut"), base }
    }

    fn log(&self, name: &str) -> String {
        format!("{}log:{name}", self.base)
    }
}
