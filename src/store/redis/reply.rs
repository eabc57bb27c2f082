//! What Redis' errors mean.

use redis::{Client, ConnectionAddr, ErrorKind, RedisError};

use super::tls;
use crate::store::StoreError;
use crate::words::on_one_line;

/// What a script answers whose user lacks a right; a code of its own it has only in later versions.
const NO_PERMISSION_IN_SCRIPT: &str = "The user executing the script can't";

/// What servers say that are not what store.url says they are, and what to do. It only helps whoever reads it:
/// nothing is decided by it.
const STRANGERS: [(&str, &str); 5] = [
    (
        "cluster support disabled",
        "a Redis that is no cluster has redis:// in store.url",
    ),
    (
        "unknown command 'SENTINEL'",
        "this is no sentinel: look at the port in store.url, or write redis:// for the server itself",
    ),
    (
        "refused to switch database",
        "look at the number at the end of store.url and at `databases` in redis.conf",
    ),
    (
        "Moved: ",
        "where store.url is redis://, a node of a Redis Cluster wants redis+cluster://",
    ),
    (
        "unknown command 'HGETALL'",
        "a sentinel has redis+sentinel://host:port/name in store.url",
    ),
];

/// What is done about a Redis without room. Draining takes none.
pub(super) const MEND_FULL: &str = "events wait in the nodes until there is room: raise maxmemory (CONFIG SET maxmemory, \
                                    and redis.conf; Memory of Redis in the README says how much is needed), or have \
                                    fewer users or series";

/// The code of an error; of a transaction that was not carried out, those of the commands that prevented it.
fn codes(error: &RedisError) -> Vec<String> {
    if let Some(causes) = error.clone().into_server_errors() {
        let code = |(_, cause): &(usize, redis::ServerError)| cause.code().to_owned();
        return causes.iter().map(code).collect();
    }
    error.code().map(ToOwned::to_owned).into_iter().collect()
}

/// What the server says; of a transaction that was not carried out, what it says of the first command that prevented it.
fn said(error: &RedisError) -> String {
    let causes = error.clone().into_server_errors().unwrap_or_default();
    let first = causes.first().map(|(_, cause)| cause.to_string());
    first.unwrap_or_else(|| error.to_string())
}

impl StoreError {
    /// The same, and of whom it is said.
    pub(super) fn at(self, whom: &impl std::fmt::Display) -> Self {
        match self {
            Self::Unavailable(words) => Self::Unavailable(format!("{whom}: {words}")),
            Self::Full(words) => Self::Full(format!("{whom}: {words}")),
            Self::Refused { reason, mend } => Self::Refused {
                reason: format!("{whom}: {reason}"),
                mend,
            },
            Self::Forgot | Self::ClaimLost => self,
        }
    }
}

/// What to do about an error. All that Redis says comes in here, and it may be anything.
pub(super) fn store_error(error: &RedisError) -> StoreError {
    let words = on_one_line(&said(error));
    let codes = codes(error);
    let is = |code: &str| codes.iter().any(|of| of == code);
    if is("OOM") {
        return StoreError::Full(format!("{words}; {MEND_FULL}"));
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
    match STRANGERS.iter().find(|(said, _)| words.contains(said)) {
        Some((_, mend)) => StoreError::Unavailable(format!("{words}; {mend}")),
        None => StoreError::Unavailable(words),
    }
}

/// The same for a server that could not be greeted, and what may be the matter with one that is there.
pub(super) fn greeting_error(error: &RedisError, client: &Client) -> StoreError {
    let StoreError::Unavailable(words) = store_error(error) else {
        return store_error(error);
    };
    let address = client.get_connection_info().addr();
    let encrypted = matches!(address, ConnectionAddr::TcpTls { .. });
    let ended = error.is_connection_dropped() && !error.is_connection_refusal();
    let hint = match error.kind() {
        // Nobody is helped by which byte was not expected.
        ErrorKind::Parse => {
            let words = "this does not answer like Redis; look at the host and the port in store.url, and write rediss:// \
                         where the server speaks TLS";
            return StoreError::Unavailable(words.to_owned());
        }
        // One that misses the client's certificate says so and hangs up; a client that writes at that moment may find
        // only the broken connection.
        _ if ended && encrypted => {
            "a server that ends a TLS connection at once may want a certificate: look at store.cert_file and \
             store.key_file"
        }
        _ if ended => {
            "a server that ends a connection at once may speak TLS only: write rediss:// in store.url"
        }
        _ if error.is_timeout() && encrypted => {
            "a server that is there and says nothing may not speak TLS: write redis:// in store.url for one without"
        }
        _ if error.is_timeout() => {
            "look at the host and the port in store.url, and at firewalls on the way"
        }
        _ => return StoreError::Unavailable(words),
    };
    StoreError::Unavailable(format!("{words}; {hint}"))
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
