//! The operations of the store that all processes share. Each is atomic.
//!
//! Every instant is one of the arbiter's own clock. All operations may be repeated after a doubt: doing them twice does
//! no more than once, and gives the same answer unless another caller acted in between.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use tokio_util::task::AbortOnDropHandle;

use super::event::Event;
use super::keeper;
use super::name::{Holder, Name, Token};
use super::wakes::Listener;

/// The maximum number of waiters of a lock; the next is refused at once.
pub const WAITING_MAX: usize = 10_000;

/// An answer to [`Arbiter::lock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// The lock is the holder's.
    Granted(Token),
    /// Another holder has it, or another waiter is first in the queue. Ask again after this time, or when woken.
    Busy(Duration),
    /// [`WAITING_MAX`] wait already.
    Crowded,
}

/// A value with its times. All instants are in microseconds of the arbiter's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Arc<[u8]>,
    /// The token of the computation that it is from.
    pub token: Token,
    /// The duration of the computation.
    pub cost: Duration,
    /// When it was written.
    pub written_us: u64,
    /// When it goes.
    pub expires_us: u64,
    /// When it was read.
    pub now_us: u64,
}

/// An answer to [`Arbiter::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// There is a value.
    Value(Entry),
    /// The last computation failed a moment ago, with this message.
    Failed(String),
    /// The caller may compute.
    Granted(Token),
    /// Another holder computes. Its right lapses after this time, unless it is renewed.
    Busy(Duration),
}

/// Why the arbiter did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArbiterError {
    /// Away, slow, or not ready. The operation may have been done; try again.
    #[error("the arbiter is unavailable: {0}")]
    Unavailable(String),
    /// No room for a new entry. Try again later.
    #[error("the arbiter is full: {0}")]
    Full(String),
    /// It does not serve until an operator fixes something.
    #[error("the arbiter refuses: {0}")]
    Refused(String),
}

/// The result of an operation of an [`Arbiter`].
pub type Answer<T> = Result<T, ArbiterError>;

/// The store that all processes share. Any store that does each operation in one step can implement it.
#[async_trait]
pub trait Arbiter: Send + Sync + std::fmt::Debug {
    /// Takes a lock for `ttl`. If it is busy and `presence` is given, the holder gets a place in the queue, and
    /// keeps it while it asks again within that time.
    async fn lock(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        presence: Option<Duration>,
    ) -> Answer<Locking>;

    /// Holds a lock, or the right to compute, until `ttl` from now. False when it is not the token's.
    async fn renew(&self, name: &Name, token: Token, ttl: Duration) -> Answer<bool>;

    /// Releases a lock and wakes the next waiter. True when the token held it until now, and also when it is the last that
    /// released it: a holder that gets no answer may ask again, although the next one has the lock by then. False when the lock
    /// had lapsed, or when another token released it since.
    async fn unlock(&self, name: &Name, token: Token) -> Answer<bool>;

    /// Ends whatever this holder began: its place in the queue, its lock, its right to compute.
    async fn leave(&self, name: &Name, holder: &Holder) -> Answer<()>;

    /// Reads a value. Leaves nothing behind, also where there is none, and needs no room.
    async fn peek(&self, name: &Name) -> Answer<Option<Entry>>;

    /// Reads a value, or takes the right to compute it for `ttl`. A value with the token `outdated` is as none.
    async fn begin(
        &self,
        name: &Name,
        holder: &Holder,
        ttl: Duration,
        outdated: Option<Token>,
    ) -> Answer<Beginning>;

    /// Writes a value for `ttl`, gives the right to compute back and wakes all waiters. False, and nothing
    /// done, when a newer token was granted since.
    async fn publish(
        &self,
        name: &Name,
        token: Token,
        value: &[u8],
        cost: Duration,
        ttl: Duration,
    ) -> Answer<bool>;

    /// Writes the message of an error instead. A value that was to be refreshed stays.
    async fn fail(&self, name: &Name, token: Token, message: &str, ttl: Duration) -> Answer<bool>;

    /// Removes a value or an error, and takes the right to compute from its holder. True when there was any of these.
    async fn invalidate(&self, name: &Name) -> Answer<bool>;

    /// Replaces a list and its time to live. Readers see all of the old or all of the new. False, and nothing done, when it
    /// was replaced with a greater token before.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool>;

    /// Reads a list; empty when there is none.
    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>>;

    /// Wakes when to ask again: this holder when it is next for a lock, or everybody (`None`) who waits for a
    /// value.
    fn listen(&self, name: &Name, holder: Option<&Holder>) -> Listener;

    /// Runs the task that renews a lease; it ends when the handle is dropped. By default it runs on a dedicated thread, which no
    /// holder can block: [`renew`](Self::renew) is called there, on another runtime than all else.
    fn keep(&self, renewing: BoxFuture<'static, ()>) -> AbortOnDropHandle<()> {
        keeper::spawn(renewing)
    }

    /// Receives the events of locks and values in this process, for metrics and traces. Must not block.
    fn observe(&self, _name: &Name, _event: &Event) {}
}

/// Returns whole microseconds, at most what a Lua number holds exactly.
pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}
