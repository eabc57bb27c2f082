//! [`Arbiter`]: the store that all processes share, and the names, claims and tokens that its operations use.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;

pub use super::token::Token;
use super::wakes::Listener;

/// The maximum length of a name, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The maximum number of waiters per lock. Further callers get [`Error::Crowded`].
pub const WAITING_MAX: usize = 1000;
/// The lease of a waiter to which a lock is handed over, which the waiter renews when it learns of it. It is longer than the
/// time between two requests of a waiter, so that a waiter that missed the wake-up gets the lock by its next request.
pub(super) const HANDED_OVER: Duration = Duration::from_secs(2);

/// Identifies this process among the holders of a lock.
static PROCESS: LazyLock<u64> = LazyLock::new(rand::random);

/// The name of a lock, a value or a list. It starts with its kind, so that names of different kinds never collide.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

impl Name {
    /// Returns the name of a [`Mutex`](super::Mutex) lock. Fails if `name` is empty or too long.
    pub fn of_mutex(name: &str) -> Result<Self, Error> {
        Self::new("mutex", name)
    }

    /// Returns the name of a [`ComputeOnce`](super::ComputeOnce) value. Fails if `key` is empty or too long.
    pub fn of_value(key: &str) -> Result<Self, Error> {
        Self::new("once", key)
    }

    /// Returns the name of an [`AtomicReplace`](super::AtomicReplace) list. Fails if `key` is empty or too long.
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

    #[cfg(feature = "redis")]
    pub(super) fn is_mutex(&self) -> bool {
        self.0.starts_with("mutex:")
    }
}

/// A request for a lock, or for the lease to compute a value. It is safe to repeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The lock or value being claimed.
    pub name: Name,
    /// The identifiers of the holder's process and of the holder, with a hyphen between them and without spaces. The store
    /// recognizes a repeated request by them.
    pub holder: String,
    /// The duration of the lease after it is granted or renewed.
    pub ttl: Duration,
}

impl Claim {
    /// Returns a claim by a new holder with a random identifier.
    #[must_use]
    pub fn new(name: Name, ttl: Duration) -> Self {
        let holder = format!("{:016x}-{:016x}", *PROCESS, rand::random::<u64>());
        Self { name, holder, ttl }
    }
}

/// Returns the process of a holder.
pub(super) fn process(holder: &str) -> &str {
    holder.split_once('-').map_or(holder, |(process, _)| process)
}

/// The behaviour of a request if the lock is busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It returns without a place in the queue.
    None,
    /// It joins the queue. Only for the first request of a holder.
    Join,
    /// It keeps its place in the queue, or joins the queue if it has none.
    Keep,
}

/// The reply from [`Arbiter::lock`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Locking {
    /// The lock was granted to this holder.
    Granted(Token),
    /// The holder joined the queue behind other waiters. Wait until the lock is handed over, and ask again every second.
    Queued,
    /// Another holder has the lock. Contains the remaining time of its lease, after which to ask again, and its token. Ignore
    /// hand-overs with this token or a smaller one, which are past.
    Busy(Duration, Token),
    /// The queue already has [`WAITING_MAX`] waiters.
    Crowded,
}

/// A stored value and its timestamps, in microseconds by the store's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The bytes of the value.
    pub value: Arc<[u8]>,
    /// The token of the lease under which the value was computed.
    pub token: Token,
    /// The time the computation took.
    pub cost: Duration,
    /// When the value was written.
    pub written_us: u64,
    /// When the value expires.
    pub expires_us: u64,
    /// When the value was read.
    pub now_us: u64,
}

/// The reply from [`Arbiter::begin`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Beginning {
    /// The value exists.
    Value(Entry),
    /// The last computation failed with this message. The value will not be computed again until the message expires.
    Failed(String),
    /// The lease was granted to this holder, who may now compute the value.
    Granted(Token),
    /// Another holder is computing the value. That holder's lease lapses after this time unless it is renewed.
    Busy(Duration),
}

/// Why an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store is down, slow or not ready. Retry the operation, although it may have been carried out.
    #[error("the arbiter is unavailable: {0}")]
    Unavailable(String),
    /// The store has no room for a new entry. Retry later.
    #[error("the arbiter is full: {0}")]
    Full(String),
    /// The store rejects operations until an operator fixes the cause.
    #[error("the arbiter rejected the operation: {0}")]
    Refused(String),
    /// The lock or value did not become available within the caller's patience. A running computation continues.
    #[error("timed out while waiting for the lock or value")]
    TimedOut,
    /// The lock already has [`WAITING_MAX`] waiters.
    #[error("too many callers are waiting for the lock")]
    Crowded,
    /// The computation failed, panicked or timed out. All callers that wait for the value get the same message.
    #[error("the computation failed: {0}")]
    Failed(String),
    /// The list exceeds [`ITEMS_MAX`](super::ITEMS_MAX) or [`LIST_BYTES_MAX`](super::LIST_BYTES_MAX).
    #[error("the list is too large: {0} items and {1} bytes")]
    TooLarge(usize, usize),
    /// The name or key is empty or longer than [`NAME_BYTES_MAX`]. Contains its length in bytes.
    #[error("a name must be 1 to {NAME_BYTES_MAX} bytes long, not {0}")]
    Name(usize),
}

/// The result of an operation that may fail with an [`Error`].
pub type Answer<T> = Result<T, Error>;

/// A store shared by all processes. Each operation is atomic and uses the store's clock. Repeating an operation has no
/// further effect and returns the same reply, unless another caller has acted in the meantime.
#[async_trait]
pub trait Arbiter: Send + Sync + fmt::Debug {
    /// Acquires a lock, which is free if no lease is held and no one waits, or a place in the queue. If a lease has lapsed,
    /// hands the lock over to the first waiter, and removes the waiters of the process that let it lapse from the queue.
    async fn lock(&self, claim: &Claim, place: Place) -> Answer<Locking>;

    /// Reads a value or, if it does not exist or has the token `outdated`, acquires the lease to compute it.
    async fn begin(&self, claim: &Claim, outdated: Option<Token>) -> Answer<Beginning>;

    /// Extends a lease to its full duration from now. Returns false if the holder no longer has the lease.
    async fn renew(&self, claim: &Claim) -> Answer<bool>;

    /// Releases this holder's lease and hands the lock over to the first waiter for 2 s, or gives up this holder's place in the
    /// queue. Returns false if another lease was granted before. A repeated request returns the same until the next holder
    /// releases its lease.
    async fn release(&self, claim: &Claim) -> Answer<bool>;

    /// Stores the output of a computation for `ttl`, ends the lease and wakes all waiters. The output is a value and the
    /// time it took to compute, or an error message, which does not replace a value. Returns false and has no effect if
    /// another lease was granted or the value was invalidated in the meantime.
    async fn publish(
        &self,
        claim: &Claim,
        output: Result<(&[u8], Duration), &str>,
        ttl: Duration,
    ) -> Answer<bool>;

    /// Reads a value; None if it does not exist. Never creates a key, so this works even if the store is full.
    async fn peek(&self, name: &Name) -> Answer<Option<Entry>>;

    /// Removes a value or error and ends the lease for computing the value. Returns whether any of the three existed.
    async fn invalidate(&self, name: &Name) -> Answer<bool>;

    /// Replaces a list and its time to live. Readers see either the whole old list or the whole new one. Returns false and
    /// has no effect if the list has already been replaced with a greater token.
    async fn replace(
        &self,
        name: &Name,
        items: &[&[u8]],
        ttl: Duration,
        token: Option<Token>,
    ) -> Answer<bool>;

    /// Reads a list. Returns an empty list if it does not exist.
    async fn list(&self, name: &Name) -> Answer<Vec<Vec<u8>>>;

    /// Returns a listener for a name. With a `holder`, it is woken when the lock is handed over to this holder; without one,
    /// whenever all waiters for the value are woken.
    fn listen(&self, name: &Name, holder: Option<&str>) -> Listener;

    /// Returns whether a test controls the time. If not, [`renew`](Self::renew) is called by a dedicated thread, which no
    /// holder can block, and on a different runtime from the other operations.
    fn is_simulated(&self) -> bool {
        false
    }
}

/// Returns a duration in whole microseconds, capped at 2^52, so that Lua can add it to the current time without rounding.
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
