//! [`Fault`]: a Redis error and its kind.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, ErrorKind, RedisError};
use rustls::AlertDescription as Alert;

const CODES: [(&str, FaultKind); 9] = [
    ("OOM", FaultKind::Full),
    ("NOAUTH", FaultKind::Credentials),
    ("WRONGPASS", FaultKind::Credentials),
    ("NOPERM", FaultKind::Rights),
    ("READONLY", FaultKind::Replica),
    ("NOREPLICAS", FaultKind::TooFewReplicas),
    ("MISCONF", FaultKind::DiskFails),
    ("CLUSTERDOWN", FaultKind::ClusterDown),
    ("LOADING", FaultKind::Loading),
];

/// Parts of replies without a code. Of these, only a missing permission changes more than the message.
const TEXTS: [(&str, FaultKind); 7] = [
    // In a script, from Redis before 7.2 and from later versions and Valkey.
    ("The user executing the script can't", FaultKind::Rights),
    ("ACL failure in script", FaultKind::Rights),
    ("cluster support disabled", FaultKind::NoCluster),
    ("unknown command 'SENTINEL'", FaultKind::NoSentinel),
    ("refused to switch database", FaultKind::Database),
    ("Moved: ", FaultKind::IsCluster),
    ("unknown command 'HGETALL'", FaultKind::IsSentinel),
];

/// The kind of a fault, which determines how to fix it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "most names are the description")]
pub enum FaultKind {
    /// The server is down, slow or not ready. It may have carried out the command.
    Away,
    /// The server is out of memory and rejects commands that need more.
    Full,
    Replica,
    TooFewReplicas,
    DiskFails,
    /// Some slots of the cluster have no master.
    ClusterDown,
    Loading,
    /// The server requires different credentials.
    Credentials,
    /// The user is missing a permission.
    Rights,
    /// The server's certificate is not trusted.
    ServerCertificate,
    /// The server requires a certificate, or a different one.
    ClientCertificate,
    /// The server closed a TLS connection immediately and may require a certificate. A writing client does not see the alert.
    ClientCertificateMissing,
    /// The server closed a non-TLS connection immediately, and may require TLS.
    IsTls,
    /// The server does not respond on a TLS connection, and may not support TLS.
    NoTls,
    /// The server does not speak TLS.
    NotTls,
    NotRedis,
    Unreachable,
    /// The server's mode does not match the address, for example a cluster address for a server not in cluster mode.
    NoCluster,
    IsCluster,
    NoSentinel,
    IsSentinel,
    /// No sentinel knows a master with this name.
    MasterName,
    /// The server has no database with this number.
    Database,
    /// The server may evict keys (`maxmemory-policy`). Only a caller's [`Check`](crate::Check) returns this or [`Self::Unfit`].
    Evicts,
    /// The server does not meet the caller's requirements.
    Unfit,
}

/// A Redis error. Each text is one line, with at most 512 bytes of the server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// The server; empty if unknown.
    pub server: String,
    /// The message.
    pub reason: String,
}

impl Fault {
    /// Returns a fault without a server.
    #[must_use]
    pub fn new(kind: FaultKind, reason: impl Into<String>) -> Self {
        Self { kind, server: String::new(), reason: reason.into() }
    }

    /// Returns a [`FaultKind::Away`] fault.
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(FaultKind::Away, reason)
    }

    /// Returns whether the fault persists until an operator changes something.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self.kind,
            FaultKind::Credentials
                | FaultKind::Rights
                | FaultKind::ServerCertificate
                | FaultKind::ClientCertificate
                | FaultKind::NotTls
                | FaultKind::MasterName
                | FaultKind::Evicts
                | FaultKind::Unfit
        )
    }

    /// Returns the fault for an error, without the server.
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        let answers = answers(error);
        let text = answers.first().map(|(_, text)| on_one_line(text)).unwrap_or_default();
        let by_code = CODES.iter().find(|(known, _)| answers.iter().any(|(code, _)| code == known));
        let by_text = || TEXTS.iter().find(|(part, _)| text.contains(part)).map(|(_, kind)| *kind);
        let kind = match by_code {
            Some((_, kind)) => *kind,
            None if error.kind() == ErrorKind::AuthenticationFailed => FaultKind::Credentials,
            None => of_tls(error).or_else(by_text).unwrap_or(FaultKind::Away),
        };
        let words = match kind {
            FaultKind::Credentials => "Redis does not accept the credentials",
            FaultKind::Rights => "the Redis user lacks a right",
            FaultKind::ServerCertificate | FaultKind::ClientCertificate | FaultKind::NotTls => {
                "the TLS connection to Redis failed"
            }
            _ => return Self::new(kind, text),
        };
        Self::new(kind, format!("{words} ({text})"))
    }

    /// Like [`Self::of`], but for the first command on a connection, which may reveal that the server is of a different kind.
    pub(crate) fn of_greeting(error: &RedisError, client: &Client) -> Self {
        let fault = Self::of(error);
        if fault.is_refusal() {
            return fault;
        }
        let address = client.get_connection_info().addr();
        let is_tls = matches!(address, ConnectionAddr::TcpTls { .. });
        let has_ended = error.is_connection_dropped() && !error.is_connection_refusal();
        let kind = match error.kind() {
            // The unexpected byte is not worth reporting.
            ErrorKind::Parse => {
                return Self::new(FaultKind::NotRedis, "this does not answer like Redis");
            }
            _ if has_ended && is_tls => FaultKind::ClientCertificateMissing,
            _ if has_ended => FaultKind::IsTls,
            _ if error.is_timeout() && is_tls => FaultKind::NoTls,
            _ if error.is_timeout() => FaultKind::Unreachable,
            _ => fault.kind,
        };
        Self { kind, ..fault }
    }

    /// Returns the fault with this server.
    #[must_use]
    pub fn at(self, server: &impl fmt::Display) -> Self {
        Self { server: server.to_string(), ..self }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.server.is_empty() {
            write!(f, "{}: ", self.server)?;
        }
        f.write_str(&self.reason)
    }
}

impl Error for Fault {}

fn of_tls(error: &RedisError) -> Option<FaultKind> {
    match find_tls(error)? {
        rustls::Error::InvalidCertificate(_) => Some(FaultKind::ServerCertificate),
        rustls::Error::InvalidMessage(_) => Some(FaultKind::NotTls),
        rustls::Error::AlertReceived(
            Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            // The certificate was issued by an authority with the same name as the trusted one.
            | Alert::DecryptError,
        ) => Some(FaultKind::ClientCertificate),
        _ => None,
    }
}

/// Returns the TLS error that caused an error. Redis errors keep it in an `Arc`, and it is not the `source` of an `io::Error`.
#[must_use]
pub fn find_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    if let Some(shared) = error.downcast_ref::<Arc<dyn Error + Send + Sync>>() {
        return find_tls(&**shared);
    }
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return find_tls(error.get_ref()?);
    }
    find_tls(error.source()?)
}

/// Returns the code and text of an error; for a transaction, those of each command that made it fail.
fn answers(error: &RedisError) -> Vec<(String, String)> {
    let causes = error.clone().into_server_errors().filter(|causes| !causes.is_empty());
    causes.map_or_else(
        || vec![(error.code().unwrap_or_default().to_owned(), error.to_string())],
        |causes| {
            let answer = |(_, cause): &(usize, redis::ServerError)| {
                (cause.code().to_owned(), cause.to_string())
            };
            causes.iter().map(answer).collect()
        },
    )
}

/// Returns whether the connection is lost, has timed out, or leads to a server that accepts no writes.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Parse)
        || answers(error)
            .iter()
            .any(|(code, _)| matches!(&**code, "READONLY" | "MASTERDOWN" | "NOAUTH"))
}

/// Returns whether a different server may be responsible. A transaction error has the code only in its message.
pub(crate) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let message = error.to_string();
    CODES.iter().any(|code| message.contains(code))
}

const BYTES_MAX: usize = 512;

/// Returns at most 512 bytes of a text, with each run of whitespace and control characters replaced by one space.
#[must_use]
pub fn on_one_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty())
    {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > BYTES_MAX {
            let end = (0..=BYTES_MAX).rev().find(|end| line.is_char_boundary(*end));
            line.truncate(end.unwrap_or(0));
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_error_text_becomes_one_short_line() {
        assert_eq!(on_one_line(" a\r\n\u{1b}b\tc "), "a b c");
        let long = on_one_line(&"é ".repeat(BYTES_MAX));
        assert!(long.len() <= BYTES_MAX && long.starts_with("é é"));
        let long = on_one_line(&"é".repeat(BYTES_MAX));
        assert_eq!(long.len(), BYTES_MAX);
    }

    #[test]
    fn tls_errors_are_distinguished() {
        let of = |error: rustls::Error| {
            of_tls(&RedisError::from(io::Error::other(io::Error::other(error))))
        };
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(of(expired), Some(FaultKind::ServerCertificate));
        let required = rustls::Error::AlertReceived(Alert::CertificateRequired);
        assert_eq!(of(required), Some(FaultKind::ClientCertificate));
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(of_tls(&RedisError::from(io::Error::other("else"))), None);
    }
}
