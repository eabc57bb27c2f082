//! What Redis' errors mean.

use redis::{ErrorKind, RedisError};

use super::tls;
use crate::store::StoreError;

/// What a script answers whose user lacks a right; a code of its own it has only in later versions.
const NO_PERMISSION_IN_SCRIPT: &str = "The user executing the script can't";

/// The code of an error; of a transaction that was not carried out, those of the commands that prevented it.
fn codes(error: &RedisError) -> Vec<String> {
    if let Some(causes) = error.clone().into_server_errors() {
        let code = |(_, cause): &(usize, redis::ServerError)| cause.code().to_owned();
        return causes.iter().map(code).collect();
    }
    error.code().map(ToOwned::to_owned).into_iter().collect()
}

/// What to do about an error.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let words = error.to_string();
    let codes = codes(error);
    let is = |code: &str| codes.iter().any(|of| of == code);
    if is("OOM") {
        return StoreError::Full(words);
    }
    if is("NOAUTH") || is("WRONGPASS") || error.kind() == ErrorKind::AuthenticationFailed {
        return StoreError::Refused {
            reason: format!("Redis does not accept the credentials ({words})"),
            mend: "set store.username and store.password_file".to_owned(),
        };
    }
    if is("NOPERM") || words.contains(NO_PERMISSION_IN_SCRIPT) {
        return StoreError::Refused {
            reason: format!("the Redis user may not do what is needed ({words})"),
            mend: "grant it the commands of config/redis-acl.conf".to_owned(),
        };
    }
    if let Some(mend) = tls::mend(error) {
        return StoreError::Refused {
            reason: format!("there is no trust between this node and Redis ({words})"),
            mend: mend.to_owned(),
        };
    }
    StoreError::Unavailable(words)
}

/// Whether the connection is gone, late with an answer, or leads to a server that cannot take writes.
pub(super) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(
            error.kind(),
            ErrorKind::AuthenticationFailed | ErrorKind::Parse
        )
        || codes(error)
            .iter()
            .any(|code| matches!(&**code, "READONLY" | "MASTERDOWN" | "NOAUTH"))
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
