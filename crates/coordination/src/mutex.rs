//! A named lock with at most one holder among all processes. It is held until it is released or lapses. Waiters queue in
//! order of arrival, and a release hands the lock over to the first of them for a short time, in which it renews its lease.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::arbiter::{Answer, Arbiter, Error, HANDED_OVER, Locking, Name, Place, Token, micros};
use super::lease::{ASKED_AGAIN, Attempt, Lease, LockLost, PAUSE};
use super::settings::{InvalidSetting, check_lock_ttl};

/// A named lock with at most one holder among all processes.
#[derive(Debug, Clone)]
pub struct Mutex {
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    ttl: Duration,
}

impl Mutex {
    /// Returns the lock with this name, without acquiring it. A dead holder blocks others for at most `ttl` (10 ms to 24 h), but
    /// for 2 s if it died before its first renewal, and one more second until the first waiter notices.
    pub fn new(
        arbiter: Arc<dyn Arbiter>,
        name: &str,
        ttl: Duration,
    ) -> Result<Self, InvalidSetting> {
        check_lock_ttl(ttl)?;
        let name = Name::of_mutex(name)?;
        Ok(Self { arbiter, name, ttl })
    }

    /// Acquires the lock if it is free and has no waiters. Otherwise, returns None without waiting.
    pub async fn try_acquire(&self) -> Answer<Option<Guard>> {
        let mut attempt = Attempt::new(&self.arbiter, &self.name, self.ttl);
        let asked = Instant::now();
        if let Locking::Granted(token) = self.arbiter.lock(&attempt.claim, Place::None).await? {
            let granted = attempt.granted(token, asked, self.ttl);
            return Ok(granted.ok().map(|lease| Guard { lease, tries: 0 }));
        }
        attempt.is_settled = true;
        Ok(None)
    }

    /// Acquires the lock within `patience`, in order of arrival. Dropping the future gives up the place in the queue.
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
        let mut listener = self.arbiter.listen(&self.name, Some(&attempt.claim.holder));
        attempt.may_have_place = true;
        // A caller that asks only once has to learn whether a lease has lapsed.
        let is_only_request = Instant::now() >= deadline;
        let (mut place, mut tries) = (if is_only_request { Place::Keep } else { Place::Join }, 0);
        loop {
            listener.forget();
            let asked = Instant::now();
            let answer = self.arbiter.lock(&attempt.claim, place).await;
            place = Place::Keep;
            // Leases with tokens up to this one were granted before the request was carried out.
            let mut past = Token(0);
            let wait = match answer {
                Ok(Locking::Granted(token)) => match attempt.granted(token, asked, self.ttl) {
                    Ok(lease) => return Ok(Guard { lease, tries }),
                    Err(late) => {
                        attempt = late;
                        Duration::ZERO
                    }
                },
                Ok(Locking::Queued) => ASKED_AGAIN,
                Ok(Locking::Busy(wait, token)) => {
                    past = token;
                    wait
                }
                Ok(Locking::Crowded) => {
                    attempt.is_settled = true;
                    return Err(Error::Crowded);
                }
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
            // One more millisecond, to be sure that the lock has lapsed by the next request.
            let again = Instant::now() + wait.min(ASKED_AGAIN) + Duration::from_millis(1);
            let woken = timeout_at(again.min(deadline), listener.woken()).await;
            // The lock was handed over after the request, so the lease is counted from the request. If little of it is left,
            // the next request extends it.
            let ttl = HANDED_OVER.min(self.ttl);
            if let Ok(Some(token)) = woken
                && token > past
                && asked.elapsed() < ttl * 2 / 3
            {
                match attempt.granted(token, asked, ttl) {
                    Ok(lease) => return Ok(Guard { lease, tries }),
                    Err(late) => attempt = late,
                }
            }
        }
    }
}

/// A held lock, which is released in the background when the guard is dropped. If the process dies, the lock lapses.
#[derive(Debug)]
pub struct Guard {
    lease: Lease,
    tries: u32,
}

impl Guard {
    /// Returns this holder's token, which is greater than any earlier one, so stores can reject writes by past holders.
    #[must_use]
    pub fn token(&self) -> Token {
        self.lease.token
    }

    /// Returns how many attempts failed before the lock was acquired. If any did, another holder may have done the work.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// Returns a token that is cancelled when the lock is lost. Work that needs the lock must stop when this happens.
    #[must_use]
    pub fn lost(&self) -> &CancellationToken {
        &self.lease.lost
    }

    /// Runs a future and returns its output. If the lock is lost first, drops the future midway and returns [`LockLost`].
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

    /// Releases the lock. Returns false if it had already been lost, or if the reply was lost and another holder has released
    /// the lock since. After an error, continues in the background.
    pub async fn release(self) -> Answer<bool> {
        self.lease.release().await
    }
}
