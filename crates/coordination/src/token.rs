//! [`Token`], by which other systems tell the newest holder from earlier ones.

use std::fmt;

/// The fencing token of a lease, which is greater than the token of every earlier lease with the same name. It is the time
/// in microseconds by the store's clock or the last token plus one, whichever is greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
