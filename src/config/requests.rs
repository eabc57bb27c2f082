//! Builds the settings for events that arrive by HTTP (`[input.http]`).

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};

use super::kinds::{certificates, pem};
use super::sections::{Http, HttpInput};
use super::values::Effective;
use crate::http::{Access, Tokens};

/// The settings for events that arrive by HTTP.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    pub(crate) listen: SocketAddr,
    /// Shared with the server, so that it can be replaced while the server runs.
    pub(crate) access: Arc<Mutex<Access>>,
    pub(crate) body_max: usize,
    /// Maximum time until the events of a request are recorded.
    pub(crate) timeout: Duration,
    /// Time that a batch waits for the events of other requests.
    pub(crate) linger: Duration,
    /// Whether lines without a timestamp are accepted.
    pub(crate) stamps: bool,
}

/// Reads the settings, or returns `None` if there is no address to listen on.
pub(super) fn read(values: &mut Effective) -> Option<Requests> {
    let HttpInput { listen, tokens_file: tokens, body_max, timeout, linger, stamp: stamps } =
        HttpInput::read(values);
    let listen = listen?;
    values.together(
        &["input.http.linger", "input.http.timeout"],
        linger < timeout,
        "must be shorter than input.http.timeout, or no request is answered in time; reduce it",
    );
    values.together(
        &["input.http.listen", "input.http.tokens_file"],
        tokens.is_some() || listen.ip().to_canonical().is_loopback(),
        "accepts requests from other hosts, but input.http.tokens_file is not set; set it, or use 127.0.0.1 or [::1]",
    );
    let access = access(values, "input.http", tokens, None);
    Some(Requests { listen, access, body_max, timeout, linger, stamps })
}

/// Returns the tokens and the certificates of the server in this section, to be shared with it, so that they can be replaced
/// while it runs. If there is a `verifier`, clients must present a certificate.
fn access(
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

/// Reads the CA certificates for client certificates. Returns `None` if no file is given. The verifier also
/// accepts clients without a certificate, because some paths need none.
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
