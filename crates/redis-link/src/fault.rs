//! [`Fault`]: what an error of Redis means.

use std::error::Error;
use std::sync::Arc;
use std::{fmt, io};

use redis::{Client, ConnectionAddr, ErrorKind, RedisError};
use rustls::AlertDescription as Alert;

/// What scripts answer whose user lacks a right, of Redis before 7.2 and since, and of Valkey. It has no code of its own.
const NO_PERMISSION_IN_SCRIPT: [&str; 2] =
    ["The user executing the script can't", "ACL failure in script"];

/// The codes of errors that say what is the matter whatever was asked.
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

/// What servers say that are not what the address says they are. It only helps whoever reads it: nothing is decided by it.
const STRANGERS: [(&str, FaultKind); 5] = [
    ("cluster support disabled", FaultKind::NoCluster),
    ("unknown command 'SENTINEL'", FaultKind::NoSentinel),
    ("refused to switch database", FaultKind::Database),
    ("Moved: ", FaultKind::IsCluster),
    ("unknown command 'HGETALL'", FaultKind::IsSentinel),
];

/// What the matter is, for whoever says what to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// Away, slow or not ready. What was asked may have been done.
    Away,
    /// Out of memory: nothing that needs room is done.
    Full,
    /// It is a replica, and takes no writes.
    Replica,
    /// It has fewer replicas than it wants to have for writes.
    TooFewReplicas,
    /// It cannot write to its disk.
    DiskFails,
    /// No master serves some slots of the cluster.
    ClusterDown,
    /// It is loading its data.
    Loading,
    /// It wants other credentials.
    Credentials,
    /// The user lacks a right.
    Rights,
    /// Its certificate is not trusted.
    ServerCertificate,
    /// It wants a certificate, or another one.
    ClientCertificate,
    /// It ended a TLS connection at once: it may want a certificate. One that misses it says so and hangs up; a client that
    /// writes at that moment may find only the broken connection.
    ClientCertificateMissing,
    /// It ended a connection in the clear at once: it may speak TLS.
    IsTls,
    /// It answers a TLS connection with silence: it may not speak TLS.
    NoTls,
    /// It answers a TLS connection with something else.
    NotTls,
    /// It answers with something else than Redis' protocol.
    NotRedis,
    /// Nothing answers.
    Unreachable,
    /// It is no node of a cluster.
    NoCluster,
    /// It is a node of a cluster.
    IsCluster,
    /// It is no sentinel.
    NoSentinel,
    /// It is a sentinel.
    IsSentinel,
    /// No sentinel knows the master by this name.
    MasterName,
    /// It has no database of this number.
    Database,
    /// It may drop keys (`maxmemory-policy`). Only a user's [`Check`](crate::Check) finds this, and the next.
    Evicts,
    /// It is not what the user needs.
    Unfit,
}

/// Why Redis did not do what it was asked. Every text is one line, of 512 bytes of a server's at most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// What the matter is.
    pub kind: FaultKind,
    /// Of whom it is; empty: of nobody in particular.
    pub server: String,
    /// What is wrong.
    pub reason: String,
}

impl Fault {
    /// A fault of nobody in particular.
    #[must_use]
    pub fn new(kind: FaultKind, reason: impl Into<String>) -> Self {
        Self { kind, server: String::new(), reason: reason.into() }
    }

    /// Away, for now.
    #[must_use]
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(FaultKind::Away, reason)
    }

    /// Whether nothing helps until somebody changes something.
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

    /// What an error means, without of whom it is. All that Redis says comes in here, and it may be anything.
    #[must_use]
    pub fn of(error: &RedisError) -> Self {
        let said = on_one_line(&said(error));
        let codes = codes(error);
        let by_code = CODES.iter().find(|(code, _)| codes.iter().any(|it| it == code));
        let kind = match by_code {
            Some((_, kind)) => *kind,
            None if error.kind() == ErrorKind::AuthenticationFailed => FaultKind::Credentials,
            None if NO_PERMISSION_IN_SCRIPT.iter().any(|it| said.contains(it)) => FaultKind::Rights,
            None => of_tls(error).unwrap_or_else(|| {
                let stranger = STRANGERS.iter().find(|(answer, _)| said.contains(answer));
                stranger.map_or(FaultKind::Away, |(_, kind)| *kind)
            }),
        };
        let words = match kind {
            FaultKind::Credentials => "Redis does not accept the credentials",
            FaultKind::Rights => "the Redis user may not do what is needed",
            FaultKind::ServerCertificate | FaultKind::ClientCertificate | FaultKind::NotTls => {
                "there is no trust between this node and Redis"
            }
            _ => return Self::new(kind, said),
        };
        Self::new(kind, format!("{words} ({said})"))
    }

    /// The same for a server that could not be greeted, and what may be the matter with one that is there.
    pub(crate) fn of_greeting(error: &RedisError, client: &Client) -> Self {
        let fault = Self::of(error);
        if fault.is_refusal() {
            return fault;
        }
        let address = client.get_connection_info().addr();
        let encrypted = matches!(address, ConnectionAddr::TcpTls { .. });
        let ended = error.is_connection_dropped() && !error.is_connection_refusal();
        let kind = match error.kind() {
            // Nobody is helped by which byte was not expected.
            ErrorKind::Parse => {
                return Self::new(FaultKind::NotRedis, "this does not answer like Redis");
            }
            _ if ended && encrypted => FaultKind::ClientCertificateMissing,
            _ if ended => FaultKind::IsTls,
            _ if error.is_timeout() && encrypted => FaultKind::NoTls,
            _ if error.is_timeout() => FaultKind::Unreachable,
            _ => fault.kind,
        };
        Self { kind, ..fault }
    }

    /// The same, and of whom it is.
    #[must_use]
    pub fn at(self, whom: &impl fmt::Display) -> Self {
        let server = whom.to_string();
        Self { server, ..self }
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

/// The kind of an error of TLS that somebody has to fix: trying again does not help.
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
            // Of an authority with the same name as the one that the server trusts.
            | Alert::DecryptError,
        ) => Some(FaultKind::ClientCertificate),
        _ => None,
    }
}

/// Returns the error of TLS that an error comes from. Redis' errors keep their cause behind an `Arc`, and an `io::Error` hides the error it
/// was made of from `source`.
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

/// Whether the connection is gone, late with an answer, or leads to a server that cannot take writes.
pub(crate) fn ends_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Parse)
        || codes(error).iter().any(|code| matches!(&**code, "READONLY" | "MASTERDOWN" | "NOAUTH"))
}

/// Whether another server may have become responsible. A transaction says so in its message only.
pub(crate) fn may_have_moved(error: &RedisError) -> bool {
    const CODES: [&str; 6] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "MASTERDOWN"];
    if ends_connection(error) || error.code().is_some_and(|code| CODES.contains(&code)) {
        return true;
    }
    let message = error.to_string();
    CODES.iter().any(|code| message.contains(code))
}

/// The longest piece of what another says that is kept, in bytes.
const BYTES_MAX: usize = 512;

/// At most 512 bytes, each run of blanks and control characters one space.
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
