//! Heartbeats: each worker sends one in every iteration of its loop, and the watchdog is notified only while all do.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::time::{Instant, interval_at};

use super::lock;

/// Interval of heartbeats while a worker waits for work that sends none itself.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A worker's handle for sending heartbeats. The worker is watched until the handle is dropped.
#[derive(Debug)]
pub struct Heartbeat(Arc<Worker>);

#[derive(Debug)]
struct Worker {
    name: String,
    /// When the last heartbeat was sent; `None` if the worker is not watched until the next one.
    last: Mutex<Option<Instant>>,
}

/// The heartbeats of all workers.
#[derive(Debug, Clone, Default)]
pub struct Progress(Arc<Mutex<Vec<Weak<Worker>>>>);

impl Progress {
    /// Starts watching a worker with this name, and returns the handle for its heartbeats.
    #[must_use]
    pub fn watch(&self, name: impl Into<String>) -> Heartbeat {
        let last = Mutex::new(Some(Instant::now()));
        let worker = Arc::new(Worker { name: name.into(), last });
        let mut workers = lock(&self.0);
        workers.retain(|worker| worker.strong_count() > 0);
        workers.push(Arc::downgrade(&worker));
        Heartbeat(worker)
    }

    pub(crate) fn stalled(&self, limit: Duration) -> Vec<String> {
        let workers = lock(&self.0);
        let workers = workers.iter().filter_map(Weak::upgrade);
        let stalled =
            workers.filter(|worker| lock(&worker.last).is_some_and(|at| at.elapsed() > limit));
        stalled.map(|worker| worker.name.clone()).collect()
    }
}

impl Heartbeat {
    /// Suspends watching until the next heartbeat, for work without a time limit that a restart would not help (disk I/O).
    pub(crate) fn rest(&self) {
        *lock(&self.0.last) = None;
    }

    /// Sends heartbeats until the work, which has its own time limits, is complete.
    pub(crate) async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        self.beat();
        // The first tick of `interval` would wake up the runtime again after 1 ms.
        let mut beat = interval_at(Instant::now() + BEAT_INTERVAL, BEAT_INTERVAL);
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _ = beat.tick() => self.beat(),
            }
        }
    }

    pub(crate) fn beat(&self) {
        *lock(&self.0.last) = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn silent_worker_is_stalled_and_finished_one_is_not() {
        let progress = Progress::default();
        let [silent, busy] = ["silent", "busy"].map(|name| progress.watch(name));
        tokio::time::advance(2 * SECOND).await;
        busy.beat();
        assert_eq!(progress.stalled(SECOND), ["silent"]);
        drop(silent);
        assert!(progress.stalled(SECOND).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn idle_worker_is_not_watched() {
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
