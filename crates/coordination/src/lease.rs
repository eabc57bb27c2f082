//! A right that is held: a task renews it, and its loss is signalled.
//!
//! The task ends with the lease. A lease that is dropped is released in the background; one whose process dies lapses. The
//! holder counts on its own monotonic clock from before it asked, and a little less than the arbiter does, so it knows of the
//! loss before the arbiter grants the lease to another.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{Arbiter, ArbiterError};
use super::event::Event;
use super::name::{Holder, Name, Token};

/// A waiter asks again after this long at the latest, in case it missed a wake-up.
pub(super) const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// The pause after the arbiter did not answer.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// A lease is renewed this many times before it would lapse.
const RENEWALS_PER_TTL: u32 = 3;
/// A renewal without an answer is repeated this many times before the next one is due.
const TRIES_PER_RENEWAL: u32 = 4;

/// Returns the time for which a holder relies on a lease: a hundredth and 2 ms less than its time to live, since clocks do not run at quite the same
/// speed, and timers are late.
fn relied_on(ttl: Duration) -> Duration {
    (ttl * 99 / 100).saturating_sub(Duration::from_millis(2))
}

/// The lock was lost while it was needed: it lapsed without an answer from the arbiter, or another holder has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost")]
pub struct LockLost;

/// An attempt to get a lease, which must be ended.
#[derive(Debug)]
pub(super) struct Attempt {
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    pub(super) holder: Holder,
    /// Whether the arbiter keeps no state of it.
    pub(super) is_settled: bool,
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

    /// Becomes the lease that it got, for `ttl` from some instant after `asked` on. Gives it back where the answer took longer
    /// than that.
    pub(super) fn granted(
        self,
        token: Token,
        ttl: Duration,
        asked: Instant,
    ) -> Result<Lease, Self> {
        if Instant::now() >= asked + relied_on(ttl) {
            return Err(self);
        }
        let lost = CancellationToken::new();
        let (arbiter, name) = (Arc::clone(&self.arbiter), self.name.clone());
        let renewing = Box::pin(renew_until_lost(arbiter, name, token, ttl, asked, lost.clone()));
        let renewing = self.arbiter.keep(renewing);
        Ok(Lease { attempt: self, token, ttl, lost, renewing })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Without a runtime, as at the end of a process, the lease lapses.
        if !self.is_settled
            && let Ok(runtime) = Handle::try_current()
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
    pub(super) attempt: Attempt,
    pub(super) token: Token,
    ttl: Duration,
    pub(super) lost: CancellationToken,
    renewing: AbortOnDropHandle<()>,
}

impl Lease {
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
        self.renewing.abort();
        let Attempt { arbiter, name, .. } = &self.attempt;
        let was_held = arbiter.unlock(name, self.token).await?;
        self.attempt.is_settled = true;
        Ok(was_held && !self.lost.is_cancelled())
    }
}

async fn renew_until_lost(
    arbiter: Arc<dyn Arbiter>,
    name: Name,
    token: Token,
    ttl: Duration,
    asked: Instant,
    lost: CancellationToken,
) {
    let rest = ttl / RENEWALS_PER_TTL;
    let (mut lapses, mut next) = (asked + relied_on(ttl), asked + rest);
    loop {
        sleep_until(next.min(lapses)).await;
        let asked = Instant::now();
        match timeout_at(lapses, arbiter.renew(&name, token, ttl)).await {
            Ok(Ok(true)) => (lapses, next) = (asked + relied_on(ttl), asked + rest),
            Ok(Err(error)) if Instant::now() < lapses => {
                tracing::debug!(name = name.as_str(), %error, "a lock is not renewed yet");
                next = Instant::now() + rest / TRIES_PER_RENEWAL;
            }
            Ok(Ok(false) | Err(_)) | Err(_) => break,
        }
    }
    tracing::warn!(name = name.as_str(), "a lock was lost while it was held");
    arbiter.observe(&name, &Event::Lost);
    lost.cancel();
}
