//! A right that is held: a task renews it, and its loss is signalled.
//!
//! The task ends with the lease. A lease that is dropped is released in the background; one whose process dies
//! lapses. The holder counts on its own monotonic clock from before it asked, and a little less than the arbiter does, so
//! it knows of the loss before the arbiter grants the lease to another.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{Arbiter, ArbiterError};
use super::event::Event;
use super::name::{Holder, Name, Token};

/// Whoever waits asks again after this long at the latest, in case it missed a wake-up.
pub(super) const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the arbiter did not answer.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// A lease is renewed so many times before it would lapse.
const RENEWALS_PER_TTL: u32 = 3;
/// A renewal that got no answer is tried again so many times before the next would be due.
const TRIES_PER_RENEWAL: u32 = 4;

/// For how long a holder relies on a lease of this time: a hundredth and 2 ms less, since clocks do not run at quite the same
/// speed, and timers are late.
fn relied_on(ttl: Duration) -> Duration {
    (ttl * 99 / 100).saturating_sub(Duration::from_millis(2))
}

/// The lock was lost while it was needed: it lapsed without an answer from the arbiter, or somebody else has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost")]
pub struct LockLost;

/// An attempt to get a lease, which must be ended.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) arbiter: Arc<dyn Arbiter>,
    pub(super) name: Name,
    pub(super) holder: Holder,
    is_settled: bool,
}

impl Attempt {
    pub(super) fn new(arbiter: &Arc<dyn Arbiter>, name: &Name) -> Self {
        Self {
            arbiter: Arc::clone(arbiter),
            name: name.clone(),
            holder: Holder::random(),
            is_settled: false,
        }
    }

    /// It got the lease, for `ttl` from some instant after `asked` on. Gives it back where the answer took so long
    /// that the time is over.
    pub(super) fn granted(
        self,
        token: Token,
        ttl: Duration,
        asked: Instant,
    ) -> Result<Lease, Self> {
        if Instant::now() < asked + relied_on(ttl) {
            return Ok(Lease::new(self, token, ttl, asked));
        }
        Err(self)
    }

    /// Nothing of it is left with the arbiter.
    pub(super) fn settle(&mut self) {
        self.is_settled = true;
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Without a runtime, as at the end of a process, it lapses by itself.
        if !self.is_settled
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (arbiter, name) = (Arc::clone(&self.arbiter), self.name.clone());
            let holder = self.holder.clone();
            runtime.spawn(async move {
                if let Err(error) = arbiter.leave(&name, &holder).await {
                    tracing::debug!(name = name.as_str(), %error, "a lock was not released, and lapses");
                }
            });
        }
    }
}

/// A lock, or the right to compute, that is kept as long as this lives.
#[derive(Debug)]
pub(super) struct Lease {
    attempt: Attempt,
    token: Token,
    ttl: Duration,
    lost: CancellationToken,
    /// Ends with the lease.
    keeper: AbortOnDropHandle<()>,
}

impl Lease {
    fn new(attempt: Attempt, token: Token, ttl: Duration, asked: Instant) -> Self {
        let lost = CancellationToken::new();
        let keeper = Keeper {
            arbiter: Arc::clone(&attempt.arbiter),
            name: attempt.name.clone(),
            token,
            ttl,
            lost: lost.clone(),
        };
        let keeper = attempt.arbiter.keep(Box::pin(keeper.run(asked)));
        Self { attempt, token, ttl, lost, keeper }
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }

    pub(super) fn lost(&self) -> &CancellationToken {
        &self.lost
    }

    pub(super) async fn renew(&self) -> Result<bool, ArbiterError> {
        let Attempt { arbiter, name, .. } = &self.attempt;
        let is_held = arbiter.renew(name, self.token, self.ttl).await?;
        if !is_held {
            self.lost.cancel();
        }
        Ok(is_held)
    }

    /// Releases a lock. False when it had been lost.
    pub(super) async fn unlock(mut self) -> Result<bool, ArbiterError> {
        self.keeper.abort();
        let Attempt { arbiter, name, .. } = &self.attempt;
        let was_held = arbiter.unlock(name, self.token).await?;
        self.attempt.settle();
        Ok(was_held && !self.lost.is_cancelled())
    }

    /// The right went with what was published.
    pub(super) fn settle(&mut self) {
        self.attempt.settle();
    }
}

/// The task that renews.
struct Keeper {
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    token: Token,
    ttl: Duration,
    lost: CancellationToken,
}

impl Keeper {
    async fn run(self, asked: Instant) {
        let rest = self.ttl / RENEWALS_PER_TTL;
        let mut lapses = asked + relied_on(self.ttl);
        let mut next = asked + rest;
        loop {
            sleep_until(next.min(lapses)).await;
            let asked = Instant::now();
            let renewing = self.arbiter.renew(&self.name, self.token, self.ttl);
            match timeout_at(lapses, renewing).await {
                Ok(Ok(true)) => {
                    lapses = asked + relied_on(self.ttl);
                    next = asked + rest;
                }
                Ok(Err(error)) if Instant::now() < lapses => {
                    tracing::debug!(name = self.name.as_str(), %error, "a lock is not renewed yet");
                    next = Instant::now() + rest / TRIES_PER_RENEWAL;
                }
                Ok(Ok(false) | Err(_)) | Err(_) => break,
            }
        }
        tracing::warn!(name = self.name.as_str(), "a lock was lost while it was held");
        self.arbiter.observe(&self.name, &Event::Lost);
        self.lost.cancel();
    }
}
