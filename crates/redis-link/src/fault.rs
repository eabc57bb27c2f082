//! [`Fault`]: an error from Redis, classified by its cause.

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

/// Parts of error replies that have no specific code, and the kinds they indicate. As such texts may change between
/// versions, only one of these kinds, [`FaultKind::Rights`], is a [refusal](Fault::is_refusal).
const TEXTS: [(&str, FaultKind); 7] = [
    // A missing permission in a script: the first text is from Redis before 7.2, the second from later versions and Valkey.
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
#[expect(missing_docs, reason = "most names are self-explanatory")]
pub enum FaultKind {
    /// The server is down, slow or not ready. It may have executed the command even so.
    Away,
    /// The server has reached its memory limit, and rejects commands that may need more memory.
    Full,
    Replica,
    TooFewReplicas,
    DiskFails,
    ClusterDown,
    Loading,
    /// The server rejected the user name or password, or requires a password.
    Credentials,
    /// The Redis user does not have permission for a command.
    Rights,
    ServerCertificate,
    /// The server requires a client certificate, or rejected the one that was sent.
    ClientCertificate,
    /// The server closed a TLS connection immediately, without an alert, and may require a client certificate.
    ClientCertificateMissing,
    /// The server closed a non-TLS connection immediately, and may require TLS.
    IsTls,
    /// The server does not respond to a TLS handshake, and may not support TLS.
    NoTls,
    /// The server's response to a TLS handshake was not TLS.
    NotTls,
    NotRedis,
    Unreachable,
    /// Configured as a cluster, but the server is not in cluster mode.
    NoCluster,
    /// Not configured as a cluster, but the server is in cluster mode.
    IsCluster,
    NoSentinel,
    IsSentinel,
    MasterName,
    Database,
    /// The server's `maxmemory-policy` allows it to evict keys. Only a [`Check`](crate::Check) returns this kind.
    Evicts,
    /// The server does not meet the caller's requirements.
    Unfit,
}

/// An error from Redis. Its message is one line, with at most 512 bytes of the server's reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The kind of failure, for deciding how to react.
    pub kind: FaultKind,
    /// The server or sentinel that failed, such as `Redis at 10.0.0.1:6379`; empty if unknown.
    pub server: String,
    /// The message, without the server.
    pub reason: String,
}

impl Fault {
    /// Returns a fault without a server.
    #[must_use]
    pub fn new(kind: FaultKind, reason: impl Into<String>) -> Self {
        Self { kind, server: String::new(), reason: reason.into() }
    }

    /// Returns a fault of kind [`FaultKind::Away`] without a server.
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

    /// Converts an error of the `redis` crate into a fault without a server.
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
            FaultKind::Credentials => "Redis rejected the credentials",
            FaultKind::Rights => "the Redis user is missing a permission",
            FaultKind::ServerCertificate | FaultKind::ClientCertificate | FaultKind::NotTls => {
                "the TLS connection to Redis failed"
            }
            _ => return Self::new(kind, text),
        };
        Self::new(kind, format!("{words} ({text})"))
    }

    /// Like [`Self::of`], but for an error while connecting. If the server closes the connection, does not respond or sends
    /// an unreadable reply at this point, it may expect TLS, not support TLS or not be a Redis server.
    pub(crate) fn of_greeting(error: &RedisError, client: &Client) -> Self {
        let fault = Self::of(error);
        if fault.is_refusal() {
            return fault;
        }
        let address = client.get_connection_info().addr();
        let is_tls = matches!(address, ConnectionAddr::TcpTls { .. });
        let has_ended = error.is_connection_dropped() && !error.is_connection_refusal();
        let kind = match error.kind() {
            // The message of the `redis` crate shows only the unexpected byte, which does not help.
            ErrorKind::Parse => {
                return Self::new(FaultKind::NotRedis, "the response is not from a Redis server");
            }
            _ if has_ended && is_tls => FaultKind::ClientCertificateMissing,
            _ if has_ended => FaultKind::IsTls,
            _ if error.is_timeout() && is_tls => FaultKind::NoTls,
            _ if error.is_timeout() => FaultKind::Unreachable,
            _ => fault.kind,
        };
        Self { kind, ..fault }
    }

    /// Returns this fault, attributed to the given server.
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
            // Sent if the client certificate's CA has the same name as the trusted CA but a different key.
            | Alert::DecryptError,
        ) => Some(FaultKind::ClientCertificate),
        _ => None,
    }
}

/// Returns the TLS error that caused this error; None if there is none. Following `source` alone would miss it: Redis errors
/// keep their cause in an `Arc`, and the `source` of an `io::Error` skips the error inside.
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

/// Returns the code and text of an error. For a failed transaction, returns those of each command that failed.
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

/// Returns whether a connection must be replaced after this error, e.g. because it is lost or the server rejects writes.
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

/// Returns whether a different server may own the slot now. A failed transaction has the code only in its message.
pub(crate) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let message = error.to_string();
    CODES.iter().any(|code| message.contains(code))
}

const BYTES_MAX: usize = 512;

/// Returns the first 512 bytes of a message as one line: each run of whitespace and control characters becomes a single space.
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
        let kind_of = |error: rustls::Error| {
            of_tls(&RedisError::from(io::Error::other(io::Error::other(error))))
        };
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(kind_of(expired), Some(FaultKind::ServerCertificate));
        let required = rustls::Error::AlertReceived(Alert::CertificateRequired);
        assert_eq!(kind_of(required), Some(FaultKind::ClientCertificate));
        assert_eq!(kind_of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(of_tls(&RedisError::from(io::Error::other("else"))), None);
    }
}
