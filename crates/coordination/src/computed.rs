//! Values of computations, and their errors.

use std::fmt::Display;
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

/// A value that was computed once for all callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    /// The value with its token and its times.
    pub entry: Entry,
    /// How this request came to it.
    pub origin: Origin,
}

impl Computed {
    /// The value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.entry.value
    }

    /// The token of its computation: equal for all callers that got the same value.
    #[must_use]
    pub fn token(&self) -> Token {
        self.entry.token
    }

    /// How old it was when it was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_micros(self.entry.now_us.saturating_sub(self.entry.written_us))
    }

    /// Its remaining time to live when it was read.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.entry.expires_us.saturating_sub(self.entry.now_us))
    }

    /// The value, if it was made by [`Fresh::json`] of the same type.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(self.bytes())
    }
}

/// The output of a computation: a value and its time to live.
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
    /// Keeps it for `ttl` (1 ms to 366 days) instead of [`error_ttl`](super::ComputeSettings::error_ttl): longer for a value
    /// that will not exist, shorter for one that may exist in a moment.
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
    /// The computation failed, panicked or took too long, with this message. All its waiters get it.
    #[error("the computation failed: {0}")]
    Failed(String),
    /// No computation ended within the caller's patience. It continues.
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
        let (value, token, cost) = (value.into(), Token::new(1), Duration::ZERO);
        let entry = Entry { value, token, cost, written_us: 0, expires_us: 0, now_us: 0 };
        let computed = Computed { entry, origin: Origin::Kept };
        assert_eq!(computed.json::<Vec<String>>().unwrap(), list);
        assert!(computed.json::<u64>().is_err());
    }
}
