//! Builds the settings for events that arrive by HTTP (`[input.http]`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::kinds::pem;
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
    let access = access(values, "input.http", tokens);
    Some(Requests { listen, access, body_max, timeout, linger, stamps })
}

/// Returns the tokens and the certificate of the server in this section, to be shared with it, so that they can be replaced
/// while it runs.
fn access(values: &mut Effective, section: &str, tokens: Option<Tokens>) -> Arc<Mutex<Access>> {
    let paths = ["cert_file", "key_file"].map(|key| format!("{section}.{key}"));
    let paths = paths.each_ref().map(String::as_str);
    let [certificate, key] = paths.map(|path| values.read(path, pem));
    let text = format!("must be set together with {}; set both, or neither", paths[1]);
    values.together(&paths, certificate.is_some() == key.is_some(), &text);
    let tls = certificate.zip(key).and_then(|(certificate, key)| {
        let made = server_config(&certificate, &key);
        let reason = made.as_ref().err().map(String::as_str).unwrap_or_default();
        let text = format!(
            "cannot be used: {reason}; use PEM files with a certificate chain and its private key"
        );
        values.together(&paths[..1], made.is_ok(), &text);
        made.ok().map(Arc::new)
    });
    Arc::new(Mutex::new(Access { tokens, tls }))
}

/// Reads who may use the HTTP server (`[http]`).
pub(super) fn read_access(values: &mut Effective, http: &mut Http) -> Arc<Mutex<Access>> {
    let tokens = http.tokens_file.take();
    values.together(
        &["http.listen", "http.tokens_file", "http.public"],
        tokens.is_some()
            || http.public
            || http.listen.is_none_or(|listen| listen.ip().to_canonical().is_loopback()),
        "accepts requests from other hosts, but http.tokens_file is not set; set it, use 127.0.0.1 or [::1], or set http.public = \
         true if a firewall or proxy protects this address",
    );
    access(values, "http", tokens)
}

fn server_config(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
    let chain = chain.map_err(|error| error.to_string())?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| error.to_string())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map_err(|error| error.to_string())
}
