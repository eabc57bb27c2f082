//! What faults and the scripts' answers mean.

use std::time::Duration;

use redis_link::{Fault, FaultKind};

use crate::arbiter::{ArbiterError, Beginning, Entry, Locking};
use crate::name::Token;
use redis_link::on_one_line;

/// A script's answer: what it is, and its fields.
pub(super) type Answer = (String, Vec<Vec<u8>>);

impl From<Fault> for ArbiterError {
    fn from(fault: Fault) -> Self {
        let message = fault.to_string();
        match fault.kind {
            FaultKind::Full => Self::Full(message),
            _ if fault.is_refusal() => Self::Refused(message),
            _ => Self::Unavailable(message),
        }
    }
}

pub(super) fn locking((kind, fields): &Answer) -> Result<Locking, ArbiterError> {
    let first = fields.first().map(Vec::as_slice);
    match (kind.as_str(), first) {
        ("granted", Some(token)) => Ok(Locking::Granted(Token::new(number(token)?))),
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
        token: Token::new(token),
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
        ("failed", [message]) => {
            Ok(Beginning::Failed(String::from_utf8_lossy(message).into_owned()))
        }
        ("granted", [token]) => Ok(Beginning::Granted(Token::new(number(token)?))),
        ("busy", [wait]) => Ok(Beginning::Busy(Duration::from_micros(number(wait)?))),
        _ => Err(strange(&kind)),
    }
}

fn number(field: &[u8]) -> Result<u64, ArbiterError> {
    let number = std::str::from_utf8(field).ok().and_then(|it| it.parse().ok());
    number.ok_or_else(|| strange(&String::from_utf8_lossy(field)))
}

fn strange(what: &str) -> ArbiterError {
    let what = on_one_line(what);
    ArbiterError::Refused(format!("a script answered what is not understood: {what}"))
}
