//! The arbiter of a single process: the same operations as in Redis, under one lock, by a clock that can be set.
//!
//! For a single node, and as the model that the tests hold Redis against.

mod clock;
mod lock_state;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

pub(super) use self::clock::micros;
pub use self::clock::{Clock, SetClock, SteadyClock};
use self::lock_state::{LockState, Wake};
use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry, Locking};
use super::event::{Event, Hook};
use super::keeper;
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// How often what is over is removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Locks, values and lists in the memory of this process.
#[derive(Debug)]
pub struct MemoryArbiter {
    clock: Arc<dyn Clock>,
    /// Whether time passes as on the clocks of this machine.
    is_steady: bool,
    states: Mutex<States>,
    wakes: Arc<Wakes>,
    hook: Hook,
}

#[derive(Debug, Default)]
struct States {
    by_name: HashMap<Name, LockState>,
    /// When what is over was last removed.
    swept_us: u64,
}

impl Default for MemoryArbiter {
    fn default() -> Self {
        Self {
            is_steady: true,
            ..Self::new(Arc::new(SteadyClock::default()))
        }
    }
}

impl MemoryArbiter {
    /// An arbiter by this clock. Leases are renewed by tasks of their holders' runtimes, since it may be that a test
    /// sets their time, too.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            is_steady: false,
            states: Mutex::default(),
            wakes: Wakes::new(true),
            hook: Hook::default(),
        }
    }

    /// Calls `hook` with what happens to locks and values in this process. It must not block.
    #[must_use]
    pub fn observed_by(self, hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook);
        Self { hook, ..self }
    }

    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut LockState, u64) -> T) -> T {
        // Nothing below panics half-way.
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now_us();
        // The clock may have been set back.
        if now.abs_diff(states.swept_us) >= micros(SWEEP_INTERVAL) {
            states.swept_us = now;
            states.by_name.retain(|_, state| {
                state.drop_expired(now);
                !state.is_over(now)
            });
        }
        if let Some(state) = states.by_name.get_mut(name) {
            return act(state, now);
        }
        act(states.by_name.entry(name.clone()).or_default(), now)
    }

    fn wake(&self, name: &Name, wake: &Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::First(holder) => self.wakes.wake(&channel(name, Some(holder))),
            Wake::All => self.wakes.wake(&channel(name, None)),
        }
    }
}

fn channel(name: &Name, holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || name.as_str().to_owned(),
        |holder| format!("{}:{}", name.as_str(), holder.as_str()),
    )
}

#[async_trait]
impl Arbiter for MemoryArbiter {
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Result<Locking, ArbiterError> {
        let (answer, wake) = self.with(name, |state, now| state.lock(now, holder, ttl, presence));
        self.wake(name, &wake);
        Ok(answer)
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Result<bool, ArbiterError> {
        Ok(self.with(name, |state, now| state.renew(now, token, ttl)))
    }

    async fn unlock(&self, name: &Name, token: Token) -> Result<bool, ArbiterError> {
        let (was_held, wake) = self.with(name, |state, now| state.unlock(now, token));
        self.wake(name, &wake);
        Ok(was_held)
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Result<(), ArbiterError> {
        let wake = self.with(name, |state, now| state.leave(now, holder));
        self.wake(name, &wake);
        Ok(())
    }

    async fn peek(&self, name: &Name) -> Result<Option<Entry>, ArbiterError> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = states.by_name.get(name);
        Ok(state.and_then(|state| state.peek(self.clock.now_us())))
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Result<Beginning, ArbiterError> {
        Ok(self.with(name, |state, now| state.begin(now, holder, ttl, outdated)))
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let done = self.with(name, |state, now| {
            state.publish(now, token, value, cost, ttl)
        });
        self.wake(name, &Wake::All);
        Ok(done)
    }

    async fn fail(
        &self,
        name: &Name,
        token: Token,
        message: &str,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let done = self.with(name, |state, now| state.fail(now, token, message, ttl));
        self.wake(name, &Wake::All);
        Ok(done)
    }

    async fn invalidate(&self, name: &Name) -> Result<bool, ArbiterError> {
        let (is_there, wake) = self.with(name, LockState::invalidate);
        self.wake(name, &wake);
        Ok(is_there)
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Result<bool, ArbiterError> {
        Ok(self.with(name, |state, now| state.replace(now, items, ttl, token)))
    }

    async fn list(&self, name: &Name) -> Result<Vec<Vec<u8>>, ArbiterError> {
        Ok(self.with(name, |state, now| state.list(now)))
    }

    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
        self.wakes.listen(channel(name, holder))
    }

    fn keep(&self, renewing: BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
        if self.is_steady {
            keeper::spawn(renewing)
        } else {
            AbortOnDropHandle::new(tokio::spawn(renewing))
        }
    }

    fn observe(&self, name: &Name, event: &Event) {
        self.hook.call(name, event);
    }

    fn describe(&self) -> String {
        "memory of this process".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_over_takes_no_memory_and_a_peek_never_does() {
        let clock = Arc::new(SetClock::at(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
        let ttl = Duration::from_secs(1);
        let known = || arbiter.states.lock().unwrap().by_name.len();
        for number in 0..500 {
            let name = Name::of_value(&number.to_string()).unwrap();
            assert_eq!(arbiter.peek(&name).await.unwrap(), None);
            assert_eq!(known(), number);
            let holder = Holder::random();
            arbiter.begin(&name, &holder, ttl, None).await.unwrap();
        }
        clock.advance(Duration::from_secs(3600));
        let name = Name::of_value("another").unwrap();
        arbiter.list(&name).await.unwrap();
        assert_eq!(known(), 1);
    }
}
