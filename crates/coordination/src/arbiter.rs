//! The store that all processes share, and the names, claims and tokens its operations use.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::wakes::Listener;

/// Maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// Maximum number of waiters per lock. Any more are rejected.
pub const WAITING_MAX: usize = 10_000;

/// The name of a lock, a value or a list. Names of different kinds never collide.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name for a [`Mutex`](super::Mutex) lock.
    pub fn of_mutex(name: &str) -> Result<Self, Error> {
        Self::new("mutex", name)
    }

    /// Returns the name for a [`ComputeOnce`](super::ComputeOnce) value.
    pub fn of_value(key: &str) -> Result<Self, Error> {
        Self::new("once", key)
    }

    /// Returns the name for an [`AtomicReplace`](super::AtomicReplace) list.
    pub fn of_list(key: &str) -> Result<Self, Error> {
        Self::new("list", key)
    }

    fn new(kind: &str, name: &str) -> Result<Self, Error> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Name(name.len()));
        }
        Ok(Self(format!("{kind}:{name}")))
    }

    /// Returns the kind and the name, such as `mutex:reports`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An attempt to hold a lock or to compute a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lock or value being claimed.
    pub name: Name,
    /// A random identifier that lets the store recognize a repeated request.
    pub holder: String,
    /// How long the lease lasts after each request.
    pub ttl: Duration,
}

impl Claim {
    /// Returns a claim for a new holder.
    #[must_use]
    pub fn new(name: Name, ttl: Duration) -> Self {
        Self { name, holder: format!("{:032x}", rand::random::<u128>()), ttl }
    }
}

/// Identifies a lease: the store's clock in microseconds or the last token plus one, and so greater than all earlier tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The reply from [`Arbiter::lock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// The lock was granted to this holder.
    Granted(Token),
    /// Another holder has the lock, or another waiter is ahead in the queue. Retry after this time, or when woken.
    Busy(Duration),
    /// The queue already has [`WAITING_MAX`] waiters.
    Crowded,
}

/// A value and its timestamps, in microseconds of the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The value.
    pub value: Arc<[u8]>,
    /// The token of the computation that produced it.
    pub token: Token,
    /// How long it took to compute.
    pub cost: Duration,
    /// When it was written.
    pub written_us: u64,
    /// When it expires.
    pub expires_us: u64,
    /// When it was read.
    pub now_us: u64,
}

/// The reply from [`Arbiter::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// A value exists.
    Value(Entry),
    /// The last computation failed with this message, which has not expired yet.
    Failed(String),
    /// The holder may compute the value.
    Granted(Token),
    /// Another holder is computing the value. Its lease lapses after this time unless it is renewed.
    Busy(Duration),
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store is down, slow or not ready. The operation may have been carried out; retry it.
    #[error("the arbiter is unavailable: {0}")]
    Unavailable(String),
    /// The store has no room for a new entry. Retry later.
    #[error("the arbiter is full: {0}")]
    Full(String),
    /// The store rejects operations until an operator fixes the cause.
    #[error("the arbiter refuses: {0}")]
    Refused(String),
    /// The lock or value was not available within the caller's patience. A running computation continues.
    #[error("timed out")]
    TimedOut,
    /// The lock already has [`WAITING_MAX`] waiters.
    #[error("too many callers wait for the lock")]
    Crowded,
    /// The computation failed, panicked or timed out. All of its callers get this message.
    #[error("the computation failed: {0}")]
    Failed(String),
    /// Items and bytes of a list that exceeds [`ITEMS_MAX`](super::ITEMS_MAX) or [`LIST_BYTES_MAX`](super::LIST_BYTES_MAX).
    #[error("the list is too large: {0} items and {1} bytes")]
    TooLarge(usize, usize),
    /// The length in bytes of a name or key that is empty or longer than [`NAME_BYTES_MAX`].
    #[error("a name must have 1 to {NAME_BYTES_MAX} bytes, but has {0}")]
    Name(usize),
}

/// The result of an operation.
pub type Answer<T> = Result<T, Error>;

/// A store shared by all processes. Each operation is atomic and uses the store's clock. If its reply is lost, an operation may
/// be repeated: unless another caller acted in between, this has no further effect and returns the same reply.
#[async_trait]
pub trait Arbiter: Send + Sync + fmt::Debug {
    /// Acquires a lock. If it is busy and `presence` is given, the holder is queued and keeps its place as long as it asks again
    /// within that time.
    async fn lock(&self, claim: &Claim, presence: Option<Duration>) -> Answer<Locking>;

    /// Reads a value, or acquires the lease to compute it. A value whose token is `outdated` is ignored.
    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning>;

    /// Extends a lease to its full duration from now. Returns false if the holder no longer has it.
    async fn renew(&self, claim: &Claim) -> Answer<bool>;

    /// Releases this holder's lease and its place in the queue, and wakes the next waiter. Returns true if it still had the
    /// lease. A repeated request also returns true, even if the next holder has the lease by then.
    async fn release(&self, claim: &Claim) -> Answer<bool>;

    /// Stores a value and the time it took to compute, or an error message, for `ttl`; then ends the lease and wakes all
    /// waiters. An error does not replace a value. Returns false, with no effect, if another lease was granted or the value was
    /// invalidated in the meantime.
    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool>;

    /// Reads a value without creating a key or needing room.
    async fn peek(&self, name: &Name) -> Answer<Option<Entry>>;

    /// Removes a value or an error and ends the lease. Returns whether any of these existed.
    async fn invalidate(&self, name: &Name) -> Answer<bool>;

    /// Replaces a list and its time to live. Readers see either the whole old list or the whole new one. Returns false, with no
    /// effect, if a greater token has already replaced it.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool>;

    /// Reads a list, which is empty if it does not exist.
    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>>;

    /// Returns a listener that is woken when `holder` is next in line for the lock or, if `None`, with all waiters for a value.
    fn listen(&self, name: &Name, holder: Option<&str>) -> Listener;

    /// Returns whether a test controls the time. Otherwise [`renew`](Self::renew) is called by a dedicated thread that no holder
    /// can block, on a different runtime from the other operations.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// Returns whole microseconds, capped at the largest integer Lua represents exactly.
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
