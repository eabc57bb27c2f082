//! The value of a computation, before and after it is stored.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arbiter::{Entry, Token};

/// How a request got its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The value existed.
    Kept,
    /// The value existed, and this request started to compute a newer one.
    Refreshing,
    /// This request computed the value.
    Computed,
    /// Another request computed the value.
    Awaited,
}

/// A value that was computed once for all callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    /// The value with its token and its times.
    pub entry: Entry,
    /// How this request got it.
    pub origin: Origin,
}

impl Computed {
    /// Returns the value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.entry.value
    }

    /// Returns the token of its computation, equal for all callers that got the same value.
    #[must_use]
    pub fn token(&self) -> Token {
        self.entry.token
    }

    /// Returns its age when it was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_micros(self.entry.now_us.saturating_sub(self.entry.written_us))
    }

    /// Returns its remaining time to live when it was read.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.entry.expires_us.saturating_sub(self.entry.now_us))
    }

    /// Returns the value that [`Fresh::json`] was given.
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(self.bytes())
    }
}

/// The output of a computation, and how long it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept<T> {
    pub(super) output: T,
    pub(super) ttl: Option<Duration>,
}

/// A value.
pub type Fresh = Kept<Vec<u8>>;
/// The message of an error, made from anything that displays.
pub type Failure = Kept<String>;

impl<T> Kept<T> {
    /// Keeps it for `ttl` (1 ms to 366 days) instead of the time in [`ComputeSettings`](crate::ComputeSettings).
    #[must_use]
    pub fn kept_for(self, ttl: Duration) -> Self {
        Self { ttl: Some(ttl), ..self }
    }
}

impl Fresh {
    /// Serializes a value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> serde_json::Result<Self> {
        Ok(serde_json::to_vec(value)?.into())
    }
}

impl From<Vec<u8>> for Fresh {
    fn from(value: Vec<u8>) -> Self {
        Self { output: value, ttl: None }
    }
}

impl<E: Display> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { output: error.to_string(), ttl: None }
    }
}
