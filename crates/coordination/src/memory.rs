//! The arbiter of a single process: the same operations as in Redis, under one lock, by a clock that can be set.
//!
//! For a single node, and as the model that the tests hold Redis against.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

use super::arbiter::{
    Answer, Arbiter, ArbiterError, Beginning, Entry, Locking, WAITING_MAX, micros,
};
use super::event::{Event, Hook};
use super::keeper;
use super::name::{Holder, Name, Token};
use super::wakes::{Listener, Wakes};

/// The interval at which expired names are removed.
const SWEEP_INTERVAL_US: u64 = 10_000_000;
/// The limit of [`MemoryArbiter::bounded`] unless it is set.
const BYTES_MAX: usize = 256 << 20;
/// The approximate bytes of a name without its value and list, and of a waiter.
const NAME_BYTES: usize = 512;
const WAITER_BYTES: usize = 64;
/// How long a lock's token outlives its last holder, so that tokens grow even if the clock is set back.
const KEPT_US: u64 = 600_000_000;

/// Tells the time.
pub trait Clock: Send + Sync + std::fmt::Debug {
    /// Microseconds since 1970.
    fn now_us(&self) -> u64;
}

/// The system's time when the process began, and monotonic after it.
#[derive(Debug)]
struct SteadyClock {
    began: Instant,
    began_us: u64,
}

impl Clock for SteadyClock {
    fn now_us(&self) -> u64 {
        self.began_us + micros(self.began.elapsed())
    }
}

/// Time that passes only when a test sets it.
impl Clock for AtomicU64 {
    fn now_us(&self) -> u64 {
        self.load(Ordering::SeqCst)
    }
}

/// Locks, values and lists in the memory of this process.
#[derive(Debug)]
pub struct MemoryArbiter {
    clock: Arc<dyn Clock>,
    /// Whether time passes as on the clocks of this machine.
    is_steady: bool,
    names: Mutex<Names>,
    wakes: Arc<Wakes>,
    hook: Hook,
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Names {
    states: HashMap<Name, State>,
    /// About how many bytes they take.
    bytes: usize,
    swept_us: u64,
}

/// The lock, the waiters, the value and the list of a name. Each of these but the lock is there until it expires.
#[derive(Debug, Default)]
struct State {
    token: u64,
    holder: Option<Holder>,
    /// When the lock is free again; 0 when it was released.
    until_us: u64,
    /// The last token that was unlocked.
    unlocked: Option<Token>,
    queue: VecDeque<(Holder, u64)>,
    value: Option<Entry>,
    failure: Option<(String, u64)>,
    list: Option<(Vec<Vec<u8>>, u64)>,
    /// The greatest token that replaced the list.
    writer: Option<(Token, u64)>,
}

impl State {
    fn expire(&mut self, now: u64) {
        self.queue.retain(|(_, until)| *until > now);
        self.value.take_if(|value| value.expires_us <= now);
        self.failure.take_if(|(_, until)| *until <= now);
        self.list.take_if(|(_, until)| *until <= now);
        self.writer.take_if(|(_, until)| *until <= now);
    }

    /// Whether no caller can miss it.
    fn is_over(&self, now: u64) -> bool {
        self.token.max(self.until_us) + KEPT_US <= now
            && self.queue.is_empty()
            && self.value.is_none()
            && self.failure.is_none()
            && self.list.is_none()
            && self.writer.is_none()
    }

    fn bytes(&self) -> usize {
        let items = self.list.iter().flat_map(|(items, _)| items);
        NAME_BYTES
            + self.queue.len() * WAITER_BYTES
            + self.value.as_ref().map_or(0, |value| value.value.len())
            + self.failure.as_ref().map_or(0, |(message, _)| message.len())
            + items.map(|item| size_of::<Vec<u8>>() + item.len()).sum::<usize>()
    }
}

/// An operation on a name, at an instant.
struct Operation<'a> {
    name: &'a Name,
    state: &'a mut State,
    now: u64,
    wakes: &'a Wakes,
}

impl Operation<'_> {
    fn is_held(&self) -> bool {
        self.state.until_us > self.now
    }

    fn is_held_by(&self, holder: &Holder) -> bool {
        self.is_held() && self.state.holder.as_ref() == Some(holder)
    }

    /// Whether this is the token of the last holder.
    fn is_last(&self, token: Token) -> bool {
        self.state.token == token.number() && self.state.token > 0
    }

    fn until(&self, span: Duration) -> u64 {
        self.now + micros(span)
    }

    fn left(&self, until_us: u64) -> Duration {
        Duration::from_micros(until_us - self.now)
    }

    /// Extends the lock if this holder has it, or grants it with a new token.
    fn grant(&mut self, holder: &Holder, ttl: Duration) -> Token {
        if !self.is_held_by(holder) {
            self.state.token = self.now.max(self.state.token + 1);
            self.state.holder = Some(holder.clone());
        }
        self.state.until_us = self.until(ttl);
        Token::new(self.state.token)
    }

    fn quit(&mut self, holder: &Holder) {
        self.state.queue.retain(|(waiter, _)| waiter != holder);
    }

    fn wake_all(&self) {
        self.wakes.wake(&channel(self.name, None));
    }

    /// Wakes the first in the queue, or else all waiters without a place.
    fn wake_next(&self) {
        let first = self.state.queue.front();
        self.wakes.wake(&channel(self.name, first.map(|(waiter, _)| waiter)));
    }

    fn release(&mut self) {
        self.state.until_us = 0;
        self.state.holder = None;
    }

    /// Ends a computation by `keep`. Returns false if the right was lost.
    fn finish(&mut self, token: Token, keep: impl FnOnce(&mut Self)) -> bool {
        let is_last = self.is_last(token);
        if is_last && self.state.until_us > 0 {
            keep(self);
            self.release();
        }
        self.wake_all();
        is_last
    }
}

fn channel(name: &Name, holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => format!("{}:{}", name.as_str(), holder.as_str()),
        None => name.as_str().to_owned(),
    }
}

impl Default for MemoryArbiter {
    fn default() -> Self {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = SteadyClock { began: Instant::now(), began_us: micros(since_1970) };
        Self { is_steady: true, ..Self::new(Arc::new(clock)) }
    }
}

impl MemoryArbiter {
    /// An arbiter by this clock. Leases are renewed by tasks of their holders' runtimes, since a test may set their time,
    /// too.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let wakes = Arc::<Wakes>::default();
        wakes.hear();
        Self {
            clock,
            is_steady: false,
            names: Mutex::default(),
            wakes,
            hook: Hook::default(),
            bytes_max: BYTES_MAX,
        }
    }

    /// Calls `hook` with each event of locks and values in this process. It must not block.
    #[must_use]
    pub fn observed_by(self, hook: impl Fn(&Name, &Event) + Send + Sync + 'static) -> Self {
        Self { hook: Hook::new(hook), ..self }
    }

    /// Keeps about this many bytes at most: beyond, every operation that needs room is refused with
    /// [`ArbiterError::Full`]. 256 MiB unless it is set.
    #[must_use]
    pub fn bounded(self, bytes_max: usize) -> Self {
        Self { bytes_max, ..self }
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        // Nothing done under it panics half-way.
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut Operation<'_>) -> T) -> T {
        let now = self.clock.now_us();
        let mut names = self.names();
        names.sweep(now, SWEEP_INTERVAL_US);
        let Names { states, bytes, .. } = &mut *names;
        let state = states.entry(name.clone()).or_insert_with(|| {
            *bytes += NAME_BYTES;
            State::default()
        });
        let before = state.bytes();
        state.expire(now);
        let done = act(&mut Operation { name, state, now, wakes: &self.wakes });
        *bytes = *bytes + state.bytes() - before;
        done
    }

    /// Does an operation that needs room.
    fn with_room<T>(&self, name: &Name, act: impl FnOnce(&mut Operation<'_>) -> T) -> Answer<T> {
        let mut names = self.names();
        if names.bytes > self.bytes_max {
            names.sweep(self.clock.now_us(), SWEEP_INTERVAL_US / 100);
        }
        if names.bytes > self.bytes_max {
            let message = format!("it keeps {} bytes, more than {}", names.bytes, self.bytes_max);
            return Err(ArbiterError::Full(message));
        }
        drop(names);
        Ok(self.with(name, act))
    }
}

impl Names {
    /// Removes expired names, unless that was done less than `interval_us` ago. The clock may have been set back since.
    fn sweep(&mut self, now: u64, interval_us: u64) {
        if now.abs_diff(self.swept_us) < interval_us {
            return;
        }
        self.swept_us = now;
        self.states.retain(|_, state| {
            state.expire(now);
            !state.is_over(now)
        });
        self.bytes = self.states.values().map(State::bytes).sum();
    }
}

#[async_trait]
impl Arbiter for MemoryArbiter {
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Answer<Locking> {
        self.with_room(name, |of| {
            let first = of.state.queue.front();
            let is_turn = first.is_none_or(|(first, _)| first == holder);
            let is_mine = of.is_held_by(holder);
            if is_mine || !of.is_held() && is_turn {
                if !is_mine {
                    of.quit(holder);
                }
                return Locking::Granted(of.grant(holder, ttl));
            }
            if let Some(presence) = presence {
                let until = of.until(presence);
                let queue = &mut of.state.queue;
                if let Some(place) = queue.iter_mut().find(|(waiter, _)| waiter == holder) {
                    place.1 = until;
                } else if queue.len() >= WAITING_MAX {
                    return Locking::Crowded;
                } else {
                    queue.push_back((holder.clone(), until));
                }
            }
            if of.is_held() {
                return Locking::Busy(of.left(of.state.until_us));
            }
            // Free, but another's turn: wake it again, in case it missed the wake-up.
            of.wake_next();
            let first = of.state.queue.front();
            Locking::Busy(first.map_or(Duration::ZERO, |(_, until)| of.left(*until)))
        })
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Answer<bool> {
        Ok(self.with(name, |of| {
            let is_mine = of.is_last(token) && of.is_held();
            if is_mine {
                of.state.until_us = of.until(ttl);
            }
            is_mine
        }))
    }

    async fn unlock(&self, name: &Name, token: Token) -> Answer<bool> {
        Ok(self.with(name, |of| {
            // It may be that the answer was lost, and that another has the lock by now.
            if of.state.unlocked != Some(token) && of.is_last(token) && of.is_held() {
                of.state.unlocked = Some(token);
                of.release();
                of.wake_next();
            }
            of.state.unlocked == Some(token)
        }))
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Answer<()> {
        self.with(name, |of| {
            of.quit(holder);
            if of.is_held_by(holder) {
                of.release();
            }
            if !of.is_held() {
                of.wake_next();
            }
        });
        Ok(())
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        let (now_us, names) = (self.clock.now_us(), self.names());
        let value = names.states.get(name).and_then(|state| state.value.clone());
        let value = value.filter(|value| value.expires_us > now_us);
        Ok(value.map(|value| Entry { now_us, ..value }))
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Answer<Beginning> {
        self.with_room(name, |of| {
            let value = of.state.value.clone().filter(|value| Some(value.token) != outdated);
            if let Some(value) = value {
                Beginning::Value(Entry { now_us: of.now, ..value })
            } else if let Some((message, _)) = &of.state.failure {
                Beginning::Failed(message.clone())
            } else if of.is_held() && !of.is_held_by(holder) {
                Beginning::Busy(of.left(of.state.until_us))
            } else {
                Beginning::Granted(of.grant(holder, ttl))
            }
        })
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Answer<bool> {
        let value: Arc<[u8]> = value.into();
        self.with_room(name, |of| {
            of.finish(token, |of| {
                let (written_us, expires_us) = (of.now, of.until(ttl));
                let entry = Entry { value, token, cost, written_us, expires_us, now_us: of.now };
                (of.state.value, of.state.failure) = (Some(entry), None);
            })
        })
    }

    async fn fail(&self, name: &Name, token: Token, message: &str, ttl: Duration) -> Answer<bool> {
        let keep = |of: &mut Operation<'_>| {
            of.state.failure = Some((message.to_owned(), of.until(ttl)));
        };
        self.with_room(name, |of| of.finish(token, keep))
    }

    async fn invalidate(&self, name: &Name) -> Answer<bool> {
        Ok(self.with(name, |of| {
            let had_value = of.state.value.take().is_some();
            let had_failure = of.state.failure.take().is_some();
            let is_computed = of.state.token > 0 && of.state.until_us > 0;
            if of.state.token > 0 {
                of.state.token = of.now.max(of.state.token + 1);
                of.release();
            }
            let is_there = had_value || had_failure || is_computed;
            if is_there {
                of.wake_all();
            }
            is_there
        }))
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool> {
        self.with_room(name, |of| {
            if let Some(token) = token {
                if of.state.writer.is_some_and(|(writer, _)| writer > token) {
                    return false;
                }
                of.state.writer = Some((token, of.until(ttl) + KEPT_US));
            }
            let items = items.iter().map(|item| item.to_vec()).collect();
            of.state.list = Some((items, of.until(ttl)));
            true
        })
    }

    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>> {
        let items = |of: &mut Operation<'_>| of.state.list.as_ref().map(|(items, _)| items.clone());
        Ok(self.with(name, items).unwrap_or_default())
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
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        Name::of_value(&number.to_string()).unwrap()
    }

    #[tokio::test]
    async fn what_is_over_takes_no_memory_and_a_peek_never_does() {
        let clock = Arc::new(AtomicU64::new(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _);
        let known = || arbiter.names().states.len();
        for number in 0..500 {
            assert_eq!(arbiter.peek(&name(number)).await.unwrap(), None);
            assert_eq!(known(), number);
            let (holder, ttl) = (Holder::random(), Duration::from_secs(1));
            arbiter.begin(&name(number), &holder, ttl, None).await.unwrap();
        }
        clock.fetch_add(3_600_000_000, Ordering::SeqCst);
        arbiter.list(&name(500)).await.unwrap();
        assert_eq!(known(), 1);
    }

    #[tokio::test]
    async fn when_it_is_full_nothing_begins_until_something_is_over() {
        let clock = Arc::new(AtomicU64::new(1));
        let arbiter = MemoryArbiter::new(Arc::clone(&clock) as _).bounded(10_000);
        let (ttl, holder) = (Duration::from_secs(1), Holder::random());
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
        clock.fetch_add(micros(ttl), Ordering::SeqCst);
        assert!(keep(3).await.unwrap());
    }
}
