//! What is known of one name: its lock, who waits for it, its value, its list. Pure: `now` is an argument.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::clock::micros;
use crate::arbiter::{Beginning, Entry, Locking, WAITING_MAX};
use crate::name::{Holder, Token};

/// What a name takes beside what is kept under it, and what a waiter takes, in bytes, about.
const NAME_BYTES: usize = 512;
const WAITER_BYTES: usize = 64;
/// How long a lock outlives its last holder, so that tokens grow also when the clock is set back meanwhile.
const KEPT_US: u64 = 600_000_000;

#[derive(Debug, Default)]
pub(super) struct LockState {
    token: u64,
    holder: Option<Holder>,
    until_us: u64,
    /// The last token that was unlocked.
    released: Option<Token>,
    queue: VecDeque<Waiter>,
    value: Option<Value>,
    failure: Option<Failure>,
    list: Option<List>,
    /// The greatest token that replaced the list, and until when it is known.
    writer: Option<(Token, u64)>,
}

#[derive(Debug)]
struct Waiter {
    holder: Holder,
    present_until_us: u64,
}

#[derive(Debug)]
struct Value {
    bytes: Arc<[u8]>,
    token: Token,
    cost: Duration,
    written_us: u64,
    expires_us: u64,
}

#[derive(Debug)]
struct Failure {
    message: String,
    expires_us: u64,
}

#[derive(Debug)]
struct List {
    items: Vec<Vec<u8>>,
    bytes: usize,
    expires_us: u64,
}

/// Who is to be woken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wake {
    Nobody,
    First(Holder),
    All,
}

impl LockState {
    fn is_held(&self, now: u64) -> bool {
        self.until_us > now
    }

    /// Whether its last holder released it, so that it did not lapse.
    fn is_released(&self) -> bool {
        self.until_us == 0
    }

    fn is_held_by(&self, holder: &Holder) -> bool {
        self.holder.as_ref() == Some(holder)
    }

    /// Whether this is the token of the last holder.
    fn is_last(&self, token: Token) -> bool {
        self.token == token.number() && self.token > 0
    }

    /// The token of whoever holds it, for longer, if that is this holder; a new one otherwise.
    fn grant(&mut self, now: u64, holder: &Holder, ttl: Duration) -> Token {
        if self.is_held(now) && self.is_held_by(holder) {
            self.until_us = now + micros(ttl);
            return Token::new(self.token);
        }
        self.token = now.max(self.token + 1);
        self.holder = Some(holder.clone());
        self.until_us = now + micros(ttl);
        Token::new(self.token)
    }

    /// The first in the queue that is alive; the others leave.
    fn head(&mut self, now: u64) -> Option<&Waiter> {
        self.queue.retain(|waiter| waiter.present_until_us > now);
        self.queue.front()
    }

    fn next(&mut self, now: u64) -> Wake {
        match self.head(now) {
            Some(first) => Wake::First(first.holder.clone()),
            None => Wake::All,
        }
    }

    fn free(&mut self, now: u64) -> Wake {
        self.until_us = 0;
        self.holder = None;
        self.next(now)
    }

    pub(super) fn lock(
        &mut self,
        now: u64,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> (Locking, Wake) {
        if self.is_held(now) && self.is_held_by(holder) {
            return (Locking::Granted(self.grant(now, holder, ttl)), Wake::Nobody);
        }
        let is_held = self.is_held(now);
        let first = self.head(now).map(|first| first.holder.clone());
        if !is_held && first.as_ref().is_none_or(|first| first == holder) {
            self.queue.retain(|waiter| waiter.holder != *holder);
            return (Locking::Granted(self.grant(now, holder, ttl)), Wake::Nobody);
        }
        if let Some(presence) = presence {
            let present_until_us = now + micros(presence);
            let place = self.queue.iter_mut().find(|it| it.holder == *holder);
            if let Some(waiter) = place {
                waiter.present_until_us = present_until_us;
            } else if self.queue.len() >= WAITING_MAX {
                return (Locking::Crowded, Wake::Nobody);
            } else {
                self.queue.push_back(Waiter { holder: holder.clone(), present_until_us });
            }
        }
        if is_held {
            let wait = Duration::from_micros(self.until_us - now);
            return (Locking::Busy(wait), Wake::Nobody);
        }
        // Free, but another's turn: wake it again, in case it missed the wake-up.
        let wait = self.queue.front().map_or(0, |it| it.present_until_us - now);
        (Locking::Busy(Duration::from_micros(wait)), self.next(now))
    }

    pub(super) fn renew(&mut self, now: u64, token: Token, ttl: Duration) -> bool {
        let is_mine = self.is_last(token) && self.is_held(now);
        if is_mine {
            self.until_us = now + micros(ttl);
        }
        is_mine
    }

    pub(super) fn unlock(&mut self, now: u64, token: Token) -> (bool, Wake) {
        if self.released == Some(token) {
            // The answer was lost and the holder asks again. Somebody else may have the lock by now.
            (true, Wake::Nobody)
        } else if self.is_last(token) && self.is_held(now) {
            self.released = Some(token);
            (true, self.free(now))
        } else {
            (false, Wake::Nobody)
        }
    }

    pub(super) fn leave(&mut self, now: u64, holder: &Holder) -> Wake {
        self.queue.retain(|waiter| waiter.holder != *holder);
        if !self.is_held(now) {
            self.next(now)
        } else if self.is_held_by(holder) {
            self.free(now)
        } else {
            Wake::Nobody
        }
    }

    pub(super) fn peek(&self, now: u64) -> Option<Entry> {
        let value = self.value.as_ref().filter(|it| it.expires_us > now)?;
        Some(Entry {
            value: Arc::clone(&value.bytes),
            token: value.token,
            cost: value.cost,
            written_us: value.written_us,
            expires_us: value.expires_us,
            now_us: now,
        })
    }

    pub(super) fn begin(
        &mut self,
        now: u64,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Beginning {
        if let Some(entry) = self.peek(now)
            && Some(entry.token) != outdated
        {
            return Beginning::Value(entry);
        }
        if let Some(failure) = &self.failure
            && failure.expires_us > now
        {
            return Beginning::Failed(failure.message.clone());
        }
        if self.is_held(now) && !self.is_held_by(holder) {
            return Beginning::Busy(Duration::from_micros(self.until_us - now));
        }
        Beginning::Granted(self.grant(now, holder, ttl))
    }

    pub(super) fn publish(
        &mut self,
        now: u64,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> bool {
        if !self.is_last(token) || self.is_released() {
            return self.is_last(token);
        }
        self.value = Some(Value {
            bytes: value.into(),
            token,
            cost,
            written_us: now,
            expires_us: now + micros(ttl),
        });
        self.failure = None;
        self.free(now);
        true
    }

    pub(super) fn fail(&mut self, now: u64, token: Token, message: &str, ttl: Duration) -> bool {
        if !self.is_last(token) || self.is_released() {
            return self.is_last(token);
        }
        self.failure = Some(Failure { message: message.to_owned(), expires_us: now + micros(ttl) });
        self.free(now);
        true
    }

    pub(super) fn invalidate(&mut self, now: u64) -> (bool, Wake) {
        let mut is_there = self.peek(now).is_some();
        is_there |= self.failure.take().is_some_and(|it| it.expires_us > now);
        self.value = None;
        if self.token > 0 {
            is_there |= !self.is_released();
            self.token = now.max(self.token + 1);
            self.free(now);
        }
        let wake = if is_there { Wake::All } else { Wake::Nobody };
        (is_there, wake)
    }

    pub(super) fn replace(
        &mut self,
        now: u64,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> bool {
        if let Some(token) = token {
            let newer = |(writer, until)| writer > token && until > now;
            if self.writer.is_some_and(newer) {
                return false;
            }
            self.writer = Some((token, now + micros(ttl) + KEPT_US));
        }
        self.list = Some(List {
            items: items.iter().map(|item| item.to_vec()).collect(),
            bytes: items.iter().map(|it| size_of::<Vec<u8>>() + it.len()).sum(),
            expires_us: now + micros(ttl),
        });
        true
    }

    pub(super) fn list(&self, now: u64) -> Vec<Vec<u8>> {
        let list = self.list.as_ref().filter(|list| list.expires_us > now);
        list.map(|list| list.items.clone()).unwrap_or_default()
    }

    /// How much memory it takes, about.
    pub(super) fn bytes(&self) -> usize {
        NAME_BYTES
            + self.queue.len() * WAITER_BYTES
            + self.value.as_ref().map_or(0, |it| it.bytes.len())
            + self.failure.as_ref().map_or(0, |it| it.message.len())
            + self.list.as_ref().map_or(0, |it| it.bytes)
    }

    /// Whether there is nothing left that anybody could still ask for.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.token.max(self.until_us) + KEPT_US <= now
            && self.queue.iter().all(|it| it.present_until_us <= now)
            && self.value.as_ref().is_none_or(|it| it.expires_us <= now)
            && self.failure.as_ref().is_none_or(|it| it.expires_us <= now)
            && self.list.as_ref().is_none_or(|it| it.expires_us <= now)
            && self.writer.is_none_or(|(_, until)| until <= now)
    }

    /// Drops what has expired. A large value should not stay because its lock does.
    pub(super) fn drop_expired(&mut self, now: u64) {
        self.value.take_if(|it| it.expires_us <= now);
        self.failure.take_if(|it| it.expires_us <= now);
        self.list.take_if(|it| it.expires_us <= now);
    }
}
