//! What TLS needs: a cryptography provider, certificates to trust, and the errors that an operator can fix.

use std::error::Error;

use reqwest::Certificate;
use rustls::crypto::{CryptoProvider, ring};

use crate::diagnosis::Cause;
use crate::text::{chain, find_tls};

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

/// The cause of a request that failed because the two sides do not agree about TLS; `None` for other failures.
pub(super) fn cause(error: &(dyn Error + 'static)) -> Option<Cause> {
    match find_tls(error)? {
        rustls::Error::InvalidCertificate(_) => Some(Cause::OutputCertificate),
        rustls::Error::InvalidMessage(_) => Some(Cause::OutputNotTls),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        for pem in [&b"no certificate"[..], b"-----BEGIN CERTIFICATE-----\nx\n"] {
            certificates(pem).unwrap_err();
        }
    }
}
