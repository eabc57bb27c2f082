//! What a worker knows of each partition from one round to the next: whether it may claim there, and what it bears
//! witness of.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::late::Late;
use super::rest::Rest;
use super::settling::Settling;
use super::witness::{Past, Rollback, Witness};
use crate::diagnosis::LossCause;
use crate::event::{Partition, Partitions};
use crate::node::{Throttle, files};

/// How often it is logged that the witness cannot be written.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// What is known of one partition.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) settling: Settling,
    pub(super) witness: Witness,
    pub(super) rest: Rest,
}

/// What is known of all partitions.
#[derive(Debug)]
pub(super) struct Watches {
    partitions: Vec<Mutex<Watch>>,
    /// What stores were found to have forgotten, until it is logged.
    rollbacks: Mutex<Vec<Rollback>>,
    late: Mutex<Late>,
    /// Where it outlives the process.
    file: Option<PathBuf>,
    /// Held while it is written.
    writing: tokio::sync::Mutex<()>,
    /// When it is logged that it cannot be written.
    complaint: Mutex<Throttle>,
}

/// The file: one [`Past`] for each partition.
#[derive(Debug, Serialize, Deserialize)]
struct OnDisk {
    partitions: Vec<Past>,
}

impl Watches {
    /// Begins with what an earlier process left in the file, if there is one.
    pub(super) fn open(partitions: &Partitions, file: Option<PathBuf>) -> Self {
        let count = usize::from(partitions.count());
        let mut past = file.as_deref().map(|file| read(file, count)).unwrap_or_default();
        past.resize_with(count, Past::default);
        let watch = |past| {
            Mutex::new(Watch {
                settling: Settling::default(),
                witness: Witness::new(past),
                rest: Rest::default(),
            })
        };
        Self {
            partitions: past.into_iter().map(watch).collect(),
            rollbacks: Mutex::default(),
            late: Mutex::default(),
            file,
            writing: tokio::sync::Mutex::default(),
            complaint: Mutex::new(Throttle::new(LOG_INTERVAL)),
        }
    }

    /// Never to be held while anything is waited for.
    pub(super) fn of(&self, partition: Partition) -> MutexGuard<'_, Watch> {
        let watch = &self.partitions[partition.index()];
        watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Events that came too late. Never to be held while anything is waited for.
    pub(super) fn late(&self) -> MutexGuard<'_, Late> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forgot(&self, rollback: Rollback) {
        self.rollbacks.lock().unwrap_or_else(PoisonError::into_inner).push(rollback);
    }

    /// What was found since this was last asked, as one; and in how many partitions.
    pub(super) fn take_rollbacks(&self) -> Option<(Rollback, usize)> {
        let mut rollbacks = self.rollbacks.lock().unwrap_or_else(PoisonError::into_inner);
        let count = rollbacks.len();
        let all = rollbacks.drain(..).reduce(|one, other| Rollback {
            from_ms: one.from_ms.min(other.from_ms),
            to_ms: one.to_ms.max(other.to_ms),
            events: one.events + other.events,
            unconfirmed: &one.unconfirmed | &other.unconfirmed,
        });
        all.map(|all| (all, count))
    }

    /// Writes down what is known, where there is a disk for it.
    pub(super) async fn save(&self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        // Of two that write at a time one would replace the other's file with an older one, or with half of it.
        let _turn = self.writing.lock().await;
        let lock = |watch: &Mutex<Watch>| {
            let watch = watch.lock().unwrap_or_else(PoisonError::into_inner);
            watch.witness.past().clone()
        };
        let partitions = self.partitions.iter().map(lock).collect();
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || {
            files::replace(&path, &serde_json::to_vec(&OnDisk { partitions })?)
        })
        .await;
        if let Err(error) = written.map_err(io::Error::other).flatten() {
            self.complain(&file, &error);
        }
    }

    fn complain(&self, file: &Path, error: &io::Error) {
        let mut complaint = self.complaint.lock().unwrap_or_else(PoisonError::into_inner);
        if complaint.is_due() {
            tracing::error!(
                path = %file.display(),
                %error,
                "cannot write down which minutes are published; should this node and Redis lose their memory together, \
                 points may be published again with other values; {}",
                LossCause::SpoolFailed.remedy()
            );
        }
    }
}

fn read(file: &Path, partitions: usize) -> Vec<Past> {
    let text = match files::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::error!(path = %file.display(), %error, "cannot read which minutes are published; going on without");
            return Vec::new();
        }
    };
    match serde_json::from_slice::<OnDisk>(&text) {
        Ok(on_disk) if on_disk.partitions.len() == partitions => on_disk.partitions,
        Ok(on_disk) => {
            tracing::warn!(
                path = %file.display(),
                then = on_disk.partitions.len(),
                now = partitions,
                "what was written down of published minutes is of another number of partitions; going on without"
            );
            Vec::new()
        }
        Err(error) => {
            tracing::error!(path = %file.display(), %error, "what was written down of published minutes is damaged; going on without");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::sync::Arc;

    use super::*;
    use crate::event::Minute;

    #[tokio::test]
    async fn what_is_published_outlives_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = Some(directory.path().join("witness.json"));
        let partitions = Partitions::new(NonZeroU16::new(4).unwrap());
        let minute = Minute::from_epoch_minutes(7).unwrap();
        let partition = partitions.of("a=1", minute);
        let watches = Watches::open(&partitions, file.clone());
        watches.of(partition).witness.publishes(minute);
        watches.save().await;
        let again = Watches::open(&partitions, file.clone());
        let testimony = again.of(partition).witness.testimony(0).unwrap();
        assert_eq!(testimony.announced, [minute].into());
        // Another number of partitions, or no file at all, is not what was written.
        let one = Partitions::new(NonZeroU16::MIN);
        let other = Watches::open(&one, file.clone());
        assert_eq!(other.of(one.of("", minute)).witness.past(), &Past::default());
        std::fs::write(file.as_deref().unwrap(), "{").unwrap();
        let damaged = Watches::open(&partitions, file);
        assert_eq!(damaged.of(partition).witness.past(), &Past::default());
    }

    #[test]
    fn what_partitions_forgot_is_told_as_one_and_once() {
        let watches = Watches::open(&Partitions::new(NonZeroU16::MIN), None);
        assert_eq!(watches.take_rollbacks(), None);
        let minute = |number| Minute::from_epoch_minutes(number).unwrap();
        for (from_ms, to_ms, events, unconfirmed) in [(5, 8, 10, 1), (3, 7, 20, 2)] {
            watches.forgot(Rollback {
                from_ms,
                to_ms,
                events,
                unconfirmed: [minute(unconfirmed)].into(),
            });
        }
        let all =
            Rollback { from_ms: 3, to_ms: 8, events: 30, unconfirmed: [1, 2].map(minute).into() };
        assert_eq!(watches.take_rollbacks(), Some((all, 2)));
        assert_eq!(watches.take_rollbacks(), None);
    }

    /// Each output has a sender of its own.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn senders_that_publish_at_the_same_time_lose_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = Some(directory.path().join("witness.json"));
        let partitions = Partitions::new(NonZeroU16::MIN);
        let watches = Arc::new(Watches::open(&partitions, file.clone()));
        let mut senders = tokio::task::JoinSet::new();
        for sender in 0..4 {
            let (watches, file, partitions) = (watches.clone(), file.clone(), partitions.clone());
            senders.spawn(async move {
                for number in 0..50 {
                    let minute = Minute::from_epoch_minutes(4 * number + sender).unwrap();
                    let partition = partitions.of("", minute);
                    watches.of(partition).witness.publishes(minute);
                    watches.save().await;
                    let again = Watches::open(&partitions, file.clone());
                    let testimony = again.of(partition).witness.testimony(0).unwrap();
                    assert!(testimony.announced.contains(&minute), "{minute:?} is lost");
                }
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended.unwrap();
        }
    }
}
