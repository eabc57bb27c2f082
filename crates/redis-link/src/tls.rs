//! The errors of TLS that somebody has to fix: trying again does not help.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::RedisError;
use rustls::AlertDescription as Alert;

use crate::fault::Hint;

/// What to fix when the two sides do not agree about TLS; `None` for other errors.
pub(crate) fn hint(error: &RedisError) -> Option<Hint> {
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
            hint(&RedisError::from(io::Error::other(io::Error::other(error))))
        };
        let expired = rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert_eq!(of(expired), Some(Hint::ServerCertificate));
        let required = rustls::Error::AlertReceived(Alert::CertificateRequired);
        assert_eq!(of(required), Some(Hint::ClientCertificate));
        assert_eq!(of(rustls::Error::HandshakeNotComplete), None);
        assert_eq!(hint(&RedisError::from(io::Error::other("else"))), None);
    }
}
