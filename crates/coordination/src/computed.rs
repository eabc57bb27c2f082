//! The result of a computation, before and after it is stored.

use std::fmt::Display;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::arbiter::{Entry, Token};

/// How a request obtained its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// The value already existed.
    Kept,
    /// The value already existed, and this request started computing a newer one.
    Refreshing,
    /// This request computed the value.
    Computed,
    /// Another request computed the value.
    Awaited,
}

/// A value that was computed once for all callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    /// The value with its token and timestamps.
    pub entry: Entry,
    /// How this request obtained it.
    pub origin: Origin,
}

impl Computed {
    /// Returns the value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.entry.value
    }

    /// Returns the token of its computation, which is the same for all callers that got the same value.
    #[must_use]
    pub fn token(&self) -> Token {
        self.entry.token
    }

    /// Returns its age at the time it was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_micros(self.entry.now_us.saturating_sub(self.entry.written_us))
    }

    /// Returns its remaining time to live at the time it was read.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.entry.expires_us.saturating_sub(self.entry.now_us))
    }

    /// Deserializes the value that was passed to [`Fresh::json`].
    pub fn json<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(self.bytes())
    }
}

/// The output of a computation, and how long to keep it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept<T> {
    pub(super) output: T,
    pub(super) ttl: Option<Duration>,
}

/// A value.
pub type Fresh = Kept<Vec<u8>>;
/// An error message, made from anything that implements `Display`.
pub type Failure = Kept<String>;

impl<T> Kept<T> {
    /// Keeps it for `ttl` (1 ms to 366 days) instead of the time set in [`ComputeSettings`](crate::ComputeSettings).
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
