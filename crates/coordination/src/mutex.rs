//! A named lock: at most one holder at a time among all processes, until it is released or lapses.
//!
//! Waiters queue by arrival, and a release wakes the first. A holder that dies wakes no waiter: the first one asks again
//! when the lock lapses. A waiter that dies loses its place after [`PRESENCE`].

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::arbiter::{Arbiter, ArbiterError, Locking};
use super::event::Event;
use super::lease::{ASKED_AGAIN, Attempt, Lease, LockLost, PAUSE};
use super::name::{Name, Token};
use super::settings::{InvalidSetting, check_lock_ttl};

/// The time for which a place in the queue is kept until its waiter asks again.
pub(super) const PRESENCE: Duration = Duration::from_secs(3);

/// A named lock.
#[derive(Debug, Clone)]
pub struct Mutex {
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    ttl: Duration,
}

/// Why a lock was not got.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AcquireError {
    /// Others had it for as long as the caller would wait.
    #[error("the lock did not become free in time")]
    TimedOut,
    /// [`WAITING_MAX`](super::WAITING_MAX) wait for it already.
    #[error("too many wait for the lock")]
    Crowded,
    /// The arbiter did not answer.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
}

impl Mutex {
    /// The lock of this name. Every holder has it for `ttl`, 10 ms to 24 h, and keeps it while its process is
    /// alive and reaches the arbiter; otherwise it lapses.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        name: &str,
        ttl: Duration,
    ) -> Result<Self, InvalidSetting> {
        check_lock_ttl(ttl)?;
        let name = Name::of_mutex(name)?;
        Ok(Self { arbiter, name, ttl })
    }

    /// Takes the lock if it is free and has no waiters.
    pub async fn try_acquire(&self) -> Result<Option<Guard>, ArbiterError> {
        let mut attempt = Attempt::new(&self.arbiter, &self.name);
        let asked = Instant::now();
        let asking = self.arbiter.lock(&self.name, &attempt.holder, self.ttl, None);
        if let Locking::Granted(token) = asking.await? {
            let granted = attempt.granted(token, self.ttl, asked);
            let guard = granted.ok().map(|lease| Guard { lease, tries: 0 });
            self.observe(asked, guard.as_ref());
            return Ok(guard);
        }
        attempt.is_settled = true;
        self.observe(asked, None);
        Ok(None)
    }

    /// Acquires the lock, waiting for at most `patience`, in the order of arrival. An arbiter that does not answer is
    /// asked again until then. Dropping the future releases the place.
    pub async fn acquire(&self, patience: Duration) -> Result<Guard, AcquireError> {
        let began = Instant::now();
        let acquired = self.wait(began + patience).await;
        self.observe(began, acquired.as_ref().ok());
        acquired
    }

    fn observe(&self, began: Instant, guard: Option<&Guard>) {
        let waited = began.elapsed();
        let event = guard.map_or(Event::NotLocked { waited }, |guard| Event::Locked {
            waited,
            tries: guard.tries,
        });
        self.arbiter.observe(&self.name, &event);
    }

    async fn wait(&self, deadline: Instant) -> Result<Guard, AcquireError> {
        let mut attempt = Attempt::new(&self.arbiter, &self.name);
        let mut listener = None;
        let mut tries = 0;
        loop {
            let asked = Instant::now();
            let asking = self.arbiter.lock(&self.name, &attempt.holder, self.ttl, Some(PRESENCE));
            let wait = match asking.await {
                Ok(Locking::Granted(token)) => match attempt.granted(token, self.ttl, asked) {
                    Ok(lease) => return Ok(Guard { lease, tries }),
                    Err(late) => {
                        attempt = late;
                        Duration::ZERO
                    }
                },
                Ok(Locking::Crowded) => return Err(AcquireError::Crowded),
                Ok(Locking::Busy(wait)) => wait,
                Err(ArbiterError::Unavailable(message)) => {
                    let next = Instant::now() + PAUSE;
                    if next >= deadline {
                        return Err(ArbiterError::Unavailable(message).into());
                    }
                    sleep_until(next).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            tries += 1;
            if Instant::now() >= deadline {
                return Err(AcquireError::TimedOut);
            }
            let listener = listener
                .get_or_insert_with(|| self.arbiter.listen(&self.name, Some(&attempt.holder)));
            // Rounded up, so that it has expired at the next request.
            let again = Instant::now() + wait.min(ASKED_AGAIN) + Duration::from_millis(1);
            let _ = timeout_at(again.min(deadline), listener.woken()).await;
        }
    }
}

/// The lock, held. Dropping it releases it in the background; a process that dies leaves it to lapse.
#[derive(Debug)]
pub struct Guard {
    lease: Lease,
    tries: u32,
}

impl Guard {
    /// Greater than the token of any earlier holder. For the places that the holder writes to.
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease.token
    }

    /// The number of failed tries before it was acquired. Above 0, another holder had it in between, and may have done the
    /// work of this one.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Cancelled when the lock is lost. Work that must not go on without it listens to this.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lease.lost
    }

    /// Does some work, and drops it half-way when the lock is lost.
    pub async fn protect<T>(&self, work: impl Future<Output = T>) -> Result<T, LockLost> {
        tokio::select! {
            biased;
            () = self.lost().cancelled() => Err(LockLost),
            done = work => Ok(done),
        }
    }

    /// Asks now whether the lock is still held, and holds it for its full time again. A task does so anyway, three
    /// times in the lock's time.
    pub async fn renew(&self) -> Result<bool, ArbiterError> {
        self.lease.renew().await
    }

    /// Releases it. False when it had been lost before. After an error it is released in the background, or lapses.
    pub async fn release(self) -> Result<bool, ArbiterError> {
        self.lease.unlock().await
    }
}
