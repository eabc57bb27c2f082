//! Replaces a list and its time to live atomically: readers see either the whole old list or the whole new one.

use std::sync::Arc;
use std::time::Duration;

use super::arbiter::{Answer, Arbiter, Error, Name, Token};
use super::settings::{InvalidSetting, check_ttl};

/// The maximum number of items in a list.
pub const ITEMS_MAX: usize = 1_000_000;
/// The maximum total size of a list's items, in bytes.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// Lists in an arbiter, each of which is replaced atomically.
#[derive(Debug, Clone)]
pub struct AtomicReplace {
    arbiter: Arc<dyn Arbiter>,
    ttl: Duration,
}

impl AtomicReplace {
    /// Returns the lists in this arbiter. A list expires if it is not replaced within `ttl` (1 ms to 366 days).
    pub fn new(arbiter: Arc<dyn Arbiter>, ttl: Duration) -> Result<Self, InvalidSetting> {
        check_ttl(ttl)?;
        Ok(Self { arbiter, ttl })
    }

    /// Replaces the list with these items, or removes it if there are none. After an error, either the old or the new list
    /// is stored. With the token of a lock, returns false and has no effect if the list has already been replaced with a
    /// greater token. The greatest token is kept for 10 minutes after the list expires.
    pub async fn replace<T: AsRef<[u8]>>(
        &self,
        key: &str,
        items: &[T],
        token: Option<Token>,
    ) -> Answer<bool> {
        let name = Name::of_list(key)?;
        let items: Vec<&[u8]> = items.iter().map(AsRef::as_ref).collect();
        let bytes = items.iter().map(|item| item.len()).sum();
        if items.len() > ITEMS_MAX || bytes > LIST_BYTES_MAX {
            return Err(Error::TooLarge(items.len(), bytes));
        }
        self.arbiter.replace(&name, &items, self.ttl, token).await
    }

    /// Returns the items of the list in order. Returns no items if the list does not exist.
    pub async fn read(&self, key: &str) -> Answer<Vec<Vec<u8>>> {
        self.arbiter.list(&Name::of_list(key)?).await
    }
}
