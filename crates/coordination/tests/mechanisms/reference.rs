//! The model: each operation of an arbiter in its simplest form.
//!
//! It is an [`Arbiter`], so that all three are called in the same way. Its time is a field.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use coordination::{Answer, Arbiter, Beginning, Entry, Holder, Listener, Locking, Name, Token};
use tokio::sync::watch;

/// Instants and spans in microseconds.
type Micros = u64;

/// The reference arbiter.
#[derive(Debug, Default)]
pub(crate) struct Reference(Mutex<World>);

#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) now: Micros,
    names: HashMap<Name, State>,
}

#[derive(Debug, Default)]
struct State {
    /// The last that was granted.
    grant: Option<Grant>,
    /// The last token that was unlocked.
    unlocked: Option<Token>,
    /// Who waits, in the order of coming, and until when each keeps its place.
    queue: Vec<(Holder, Micros)>,
    value: Option<Entry>,
    failure: Option<(String, Micros)>,
    list: Option<(Vec<Vec<u8>>, Micros)>,
    /// The greatest token that replaced the list.
    writer: Option<Token>,
}

#[derive(Debug)]
struct Grant {
    token: Token,
    holder: Holder,
    lapses: Micros,
    is_released: bool,
}

/// The keys that Redis may evict, each on its own.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Key {
    Lock,
    Queue,
    Present,
    Entry,
    List,
}

fn micros(span: Duration) -> Micros {
    u64::try_from(span.as_micros()).unwrap()
}

impl State {
    fn held(&self, now: Micros) -> Option<&Grant> {
        let grant = self.grant.as_ref();
        grant.filter(|it| !it.is_released && it.lapses > now)
    }

    fn is_held_by_other(&self, now: Micros, holder: &Holder) -> bool {
        self.held(now).is_some_and(|it| it.holder != *holder)
    }

    /// A new token, unless the holder has the lock.
    fn granted(&mut self, now: Micros, holder: &Holder, ttl: Duration) -> Token {
        let last = self.grant.as_ref().map_or(0, |it| it.token.number());
        let token = match self.held(now) {
            Some(grant) => grant.token,
            None => Token::new(now.max(last + 1)),
        };
        self.grant = Some(Grant {
            token,
            holder: holder.clone(),
            lapses: now + micros(ttl),
            is_released: false,
        });
        token
    }

    /// The last grant, if it has this token.
    fn last(&mut self, token: Token) -> Option<&mut Grant> {
        self.grant.as_mut().filter(|it| it.token == token)
    }

    /// Whether the right of this token is there to be given back. `Err` with the answer if there is nothing to do.
    fn give_back(&mut self, token: Token) -> Result<(), bool> {
        let grant = self.last(token).ok_or(false)?;
        if grant.is_released {
            return Err(true);
        }
        grant.is_released = true;
        Ok(())
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

    /// A key of this name is gone.
    pub(crate) fn evict(&self, name: &Name, key: Key) {
        self.with(name, |state, _| match key {
            Key::Lock => (state.grant, state.unlocked) = (None, None),
            // Without one of the two the other says nothing.
            Key::Queue | Key::Present => state.queue.clear(),
            Key::Entry => (state.value, state.failure) = (None, None),
            Key::List => state.list = None,
        });
    }
}

#[async_trait]
impl Arbiter for Reference {
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Answer<Locking> {
        Ok(self.with(name, |state, now| {
            let is_mine = state.held(now).is_some_and(|it| it.holder == *holder);
            if !is_mine {
                state.queue.retain(|(_, until)| *until > now);
            }
            let is_turn = state.queue.first().is_none_or(|(first, _)| first == holder);
            if is_mine || state.held(now).is_none() && is_turn {
                if !is_mine {
                    state.queue.retain(|(waiter, _)| waiter != holder);
                }
                return Locking::Granted(state.granted(now, holder, ttl));
            }
            if let Some(presence) = presence {
                let until = now + micros(presence);
                match state.queue.iter_mut().find(|(it, _)| it == holder) {
                    Some(place) => place.1 = until,
                    None => state.queue.push((holder.clone(), until)),
                }
            }
            let turn = state.queue.first().map_or(0, |(_, until)| *until);
            let free = state.held(now).map_or(turn, |it| it.lapses);
            Locking::Busy(Duration::from_micros(free - now))
        }))
    }

    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Answer<bool> {
        Ok(self.with(name, |state, now| {
            let is_held = state.held(now).is_some_and(|it| it.token == token);
            if let Some(grant) = state.grant.as_mut().filter(|_| is_held) {
                grant.lapses = now + micros(ttl);
            }
            is_held
        }))
    }

    async fn unlock(&self, name: &Name, token: Token) -> Answer<bool> {
        Ok(self.with(name, |state, now| {
            if state.held(now).is_some_and(|it| it.token == token) {
                state.grant.as_mut().unwrap().is_released = true;
                state.unlocked = Some(token);
            }
            state.unlocked == Some(token)
        }))
    }

    async fn leave(&self, name: &Name, holder: &Holder) -> Answer<()> {
        self.with(name, |state, now| {
            state.queue.retain(|(waiter, _)| waiter != holder);
            if state.held(now).is_some_and(|it| it.holder == *holder) {
                state.grant.as_mut().unwrap().is_released = true;
            }
        });
        Ok(())
    }

    async fn peek(&self, name: &Name) -> Answer<Option<Entry>> {
        Ok(self.with(name, |state, now| {
            let value = state.value.clone().filter(|it| it.expires_us > now)?;
            Some(Entry { now_us: now, ..value })
        }))
    }

    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Answer<Beginning> {
        let value = self.peek(name).await?;
        if let Some(entry) = value.filter(|it| Some(it.token) != outdated) {
            return Ok(Beginning::Value(entry));
        }
        Ok(self.with(name, |state, now| match &state.failure {
            Some((message, until)) if *until > now => Beginning::Failed(message.clone()),
            _ if state.is_held_by_other(now, holder) => {
                let lapses = state.grant.as_ref().unwrap().lapses;
                Beginning::Busy(Duration::from_micros(lapses - now))
            }
            _ => Beginning::Granted(state.granted(now, holder, ttl)),
        }))
    }

    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Answer<bool> {
        Ok(self.with(name, |state, now| {
            if let Err(is_done) = state.give_back(token) {
                return is_done;
            }
            state.failure = None;
            state.value = Some(Entry {
                value: value.into(),
                token,
                cost,
                written_us: now,
                expires_us: now + micros(ttl),
                now_us: now,
            });
            true
        }))
    }

    async fn fail(&self, name: &Name, token: Token, message: &str, ttl: Duration) -> Answer<bool> {
        Ok(self.with(name, |state, now| {
            if let Err(is_done) = state.give_back(token) {
                return is_done;
            }
            state.failure = Some((message.to_owned(), now + micros(ttl)));
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
            let is_computed = state.grant.as_ref().is_some_and(|it| !it.is_released);
            if let Some(grant) = &mut state.grant {
                grant.token = Token::new(now.max(grant.token.number() + 1));
                grant.is_released = true;
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

    fn listen(&self, _: &Name, _: Option<&Holder>) -> Listener {
        watch::Sender::new(()).subscribe().into()
    }
}
