//! The store that all processes share, and the names, claims and tokens of its operations.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::wakes::Listener;

/// The maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The maximum number of waiters of a lock. Further ones are refused.
pub const WAITING_MAX: usize = 10_000;

/// The name of a lock, a value or a list. Names of different kinds never collide.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name of a lock of [`Mutex`](super::Mutex).
    pub fn of_mutex(name: &str) -> Result<Self, Error> {
        Self::new("mutex", name)
    }

    /// Returns the name of a value of [`ComputeOnce`](super::ComputeOnce).
    pub fn of_value(key: &str) -> Result<Self, Error> {
        Self::new("once", key)
    }

    /// Returns the name of a list of [`AtomicReplace`](super::AtomicReplace).
    pub fn of_list(key: &str) -> Result<Self, Error> {
        Self::new("list", key)
    }

    fn new(kind: &str, name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Name(name.len()));
        }
        Ok(Self(format!("{kind}:{name}")))
    }

    /// Returns the kind and the name, like `mutex:reports`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An attempt to hold a lock or to compute a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lock or the value.
    pub name: Name,
    /// A random identifier, by which a repeated request is recognized.
    pub holder: String,
    /// The time to live of the lease, from each request on.
    pub ttl: Duration,
}

impl Claim {
    /// Returns a claim of a new holder.
    #[must_use]
    pub fn new(name: Name, ttl: Duration) -> Self {
        Self { name, holder: format!("{:032x}", rand::random::<u128>()), ttl }
    }
}

/// The number of a lease: the store's clock in microseconds, or the last token plus one, so greater than all earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The answer of [`Arbiter::lock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// The holder has the lock.
    Granted(Token),
    /// Another holder has the lock, or another waiter is first in the queue. Ask again after this time, or when woken.
    Busy(Duration),
    /// The queue has [`WAITING_MAX`] waiters.
    Crowded,
}

/// A value with its times, in microseconds of the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Arc<[u8]>,
    /// The token of its computation.
    pub token: Token,
    /// The duration of its computation.
    pub cost: Duration,
    /// The time at which it was written.
    pub written_us: u64,
    /// The time at which it expires.
    pub expires_us: u64,
    /// The time at which it was read.
    pub now_us: u64,
}

/// The answer of [`Arbiter::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// There is a value.
    Value(Entry),
    /// The last computation failed with this message, which has not expired.
    Failed(String),
    /// The holder may compute.
    Granted(Token),
    /// Another holder computes. Its lease lapses after this time unless it is renewed.
    Busy(Duration),
}

/// The reason why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store is down, slow or not ready. It may have carried out the operation; try again.
    #[error("the arbiter is unavailable: {0}")]
    Unavailable(String),
    /// The store has no room for a new entry. Try again later.
    #[error("the arbiter is full: {0}")]
    Full(String),
    /// The store refuses operations until an operator changes something.
    #[error("the arbiter refuses: {0}")]
    Refused(String),
    /// There was no lock or value within the caller's patience. A computation continues.
    #[error("timed out")]
    TimedOut,
    /// A lock has [`WAITING_MAX`] waiters.
    #[error("too many callers wait for the lock")]
    Crowded,
    /// The computation failed, panicked or took too long, with this message for all its callers.
    #[error("the computation failed: {0}")]
    Failed(String),
    /// A list has this many items and bytes; see [`ITEMS_MAX`](super::ITEMS_MAX) and [`LIST_BYTES_MAX`](super::LIST_BYTES_MAX).
    #[error("the list is too large: {0} items and {1} bytes")]
    TooLarge(usize, usize),
    /// A name or key has this many bytes: none, or more than [`NAME_BYTES_MAX`].
    #[error("a name must have 1 to {NAME_BYTES_MAX} bytes, but has {0}")]
    Name(usize),
}

/// The result of an operation.
pub type Answer<T> = Result<T, Error>;

/// A store that all processes share. Each operation is atomic and uses the store's clock. It may be repeated when its answer is
/// lost: that has no further effect and gives the same answer, unless another caller acted in between.
#[async_trait]
pub trait Arbiter: Send + Sync + fmt::Debug {
    /// Acquires a lock. If it is busy and `presence` is given, the holder gets a place in the queue, which it keeps if it asks
    /// again within that time.
    async fn lock(&self, claim: &Claim, presence: Option<Duration>) -> Answer<Locking>;

    /// Reads a value, or acquires the lease to compute it. A value with the token `outdated` is ignored.
    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning>;

    /// Extends a lease to its full time from now. Returns false if the holder does not have it.
    async fn renew(&self, claim: &Claim) -> Answer<bool>;

    /// Ends the lease and the place in the queue of this holder, and wakes the next waiter. Returns true if it had the lease
    /// until now, and when the request is repeated, even if the next holder has the lease.
    async fn release(&self, claim: &Claim) -> Answer<bool>;

    /// Writes a value with the duration of its computation, or the message of an error, for `ttl`; ends the lease and wakes all
    /// waiters. An error does not replace a value. Returns false, with no effect, if another lease was granted or the value was
    /// invalidated in between.
    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool>;

    /// Reads a value. Creates no key and needs no room.
    async fn peek(&self, name: &Name) -> Answer<Option<Entry>>;

    /// Removes a value or an error and ends the lease. Returns whether there was any of these.
    async fn invalidate(&self, name: &Name) -> Answer<bool>;

    /// Replaces a list and its time to live; readers see all of the old or all of the new list. Returns false, with no effect,
    /// if it was replaced with a greater token before.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool>;

    /// Reads a list; empty if there is none.
    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>>;

    /// Returns a listener that wakes this holder when it is next for a lock, or without a holder all waiters for a value.
    fn listen(&self, name: &Name, holder: Option<&str>) -> Listener;

    /// Returns whether a test sets the time. If not, a dedicated thread, which no holder can block, calls
    /// [`renew`](Self::renew) on another runtime than the other operations.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// Returns whole microseconds, limited to the numbers that Lua represents exactly.
pub(super) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(1 << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        assert_eq!(Name::of_mutex("a").unwrap().as_str(), "mutex:a");
        assert_eq!(Name::of_mutex(""), Err(Error::Name(0)));
        let longest = "x".repeat(NAME_BYTES_MAX);
        assert!(Name::of_mutex(&longest).is_ok());
        assert!(Name::of_mutex(&(longest + "x")).is_err());
    }
}
