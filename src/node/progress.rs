//! Heartbeats: each worker beats in every round of its loop, and a watchdog is fed only while all of them do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How often a worker that waits for others beats.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The heartbeat of one worker. Dropped, the worker has finished and is not watched any more.
#[derive(Debug)]
pub struct Heartbeat {
    name: String,
    began: Instant,
    last_ms: Arc<AtomicU64>,
    watched: Arc<Mutex<Vec<Watched>>>,
}

#[derive(Debug)]
struct Watched {
    name: String,
    last_ms: Arc<AtomicU64>,
}

/// The heartbeats of all workers.
#[derive(Debug, Clone)]
pub struct Progress {
    began: Instant,
    watched: Arc<Mutex<Vec<Watched>>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { began: Instant::now(), watched: Arc::default() }
    }
}

fn millis_since(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Progress {
    /// Begins to watch a worker of this name.
    #[must_use]
    pub fn watch(&self, name: impl Into<String>) -> Heartbeat {
        let name = name.into();
        let last_ms = Arc::new(AtomicU64::new(millis_since(self.began)));
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Watched { name: name.clone(), last_ms: Arc::clone(&last_ms) });
        Heartbeat { name, began: self.began, last_ms, watched: Arc::clone(&self.watched) }
    }

    /// The workers that have not beaten for this long.
    #[must_use]
    pub fn stalled(&self, limit: Duration) -> Vec<String> {
        let now_ms = millis_since(self.began);
        let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .filter(|worker| {
                now_ms.saturating_sub(worker.last_ms.load(Ordering::Relaxed)) > limit_ms
            })
            .map(|worker| worker.name.clone())
            .collect()
    }
}

impl Heartbeat {
    /// Pauses the watch until the next beat: the worker turns to what takes as long as it takes, such as a disk, and a
    /// restart would not help.
    pub fn rest(&self) {
        self.last_ms.store(u64::MAX, Ordering::Relaxed);
    }

    /// Beats while it waits for work that has time limits of its own.
    pub async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut beat = tokio::time::interval(BEAT_INTERVAL);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = beat.tick() => self.beat(),
            }
        }
    }

    /// Records that the worker makes progress.
    pub fn beat(&self) {
        self.last_ms.store(millis_since(self.began), Ordering::Relaxed);
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        tracing::trace!(worker = self.name, "finished");
        self.watched
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|worker| !Arc::ptr_eq(&worker.last_ms, &self.last_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_silent_worker_is_stalled_and_a_finished_one_is_not() {
        let progress = Progress::default();
        let [silent, busy] = ["silent", "busy"].map(|name| progress.watch(name));
        tokio::time::advance(2 * SECOND).await;
        busy.beat();
        assert_eq!(progress.stalled(SECOND), ["silent"]);
        drop(silent);
        assert!(progress.stalled(SECOND).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_at_rest_is_not_watched_until_it_beats_again() {
        let progress = Progress::default();
        let [resting, watched] = ["resting", "watched"].map(|name| progress.watch(name));
        resting.rest();
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(progress.stalled(SECOND), ["watched"]);
        drop(watched);
        resting.beat();
        tokio::time::advance(2 * SECOND).await;
        assert_eq!(progress.stalled(SECOND), ["resting"]);
    }
}
