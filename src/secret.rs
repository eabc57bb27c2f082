//! Values that no log, error or listing may show.

use std::fmt;

/// A password or token. Its `Debug` and `Display` are `[hidden]`; only [`Secret::expose`] gives it away.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Box<str>);

impl Secret {
    /// Takes a secret in.
    #[must_use]
    pub fn new(value: &str) -> Self {
        Self(value.into())
    }

    /// The secret itself, for the one place that sends it.
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

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

/// What is shown in place of a secret.
pub(crate) const HIDDEN: &str = "[hidden]";
