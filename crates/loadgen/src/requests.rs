//! [`Requests`]: sends lines by HTTP, one request at a time, and repeats each request until the server has recorded it.

use std::io;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use reqwest::blocking::Client;
use rustls::crypto::{CryptoProvider, ring};

/// The pauses before a request is repeated.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Requests {
    client: Client,
    urls: Vec<String>,
    token: Option<String>,
    /// The index of the URL that accepted the last request.
    last: usize,
    /// The time until each request was recorded, including repetitions, in microseconds.
    pub(super) latencies: Vec<u32>,
    pub(super) repeated: u64,
}

/// Why a request was not recorded.
#[derive(Debug)]
pub(super) enum Unrecorded {
    /// The server rejected it, or some of its lines.
    Rejected(String),
    /// A signal arrived.
    Stopped,
}

impl Requests {
    pub(super) fn open(urls: &[String], token: Option<String>) -> io::Result<Self> {
        if CryptoProvider::get_default().is_none() {
            // This fails only if another thread has installed a provider in the meantime.
            let _ = ring::default_provider().install_default();
        }
        let mut builder = Client::builder().no_proxy().timeout(ANSWERED_WITHIN);
        if urls.iter().all(|url| url.starts_with("http://")) {
            // Missing system certificates must not prevent a plain-text connection.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(io::Error::other)?;
        let path =
            |url: &String| format!("{}/api/v2/write?precision=ns", url.trim_end_matches('/'));
        let urls = urls.iter().map(path).collect();
        Ok(Self { client, urls, token, last: 0, latencies: Vec::new(), repeated: 0 })
    }

    /// Sends lines until one of the servers has recorded them. `failed` is called with the reason before each repetition.
    pub(super) fn send(
        &mut self,
        lines: &[u8],
        is_stopped: impl Fn() -> bool,
        mut failed: impl FnMut(&str),
    ) -> Result<(), Unrecorded> {
        let began = Instant::now();
        let (mut pause, longest) = PAUSES;
        loop {
            for place in (0..self.urls.len()).map(|offset| (self.last + offset) % self.urls.len()) {
                if is_stopped() {
                    return Err(Unrecorded::Stopped);
                }
                let mut request = self.client.post(&self.urls[place]).body(lines.to_owned());
                if let Some(token) = &self.token {
                    request = request.header("authorization", format!("Token {token}"));
                }
                let answer =
                    request.send().and_then(|answer| Ok((answer.status(), answer.text()?)));
                let why = match answer {
                    Ok((StatusCode::NO_CONTENT, _)) => {
                        self.last = place;
                        let micros = began.elapsed().as_micros();
                        self.latencies.push(u32::try_from(micros).unwrap_or(u32::MAX));
                        return Ok(());
                    }
                    Ok((status, text))
                        if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS =>
                    {
                        return Err(Unrecorded::Rejected(format!("{status}: {text}")));
                    }
                    Ok((status, text)) => format!("{status}: {text}"),
                    Err(error) => error.to_string(),
                };
                self.repeated += 1;
                failed(&format!("{}: {why}", self.urls[place]));
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(longest);
        }
    }

    /// Returns the latency, in milliseconds, that this share of the requests did not exceed.
    pub(super) fn quantile(&mut self, share: f64) -> Option<f64> {
        self.latencies.sort_unstable();
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an index between 0 and the length"
        )]
        let place = (share * self.latencies.len() as f64) as usize;
        let micros = self.latencies.get(place.min(self.latencies.len().saturating_sub(1)))?;
        Some(f64::from(*micros) / 1000.0)
    }
}
