//! The errors of TLS that an operator has to mend: trying again does not help.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::AlertDescription as Alert;

/// What to mend when the two sides do not agree about TLS; `None` for other errors.
pub(super) fn mend(error: &RedisError) -> Option<&'static str> {
    match find_tls(error)? {
        rustls::Error::InvalidCertificate(_) => {
            Some("look at the server's certificate, at the host in store.url and at store.ca_file")
        }
        rustls::Error::InvalidMessage(_) => {
            Some("look at store.url: this does not answer like a server of rediss://")
        }
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
        ) => Some(
            "the server wants a certificate that it trusts: look at store.cert_file and store.key_file",
        ),
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

    fn of(error: rustls::Error) -> Option<&'static str> {
        mend(&RedisError::from(io::Error::other(io::Error::other(error))))
    }

    #[test]
    fn what_to_mend_is_said_of_certificates_only() {
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert!(of(expired).unwrap().contains("store.ca_file"));
        let required = rustls::Error::AlertReceived(Alert::CertificateRequired);
        assert!(of(required).unwrap().contains("store.cert_file"));
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(mend(&RedisError::from(io::Error::other("else"))), None);
    }
}
