//! The names of locks, values and lists, and the identities of their holders.

use std::fmt;

/// The longest name, in bytes. Every key contains it.
pub const NAME_BYTES_MAX: usize = 512;

/// The name of a lock, a value or a list. Names of different kinds never meet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Name(String);

/// A name that is empty or longer than [`NAME_BYTES_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to {NAME_BYTES_MAX} bytes, not {bytes}")]
pub struct InvalidName {
    /// Its length.
    pub bytes: usize,
}

impl Name {
    /// The lock that [`Mutex`](super::Mutex) takes by this name.
    pub fn of_mutex(name: &str) -> Result<Self, InvalidName> {
        Self::new("mutex", name)
    }

    /// The value that [`ComputeOnce`](super::ComputeOnce) keeps by this key.
    pub fn of_value(key: &str) -> Result<Self, InvalidName> {
        Self::new("once", key)
    }

    /// The list that [`AtomicReplace`](super::AtomicReplace) replaces by this key.
    pub fn of_list(key: &str) -> Result<Self, InvalidName> {
        Self::new("list", key)
    }

    fn new(kind: &str, name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(InvalidName { bytes: name.len() });
        }
        Ok(Self(format!("{kind}:{name}")))
    }

    /// The kind and the name: `mutex:reports`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// One attempt to hold something: random, so that no two attempts in any process are mistaken for each other, and
/// one that is repeated because its answer was lost is recognised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder(String);

impl Holder {
    /// A new holder.
    #[must_use]
    pub fn random() -> Self {
        Self(format!("{:032x}", rand::random::<u128>()))
    }

    /// 32 hexadecimal digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Proof of a right, greater than that of any earlier holder of the same name: the store's clock in microseconds,
/// or one more than the last where that is not enough. Writes to other places can carry it, so that an
/// older holder's writes are refused there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The token of this number, as an arbiter grants it: greater than any before of the same name.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bounded() {
        assert_eq!(Name::of_mutex("a").unwrap().as_str(), "mutex:a");
        assert_eq!(Name::of_mutex(""), Err(InvalidName { bytes: 0 }));
        let longest = "x".repeat(NAME_BYTES_MAX);
        assert!(Name::of_mutex(&longest).is_ok());
        assert!(Name::of_mutex(&(longest + "x")).is_err());
    }
}
