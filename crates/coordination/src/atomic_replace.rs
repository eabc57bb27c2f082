//! Replaces a list and its time to live in one step: readers see all of the old or all of the new list.

use std::sync::Arc;
use std::time::Duration;

use super::arbiter::{Answer, Arbiter, Error, Name, Token};
use super::settings::{InvalidSetting, check_ttl};

/// The maximum number of items of a list.
pub const ITEMS_MAX: usize = 1_000_000;
/// The maximum bytes of all items of a list.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// Lists that are replaced in one step.
#[derive(Debug, Clone)]
pub struct AtomicReplace {
    arbiter: Arc<dyn Arbiter>,
    ttl: Duration,
}

impl AtomicReplace {
    /// Returns lists that are kept for `ttl` (1 ms to 366 days) after they were replaced.
    pub fn new(arbiter: Arc<dyn Arbiter>, ttl: Duration) -> Result<Self, InvalidSetting> {
        check_ttl(ttl)?;
        Ok(Self { arbiter, ttl })
    }

    /// Replaces the list by these items; without items it is removed. After an error it is the old or the new list.
    /// With a lock's token, returns false, with no effect, if a greater one replaced it before (kept 10 minutes after expiry).
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

    /// Returns the items in their order; empty if there is no list.
    pub async fn read(&self, key: &str) -> Answer<Vec<Vec<u8>>> {
        self.arbiter.list(&Name::of_list(key)?).await
    }
}
