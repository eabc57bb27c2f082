//! Values that must not appear in logs, errors or listings.

use std::fmt;

/// A password or token. Its `Debug` output is `[hidden]`; only [`Secret::expose`] returns the text.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Wraps a password or token.
    #[must_use]
    pub fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// Returns the secret itself so that it can be sent.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

pub(crate) const HIDDEN: &str = "[hidden]";
