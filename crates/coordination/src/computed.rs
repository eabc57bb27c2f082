//! What a computation gave, and why it gave nothing.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arbiter::{ArbiterError, Entry};
use super::name::{InvalidName, Token};

/// How a request came to its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was there.
    Kept,
    /// It was there, and this request began to compute a newer one.
    Refreshing,
    /// There was none, so this request computed it.
    Computed,
    /// There was none, and another request computed it.
    Awaited,
}

/// A value that was computed once for all that asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    value: Arc<[u8]>,
    token: Token,
    cost: Duration,
    age: Duration,
    remaining: Duration,
    origin: Origin,
}

impl Computed {
    pub(super) fn read(entry: Entry, origin: Origin) -> Self {
        let span = |from: u64, to: u64| Duration::from_micros(to.saturating_sub(from));
        Self {
            age: span(entry.written_us, entry.now_us),
            remaining: span(entry.now_us, entry.expires_us),
            value: entry.value,
            token: entry.token,
            cost: entry.cost,
            origin,
        }
    }

    pub(super) fn fresh(value: Vec<u8>, token: Token, cost: Duration, ttl: Duration) -> Self {
        Self {
            value: value.into(),
            token,
            cost,
            age: Duration::ZERO,
            remaining: ttl,
            origin: Origin::Computed,
        }
    }

    pub(super) fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// How this request came to it.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// The value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.value
    }

    /// The token of its computation: the same for all that got the same value.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// How long its computation took.
    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    /// How old it was when it was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// How long it was still to be kept when it was read.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// The value, if it was made by [`Fresh::json`] of the same type.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.value)
    }
}

/// What a computation gives: a value, and for how long it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fresh {
    pub(super) value: Vec<u8>,
    pub(super) ttl: Option<Duration>,
}

impl Fresh {
    /// Any value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Self> {
        Ok(serde_json::to_vec(value)?.into())
    }

    /// Keeps it for `ttl` (1 ms to 366 days) instead of [`value_ttl`](super::ComputeSettings::value_ttl).
    #[must_use]
    pub fn kept_for(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }
}

impl From<Vec<u8>> for Fresh {
    fn from(value: Vec<u8>) -> Self {
        Self { value, ttl: None }
    }
}

/// Why a computation gives no value, as a message, and for how long that is kept. Anything that displays is one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(super) message: String,
    pub(super) ttl: Option<Duration>,
}

impl Failure {
    /// Keeps it for `ttl` (1 ms to 366 days) instead of [`error_ttl`](super::ComputeSettings::error_ttl): longer for what is not
    /// there and will not be, shorter for what may be there in a moment.
    #[must_use]
    pub fn kept_for(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { message: error.to_string(), ttl: None }
    }
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ComputeError {
    /// The computation failed, panicked or took too long, with this message. All that waited for it get it.
    #[error("the computation failed: {0}")]
    Failed(String),
    /// Nobody was done within the caller's patience. The computation goes on.
    #[error("there was no value in time")]
    TimedOut,
    /// The arbiter did not answer, or has no room for the value.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// The key cannot be a name.
    #[error(transparent)]
    Key(#[from] InvalidName),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_as_it_was_written() {
        let list = ["a", "b\"ü", ""];
        let Fresh { value, .. } = Fresh::json(&list).unwrap();
        let computed = Computed::fresh(value, Token::new(1), Duration::ZERO, Duration::ZERO);
        assert_eq!(computed.json::<Vec<String>>().unwrap(), list);
        assert!(computed.json::<u64>().is_err());
    }
}
