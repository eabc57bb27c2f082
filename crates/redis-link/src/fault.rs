//! [`Fault`]: the meaning of an error of Redis.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, ErrorKind, RedisError};
use rustls::AlertDescription as Alert;

/// Answers of a script whose user lacks a right: of Redis before 7.2, and of Redis since and Valkey. They have no code.
const NO_PERMISSION_IN_SCRIPT: [&str; 2] =
    ["The user executing the script can't", "ACL failure in script"];

/// The codes of errors that mean the same for every command.
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

/// Answers of servers of another kind than the address names. They only help the reader: no decision depends on them.
const STRANGERS: [(&str, FaultKind); 5] = [
    ("cluster support disabled", FaultKind::NoCluster),
    ("unknown command 'SENTINEL'", FaultKind::NoSentinel),
    ("refused to switch database", FaultKind::Database),
    ("Moved: ", FaultKind::IsCluster),
    ("unknown command 'HGETALL'", FaultKind::IsSentinel),
];

/// The kind of a fault, from which follows what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Away, slow or not ready. The command may have been carried out.
    Away,
    /// Out of memory: it carries out no command that needs room.
    Full,
    /// It is a replica, and takes no writes.
    Replica,
    /// It has fewer replicas than it requires for writes.
    TooFewReplicas,
    /// It cannot write to its disk.
    DiskFails,
    /// No master serves some slots of the cluster.
    ClusterDown,
    /// It is loading its data.
    Loading,
    /// It requires other credentials.
    Credentials,
    /// The user lacks a right.
    Rights,
    /// Its certificate is not trusted.
    ServerCertificate,
    /// It requires a certificate, or another one.
    ClientCertificate,
    /// It ended a TLS connection at once: it may require a certificate. A server that misses it sends an alert and hangs up; a client that
    /// writes at that moment may see only the broken connection.
    ClientCertificateMissing,
    /// It ended a connection without TLS at once: it may require TLS.
    IsTls,
    /// It does not answer a TLS connection: it may not support TLS.
    NoTls,
    /// It speaks another protocol than TLS.
    NotTls,
    /// It speaks another protocol than that of Redis.
    NotRedis,
    /// There is no answer.
    Unreachable,
    /// It is no node of a cluster.
    NoCluster,
    /// It is a node of a cluster.
    IsCluster,
    /// It is no sentinel.
    NoSentinel,
    /// It is a sentinel.
    IsSentinel,
    /// No sentinel knows a master of this name.
    MasterName,
    /// It has no database of this number.
    Database,
    /// It may evict keys (`maxmemory-policy`). Only a caller's [`Check`](crate::Check) finds this and [`Self::Unfit`].
    Evicts,
    /// It does not meet the needs of the caller.
    Unfit,
}

/// Why Redis did not carry out a command. Every text is one line, with at most 512 bytes of a server's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind.
    pub kind: FaultKind,
    /// The server; empty when it is not known.
    pub server: String,
    /// The text of the error.
    pub reason: String,
}

impl Fault {
    /// Returns a fault of no known server.
    #[must_use]
    pub fn new(kind: FaultKind, reason: impl Into<String>) -> Self {
        Self { kind, server: String::new(), reason: reason.into() }
    }

    /// Returns a fault of the kind [`FaultKind::Away`].
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(FaultKind::Away, reason)
    }

    /// Returns whether the fault lasts until an operator changes something.
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

    /// Returns the meaning of an error, without the server. A server's text may be anything.
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        let answers = answers(error);
        let text = answers.first().map(|(_, text)| on_one_line(text)).unwrap_or_default();
        let by_code = CODES.iter().find(|(known, _)| answers.iter().any(|(code, _)| code == known));
        let kind = match by_code {
            Some((_, kind)) => *kind,
            None if error.kind() == ErrorKind::AuthenticationFailed => FaultKind::Credentials,
            None if NO_PERMISSION_IN_SCRIPT.iter().any(|known| text.contains(known)) => {
                FaultKind::Rights
            }
            None => of_tls(error).unwrap_or_else(|| {
                let stranger = STRANGERS.iter().find(|(answer, _)| text.contains(answer));
                stranger.map_or(FaultKind::Away, |(_, kind)| *kind)
            }),
        };
        let words = match kind {
            FaultKind::Credentials => "Redis does not accept the credentials",
            FaultKind::Rights => "the Redis user may not do what is needed",
            FaultKind::ServerCertificate | FaultKind::ClientCertificate | FaultKind::NotTls => {
                "there is no trust between this node and Redis"
            }
            _ => return Self::new(kind, text),
        };
        Self::new(kind, format!("{words} ({text})"))
    }

    /// As [`Self::of`] for an error of the first command over a connection, which may show that the server is of another kind.
    pub(crate) fn of_greeting(error: &RedisError, client: &Client) -> Self {
        let fault = Self::of(error);
        if fault.is_refusal() {
            return fault;
        }
        let address = client.get_connection_info().addr();
        let is_tls = matches!(address, ConnectionAddr::TcpTls { .. });
        let has_ended = error.is_connection_dropped() && !error.is_connection_refusal();
        let kind = match error.kind() {
            // The unexpected byte helps no reader.
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

    /// Returns the fault with its server.
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

/// Returns the kind of an error of TLS that lasts until an operator changes something.
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
            // Of an authority with the same name as the trusted one.
            | Alert::DecryptError,
        ) => Some(FaultKind::ClientCertificate),
        _ => None,
    }
}

/// Returns the error of TLS that caused an error. Redis' errors keep their cause behind an `Arc`, and an `io::Error` does not return the
/// error that it contains as its `source`.
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

/// Returns the code and the text of an error; of a transaction that was not carried out, those of each command that prevented it.
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

/// Returns whether the connection is lost, late with an answer, or leads to a server that cannot take writes.
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

/// Returns whether another server may have become responsible. The error of a transaction has it only in its message.
pub(crate) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let message = error.to_string();
    CODES.iter().any(|code| message.contains(code))
}

/// The most bytes of a foreign text that are kept.
const BYTES_MAX: usize = 512;

/// Returns at most 512 bytes of a text, with one space for each run of white space and control characters.
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
    fn any_text_is_one_short_line() {
        assert_eq!(on_one_line(" a\r\n\u{1b}b\tc "), "a b c");
        let long = on_one_line(&"é ".repeat(BYTES_MAX));
        assert!(long.len() <= BYTES_MAX && long.starts_with("é é"));
        let long = on_one_line(&"é".repeat(BYTES_MAX));
        assert_eq!(long.len(), BYTES_MAX);
    }

    #[test]
    fn errors_of_tls_are_told_from_others() {
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
