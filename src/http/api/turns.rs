//! [`Turns`]: lets only one request across all nodes read counts at a time, which limits the queries' share of Redis's CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use coordination::{Arbiter, Error, InvalidSetting, Mutex};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use crate::http::problem::Problem;
use crate::store::{CountReader, StoreError};

/// The time after which another node gets its turn if the reading node dies.
const LOCK_TTL: Duration = Duration::from_secs(3);
const TURN_WITHIN: Duration = Duration::from_secs(4);
const SCAN_WITHIN: Duration = Duration::from_secs(10);
/// How long to pause after a reply, as a multiple of the time it took, so that queries use at most a quarter of Redis's CPU.
const RESTS: u64 = 3;
/// Maximum pause after a reply, in microseconds. A page takes Redis about 1 ms on a slow machine, so a reply that would call
/// for a longer pause was delayed by the network.
const REST_MAX_US: u64 = 5000;
/// Pauses are accumulated until they add up to this many microseconds, because shorter sleeps take longer than requested.
const SLEEP_MIN_US: u64 = 20_000;

#[derive(Debug)]
pub(super) struct Turns {
    /// Ensures that only one request per node waits for its turn in Redis.
    own: Semaphore,
    all: Mutex,
}

impl Turns {
    pub(super) fn new(arbiter: &Arc<dyn Arbiter>) -> Result<Self, InvalidSetting> {
        Ok(Self { own: Semaphore::new(1), all: Mutex::new(Arc::clone(arbiter), "look", LOCK_TTL)? })
    }

    pub(super) async fn take<T>(
        &self,
        reader: &dyn CountReader,
        reading: impl Future<Output = Result<T, Problem>>,
    ) -> Result<T, Problem> {
        has_room(reader).await?;
        let turn = async {
            let own = self.own.acquire().await;
            let own = own.map_err(|_| Problem::unavailable("the node is shutting down"))?;
            let all = self.all.acquire(TURN_WITHIN).await;
            all.map(|all| (own, all)).map_err(|error| match error {
                Error::TimedOut | Error::Crowded => Problem::busy(),
                error => error.into(),
            })
        };
        let turn = timeout(TURN_WITHIN, turn).await;
        let (_own, all) = turn.unwrap_or_else(|_| Err(Problem::busy()))?;
        match timeout(SCAN_WITHIN, all.protect(reading)).await {
            Ok(Ok(read)) => read,
            Ok(Err(_lost)) => Err(Problem::busy()),
            Err(_late) => Err(Problem::late()),
        }
    }
}

/// Returns an error if the store's remaining memory is needed for events.
pub(super) async fn has_room(reader: &dyn CountReader) -> Result<(), Problem> {
    match reader.shortage().await? {
        None => Ok(()),
        Some(shortage) => Err(Problem::unavailable(shortage)),
    }
}

#[derive(Debug, Default)]
pub(super) struct Pace {
    owed_us: AtomicU64,
}

impl Pace {
    /// Awaits a small request to the store, then pauses in proportion to the time it took.
    pub(super) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let asked = Instant::now();
        let answer = asking.await;
        let took_us = u64::try_from(asked.elapsed().as_micros()).unwrap_or(u64::MAX);
        let rest_us = took_us.saturating_mul(RESTS).min(REST_MAX_US);
        let owed_us = self.owed_us.fetch_add(rest_us, Ordering::Relaxed) + rest_us;
        if owed_us >= SLEEP_MIN_US {
            self.owed_us.store(0, Ordering::Relaxed);
            sleep(Duration::from_micros(owed_us)).await;
        }
        answer
    }
}
