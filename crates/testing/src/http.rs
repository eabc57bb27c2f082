//! HTTP clients for a test's own questions.

use std::net::SocketAddr;
use std::sync::LazyLock;
use std::time::Duration;

use reqwest::blocking::{Client, ClientBuilder, RequestBuilder};
use reqwest::header::HeaderMap;
use rustls::crypto::ring;

/// The answer of a server.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

/// Each request has a new connection, so that none stays open on a node.
static CLIENT: LazyLock<Client> =
    LazyLock::new(|| blocking().pool_max_idle_per_host(0).build().unwrap());

fn install_provider() {
    // `Err` when another test was first.
    let _ = ring::default_provider().install_default();
}

/// A client for tests on a tokio runtime.
pub fn client() -> reqwest::Client {
    install_provider();
    let builder = reqwest::Client::builder().no_proxy().tls_certs_only([]);
    builder.build().unwrap()
}

/// A client for all other tests.
pub fn blocking() -> ClientBuilder {
    install_provider();
    Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .connect_timeout(Duration::from_secs(5))
        .timeout(Duration::from_secs(60))
}

/// `GET path`, to be sent by [`answer`].
pub fn get(server: SocketAddr, path: &str) -> RequestBuilder {
    CLIENT.get(format!("http://{server}{path}"))
}

/// `POST path`, to be sent by [`answer`].
pub fn post(server: SocketAddr, path: &str) -> RequestBuilder {
    CLIENT.post(format!("http://{server}{path}"))
}

/// Sends a request and reads the whole answer.
pub fn answer(request: RequestBuilder) -> reqwest::Result<Answer> {
    let response = request.send()?;
    Ok(Answer {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        body: response.text()?,
    })
}
