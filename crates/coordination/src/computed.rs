//! The output of a computation ([`Kept`]), and the stored value that callers get ([`Computed`]).

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

/// A value that was computed once for all callers, as returned to one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Computed {
    /// The value with its token and timestamps.
    pub entry: Entry,
    /// How this request obtained the value.
    pub origin: Origin,
}

impl Computed {
    /// Returns the bytes of the value.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.entry.value
    }

    /// Returns the token of the lease under which the value was computed. It is the same for all callers.
    #[must_use]
    pub fn token(&self) -> Token {
        self.entry.token
    }

    /// Returns how old the value was when it was read.
    #[must_use]
    pub fn age(&self) -> Duration {
        Duration::from_micros(self.entry.now_us.saturating_sub(self.entry.written_us))
    }

    /// Returns the remaining time to live of the value when it was read.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        Duration::from_micros(self.entry.expires_us.saturating_sub(self.entry.now_us))
    }

    /// Deserializes the value, which must have been serialized with [`Fresh::json`].
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

/// The value returned by a successful computation.
pub type Fresh = Kept<Vec<u8>>;
/// The error message returned by a failed computation. Can be converted from anything that implements `Display`.
pub type Failure = Kept<String>;

impl<T> Kept<T> {
    /// Sets this output's time to live (1 ms to 366 days), overriding that in [`ComputeSettings`](crate::ComputeSettings).
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
