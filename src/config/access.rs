//! Reads who may use an HTTP server: its tokens and certificates, and the CA certificates of its clients.

use std::fmt::Display;
use std::sync::{Arc, Mutex};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::kinds::{certificates, pem};
use super::sections::Http;
use super::values::Effective;
use crate::http::{Access, Tokens};

/// Returns the tokens and the certificates of the server in this section, to be shared with it, so that they can be replaced
/// while it runs. If there is a `verifier`, clients must present a certificate.
pub(super) fn access(
    values: &mut Effective,
    section: &str,
    tokens: Option<Tokens>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Arc<Mutex<Access>> {
    let paths = ["cert_file", "key_file"].map(|key| format!("{section}.{key}"));
    let paths = paths.each_ref().map(String::as_str);
    let [certificate, key] = paths.map(|path| values.read(path, pem));
    let text = format!("must be set together with {}; set both, or neither", paths[1]);
    values.together(&paths, certificate.is_some() == key.is_some(), &text);
    let requires_certificate = verifier.is_some();
    let tls = certificate.zip(key).and_then(|(certificate, key)| {
        let made = server_config(&certificate, &key, verifier);
        let reason = made.as_ref().err().map(String::as_str).unwrap_or_default();
        let text = format!(
            "cannot be used: {reason}; use PEM files with a certificate chain and its private key"
        );
        values.together(&paths[..1], made.is_ok(), &text);
        made.ok().map(Arc::new)
    });
    Arc::new(Mutex::new(Access { tokens, tls, requires_certificate }))
}

/// Reads who may use the HTTP server (`[http]`).
pub(super) fn read_access(values: &mut Effective, http: &mut Http) -> Arc<Mutex<Access>> {
    let tokens = http.tokens_file.take();
    let verifier = values.read("http.client_ca_file", client_verifier);
    values.together(
        &["http.listen", "http.tokens_file", "http.client_ca_file", "http.public"],
        tokens.is_some()
            || verifier.is_some()
            || http.public
            || http.listen.is_none_or(|listen| listen.ip().to_canonical().is_loopback()),
        "accepts requests from other hosts, but neither http.tokens_file nor http.client_ca_file is set; set one of them, use \
         127.0.0.1 or [::1], or set http.public = true if a firewall or proxy protects this address",
    );
    values.together(
        &["http.client_ca_file"],
        verifier.is_none() || !values.text("http.cert_file").is_empty(),
        "is set, but http.cert_file is not, and clients present certificates only with TLS; set http.cert_file and \
         http.key_file, or remove this key",
    );
    access(values, "http", tokens, verifier)
}

/// Reads the CA certificates for client certificates. Returns `None` if no file is given. The verifier also accepts clients
/// without a certificate, because some paths need none.
fn client_verifier(
    file: &str,
    allowed: &str,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, String> {
    let Some(pem) = certificates(file, allowed)? else { return Ok(None) };
    let wrong = |error: &dyn Display| {
        format!("{file} cannot be used: {error}; use a file with PEM certificates")
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.map_err(|error| wrong(&error))?;
        roots.add(certificate).map_err(|error| wrong(&error))?;
    }
    let provider = Arc::new(ring::default_provider());
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    builder.allow_unauthenticated().build().map(Some).map_err(|error| wrong(&error))
}

fn server_config(
    certificate: &[u8],
    key: &[u8],
    verifier: Option<Arc<dyn ClientCertVerifier>>,
) -> Result<ServerConfig, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    let provider = Arc::new(ring::default_provider());
    let verifies_clients = verifier.is_some();
    let verifier = verifier.unwrap_or_else(WebPkiClientVerifier::no_client_auth);
    let made = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| {
            builder.with_client_cert_verifier(verifier).with_single_cert(chain, key)
        });
    let mut config = made.map_err(|error| error.to_string())?;
    if verifies_clients {
        // The certificate of a client is not verified again when it resumes a session, but may have expired.
        config.session_storage = Arc::new(NoServerSessionStorage {});
    }
    Ok(config)
}
