//! A [`Lease`] is renewed until it is dropped, and then released. A dedicated thread renews it, because a holder may block
//! its own thread. The holder starts counting the time of the lease before it sends the request, and assumes a slightly
//! shorter lease than the store does. It therefore notices a loss before the store can grant the lease to another holder.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{Answer, Arbiter, Claim, Error, Name, Token};

/// The maximum time before a waiter asks again without having been woken, in case it missed a wake-up.
pub(super) const ASKED_AGAIN: Duration = Duration::from_secs(1);
/// How long to pause before retrying when the arbiter is unavailable.
pub(super) const PAUSE: Duration = Duration::from_millis(100);
/// For how long to retry to leave the queue.
const RELEASED_WITHIN: Duration = Duration::from_secs(60);
const RENEWALS_PER_TTL: u32 = 3;
const TRIES_PER_RENEWAL: u32 = 4;

const KEEPER_NAME: &str = "lease-keeper";

static KEEPER: LazyLock<Option<Runtime>> = LazyLock::new(|| {
    let runtime =
        Builder::new_multi_thread().worker_threads(1).thread_name(KEEPER_NAME).enable_all().build();
    let report = |error: &std::io::Error| {
        tracing::warn!(%error, "cannot start the lease renewal thread; each holder's runtime renews its leases instead");
    };
    runtime.inspect_err(report).ok()
});

/// Returns whether the current thread renews leases, and so needs connections that belong to its own runtime.
#[cfg(feature = "redis")]
pub(super) fn is_keeper() -> bool {
    std::thread::current().name() == Some(KEEPER_NAME)
}

/// Returns the time for which the holder of a lease relies on it: 1% and 2 ms less than its TTL, because clocks drift.
fn relied_on(ttl: Duration) -> Duration {
    (ttl * 99 / 100).saturating_sub(Duration::from_millis(2))
}

/// The error for a lock that was lost while it was held, for example because the arbiter did not respond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the lock was lost")]
pub struct LockLost;

/// An attempt to acquire a lease. When it is dropped, the lease and the place in the queue are released.
#[derive(Debug)]
pub(super) struct Attempt {
    arbiter: Arc<dyn Arbiter>,
    pub(super) claim: Claim,
    /// Whether the arbiter holds no state for this attempt, so that nothing has to be released.
    pub(super) is_settled: bool,
    /// Whether the attempt may have a place in the queue, which does not lapse.
    pub(super) may_have_place: bool,
}

impl Attempt {
    pub(super) fn new(arbiter: &Arc<dyn Arbiter>, name: &Name, ttl: Duration) -> Self {
        let claim = Claim::new(name.clone(), ttl);
        Self { arbiter: Arc::clone(arbiter), claim, is_settled: false, may_have_place: false }
    }

    /// Returns the lease that was granted for `ttl` after `asked`, or the attempt if that is too long ago.
    pub(super) fn granted(
        self,
        token: Token,
        asked: Instant,
        ttl: Duration,
    ) -> Result<Lease, Self> {
        if Instant::now() >= asked + relied_on(ttl) {
            return Err(self);
        }
        let lost = CancellationToken::new();
        let arbiter = Arc::clone(&self.arbiter);
        let renewing = renew_until_lost(arbiter, self.claim.clone(), asked, ttl, lost.clone());
        let renewing = AbortOnDropHandle::new(match &*KEEPER {
            Some(keeper) if !self.arbiter.is_simulated() => keeper.spawn(renewing),
            _ => tokio::spawn(renewing),
        });
        Ok(Lease { attempt: self, token, lost, renewing })
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // Without a runtime, for example while the process exits, the lease is not released, but lapses.
        if !self.is_settled
            && let Ok(runtime) = Handle::try_current()
        {
            let (arbiter, claim) = (Arc::clone(&self.arbiter), self.claim.clone());
            runtime.spawn(release(arbiter, claim, self.may_have_place));
        }
    }
}

/// Releases a lease, which lapses if this fails, or a place in the queue, for which the request is repeated.
async fn release(arbiter: Arc<dyn Arbiter>, claim: Claim, may_have_place: bool) {
    let deadline = Instant::now() + RELEASED_WITHIN;
    let mut pause = PAUSE;
    while let Err(error) = arbiter.release(&claim).await {
        let is_repeated = may_have_place && matches!(error, Error::Unavailable(_));
        if !is_repeated || Instant::now() + pause > deadline {
            let name = claim.name.as_str();
            tracing::debug!(name, %error, "cannot release a lease or a place in the queue");
            break;
        }
        sleep(pause).await;
        pause = ASKED_AGAIN.min(pause * 2);
    }
}

/// A held lock, or the right to compute a value, which is renewed until the `Lease` is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) attempt: Attempt,
    pub(super) token: Token,
    pub(super) lost: CancellationToken,
    renewing: AbortOnDropHandle<()>,
}

impl Lease {
    pub(super) async fn renew(&self) -> Answer<bool> {
        if self.lost.is_cancelled() {
            return Ok(false);
        }
        let is_held = self.attempt.arbiter.renew(&self.attempt.claim).await?;
        if !is_held {
            self.lost.cancel();
        }
        Ok(is_held)
    }

    /// Stops renewing the lease and releases it. Returns false if the lease had already been lost.
    pub(super) async fn release(mut self) -> Answer<bool> {
        self.renewing.abort();
        let was_held = self.attempt.arbiter.release(&self.attempt.claim).await?;
        self.attempt.is_settled = true;
        Ok(was_held && !self.lost.is_cancelled())
    }
}

async fn renew_until_lost(
    arbiter: Arc<dyn Arbiter>,
    claim: Claim,
    asked: Instant,
    mut ttl: Duration,
    lost: CancellationToken,
) {
    let name = claim.name.as_str();
    let (mut lapses, mut next) = (asked + relied_on(ttl), asked + ttl / RENEWALS_PER_TTL);
    loop {
        sleep_until(next.min(lapses)).await;
        let asked = Instant::now();
        match timeout_at(lapses, arbiter.renew(&claim)).await {
            Ok(Ok(true)) => {
                ttl = claim.ttl;
                (lapses, next) = (asked + relied_on(ttl), asked + ttl / RENEWALS_PER_TTL);
            }
            Ok(Err(error)) if Instant::now() < lapses => {
                tracing::debug!(name, %error, "cannot renew a lease; retrying");
                next = Instant::now() + ttl / RENEWALS_PER_TTL / TRIES_PER_RENEWAL;
            }
            Ok(Ok(false) | Err(_)) | Err(_) => break,
        }
    }
    tracing::warn!(name, "lost a held lease");
    lost.cancel();
}
