//! What TLS needs: a cryptography provider, certificates to trust, and the errors that an operator can fix.

use std::error::Error;
use std::io;

use reqwest::Certificate;
use rustls::crypto::{CryptoProvider, ring};

use crate::text::chain;

/// Makes ring the provider of this process, unless another was chosen before.
pub(super) fn choose_provider() {
    if CryptoProvider::get_default().is_none() {
        // `Err` when another thread was faster, which is as well.
        let _ = ring::default_provider().install_default();
    }
}

/// The certificates in a PEM file, at least one; or why there are none.
pub fn certificates(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    let certificates = Certificate::from_pem_bundle(pem).map_err(|error| chain(&error))?;
    if certificates.is_empty() {
        return Err("there is no certificate in it".to_owned());
    }
    Ok(certificates)
}

/// What to fix when a request failed because the two sides do not agree about TLS; `None` for other failures.
pub(super) fn fault(error: &(dyn Error + 'static)) -> Option<&'static str> {
    match find_tls(error)? {
        rustls::Error::InvalidCertificate(_) => Some(
            "look at the server's certificate, at the host in output.url and at output.ca_file",
        ),
        rustls::Error::InvalidMessage(_) => {
            Some("look at output.url: this does not answer like a server of https://")
        }
        _ => None,
    }
}

fn find_tls<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    // An `io::Error` hides the error it was made of from `source`.
    let inner = error
        .downcast_ref::<io::Error>()
        .and_then(io::Error::get_ref);
    match inner {
        Some(inner) => find_tls(inner),
        None => find_tls(error.source()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_error_is_found_inside_an_io_error() {
        let bad = || rustls::Error::InvalidCertificate(rustls::CertificateError::Expired);
        assert!(fault(&io::Error::other(bad())).is_some());
        assert!(fault(&io::Error::other(io::Error::other(bad()))).is_some());
        assert!(fault(&io::Error::other("else")).is_none());
        assert!(fault(&rustls::Error::HandshakeNotComplete).is_none());
    }

    #[test]
    fn a_file_without_certificates_is_refused() {
        for pem in [&b"no certificate"[..], b"-----BEGIN CERTIFICATE-----\nx\n"] {
            certificates(pem).unwrap_err();
        }
    }
}
