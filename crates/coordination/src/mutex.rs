//! A named lock with at most one holder across all processes, until it is released or lapses. Waiters queue in order of arrival,
//! and a release wakes the first one. A waiter that dies loses its place after [`PRESENCE`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::arbiter::{Answer, Arbiter, Error, Locking, Name, Token, micros};
use super::lease::{ASKED_AGAIN, Attempt, Lease, LockLost, PAUSE};
use super::settings::{InvalidSetting, check_lock_ttl};

/// How long a waiter keeps its place in the queue without asking again.
const PRESENCE: Duration = Duration::from_secs(3);

/// A named lock.
#[derive(Debug, Clone)]
pub struct Mutex {
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    ttl: Duration,
}

impl Mutex {
    /// Returns the lock with this name. A holder that dies or loses the arbiter blocks others for `ttl` (10 ms to 24 h).
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        name: &str,
        ttl: Duration,
    ) -> Result<Self, InvalidSetting> {
        check_lock_ttl(ttl)?;
        let name = Name::of_mutex(name)?;
        Ok(Self { arbiter, name, ttl })
    }

    /// Acquires the lock if it is free and has no waiters.
    pub async fn try_acquire(&self) -> Answer<Option<Guard>> {
        let mut attempt = Attempt::new(&self.arbiter, &self.name, self.ttl);
        let asked = Instant::now();
        if let Locking::Granted(token) = self.arbiter.lock(&attempt.claim, None).await? {
            let granted = attempt.granted(token, asked);
            return Ok(granted.ok().map(|lease| Guard { lease, tries: 0 }));
        }
        attempt.is_settled = true;
        Ok(None)
    }

    /// Acquires the lock in order of arrival. Retries while the arbiter is unavailable. Dropping the future leaves the queue.
    pub async fn acquire(&self, patience: Duration) -> Answer<Guard> {
        let (name, began) = (self.name.as_str(), Instant::now());
        let acquired = self.wait(began + patience).await;
        let waited_us = micros(began.elapsed());
        match &acquired {
            Ok(guard) => tracing::debug!(name, waited_us, tries = guard.tries, "acquired a lock"),
            Err(error) => tracing::debug!(name, waited_us, %error, "did not acquire a lock"),
        }
        acquired
    }

    async fn wait(&self, deadline: Instant) -> Answer<Guard> {
        let mut attempt = Attempt::new(&self.arbiter, &self.name, self.ttl);
        let mut listener = None;
        let mut tries = 0;
        loop {
            let asked = Instant::now();
            let wait = match self.arbiter.lock(&attempt.claim, Some(PRESENCE)).await {
                Ok(Locking::Granted(token)) => match attempt.granted(token, asked) {
                    Ok(lease) => return Ok(Guard { lease, tries }),
                    Err(late) => {
                        attempt = late;
                        Duration::ZERO
                    }
                },
                Ok(Locking::Crowded) => return Err(Error::Crowded),
                Ok(Locking::Busy(wait)) => wait,
                Err(error) => {
                    let next = Instant::now() + PAUSE;
                    if next >= deadline || !matches!(error, Error::Unavailable(_)) {
                        return Err(error);
                    }
                    sleep_until(next).await;
                    continue;
                }
            };
            tries += 1;
            if Instant::now() >= deadline {
                return Err(Error::TimedOut);
            }
            let holder = Some(attempt.claim.holder.as_str());
            let listener = listener.get_or_insert_with(|| self.arbiter.listen(&self.name, holder));
            // Rounded up, so that the lock has lapsed by the next request.
            let again = Instant::now() + wait.min(ASKED_AGAIN) + Duration::from_millis(1);
            let _ = timeout_at(again.min(deadline), listener.woken()).await;
        }
    }
}

/// A held lock. Dropping it releases the lock in the background; if the process dies, the lock lapses.
#[derive(Debug)]
pub struct Guard {
    lease: Lease,
    tries: u32,
}

impl Guard {
    /// Returns a number greater than that of any earlier holder. Pass it to the stores this holder writes to.
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease.token
    }

    /// Returns the number of failed attempts. Above 0, another holder had the lock first and may have already done the work.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns a token that is cancelled when the lock is lost. Work that needs the lock must watch it.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lease.lost
    }

    /// Runs a future, and drops it midway if the lock is lost.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, LockLost> {
        tokio::select! {
            biased;
            () = self.lease.lost.cancelled() => Err(LockLost),
            done = work => Ok(done),
        }
    }

    /// Renews the lock now, in addition to its regular renewals. Returns false if the lock has been lost.
    pub async fn renew(&self) -> Answer<bool> {
        self.lease.renew().await
    }

    /// Releases the lock. Returns false if it had already been lost. After an error, it is released in the background or lapses.
    pub async fn release(self) -> Answer<bool> {
        self.lease.release().await
    }
}
