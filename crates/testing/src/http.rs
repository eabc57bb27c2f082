//! HTTP clients for the requests that a test makes itself.

use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use flate2::read::GzDecoder;
use reqwest::blocking::{Client, ClientBuilder, RequestBuilder};
use reqwest::header::HeaderMap;
use rustls::crypto::ring;

/// The response of a server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// Returns the body of a request with this head after decompression.
pub(crate) fn decoded(head: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    if !head.to_ascii_lowercase().contains("content-encoding: gzip") {
        return Ok(body.to_vec());
    }
    let mut plain = Vec::new();
    GzDecoder::new(body).read_to_end(&mut plain)?;
    Ok(plain)
}

/// Makes a new connection for each request, so that no connection to a node stays open.
static CLIENT: LazyLock<Client> =
    LazyLock::new(|| blocking().pool_max_idle_per_host(0).build().unwrap());

fn install_provider() {
    // Fails if another test has already installed the provider.
    let _ = ring::default_provider().install_default();
}

/// Returns a client for tests that use a Tokio runtime.
pub fn client() -> reqwest::Client {
    install_provider();
    let builder = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    builder.build().unwrap()
}

/// Returns a builder for the client of a test without a Tokio runtime.
pub fn blocking() -> ClientBuilder {
    install_provider();
    Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(60))
}

/// Returns the request `GET path`, to be sent with [`answer`].
pub fn get(server: SocketAddr, path: &str) -> RequestBuilder {
    CLIENT.get(format!("http://{server}{path}"))
}

/// Returns the request `POST path`, to be sent with [`answer`].
pub fn post(server: SocketAddr, path: &str) -> RequestBuilder {
    CLIENT.post(format!("http://{server}{path}"))
}

/// Sends a request and returns the whole response.
pub fn answer(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send()?;
    Ok(Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.text()?,
    })
}
