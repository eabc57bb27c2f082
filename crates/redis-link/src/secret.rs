//! Values that must not appear in logs, errors or listings.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

/// A password or token. Its `Debug` output is `[hidden]`; only [`Secret::expose`] returns the text. All clones have the same
/// text, also after it is replaced.
#[derive(Clone)]
pub struct Secret(Arc<RwLock<Arc<str>>>);

impl Secret {
    /// Wraps a password or token.
    #[must_use]
    pub fn new(value: &str) -> Self {
        Self(Arc::new(RwLock::new(value.into())))
    }

    /// Returns the secret itself so that it can be sent.
    #[must_use]
    pub fn expose(&self) -> Arc<str> {
        // Nothing panics while holding this lock, so it is never poisoned.
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the text by that of another secret.
    pub fn replace(&self, by: &Self) {
        let text = by.expose();
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = text;
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Self) -> bool {
        self.expose() == other.expose()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// The text shown in place of a secret.
pub const HIDDEN: &str = "[hidden]";
