//! What a fault of Redis means to the store.

use redis::RedisError;
use redis_link::{Fault, Names};

use crate::store::StoreError;

/// How the configuration calls what leads to Redis.
const NAMES: Names = Names {
    address: "store.url",
    credentials: "store.username and store.password_file",
    ca: "store.ca_file",
    certificate: "store.cert_file and store.key_file",
    rights: "config/redis-acl.conf",
};

/// What is done about a Redis without room. Draining takes none.
const FULL_HINT: &str = "events wait in the nodes until there is room: raise maxmemory (CONFIG SET maxmemory, \
                                    and redis.conf; docs/limits.md says how much is needed), or have \
                                    fewer users or series";

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Unavailable { reason, hint } => Self::Unavailable(match hint {
                Some(hint) => format!("{reason}; {}", hint.by(&NAMES)),
                None => reason,
            }),
            Fault::Full(reason) => Self::Full(format!("{reason}; {FULL_HINT}")),
            Fault::Refused { reason, hint } => Self::Refused {
                reason,
                hint: hint.by(&NAMES),
            },
        }
    }
}

/// What an error means that came beside the connections' own.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    Fault::of(error).into()
}

impl StoreError {
    /// The same, and of whom it is said.
    pub(super) fn at(self, whom: &impl std::fmt::Display) -> Self {
        match self {
            Self::Unavailable(message) => Self::Unavailable(format!("{whom}: {message}")),
            Self::Full(message) => Self::Full(format!("{whom}: {message}")),
            Self::Refused { reason, hint } => Self::Refused {
                reason: format!("{whom}: {reason}"),
                hint,
            },
            Self::Forgot | Self::ClaimLost => self,
        }
    }
}
