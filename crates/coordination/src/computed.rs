//! What a computation gave, and why it gave nothing.

use std::sync::Arc;
use std::time::Duration;

use super::arbiter::{ArbiterError, Entry};
use super::name::{InvalidName, Token};

/// How a request came to its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// It was there.
    Kept,
    /// It was there, and this request computed a newer one.
    Refreshed,
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

    /// The items, if the value was made by [`encode_list`].
    pub fn items(&self) -> Result<Vec<String>, NotAList> {
        serde_json::from_slice(&self.value).map_err(|error| NotAList(error.to_string()))
    }

    /// The item at this position from 0; `None` beyond the last.
    pub fn position(&self, position: usize) -> Result<Option<String>, NotAList> {
        Ok(self.items()?.into_iter().nth(position))
    }
}

/// A value that [`encode_list`] did not make.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value is not a list: {0}")]
pub struct NotAList(String);

/// A list as one value, of which each request takes one position. JSON: an array of strings.
pub fn encode_list<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Vec<u8> {
    let items = items.into_iter();
    let items = items.map(|item| serde_json::Value::from(item.as_ref()));
    serde_json::Value::Array(items.collect())
        .to_string()
        .into_bytes()
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
    fn a_list_gives_its_positions() {
        let value = encode_list(["a", "b\"ü", ""]);
        let computed = Computed::fresh(value, Token::new(1), Duration::ZERO, Duration::ZERO);
        assert_eq!(computed.items().unwrap(), ["a", "b\"ü", ""]);
        assert_eq!(computed.position(1).unwrap().as_deref(), Some("b\"ü"));
        assert_eq!(computed.position(3).unwrap(), None);
        let other = Computed::fresh(b"x".to_vec(), Token::new(1), Duration::ZERO, Duration::ZERO);
        assert!(other.position(0).is_err());
    }
}
