//! `eds healthy`, the health check of containers.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use reqwest::header::HOST;
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};

use super::runtime;
use crate::output::server::install_crypto;

/// Longer than the three seconds that a node waits for its store before it responds.
const WITHIN: Duration = Duration::from_secs(4);
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Prints the response of a node or relay to `/readyz`. Returns an error if it is not ready or does not respond.
pub(crate) fn healthy(address: &str) -> anyhow::Result<()> {
    anyhow::ensure!(!address.is_empty(), "http.listen is empty, so HTTP is disabled");
    let scheme = if address.contains("://") { "" } else { "http://" };
    let url = format!("{scheme}{}/readyz", address.trim_end_matches('/'));
    let (status, body) =
        runtime()?.block_on(ask(&url)).with_context(|| format!("{address} is not responding"))?;
    writeln!(io::stdout(), "{}", String::from_utf8_lossy(&body).trim_end())?;
    anyhow::ensure!(status == StatusCode::OK, "{address} is not ready");
    Ok(())
}

async fn ask(url: &str) -> reqwest::Result<(StatusCode, Vec<u8>)> {
    install_crypto();
    // The process is usually in the same container, and its certificate is for the name that other hosts use.
    let client = Client::builder()
        .timeout(WITHIN)
        .no_proxy()
        .redirect(Policy::none())
        .tls_danger_accept_invalid_certs(true);
    // A name that is not in http.hosts would be rejected.
    let request = client.build()?.get(url).header(HOST, "localhost");
    let mut response = request.send().await?;
    let mut body = Vec::new();
    while body.len() < ANSWER_BYTES_MAX
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    Ok((response.status(), body))
}
