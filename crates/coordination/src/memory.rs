//! The arbiter for a single process. It has the same operations as the Redis arbiter; a lock makes them atomic.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;

use super::arbiter::{
    Answer, Arbiter, Beginning, Claim, Entry, Error, HANDED_OVER, Locking, Name, Place, Token,
    WAITING_MAX, micros, process,
};
use super::wakes::{Listener, Wakes};

const SWEEP_INTERVAL_US: u64 = 10_000_000;
/// The approximate memory limit for all names, in bytes. If it is exceeded, operations that need room are rejected.
const BYTES_MAX: usize = 256 << 20;
const NAME_BYTES: usize = 512;
/// The time the last token of a name is kept after its lease, so that tokens keep increasing even if the clock is set back.
const KEPT_US: u64 = 600_000_000;

/// A clock that a test controls.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Returns the current time in microseconds since the Unix epoch.
    fn now_us(&self) -> u64;
}

impl Clock for AtomicU64 {
    fn now_us(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }
}

/// Returns the current time in microseconds since the Unix epoch. It is the system time at the first call plus the monotonic
/// time elapsed since, so changes of the system clock do not affect it.
fn steady_now_us() -> u64 {
    static BEGAN: LazyLock<(Instant, u64)> = LazyLock::new(|| {
        (Instant::now(), micros(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()))
    });
    BEGAN.1 + micros(BEGAN.0.elapsed())
}

/// Locks, values and lists in the memory of this process, limited to about 256 MiB.
#[derive(Debug)]
pub struct MemoryArbiter {
    clock: Option<Arc<dyn Clock>>,
    names: Mutex<Names>,
    wakes: Arc<Wakes>,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Names {
    states: HashMap<Name, State>,
    bytes: usize,
    swept_us: u64,
}

#[derive(Debug, Default)]
struct State {
    /// The last token; 0 if none was granted.
    token: u64,
    holder: Option<String>,
    /// When the lease lapses; 0 if it was released.
    until_us: u64,
    released: Option<String>,
    /// The holders that wait, in order of arrival.
    queue: VecDeque<String>,
    value: Option<Entry>,
    failure: Option<(String, u64)>,
    list: Option<(Vec<Vec<u8>>, u64)>,
    /// The greatest token with which the list was replaced, and the time until which this token is kept.
    writer: Option<(Token, u64)>,
}

impl State {
    fn expire(&mut self, now: u64) {
        self.value.take_if(|value| value.expires_us <= now);
        self.failure.take_if(|(_, until)| *until <= now);
        self.list.take_if(|(_, until)| *until <= now);
        self.writer.take_if(|(_, until)| *until <= now);
    }

    fn is_unused(&self, now: u64) -> bool {
        self.token.max(self.until_us) + KEPT_US <= now
            && self.value.is_none()
            && self.failure.is_none()
            && self.list.is_none()
            && self.writer.is_none()
    }

    fn bytes(&self) -> usize {
        NAME_BYTES
            + self.queue.len() * NAME_BYTES
            + self.value.as_ref().map_or(0, |value| value.value.len())
            + self.failure.as_ref().map_or(0, |(message, _)| message.len())
            + self.list.as_ref().map_or(0, |(items, _)| list_bytes(items))
    }

    fn is_held(&self, now: u64) -> bool {
        self.until_us > now
    }

    fn is_held_by(&self, holder: &str, now: u64) -> bool {
        self.is_held(now) && self.holder.as_deref() == Some(holder)
    }

    /// Extends the holder's lease, or grants a lease with a new token. Returns the token.
    fn grant(&mut self, holder: &str, ttl: Duration, now: u64) -> Token {
        if !self.is_held_by(holder, now) {
            self.token = now.max(self.token + 1);
            self.holder = Some(holder.to_owned());
        }
        self.until_us = now + micros(ttl);
        Token(self.token)
    }

    /// Adds a waiter. Returns false if there are too many.
    fn join(&mut self, waiter: &str) -> bool {
        let is_waiting = self.queue.iter().any(|other| other == waiter);
        let has_room = is_waiting || self.queue.len() < WAITING_MAX;
        if has_room && !is_waiting {
            self.queue.push_back(waiter.to_owned());
        }
        has_room
    }

    fn release(&mut self) {
        self.until_us = 0;
        self.released = self.holder.take();
    }
}

fn list_bytes(items: &[impl AsRef<[u8]>]) -> usize {
    items.iter().map(|item| size_of::<Vec<u8>>() + item.as_ref().len()).sum()
}

fn channel(name: &Name, holder: Option<&str>) -> String {
    format!("{}:{}", name.as_str(), holder.unwrap_or_default())
}

impl Default for MemoryArbiter {
    fn default() -> Self {
        let wakes = Arc::<Wakes>::default();
        wakes.hear();
        Self { clock: None, names: Mutex::default(), wakes, bytes_max: BYTES_MAX }
    }
}

impl MemoryArbiter {
    /// Returns an arbiter whose time is controlled by a test. Leases are renewed by tasks on their holders' runtimes.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock: Some(clock), ..Self::default() }
    }

    fn now_us(&self) -> u64 {
        self.clock.as_ref().map_or_else(steady_now_us, |clock| clock.now_us())
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Nothing panics while holding this lock, so it is never poisoned.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants the free lock to the first waiter, and wakes it. Without waiters, wakes the listeners that wait for no lock.
    fn hand_over(&self, name: &Name, state: &mut State, now: u64) {
        let first = state.queue.pop_front();
        let token = first.as_ref().map(|first| state.grant(first, HANDED_OVER, now));
        self.wakes.wake(&channel(name, first.as_deref()), token);
    }

    /// Runs an operation on the state of a name. Fails if the operation `needs_room` but the memory limit is exceeded.
    fn with<T>(
        &self,
        name: &Name,
        needs_room: bool,
        act: impl FnOnce(&mut State, u64) -> T,
    ) -> Answer<T> {
        let now = self.now_us();
        let mut names = self.names();
        names.sweep(now, SWEEP_INTERVAL_US);
        if needs_room {
            if names.bytes > self.bytes_max {
                names.sweep(now, SWEEP_INTERVAL_US / 100);
            }
            if names.bytes > self.bytes_max {
                let message = format!("{} of {} bytes are in use", names.bytes, self.bytes_max);
                return Err(Error::Full(message));
            }
            if !names.states.contains_key(name) {
                names.bytes += NAME_BYTES;
                names.states.insert(name.clone(), State::default());
            }
        }
        let Names { states, bytes, .. } = &mut *names;
        let mut unknown = State::default();
        let state = states.get_mut(name).unwrap_or(&mut unknown);
        let before = state.bytes();
        state.expire(now);
        let done = act(state, now);
        *bytes = *bytes + state.bytes() - before;
        Ok(done)
    }
}

impl Names {
    /// Removes expired names, unless the last sweep was less than `interval_us` before or after `now`.
    fn sweep(&mut self, now: u64, interval_us: u64) {
        if now.abs_diff(self.swept_us) < interval_us {
            return;
        }
        self.swept_us = now;
        self.states.retain(|_, state| {
            state.expire(now);
            !state.is_unused(now)
        });
        self.bytes = self.states.values().map(State::bytes).sum();
    }
}

#[async_trait]
impl Arbiter for MemoryArbiter {
    async fn lock(&self, claim: &Claim, place: Place) -> Answer<Locking> {
        let Claim { name, holder, .. } = claim;
        self.with(name, true, |state, now| {
            if place == Place::Join && !state.queue.is_empty() && state.join(holder) {
                return Locking::Queued;
            }
            if state.is_held_by(holder, now) {
                return Locking::Granted(state.grant(&claim.holder, claim.ttl, now));
            }
            if !state.is_held(now) {
                if let Some(lapsed) = state.holder.as_deref().map(process)
                    && lapsed != process(holder)
                {
                    state.queue.retain(|waiter| process(waiter) != lapsed);
                }
                if state.queue.front().is_none_or(|first| first == holder) {
                    state.queue.pop_front();
                    return Locking::Granted(state.grant(&claim.holder, claim.ttl, now));
                }
                self.hand_over(name, state, now);
            }
            if place != Place::None && !state.join(holder) {
                return Locking::Crowded;
            }
            Locking::Busy(Duration::from_micros(state.until_us - now), Token(state.token))
        })
    }

    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning> {
        self.with(&claim.name, true, |state, now| {
            let value = state.value.clone().filter(|value| Some(value.token) != outdated);
            if let Some(value) = value {
                Beginning::Value(Entry { now_us: now, ..value })
            } else if let Some((message, _)) = &state.failure {
                Beginning::Failed(message.clone())
            } else if state.is_held(now) && !state.is_held_by(&claim.holder, now) {
                Beginning::Busy(Duration::from_micros(state.until_us - now))
            } else {
                Beginning::Granted(state.grant(&claim.holder, claim.ttl, now))
            }
        })
    }

    async fn renew(&self, claim: &Claim) -> Answer<bool> {
        self.with(&claim.name, false, |state, now| {
            let is_held = state.is_held_by(&claim.holder, now);
            if is_held {
                state.until_us = now + micros(claim.ttl);
            }
            is_held
        })
    }

    async fn release(&self, claim: &Claim) -> Answer<bool> {
        let Claim { name, holder, .. } = claim;
        self.with(name, false, |state, now| {
            if state.holder.as_ref() == Some(holder) {
                state.release();
                self.hand_over(name, state, now);
            } else {
                state.queue.retain(|waiter| waiter != holder);
            }
            state.released.as_ref() == Some(holder)
        })
    }

    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool> {
        let Claim { name, holder, .. } = claim;
        self.with(name, true, |state, now| {
            if state.holder.as_ref() != Some(holder) {
                return state.released.as_ref() == Some(holder);
            }
            let expires_us = now + micros(ttl);
            match output {
                Ok((value, cost)) => {
                    let (value, token) = (value.into(), Token(state.token));
                    let (written_us, now_us) = (now, now);
                    let entry = Entry { value, token, cost, written_us, expires_us, now_us };
                    (state.value, state.failure) = (Some(entry), None);
                }
                Err(message) => state.failure = Some((message.to_owned(), expires_us)),
            }
            state.release();
            self.wakes.wake(&channel(name, None), None);
            true
        })
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        let (now_us, names) = (self.now_us(), self.names());
        let value = names.states.get(name).and_then(|state| state.value.clone());
        let value = value.filter(|value| value.expires_us > now_us);
        Ok(value.map(|value| Entry { now_us, ..value }))
    }

    async fn invalidate(&self, name: &Name) -> Answer<bool> {
        self.with(name, false, |state, now| {
            let was_kept = state.value.take().is_some() | state.failure.take().is_some();
            let was_computed = state.until_us > 0;
            if state.token > 0 {
                state.token = now.max(state.token + 1);
                state.release();
                state.released = None;
            }
            if was_kept || was_computed {
                self.wakes.wake(&channel(name, None), None);
            }
            was_kept || was_computed
        })
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool> {
        self.with(name, true, |state, now| {
            let until = now + micros(ttl);
            if let Some(token) = token {
                if state.writer.is_some_and(|(writer, _)| writer > token) {
                    return false;
                }
                state.writer = Some((token, until + KEPT_US));
            }
            state.list = Some((items.iter().map(|item| item.to_vec()).collect(), until));
            true
        })
    }

    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>> {
        self.with(name, false, |state, _| {
            state.list.as_ref().map(|(items, _)| items.clone()).unwrap_or_default()
        })
    }

    fn listen(&self, name: &Name, holder: Option<&str>) -> Listener {
        self.wakes.listen(channel(name, holder))
    }

    fn is_simulated(&self) -> bool {
        self.clock.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        Name::of_value(&number.to_string()).unwrap()
    }

    #[tokio::test]
    async fn expired_names_are_removed_and_a_peek_creates_none() {
        let clock = Arc::new(AtomicU64::new(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
        let known = || arbiter.names().states.len();
        for number in 0..500 {
            assert_eq!(arbiter.peek(&name(number)).await.unwrap(), None);
            assert_eq!(known(), number);
            arbiter.begin(&Claim::new(name(number), Duration::from_secs(1)), None).await.unwrap();
        }
        clock.fetch_add(3_600_000_000, Ordering::SeqCst);
        arbiter.list(&name(500)).await.unwrap();
        assert_eq!(known(), 0);
    }

    #[tokio::test]
    async fn a_full_arbiter_begins_nothing_until_a_value_expires() {
        let clock = Arc::new(AtomicU64::new(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
        let arbiter = MemoryArbiter { bytes_max: 10_000, ..arbiter };
        let ttl = Duration::from_secs(1);
        let keep = async |number| {
            let claim = Claim::new(name(number), ttl);
            arbiter.begin(&claim, None).await?;
            arbiter.publish(&claim, Ok((&[0; 6000], ttl)), ttl).await
        };
        assert!(keep(1).await.unwrap());
        assert!(keep(2).await.unwrap());
        assert!(matches!(keep(3).await, Err(Error::Full(_))));
        let locked = arbiter.lock(&Claim::new(name(3), ttl), Place::None).await;
        assert!(matches!(locked, Err(Error::Full(_))));
        assert!(arbiter.peek(&name(2)).await.unwrap().is_some());
        clock.fetch_add(micros(ttl), Ordering::SeqCst);
        assert!(keep(3).await.unwrap());
    }
}
