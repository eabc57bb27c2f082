//! Replacing a list and its time to live in one step: readers see all of the old or all of the new, and of several
//! writers one wins as a whole.

use std::sync::Arc;
use std::time::Duration;

use super::arbiter::{Arbiter, ArbiterError};
use super::name::{InvalidName, Name, Token};
use super::settings::{InvalidSetting, check_ttl};

/// The most items of a list.
pub const ITEMS_MAX: usize = 1_000_000;
/// The most bytes of all items of a list together.
pub const LIST_BYTES_MAX: usize = 64 << 20;

/// Lists that are replaced in one step.
#[derive(Debug, Clone)]
pub struct AtomicReplace {
    arbiter: Arc<dyn Arbiter>,
    ttl: Duration,
}

/// Why a list was not replaced or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplaceError {
    /// It has more than [`ITEMS_MAX`] items or [`LIST_BYTES_MAX`] bytes. Nothing was done.
    #[error("a list of {items} items and {bytes} bytes is over {ITEMS_MAX} and {LIST_BYTES_MAX}")]
    TooLarge {
        /// Its items.
        items: usize,
        /// The bytes of all of them.
        bytes: usize,
    },
    /// The arbiter did not answer, or has no room. The list is the old one or the new one; replacing may be repeated.
    #[error(transparent)]
    Arbiter(#[from] ArbiterError),
    /// The key cannot be a name.
    #[error(transparent)]
    Key(#[from] InvalidName),
}

impl AtomicReplace {
    /// Lists that are kept for `ttl` after they were replaced, 1 ms to 366 days.
    pub fn new(arbiter: Arc<dyn Arbiter>, ttl: Duration) -> Result<Self, InvalidSetting> {
        check_ttl(ttl)?;
        Ok(Self { arbiter, ttl })
    }

    /// Puts these items in the place of the list. With no items the list is removed.
    ///
    /// With the token of a lock's holder: false, and nothing done, when one with a greater token was there before. So a writer
    /// that was slow cannot undo a newer one. The token is known for 10 minutes after the list is gone.
    pub async fn replace<T: AsRef<[u8]>>(
        &self,
        key: &str,
        items: &[T],
        token: Option<Token>,
    ) -> Result<bool, ReplaceError> {
        let name = Name::of_list(key)?;
        let items: Vec<&[u8]> = items.iter().map(AsRef::as_ref).collect();
        let bytes = items.iter().map(|item| item.len()).sum();
        if items.len() > ITEMS_MAX || bytes > LIST_BYTES_MAX {
            return Err(ReplaceError::TooLarge { items: items.len(), bytes });
        }
        Ok(self.arbiter.replace(&name, &items, self.ttl, token).await?)
    }

    /// Returns the items in their order; none when there is no list, or it has expired.
    pub async fn read(&self, key: &str) -> Result<Vec<Vec<u8>>, ReplaceError> {
        Ok(self.arbiter.list(&Name::of_list(key)?).await?)
    }
}
