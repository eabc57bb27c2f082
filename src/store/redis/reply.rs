//! What Redis' errors mean.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::StoreError;

/// What to do about an error.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let words = error.to_string();
    match error.code() {
        Some("OOM") => return full(words),
        // The reason of a transaction that was not carried out stands in the words only.
        Some("EXECABORT") if words.contains("OOM") => return full(words),
        Some("NOAUTH" | "WRONGPASS") => {
            return StoreError::Refused {
                reason: format!("Redis does not accept the credentials ({words})"),
                mend: "set store.username and store.password_file".to_owned(),
            };
        }
        Some("NOPERM") => {
            return StoreError::Refused {
                reason: format!("the Redis user may not do what is needed ({words})"),
                mend: "grant it the commands of config/redis-acl.conf".to_owned(),
            };
        }
        _ => {}
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::Refused {
            reason: format!("Redis does not accept the credentials ({words})"),
            mend: "set store.username and store.password_file".to_owned(),
        };
    }
    StoreError::Unavailable(words)
}

fn full(words: String) -> StoreError {
    StoreError::Full(words)
}

/// Whether the connection is gone, late with an answer, or leads to a server that cannot take writes.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
                | ErrorKind::AuthenticationFailed
                | ErrorKind::Parse
        )
        || matches!(error.code(), Some("NOAUTH"))
}

/// Whether another server may have become responsible. A transaction tells so in its words only.
pub(super) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = [
        "MOVED",
        "ASK",
        "TRYAGAIN",
        "CLUSTERDOWN",
        "READONLY",
        "MASTERDOWN",
    ];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let words = error.to_string();
    CODES.iter().any(|code| words.contains(code))
}
