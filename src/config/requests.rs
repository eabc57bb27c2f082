//! Builds the settings for events that arrive by HTTP (`[input.http]`).

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::kinds::pem;
use super::sections::HttpInput;
use super::values::Effective;
use crate::http::Access;

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
    let [certificate, key] =
        ["input.http.cert_file", "input.http.key_file"].map(|path| values.read(path, pem));
    values.together(
        &["input.http.cert_file", "input.http.key_file"],
        certificate.is_some() == key.is_some(),
        "must be set together with input.http.key_file; set both, or neither",
    );
    values.together(
        &["input.http.listen", "input.http.tokens_file"],
        tokens.is_some() || listen.ip().to_canonical().is_loopback(),
        "accepts requests from other hosts, but input.http.tokens_file is not set; set it, or use 127.0.0.1 or [::1]",
    );
    let tls = match certificate.zip(key).map(|(certificate, key)| server_config(&certificate, &key))
    {
        None => None,
        Some(Ok(tls)) => Some(Arc::new(tls)),
        Some(Err(reason)) => {
            let text = format!(
                "cannot be used: {reason}; use PEM files with a certificate chain and its private key"
            );
            values.together(&["input.http.cert_file"], false, &text);
            None
        }
    };
    let access = Arc::new(Mutex::new(Access { tokens, tls }));
    Some(Requests { listen, access, body_max, timeout, linger, stamps })
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
