//! [`Hint`]: how to fix a fault. The errors of TLS are those that somebody has to fix: trying again does not help.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::AlertDescription as Alert;

/// How the one who configures it calls the settings, for [`Hint::by`].
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// Of the address.
    pub address: &'static str,
    /// Of the user and the password.
    pub credentials: &'static str,
    /// Of the authorities to trust.
    pub ca: &'static str,
    /// Of the certificate and key to show.
    pub certificate: &'static str,
    /// Where the rights stand that the user needs.
    pub rights: &'static str,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            address: "the address",
            credentials: "the user and the password",
            ca: "the file of the authorities",
            certificate: "the certificate and the key",
            rights: "the documentation",
        }
    }
}

/// How to fix a fault, or what to look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hint {
    /// The server wants other credentials.
    Credentials,
    /// The user lacks a right.
    Permission,
    /// The server's certificate is not trusted.
    ServerCertificate,
    /// The server wants a certificate, or another one.
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
    /// As the user's check has it, see [`Check`](crate::Check).
    Own(String),
}

impl Hint {
    /// The hint as a sentence, with these names of the settings.
    #[must_use]
    pub fn by(&self, names: &Names) -> String {
        let Names {
            address,
            credentials,
            ca,
            certificate,
            rights,
        } = names;
        match self {
            Self::Credentials => {
                format!("set {credentials} to a user of this Redis and its password (`ACL LIST`)")
            }
            Self::Permission => format!("grant it the commands of {rights}"),
            Self::ServerCertificate => {
                format!("look at the server's certificate, at the host in {address} and at {ca}")
            }
            Self::ClientCertificate => {
                format!("the server wants a certificate that it trusts: look at {certificate}")
            }
            Self::ClientCertificateMissing => format!(
                "a server that ends a TLS connection at once may want a certificate: look at {certificate}"
            ),
            Self::IsTls => format!(
                "a server that ends a connection at once may speak TLS only: write rediss:// in {address}"
            ),
            Self::NoTls => format!(
                "a server that is there and says nothing may not speak TLS: write redis:// in {address} for one without"
            ),
            Self::NotTls => {
                format!("look at {address}: this does not answer like a server of rediss://")
            }
            Self::NotRedis => format!(
                "look at the host and the port in {address}, and write rediss:// where the server speaks TLS"
            ),
            Self::Unreachable => {
                format!("look at the host and the port in {address}, and at firewalls on the way")
            }
            Self::NoCluster => format!("a Redis that is no cluster has redis:// in {address}"),
            Self::IsCluster => format!(
                "where {address} is redis://, a node of a Redis Cluster wants redis+cluster://"
            ),
            Self::NoSentinel => format!(
                "this is no sentinel: look at the port in {address}, or write redis:// for the server itself"
            ),
            Self::IsSentinel => {
                format!("a sentinel has redis+sentinel://host:port/name in {address}")
            }
            Self::MasterName => {
                format!("set the name at the end of {address} to one of `SENTINEL MASTERS`")
            }
            Self::Database => {
                format!(
                    "look at the number at the end of {address} and at `databases` in redis.conf"
                )
            }
            Self::Own(text) => text.clone(),
        }
    }
}

/// What to fix when the two sides do not agree about TLS; `None` for other errors.
pub(crate) fn of_tls(error: &RedisError) -> Option<Hint> {
    match find_tls(error)? {
        rustls::Error::InvalidCertificate(_) => Some(Hint::ServerCertificate),
        rustls::Error::InvalidMessage(_) => Some(Hint::NotTls),
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
        ) => Some(Hint::ClientCertificate),
        _ => None,
    }
}

/// Redis' errors keep their cause behind an `Arc`, and an `io::Error` hides the error it was made of from `source`.
fn find_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_about_certificates_only() {
        let of = |error: rustls::Error| {
            of_tls(&RedisError::from(io::Error::other(io::Error::other(error))))
        };
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(of(expired), Some(Hint::ServerCertificate));
        let required = rustls::Error::AlertReceived(Alert::CertificateRequired);
        assert_eq!(of(required), Some(Hint::ClientCertificate));
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(of_tls(&RedisError::from(io::Error::other("else"))), None);
    }
}
