//! InfluxDB and servers with its write API.
//!
//! | file | purpose |
//! | --- | --- |
//! | `answer.rs` | maps an HTTP answer to a result |
//! | `v2.rs` | the v2 API over `http://`, through the `influxdb2` crate |
//! | `http.rs` | all other requests: v1, `https://`, and URLs with a path |
//!
//! `docs/decisions/0002-https-to-influxdb.md` explains why there are two clients. Neither follows redirects, which would turn a
//! POST into a GET or carry the token elsewhere. Neither uses a proxy, not even one from the environment: the database is a
//! neighbour, and a proxy for other traffic must not see the token.

mod answer;
mod http;
mod v2;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

pub use self::http::{LineWriter, certificates};
use self::v2::V2;
use super::line_protocol::body;
use super::{Output, SealedCounts, WriteError};
use crate::event::Minute;
use crate::secret::Secret;

/// The timeout for connecting, unless that of the whole request is shorter.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Idle connections are closed before the server's own limit (60 s and more) can cut off a request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
const USER_AGENT: &str = concat!("event-data-service/", env!("CARGO_PKG_VERSION"));
/// The default measurement of probes.
const PROBE_MEASUREMENT: &str = "eds_probe";

/// The write API and its credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Api {
    /// `/api/v2/write`: InfluxDB 2 and 3, VictoriaMetrics.
    V2 {
        /// The organisation, by name or id.
        org: String,
        /// The bucket, by name or id.
        bucket: String,
        /// The API token; some servers need none.
        token: Option<Secret>,
    },
    /// `/write`: InfluxDB 1.x.
    V1 {
        /// The database.
        database: String,
        /// The user; some servers need none.
        username: Option<String>,
        /// The user's password.
        password: Option<Secret>,
    },
}

/// The settings of an InfluxDB output, as checked by the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `http://` or `https://`, a host, and optionally a port and a path that precedes the API's own.
    pub url: Url,
    /// The write API.
    pub api: Api,
    /// The timeout of a request, from connecting to the end of the answer.
    pub timeout: Duration,
    /// PEM certificates to trust instead of the system's.
    pub ca: Option<Vec<u8>>,
}

/// Unusable certificates, or an HTTP client that cannot be set up, for instance because the system has no certificates.
#[derive(Debug, thiserror::Error)]
#[error("output: {0}")]
pub struct SettingsError(String);

/// An output to one bucket or database.
pub struct InfluxDb {
    client: Client,
    description: String,
    probe_measurement: String,
}

enum Client {
    Crate(V2),
    Own(LineWriter),
}

impl InfluxDb {
    /// Creates the output without connecting.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let url = &settings.url;
        let client = match &settings.api {
            // The crate would replace the path of the URL.
            Api::V2 { org, bucket, token } if url.scheme() == "http" && url.path() == "/" => {
                Client::Crate(V2::new(url, org, bucket, token.as_ref(), settings.timeout)?)
            }
            Api::V2 { .. } | Api::V1 { .. } => Client::Own(LineWriter::new(settings, "ns")?),
        };
        Ok(Self {
            client,
            description: settings.describe(),
            probe_measurement: PROBE_MEASUREMENT.to_owned(),
        })
    }

    /// Sets the measurement of probes. Its name must need no escapes.
    #[must_use]
    pub fn with_probe_measurement(mut self, name: &str) -> Self {
        name.clone_into(&mut self.probe_measurement);
        self
    }

    async fn post(&self, body: String) -> Result<(), WriteError> {
        match &self.client {
            Client::Crate(v2) => v2.post(body).await,
            Client::Own(http) => http.write(body).await,
        }
    }
}

impl fmt::Debug for InfluxDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InfluxDb").field(&self.description).finish()
    }
}

impl Settings {
    /// Returns the destination for the log, without secrets.
    fn describe(&self) -> String {
        let url = &self.url;
        match &self.api {
            Api::V1 { database, .. } => format!("InfluxDB at {url}, database {database}"),
            Api::V2 { org, bucket, .. } => format!("InfluxDB at {url}, org {org}, bucket {bucket}"),
        }
    }
}

#[async_trait]
impl Output for InfluxDb {
    async fn write(&self, counts: &[SealedCounts]) -> Result<(), WriteError> {
        self.post(body(counts)?).await
    }

    async fn probe(&self, minute: Minute) -> Result<(), WriteError> {
        let (measurement, nanos) = (&self.probe_measurement, minute.start_nanos());
        self.post(format!("{measurement} value=0 {nanos}\n")).await
    }

    fn describe(&self) -> String {
        self.description.clone()
    }
}
