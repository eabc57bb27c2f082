//! [`Writer`]: the client for all write APIs, except for uncompressed writes to the v2 API.

use std::error::Error;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use flate2::Compression;
use flate2::write::GzEncoder;
use reqwest::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER,
};
use reqwest::{Body, Certificate, Client, Url};
use rustls::crypto::{CryptoProvider, ring};

use super::answer::{Dialect, judge, retry_after, unanswered};
use super::{Api, CONNECT_TIMEOUT_MAX, IDLE_TIMEOUT, Settings, SettingsError, USER_AGENT};
use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;
use crate::text::{chain, find_tls, on_one_line};

/// Maximum number of bytes read from a response. Responses may be long: InfluxDB 1.x quotes every line that it cannot parse.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The tenant of Mimir, Cortex and Loki.
const TENANT: &str = "x-scope-orgid";
/// The minimum size of a body that is compressed, in bytes: about as much as fits in one packet.
const GZIP_BYTES_MIN: usize = 1400;

/// Writes to one server with the API in its settings.
#[derive(Debug)]
pub struct Writer {
    client: Client,
    /// The URL of the write API, including any query that selects the database or bucket.
    url: Url,
    settings: Settings,
    dialect: Dialect,
    description: String,
}

/// The response to a write.
#[derive(Debug)]
pub(in crate::output) struct Answer {
    dialect: Dialect,
    pub(in crate::output) status: u16,
    pub(in crate::output) headers: HeaderMap,
    /// At most the first [`ANSWER_BYTES_MAX`] bytes of the body.
    pub(in crate::output) body: Vec<u8>,
}

impl Answer {
    /// Returns the result of the write if `text` is the message in the response.
    pub(in crate::output) fn judge(&self, text: &str) -> Result<(), WriteError> {
        let header = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = header.and_then(|value| retry_after(value, SystemTime::now()));
        judge(self.dialect, self.status, retry_after, text)
    }
}

/// Installs the implementation of TLS that all clients use.
pub(crate) fn install_crypto() {
    if CryptoProvider::get_default().is_none() {
        // This fails only if another thread has installed a provider in the meantime.
        let _ = ring::default_provider().install_default();
    }
}

/// Returns a client that trusts these certificates, or those of the system. `is_plain` means that it needs none.
pub(crate) fn http_client(
    timeout: Duration,
    ca: Option<&[u8]>,
    is_plain: bool,
) -> Result<Client, SettingsError> {
    let mut builder = Client::builder()
        .user_agent(USER_AGENT)
        .connect_timeout(timeout.min(CONNECT_TIMEOUT_MAX))
        .timeout(timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy();
    install_crypto();
    if let Some(pem) = ca {
        builder = builder.tls_certs_only(certificates(pem).map_err(SettingsError)?);
    } else if is_plain {
        // Missing system certificates must not prevent a plain-text connection.
        builder = builder.tls_certs_only([]);
    }
    builder.build().map_err(|error| SettingsError(chain(&error)))
}

impl Writer {
    /// Creates the client without connecting. `precision` is the unit of timestamps in line protocol, as written in the API.
    pub fn new(settings: &Settings, precision: &str) -> Result<Self, SettingsError> {
        let is_plain = settings.url.scheme() == "http";
        let client = http_client(settings.timeout, settings.ca.as_deref(), is_plain)?;
        let (url, dialect) = write_url(&settings.url, &settings.api, precision);
        credentials(&client, settings)?;
        let (settings, description) = (settings.clone(), settings.describe());
        Ok(Self { client, url, settings, dialect, description })
    }

    /// Writes line protocol in one request. On `Err`, any part of it may have been written.
    pub async fn write(&self, lines: impl AsRef<[u8]> + Into<Body>) -> Result<(), WriteError> {
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        let answer = self.post(HeaderMap::from_iter([(CONTENT_TYPE, text)]), lines).await?;
        answer.judge(&String::from_utf8_lossy(&answer.body))
    }

    /// Posts a body with these headers, compressed if the settings ask for it.
    pub(in crate::output) async fn post(
        &self,
        mut headers: HeaderMap,
        body: impl AsRef<[u8]> + Into<Body>,
    ) -> Result<Answer, WriteError> {
        // The token or the password may have been replaced since the last write.
        headers.extend(credentials(&self.client, &self.settings)?);
        let is_compressed = self.settings.gzip
            && body.as_ref().len() >= GZIP_BYTES_MIN
            && !headers.contains_key(CONTENT_ENCODING);
        let request = self.client.post(self.url.clone()).headers(headers);
        let request = match is_compressed.then(|| compressed(body.as_ref())) {
            Some(Ok(bytes)) => request.header(CONTENT_ENCODING, "gzip").body(bytes),
            Some(Err(_)) | None => request.body(body),
        };
        let answer = async {
            let mut response = request.send().await?;
            let mut body = Vec::new();
            while body.len() < ANSWER_BYTES_MAX
                && let Some(chunk) = response.chunk().await?
            {
                let room = ANSWER_BYTES_MAX - body.len();
                body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            }
            let (dialect, status) = (self.dialect, response.status().as_u16());
            Ok(Answer { dialect, status, headers: std::mem::take(response.headers_mut()), body })
        };
        answer.await.map_err(|error: reqwest::Error| failure(&error.without_url()))
    }

    /// Returns a description of the destination for log messages, without secrets.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }
}

fn compressed(lines: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(lines)?;
    encoder.finish()
}

/// Returns the headers with the credentials.
pub(in crate::output) fn credentials(
    client: &Client,
    settings: &Settings,
) -> Result<HeaderMap, SettingsError> {
    let unusable = |error: &(dyn Error + 'static)| SettingsError(chain(error));
    let request = client.post(settings.url.clone());
    let scheme = if settings.api.accepts_lines() { "Token" } else { "Bearer" };
    let request = match settings.api.login() {
        Some((None, token)) => {
            let header = HeaderValue::from_str(&format!("{scheme} {}", token.expose()));
            let mut header = header.map_err(|error| unusable(&error))?;
            header.set_sensitive(true);
            request.header(AUTHORIZATION, header)
        }
        Some((Some(username), password)) => request.basic_auth(username, Some(password.expose())),
        None => request,
    };
    let request = match settings.api.tenant() {
        Some(tenant) => request.header(TENANT, tenant),
        None => request,
    };
    Ok(request.build().map_err(|error| unusable(&error))?.headers().clone())
}

/// Parses the certificates in a PEM file. Returns the reason as `Err` if they are malformed or the file contains none.
pub fn certificates(pem: &[u8]) -> Result<Vec<Certificate>, String> {
    let certificates = Certificate::from_pem_bundle(pem).map_err(|error| chain(&error))?;
    if certificates.is_empty() {
        return Err("the file contains no certificates".to_owned());
    }
    Ok(certificates)
}

fn write_url(base: &Url, api: &Api, precision: &str) -> (Url, Dialect) {
    let mut url = base.clone();
    let below = base.path().trim_end_matches('/');
    let dialect = match api {
        Api::V1 { database, .. } => {
            url.set_path(&format!("{below}/write"));
            url.query_pairs_mut().append_pair("db", database);
            Dialect::V1
        }
        Api::V2 { org, bucket, .. } => {
            url.set_path(&format!("{below}/api/v2/write"));
            url.query_pairs_mut().append_pair("org", org).append_pair("bucket", bucket);
            Dialect::V2
        }
        Api::RemoteWrite { .. } => return (url, Dialect::RemoteWrite),
        Api::Otlp { .. } => return (url, Dialect::Otlp),
    };
    url.query_pairs_mut().append_pair("precision", precision);
    (url, dialect)
}

pub(in crate::output) fn failure(error: &reqwest::Error) -> WriteError {
    let cause = match find_tls(error) {
        Some(rustls::Error::InvalidCertificate(_)) => Cause::OutputCertificate,
        Some(rustls::Error::InvalidMessage(_)) => Cause::OutputNotTls,
        _ => return unanswered(error, error.is_connect(), error.is_timeout()),
    };
    WriteError::Misconfigured(Diagnosis::new(cause, on_one_line(&chain(error))))
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

    #[test]
    fn the_path_of_the_url_is_kept_and_names_are_encoded() {
        let v1 = Api::V1 { database: "a&b c".to_owned(), username: None, password: None };
        let v2 = Api::V2 { org: "o/ü".to_owned(), bucket: "b=1".to_owned(), token: None };
        for (base, api, expected) in [
            ("http://h:1", &v1, "http://h:1/write?db=a%26b+c&precision=ns"),
            ("https://h/influx/", &v1, "https://h/influx/write?db=a%26b+c&precision=ns"),
            (
                "http://h/a/b",
                &v2,
                "http://h/a/b/api/v2/write?org=o%2F%C3%BC&bucket=b%3D1&precision=ns",
            ),
        ] {
            assert_eq!(write_url(&Url::parse(base).unwrap(), api, "ns").0.as_str(), expected);
        }
    }
}
