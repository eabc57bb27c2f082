//! What Redis' errors and the scripts' answers mean.

use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::coordination::arbiter::{ArbiterError, Beginning, Entry, Locking};
use crate::coordination::name::Token;
use crate::words::on_one_line;

/// A script's answer: what it is, and its fields.
pub(super) type Answer = (String, Vec<Vec<u8>>);

/// What to do about an error.
pub(super) fn arbiter_error(error: &RedisError) -> ArbiterError {
    let words = on_one_line(&error.to_string());
    match error.code() {
        Some("OOM") => ArbiterError::Full(words),
        Some("NOAUTH" | "WRONGPASS" | "NOPERM" | "CROSSSLOT") => ArbiterError::Refused(words),
        _ if error.kind() == ErrorKind::AuthenticationFailed => ArbiterError::Refused(words),
        _ => ArbiterError::Unavailable(words),
    }
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
}

pub(super) fn lacks_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

pub(super) fn locking((kind, fields): &Answer) -> Result<Locking, ArbiterError> {
    let first = fields.first().map(Vec::as_slice);
    match (kind.as_str(), first) {
        ("granted", Some(token)) => Ok(Locking::Granted(Token(number(token)?))),
        ("busy", Some(wait)) => Ok(Locking::Busy(Duration::from_micros(number(wait)?))),
        ("crowded", None) => Ok(Locking::Crowded),
        _ => Err(strange(kind)),
    }
}

fn entry(kind: &str, value: &[u8], rest: &[Vec<u8>]) -> Result<Entry, ArbiterError> {
    let numbers: Result<Vec<u64>, _> = rest.iter().map(|field| number(field)).collect();
    let &[token, cost_us, written_us, expires_us, now_us] = numbers?.as_slice() else {
        return Err(strange(kind));
    };
    Ok(Entry {
        value: value.into(),
        token: Token(token),
        cost: Duration::from_micros(cost_us),
        written_us,
        expires_us,
        now_us,
    })
}

pub(super) fn peeked((kind, fields): Answer) -> Result<Option<Entry>, ArbiterError> {
    match (kind.as_str(), fields.as_slice()) {
        ("value", [value, rest @ ..]) => Ok(Some(entry(&kind, value, rest)?)),
        ("none", []) => Ok(None),
        _ => Err(strange(&kind)),
    }
}

pub(super) fn beginning((kind, fields): Answer) -> Result<Beginning, ArbiterError> {
    match (kind.as_str(), fields.as_slice()) {
        ("value", [value, rest @ ..]) => Ok(Beginning::Value(entry(&kind, value, rest)?)),
        ("failed", [words]) => Ok(Beginning::Failed(
            String::from_utf8_lossy(words).into_owned(),
        )),
        ("granted", [token]) => Ok(Beginning::Granted(Token(number(token)?))),
        ("busy", [wait]) => Ok(Beginning::Busy(Duration::from_micros(number(wait)?))),
        _ => Err(strange(&kind)),
    }
}

fn number(field: &[u8]) -> Result<u64, ArbiterError> {
    let number = std::str::from_utf8(field)
        .ok()
        .and_then(|it| it.parse().ok());
    number.ok_or_else(|| strange(&String::from_utf8_lossy(field)))
}

fn strange(what: &str) -> ArbiterError {
    let what = on_one_line(what);
    ArbiterError::Refused(format!("a script answered what is not understood: {what}"))
}
