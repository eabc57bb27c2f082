//! Fingerprints of users and series: `SipHash` under a key that the nodes share and no sender knows.

use siphasher::sip::SipHasher13;

/// The key under which all nodes make fingerprints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key(pub(super) u128);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0.to_le_bytes())
    }

    /// The fingerprint of a user.
    pub(super) fn user(self, user: &str) -> u64 {
        self.hasher().hash(user.as_bytes())
    }

    /// The fingerprint of a series that events came with, of what nodes and stores know it by.
    pub(super) fn series(self, series: u128) -> u64 {
        self.hasher().hash(&series.to_le_bytes())
    }
}
