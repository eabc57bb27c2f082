//! A reference model with the simplest implementation of each operation of an arbiter.
//!
//! The model is an [`Arbiter`], so that it can be called like the others. Tests set its time through a field.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use coordination::{
    Answer, Arbiter, Beginning, Claim, Entry, Listener, Locking, Name, Place, Token,
};
use tokio::sync::watch;

/// A time or a duration in microseconds.
type Micros = u64;

#[derive(Debug, Default)]
pub(crate) struct Reference(Mutex<World>);

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) now: Micros,
    names: HashMap<Name, State>,
}

#[derive(Debug, Default)]
struct State {
    /// The lease that was granted last.
    grant: Option<Grant>,
    /// The last holder that released the lease.
    released: Option<String>,
    /// The waiting callers in the order of arrival.
    queue: Vec<String>,
    value: Option<Entry>,
    failure: Option<(String, Micros)>,
    list: Option<(Vec<Vec<u8>>, Micros)>,
    /// The greatest token with which the list has been replaced.
    writer: Option<Token>,
}

#[derive(Debug)]
struct Grant {
    token: Token,
    /// The holder, or `None` once the lease has been released.
    holder: Option<String>,
    lapses: Micros,
}

/// The keys of a name, each of which Redis may evict separately.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Key {
    Holders,
    Lock,
    Entry,
}

/// The duration of the lease when a lock is handed over.
const HANDED_OVER: Duration = Duration::from_secs(2);

fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap()
}

impl State {
    fn held(&self, now: Micros) -> Option<&Grant> {
        let grant = self.grant.as_ref();
        grant.filter(|grant| grant.holder.is_some() && grant.lapses > now)
    }

    fn is_held_by(&self, now: Micros, holder: &str) -> bool {
        self.held(now).is_some_and(|grant| grant.holder.as_deref() == Some(holder))
    }

    /// Grants a lease, and returns its new token, or the current token if the caller already holds the lease.
    fn granted(&mut self, now: Micros, holder: &str, ttl: Duration) -> Token {
        let last = self.grant.as_ref().map_or(0, |grant| grant.token.0);
        let token = match self.held(now) {
            Some(grant) => grant.token,
            None => Token(now.max(last + 1)),
        };
        let (holder, lapses) = (Some(holder.to_owned()), now + micros(ttl));
        self.grant = Some(Grant { token, holder, lapses });
        token
    }

    /// Ends the lease, and grants one to the first waiter, if any.
    fn hand_over(&mut self, now: Micros) {
        if let Some(grant) = &mut self.grant {
            grant.holder = None;
        }
        if !self.queue.is_empty() {
            let holder = self.queue.remove(0);
            self.granted(now, &holder, HANDED_OVER);
        }
    }

    fn is_last_holder(&self, holder: &str) -> bool {
        self.grant.as_ref().is_some_and(|grant| grant.holder.as_deref() == Some(holder))
    }
}

impl Reference {
    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap()
    }

    fn with<T>(&self, name: &Name, act: impl FnOnce(&mut State, Micros) -> T) -> T {
        let mut world = self.world();
        let now = world.now;
        act(world.names.entry(name.clone()).or_default(), now)
    }

    /// Evicts a key of this name.
    pub(crate) fn evict(&self, name: &Name, key: Key) {
        self.with(name, |state, _| match key {
            Key::Holders => {
                (state.grant, state.released) = (None, None);
                state.queue.clear();
            }
            Key::Lock => (state.grant, state.released) = (None, None),
            Key::Entry => (state.value, state.failure) = (None, None),
        });
    }
}

#[async_trait]
impl Arbiter for Reference {
    async fn lock(&self, claim: &Claim, place: Place) -> Answer<Locking> {
        let holder = &claim.holder;
        let process = |holder: &str| holder.split('-').next().unwrap().to_owned();
        Ok(self.with(&claim.name, |state, now| {
            let is_behind = !state.queue.is_empty();
            if place == Place::Join && is_behind {
                state.queue.push(holder.clone());
                return Locking::Queued;
            }
            if state.is_held_by(now, holder) {
                return Locking::Granted(state.granted(now, holder, claim.ttl));
            }
            if state.held(now).is_none() {
                let lapsed = state.grant.as_ref().and_then(|grant| grant.holder.as_deref());
                let lapsed = lapsed.map(process).filter(|lapsed| *lapsed != process(holder));
                state.queue.retain(|waiter| Some(process(waiter)) != lapsed);
                if state.queue.first().is_none_or(|first| first == holder) {
                    state.queue.retain(|waiter| waiter != holder);
                    return Locking::Granted(state.granted(now, holder, claim.ttl));
                }
                state.hand_over(now);
            }
            if place != Place::None && !state.queue.contains(holder) {
                state.queue.push(holder.clone());
            }
            let held = state.held(now).unwrap();
            Locking::Busy(Duration::from_micros(held.lapses - now), held.token)
        }))
    }

    async fn renew(&self, claim: &Claim) -> Answer<bool> {
        Ok(self.with(&claim.name, |state, now| {
            let is_held = state.is_held_by(now, &claim.holder);
            if let Some(grant) = state.grant.as_mut().filter(|_| is_held) {
                grant.lapses = now + micros(claim.ttl);
            }
            is_held
        }))
    }

    async fn release(&self, claim: &Claim) -> Answer<bool> {
        Ok(self.with(&claim.name, |state, now| {
            if state.is_last_holder(&claim.holder) {
                state.released = Some(claim.holder.clone());
                state.hand_over(now);
            }
            state.queue.retain(|waiter| *waiter != claim.holder);
            state.released.as_ref() == Some(&claim.holder)
        }))
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        Ok(self.with(name, |state, now| {
            let value = state.value.clone().filter(|entry| entry.expires_us > now)?;
            Some(Entry { now_us: now, ..value })
        }))
    }

    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning> {
        let value = self.peek(&claim.name).await?;
        if let Some(entry) = value.filter(|entry| Some(entry.token) != outdated) {
            return Ok(Beginning::Value(entry));
        }
        Ok(self.with(&claim.name, |state, now| match (&state.failure, state.held(now)) {
            (Some((message, until)), _) if *until > now => Beginning::Failed(message.clone()),
            (_, Some(grant)) if grant.holder.as_ref() != Some(&claim.holder) => {
                Beginning::Busy(Duration::from_micros(grant.lapses - now))
            }
            _ => Beginning::Granted(state.granted(now, &claim.holder, claim.ttl)),
        }))
    }

    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool> {
        Ok(self.with(&claim.name, |state, now| {
            let last =
                state.grant.as_ref().filter(|grant| grant.holder.as_ref() == Some(&claim.holder));
            let Some(Grant { token, .. }) = last else {
                return state.released.as_ref() == Some(&claim.holder);
            };
            let (token, expires_us) = (*token, now + micros(ttl));
            match output {
                Ok((value, cost)) => {
                    let value = value.into();
                    let (written_us, now_us) = (now, now);
                    state.failure = None;
                    state.value =
                        Some(Entry { value, token, cost, written_us, expires_us, now_us });
                }
                Err(message) => state.failure = Some((message.to_owned(), expires_us)),
            }
            state.released = Some(claim.holder.clone());
            state.hand_over(now);
            true
        }))
    }

    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool> {
        Ok(self.with(name, |state, now| {
            if token.is_some() && token < state.writer {
                return false;
            }
            let items = items.iter().map(|item| item.to_vec()).collect();
            state.list = Some((items, now + micros(ttl)));
            state.writer = state.writer.max(token);
            true
        }))
    }

    async fn invalidate(&self, name: &Name) -> Answer<bool> {
        let has_value = self.peek(name).await?.is_some();
        Ok(self.with(name, |state, now| {
            let failure = state.failure.take();
            let has_failure = failure.is_some_and(|(_, until)| until > now);
            state.value = None;
            let is_computed = state.grant.as_ref().is_some_and(|grant| grant.holder.is_some());
            if let Some(grant) = &mut state.grant {
                grant.token = Token(now.max(grant.token.0 + 1));
                grant.holder = None;
                state.released = None;
            }
            has_value || has_failure || is_computed
        }))
    }

    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>> {
        Ok(self.with(name, |state, now| match &state.list {
            Some((items, until)) if *until > now => items.clone(),
            _ => Vec::new(),
        }))
    }

    fn listen(&self, _: &Name, _: Option<&str>) -> Listener {
        watch::Sender::new(None).subscribe().into()
    }
}
