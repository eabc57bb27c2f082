//! The arbiter of a single process: the same operations as in Redis, under one lock, by a clock that can be set.
//!
//! For a single node, and as the model that the tests hold Redis against.

mod clock;
mod lock_state;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// How much is kept unless it is said.
const BYTES_MAX: usize = 256 << 20;

/// Locks, values and lists in the memory of this process.
#[derive(Debug)]
pub struct MemoryArbiter {
    clock: Arc<dyn Clock>,
    /// Whether time passes as on the clocks of this machine.
    is_steady: bool,
    states: Mutex<States>,
    wakes: Arc<Wakes>,
    hook: Hook,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct States {
    by_name: HashMap<Name, LockState>,
    /// What they take, about.
    bytes: usize,
    /// When what is over was last removed.
    swept_us: u64,
}

impl States {
    fn sweep(&mut self, now: u64) {
        self.swept_us = now;
        self.by_name.retain(|_, state| {
            state.drop_expired(now);
            !state.is_over(now)
        });
        self.bytes = self.by_name.values().map(LockState::bytes).sum();
    }

    fn with<T>(&mut self, name: &Name, now: u64, act: impl FnOnce(&mut LockState, u64) -> T) -> T {
        let state = if let Some(state) = self.by_name.get_mut(name) {
            state
        } else {
            let state = self.by_name.entry(name.clone()).or_default();
            self.bytes += state.bytes();
            state
        };
        let before = state.bytes();
        let done = act(state, now);
        self.bytes = self.bytes + state.bytes() - before;
        done
    }
}

impl Default for MemoryArbiter {
    fn default() -> Self {
        Self { is_steady: true, ..Self::new(Arc::new(SteadyClock::default())) }
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
            bytes_max: BYTES_MAX,
        }
    }

    /// Calls `hook` with what happens to locks and values in this process. It must not block.
    #[must_use]
    pub fn observed_by(self, hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        let hook = Hook::new(hook);
        Self { hook, ..self }
    }

    /// Keeps no more than about so many bytes: from then on nothing begins that would need room, and the caller gets
    /// [`ArbiterError::Full`]. 256 MiB unless it is said.
    #[must_use]
    pub fn bounded(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut LockState, u64) -> T) -> T {
        let now = self.clock.now_us();
        let mut states = self.states();
        // The clock may have been set back.
        if now.abs_diff(states.swept_us) >= micros(SWEEP_INTERVAL) {
            states.sweep(now);
        }
        states.with(name, now, act)
    }

    /// The same for what begins something.
    fn with_room<T>(
        &self,
        name: &Name,
        act: impl FnOnce(&mut LockState, u64) -> T,
    ) -> Result<T, ArbiterError> {
        let now = self.clock.now_us();
        let mut states = self.states();
        let (interval, bytes_max) = (SWEEP_INTERVAL / 100, self.bytes_max);
        if states.bytes > bytes_max && now.abs_diff(states.swept_us) >= micros(interval) {
            states.sweep(now);
        }
        if states.bytes > bytes_max {
            let message = format!("it keeps {} bytes, more than {bytes_max}", states.bytes);
            return Err(ArbiterError::Full(message));
        }
        drop(states);
        Ok(self.with(name, act))
    }

    fn states(&self) -> MutexGuard<'_, States> {
        // Nothing done under it panics half-way.
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
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
        let lock = |state: &mut LockState, now| state.lock(now, holder, ttl, presence);
        let (answer, wake) = self.with_room(name, lock)?;
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
        let states = self.states();
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
        self.with_room(name, |state, now| state.begin(now, holder, ttl, outdated))
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let done =
            self.with_room(name, |state, now| state.publish(now, token, value, cost, ttl))?;
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
        let done = self.with_room(name, |state, now| state.fail(now, token, message, ttl))?;
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
        self.with_room(name, |state, now| state.replace(now, items, ttl, token))
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

    #[tokio::test]
    async fn when_it_is_full_nothing_begins_until_something_is_over() {
        let clock = Arc::new(SetClock::at(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _).bounded(10_000);
        let (ttl, holder) = (Duration::from_secs(1), Holder::random());
        let name = |number: u32| Name::of_value(&number.to_string()).unwrap();
        let keep = async |number| {
            let begun = arbiter.begin(&name(number), &holder, ttl, None).await?;
            let Beginning::Granted(token) = begun else {
                panic!("{begun:?}");
            };
            arbiter.publish(&name(number), token, &[0; 6000], ttl, ttl).await
        };
        assert!(keep(1).await.unwrap());
        assert!(keep(2).await.unwrap());
        assert!(matches!(keep(3).await, Err(ArbiterError::Full(_))));
        let locked = arbiter.lock(&name(3), &holder, ttl, None).await;
        assert!(matches!(locked, Err(ArbiterError::Full(_))));
        assert!(arbiter.peek(&name(2)).await.unwrap().is_some());
        clock.advance(ttl);
        assert!(keep(3).await.unwrap());
    }
}
