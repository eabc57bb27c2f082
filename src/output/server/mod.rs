//! HTTP servers that accept counts: their settings, the client for writes, and the meaning of responses. Clients neither follow
//! redirects, which would turn a POST into a GET or leak the token, nor use a proxy, which would see it.

mod answer;
mod client;

use std::time::Duration;

use redis_link::Secret;
use reqwest::Url;

pub(super) use self::answer::{Dialect, judge, unanswered};
pub use self::client::{Writer, certificates};
pub(super) use self::client::{credentials, failure};
pub(crate) use self::client::{http_client, install_crypto};
use super::WriteError;
use crate::diagnosis::{Cause, Diagnosis};

/// Timeout for connecting, unless the timeout for the whole request is shorter.
pub(super) const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// How long idle connections are kept: less than the server's own timeout (60 s or more), which could cut off a request.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
pub(super) const USER_AGENT: &str = concat!("event-data-service/", env!("CARGO_PKG_VERSION"));

/// The write API and its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are named after the terms of the APIs")]
pub enum Api {
    /// Line protocol to `/api/v2/write` below the URL: InfluxDB 2, VictoriaMetrics.
    V2 { org: String, bucket: String, token: Option<Secret> },
    /// Line protocol to `/write` below the URL: InfluxDB 1.x.
    V1 { database: String, username: Option<String>, password: Option<Secret> },
    /// Prometheus remote write to the URL: Prometheus, Mimir, Thanos, VictoriaMetrics.
    RemoteWrite { version: RemoteWriteVersion, login: Option<Login>, tenant: Option<String> },
    /// OTLP metrics to the URL, as protobuf over HTTP.
    Otlp { login: Option<Login>, tenant: Option<String> },
}

/// A version of the protocol for Prometheus remote write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants are named after the versions")]
pub enum RemoteWriteVersion {
    V1,
    V2,
}

/// Credentials in an `Authorization` header.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "variants are named after the authentication schemes")]
pub enum Login {
    Bearer(Secret),
    Basic(String, Secret),
}

impl Api {
    /// Returns the user, if the API has any, and the token or password.
    fn login(&self) -> Option<(Option<&str>, &Secret)> {
        match self {
            Self::V2 { token, .. } => Some((None, token.as_ref()?)),
            Self::V1 { username, password, .. } => Some((username.as_deref(), password.as_ref()?)),
            Self::RemoteWrite { login, .. } | Self::Otlp { login, .. } => match login.as_ref()? {
                Login::Bearer(token) => Some((None, token)),
                Login::Basic(username, password) => Some((Some(username), password)),
            },
        }
    }

    fn tenant(&self) -> Option<&str> {
        match self {
            Self::RemoteWrite { tenant, .. } | Self::Otlp { tenant, .. } => tenant.as_deref(),
            Self::V1 { .. } | Self::V2 { .. } => None,
        }
    }

    /// Returns whether the API accepts line protocol.
    pub(crate) const fn accepts_lines(&self) -> bool {
        matches!(self, Self::V1 { .. } | Self::V2 { .. })
    }
}

/// The settings of an output with a server, as validated by the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `http://` or `https://`, a host, and optionally a port and a path.
    pub url: Url,
    /// The write API.
    pub api: Api,
    /// Timeout for a request, from connecting to the end of the response.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
    /// Whether to compress bodies with gzip. Remote write always compresses them with Snappy instead.
    pub gzip: bool,
}

/// The error if the certificates are missing or unusable, or the HTTP client cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("output: {0}")]
pub struct SettingsError(pub(super) String);

impl From<SettingsError> for WriteError {
    /// After the start, only a replaced token can be unusable.
    fn from(error: SettingsError) -> Self {
        Self::Misconfigured(Diagnosis::new(Cause::OutputToken, error.to_string()))
    }
}

impl Settings {
    /// Replaces the token or password by that in `read`, unless the server, the database or bucket, or the user differs.
    pub(crate) fn replace_secret(&self, read: &Self) {
        if self.describe() == read.describe()
            && let (Some((user, secret)), Some((other, read))) =
                (self.api.login(), read.api.login())
            && user == other
        {
            secret.replace(read);
        }
    }

    /// Returns a description of the destination for log messages, without secrets.
    pub(super) fn describe(&self) -> String {
        let url = &self.url;
        match &self.api {
            Api::V1 { database, .. } => format!("InfluxDB at {url}, database {database}"),
            Api::V2 { org, bucket, .. } => format!("InfluxDB at {url}, org {org}, bucket {bucket}"),
            Api::RemoteWrite { .. } => format!("remote write to {url}"),
            Api::Otlp { .. } => format!("OTLP to {url}"),
        }
    }
}
