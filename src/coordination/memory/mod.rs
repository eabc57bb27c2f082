//! The arbiter of a single process: the same operations as in Redis, under one lock, by a clock that can be set.
//!
//! For a single node, and as the model that the tests hold Redis against.

mod clock;
mod thing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

pub(super) use self::clock::micros;
pub use self::clock::{Clock, SetClock, SteadyClock};
use self::thing::{Thing, Wake};
use super::arbiter::{Arbiter, ArbiterError, Beginning, Entry, Locking};
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// How often what is over is looked for.
const SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Locks, values and lists in the memory of this process.
#[derive(Debug)]
pub struct MemoryArbiter {
    clock: Arc<dyn Clock>,
    things: Mutex<Things>,
    wakes: Arc<Wakes>,
}

#[derive(Debug, Default)]
struct Things {
    by_name: HashMap<Name, Thing>,
    /// When what is over was last looked for.
    swept_us: u64,
}

impl Default for MemoryArbiter {
    fn default() -> Self {
        Self::new(Arc::new(SteadyClock::default()))
    }
}

impl MemoryArbiter {
    /// An arbiter that goes by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            things: Mutex::default(),
            wakes: Wakes::new(true),
        }
    }

    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut Thing, u64) -> T) -> T {
        // Nothing below panics half-way.
        let mut things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now_us();
        // The clock may have been set back.
        if now.abs_diff(things.swept_us) >= micros(SWEEP_INTERVAL) {
            things.swept_us = now;
            things.by_name.retain(|_, thing| {
                thing.drop_expired(now);
                !thing.is_over(now)
            });
        }
        if let Some(thing) = things.by_name.get_mut(name) {
            return act(thing, now);
        }
        act(things.by_name.entry(name.clone()).or_default(), now)
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
        let (answer, wake) = self.with(name, |thing, now| thing.lock(now, holder, ttl, presence));
        self.wake(name, &wake);
        Ok(answer)
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Result<bool, ArbiterError> {
        Ok(self.with(name, |thing, now| thing.renew(now, token, ttl)))
    }

    async fn unlock(&self, name: &Name, token: Token) -> Result<bool, ArbiterError> {
        let (was_held, wake) = self.with(name, |thing, now| thing.unlock(now, token));
        self.wake(name, &wake);
        Ok(was_held)
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Result<(), ArbiterError> {
        let wake = self.with(name, |thing, now| thing.leave(now, holder));
        self.wake(name, &wake);
        Ok(())
    }

    async fn peek(&self, name: &Name) -> Result<Option<Entry>, ArbiterError> {
        let things = self.things.lock().unwrap_or_else(PoisonError::into_inner);
        let thing = things.by_name.get(name);
        Ok(thing.and_then(|thing| thing.peek(self.clock.now_us())))
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Result<Beginning, ArbiterError> {
        Ok(self.with(name, |thing, now| thing.begin(now, holder, ttl, outdated)))
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let done = self.with(name, |thing, now| {
            thing.publish(now, token, value, cost, ttl)
        });
        self.wake(name, &Wake::All);
        Ok(done)
    }

    async fn fail(
        &self,
        name: &Name,
        token: Token,
        words: &str,
        ttl: Duration,
    ) -> Result<bool, ArbiterError> {
        let done = self.with(name, |thing, now| thing.fail(now, token, words, ttl));
        self.wake(name, &Wake::All);
        Ok(done)
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
    ) -> Result<(), ArbiterError> {
        self.with(name, |thing, now| thing.replace(now, items, ttl));
        Ok(())
    }

    async fn list(&self, name: &Name) -> Result<Vec<Vec<u8>>, ArbiterError> {
        Ok(self.with(name, |thing, now| thing.list(now)))
    }

    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener {
        self.wakes.listen(channel(name, holder))
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
        let known = || arbiter.things.lock().unwrap().by_name.len();
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
