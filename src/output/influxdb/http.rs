//! Own requests: the v1 API, and either API over `https://` or below a path.
//!
//! Owns one client with its pool of connections. It reads no more of an answer than [`ANSWER_BYTES_MAX`].

use std::fmt;
use std::time::SystemTime;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use reqwest::{Body, Client, Response, Url};

use super::answer::{Dialect, Reply, judge};
use super::message::{retry_after, unanswered};
use super::settings::{Api, Settings, SettingsError};
use super::{CONNECT_TIMEOUT_MAX, IDLE_TIMEOUT, USER_AGENT, tls};
use crate::diagnosis::Diagnosis;
use crate::output::WriteError;
use crate::secret::Secret;
use crate::text::{chain, on_one_line};

/// How much of an answer is read. InfluxDB 1.x quotes every line that it cannot parse.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// How a request says who sends it.
enum Credentials {
    None,
    Token(HeaderValue),
    Basic { username: String, password: Option<Secret> },
}

/// A client of one database or bucket.
pub(super) struct Http {
    client: Client,
    /// Where to post, with the query that names database or bucket.
    url: Url,
    dialect: Dialect,
    credentials: Credentials,
}

impl Http {
    pub(super) fn new(settings: &Settings, precision: &str) -> Result<Self, SettingsError> {
        let timeout = settings.timeout;
        let mut builder = Client::builder()
            .user_agent(USER_AGENT)
            .connect_timeout(timeout.min(CONNECT_TIMEOUT_MAX))
            .timeout(timeout)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        tls::choose_provider();
        if let Some(pem) = &settings.ca {
            let certificates = tls::certificates(pem).map_err(SettingsError)?;
            builder = builder.tls_certs_only(certificates);
        } else if settings.url.scheme() == "http" {
            // Nothing to verify; and a system without certificates must not hinder a plain connection.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build();
        Ok(Self {
            client: client.map_err(|error| SettingsError(chain(&error)))?,
            url: write_url(&settings.url, &settings.api, precision),
            dialect: settings.api.dialect(),
            credentials: credentials(&settings.api)?,
        })
    }
}

fn credentials(api: &Api) -> Result<Credentials, SettingsError> {
    Ok(match api {
        Api::V2 { token: Some(token), .. } => {
            let header = HeaderValue::from_str(&format!("Token {}", token.expose()));
            let mut header = header.map_err(|error| SettingsError(chain(&error)))?;
            header.set_sensitive(true);
            Credentials::Token(header)
        }
        Api::V1 { username: Some(username), password, .. } => {
            Credentials::Basic { username: username.clone(), password: password.clone() }
        }
        Api::V2 { .. } | Api::V1 { .. } => Credentials::None,
    })
}

/// The API's path below that of `base`, and its query.
fn write_url(base: &Url, api: &Api, precision: &str) -> Url {
    let mut url = base.clone();
    let below = base.path().trim_end_matches('/');
    match api {
        Api::V1 { database, .. } => {
            url.set_path(&format!("{below}/write"));
            url.query_pairs_mut().append_pair("db", database);
        }
        Api::V2 { org, bucket, .. } => {
            url.set_path(&format!("{below}/api/v2/write"));
            url.query_pairs_mut().append_pair("org", org).append_pair("bucket", bucket);
        }
    }
    url.query_pairs_mut().append_pair("precision", precision);
    url
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http").field("url", &self.url.as_str()).finish_non_exhaustive()
    }
}

impl Http {
    /// Posts the lines, once.
    pub(super) async fn post(&self, body: impl Into<Body>) -> Result<(), WriteError> {
        let request = self.client.post(self.url.clone()).body(body);
        let request = request.header(CONTENT_TYPE, "text/plain; charset=utf-8");
        let request = match &self.credentials {
            Credentials::None => request,
            Credentials::Token(token) => request.header(AUTHORIZATION, token.clone()),
            Credentials::Basic { username, password } => {
                request.basic_auth(username, password.as_ref().map(Secret::expose))
            }
        };
        let reply = match request.send().await {
            Ok(response) => read(response).await,
            Err(error) => Err(error),
        };
        match reply {
            Ok(reply) => judge(self.dialect, &reply),
            Err(error) => Err(failure(&error.without_url())),
        }
    }
}

async fn read(mut response: Response) -> reqwest::Result<Reply> {
    let asked = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = asked.and_then(|value| retry_after(value, SystemTime::now()));
    let mut bytes = Vec::new();
    while bytes.len() < ANSWER_BYTES_MAX
        && let Some(chunk) = response.chunk().await?
    {
        let room = ANSWER_BYTES_MAX - bytes.len();
        bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(Reply { status: response.status().as_u16(), retry_after, text })
}

/// A request that got no answer: mostly a server that is away, sometimes one that must not be trusted.
fn failure(error: &reqwest::Error) -> WriteError {
    let why = || on_one_line(&chain(error));
    match tls::cause(error) {
        Some(cause) => WriteError::Misconfigured(Diagnosis::new(cause, why())),
        None if error.is_connect() => WriteError::unavailable(why()),
        None => unanswered(error, error.is_timeout()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(write_url(&Url::parse(base).unwrap(), api, "ns").as_str(), expected);
        }
    }
}
