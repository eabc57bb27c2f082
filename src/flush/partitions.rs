//! [`PartitionStates`]: the state of each partition between rounds, and the rollbacks and late events of all partitions.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use super::schedule::{AskTimes, Settling};
use super::witness::{Past, Rollback, Witness};
use crate::diagnosis::LossCause;
use crate::event::{Minute, Partition, Partitions};
use crate::node::{Throttle, files, lock};

const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct PartitionState {
    pub(super) settling: Settling,
    pub(super) witness: Witness,
    pub(super) ask_times: AskTimes,
    /// The number of attestations after which the node has not yet added its contributions to windows again, for which it
    /// counts as lagging.
    pub(super) hands_back: u32,
}

#[derive(Debug)]
pub(super) struct PartitionStates {
    partitions: Vec<Mutex<PartitionState>>,
    rollbacks: Mutex<Vec<Rollback>>,
    late: Mutex<Late>,
    /// The file that keeps the witnesses for the next process; `None` if they are only in memory.
    file: Option<PathBuf>,
    /// Held while the file is being written. Throttles the log message about failed writes.
    writing: tokio::sync::Mutex<Throttle>,
}

impl PartitionStates {
    pub(super) fn open(partitions: &Partitions, file: Option<PathBuf>) -> Self {
        let count = partitions.all().count();
        let mut past = file.as_deref().map(|file| read(file, count)).unwrap_or_default();
        past.resize_with(count, Past::default);
        let state = |past| {
            let mut state = PartitionState::default();
            state.witness.past = past;
            Mutex::new(state)
        };
        Self {
            partitions: past.into_iter().map(state).collect(),
            rollbacks: Mutex::default(),
            late: Mutex::default(),
            file,
            writing: tokio::sync::Mutex::new(Throttle::new(LOG_INTERVAL)),
        }
    }

    /// Returns the state of a partition. The guard must never be held across an `await`.
    pub(super) fn of(&self, partition: Partition) -> MutexGuard<'_, PartitionState> {
        lock(&self.partitions[partition.index()])
    }

    /// Returns the late events. The guard must never be held across an `await`.
    pub(super) fn late(&self) -> MutexGuard<'_, Late> {
        lock(&self.late)
    }

    pub(super) fn forgot(&self, rollback: Rollback) {
        lock(&self.rollbacks).push(rollback);
    }

    /// Returns the merged rollbacks since the last call and the number of affected partitions, or `None` if there were none.
    pub(super) fn take_rollbacks(&self) -> Option<(Rollback, usize)> {
        let mut rollbacks = lock(&self.rollbacks);
        let count = rollbacks.len();
        let all = rollbacks.drain(..).reduce(|merged, next| Rollback {
            from_ms: merged.from_ms.min(next.from_ms),
            to_ms: merged.to_ms.max(next.to_ms),
            events: merged.events + next.events,
            unconfirmed: &merged.unconfirmed | &next.unconfirmed,
        });
        all.map(|all| (all, count))
    }

    pub(super) async fn save(&self) {
        let Some(file) = self.file.clone() else {
            return;
        };
        // Without the lock, a sender could replace the file that another sender has written with an older or incomplete one.
        let mut throttle = self.writing.lock().await;
        let past = |state: &Mutex<PartitionState>| lock(state).witness.past.clone();
        let partitions: Vec<_> = self.partitions.iter().map(past).collect();
        let path = file.clone();
        let written = tokio::task::spawn_blocking(move || {
            files::replace(&path, &serde_json::to_vec(&partitions)?)
        })
        .await;
        if let Err(error) = written.map_err(io::Error::other).flatten()
            && throttle.is_due()
        {
            tracing::error!(
                path = %file.display(),
                %error,
                "cannot write the list of published minutes; if this node restarts and Redis loses its data at the same time, \
                 points may be republished with different values; {}",
                LossCause::SpoolFailed.remedy()
            );
        }
    }
}

fn read(file: &Path, partitions: usize) -> Vec<Past> {
    let path = file.display();
    let read = files::read(file).and_then(|text| Ok(serde_json::from_slice::<Vec<Past>>(&text)?));
    match read {
        Ok(past) if past.len() == partitions => return past,
        Ok(past) => tracing::warn!(
            %path,
            then = past.len(),
            now = partitions,
            "the list of published minutes is for a different partition count; the node is starting without the list"
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::error!(
            %path,
            %error,
            "cannot read the list of published minutes; the node is starting without the list"
        ),
    }
    Vec::new()
}

#[derive(Debug, Default)]
pub(super) struct Late {
    events: u64,
    partitions: BTreeSet<usize>,
    minutes: Option<(Minute, Minute)>,
    /// The longest time between the end of a minute and the discovery of its late events.
    longest: Duration,
}

impl Late {
    /// Adds late events discovered at `now` (nanoseconds since the epoch). Their minute is unknown if a reply was lost.
    pub(super) fn add(
        &mut self,
        partition: Partition,
        minute: Option<Minute>,
        events: u64,
        now: i64,
    ) {
        self.events += events;
        self.partitions.insert(partition.index());
        let Some(minute) = minute else {
            return;
        };
        let (first, last) = self.minutes.unwrap_or((minute, minute));
        self.minutes = Some((first.min(minute), last.max(minute)));
        let after_ms = (now / 1_000_000).saturating_sub(minute.end_millis());
        let after = Duration::from_millis(u64::try_from(after_ms).unwrap_or_default());
        self.longest = self.longest.max(after);
    }

    pub(super) fn report(&mut self, throttle: &mut Throttle) {
        if self.events == 0 || !throttle.is_due() {
            return;
        }
        let Self { events, partitions, minutes, longest } = std::mem::take(self);
        let minutes = minutes
            .map_or_else(|| "unknown".to_owned(), |(first, last)| format!("{first} to {last}"));
        let partitions: Vec<_> = partitions.iter().map(ToString::to_string).collect();
        tracing::warn!(
            events,
            partitions = partitions.join(", "),
            minutes,
            after = %humantime::format_duration(longest),
            "events arrived after the counts for their minutes had been sealed (`after`: the longest delay after the end of a \
             minute); except for duplicates of sealed events, they are missing from the points; {}",
            LossCause::Late.remedy()
        );
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;
    use std::sync::Arc;

    use super::*;
    use crate::event::Minute;

    #[tokio::test]
    async fn published_minutes_survive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let file = Some(directory.path().join("witness.json"));
        let partitions = Partitions::new(NonZeroU16::new(4).unwrap());
        let minute = Minute::from_epoch_minutes(7).unwrap();
        let partition = partitions.of("a=1", minute);
        let states = PartitionStates::open(&partitions, file.clone());
        states.of(partition).witness.publishes(minute);
        states.save().await;
        let again = PartitionStates::open(&partitions, file.clone());
        let testimony = again.of(partition).witness.testimony(0).unwrap();
        assert_eq!(testimony.announced, [minute].into());
        // A file written for a different partition count is ignored, as is a damaged one.
        let single = Partitions::new(NonZeroU16::MIN);
        let changed = PartitionStates::open(&single, file.clone());
        assert_eq!(changed.of(single.of("", minute)).witness.past, Past::default());
        std::fs::write(file.as_deref().unwrap(), "{").unwrap();
        let damaged = PartitionStates::open(&partitions, file);
        assert_eq!(damaged.of(partition).witness.past, Past::default());
    }

    #[test]
    fn rollbacks_of_partitions_are_reported_together_once() {
        let states = PartitionStates::open(&Partitions::new(NonZeroU16::MIN), None);
        assert_eq!(states.take_rollbacks(), None);
        let minute = |number| Minute::from_epoch_minutes(number).unwrap();
        for (from_ms, to_ms, events, unconfirmed) in [(5, 8, 10, 1), (3, 7, 20, 2)] {
            states.forgot(Rollback {
                from_ms,
                to_ms,
                events,
                unconfirmed: [minute(unconfirmed)].into(),
            });
        }
        let all =
            Rollback { from_ms: 3, to_ms: 8, events: 30, unconfirmed: [1, 2].map(minute).into() };
        assert_eq!(states.take_rollbacks(), Some((all, 2)));
        assert_eq!(states.take_rollbacks(), None);
    }

    /// Each output has its own sender.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn concurrent_senders_lose_no_published_minute() {
        let directory = tempfile::tempdir().unwrap();
        let file = Some(directory.path().join("witness.json"));
        let partitions = Partitions::new(NonZeroU16::MIN);
        let states = Arc::new(PartitionStates::open(&partitions, file.clone()));
        let mut senders = tokio::task::JoinSet::new();
        for sender in 0..4 {
            let (states, file, partitions) = (states.clone(), file.clone(), partitions.clone());
            senders.spawn(async move {
                for number in 0..50 {
                    let minute = Minute::from_epoch_minutes(4 * number + sender).unwrap();
                    let partition = partitions.of("", minute);
                    states.of(partition).witness.publishes(minute);
                    states.save().await;
                    let again = PartitionStates::open(&partitions, file.clone());
                    let testimony = again.of(partition).witness.testimony(0).unwrap();
                    assert!(testimony.announced.contains(&minute), "{minute:?} is lost");
                }
            });
        }
        while let Some(ended) = senders.join_next().await {
            ended.unwrap();
        }
    }

    fn late_events(events: u64) -> Late {
        let partitions = Partitions::new(NonZeroU16::MIN);
        let minute = Minute::from_epoch_minutes(1).unwrap();
        let mut late = Late::default();
        for seconds in [125, 130, 121] {
            let partition = partitions.of("a=1", minute);
            late.add(partition, Some(minute), events, seconds * 1_000_000_000);
        }
        late.add(partitions.of("a=1", minute), None, events, 0);
        late
    }

    #[test]
    fn greatest_lateness_is_kept() {
        let late = late_events(2);
        assert_eq!(late.events, 8);
        assert_eq!(late.longest, Duration::from_secs(10));
    }

    #[tokio::test(start_paused = true)]
    async fn late_events_are_reported_once_in_an_interval() {
        let mut throttle = Throttle::new(LOG_INTERVAL);
        Late::default().report(&mut throttle);
        let mut late = late_events(1);
        late.report(&mut throttle);
        assert_eq!(late.events, 0, "the first report was delayed");
        late.events = 1;
        late.report(&mut throttle);
        assert_eq!(late.events, 1, "further late events are reported after the interval");
        tokio::time::sleep(LOG_INTERVAL).await;
        late.report(&mut throttle);
        assert_eq!(late.events, 0);
    }
}
