//! InfluxDB, and what speaks like it.
//!
//! | file | what it does |
//! | --- | --- |
//! | `settings.rs` | where the server is, and as whom to write |
//! | `answer.rs` | what a status means |
//! | `message.rs` | the message in an answer, and `Retry-After` |
//! | `v2.rs` | the v2 API over `http://`, through the `influxdb2` crate |
//! | `http.rs` | all other requests: v1, and whatever is `https://` or below a path |
//! | `tls.rs` | certificates and their errors |
//!
//! `docs/decisions/0002-https-to-influxdb.md` says why there are two clients. Both follow no redirects, which would
//! turn a POST into a GET or carry the token elsewhere, and use no proxy, not even from the environment:
//! the database is a neighbour, and a proxy that was meant for something else must not see the token.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::Url;

use self::http::Http;
pub use self::settings::{Api, Settings, SettingsError};
pub use self::tls::certificates;
use self::v2::V2;
use super::line_protocol::body;
use super::{Output, SealedCounts, WriteError};
use crate::event::Minute;

mod answer;
mod http;
mod message;
mod settings;
mod tls;
mod v2;

/// A neighbour that does not accept a connection in this time is away, however long an answer may take.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(5);
/// Idle connections are closed before a server's own limit (60 s and more) can meet a request half-way.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);
const USER_AGENT: &str = concat!("event-data-service/", env!("CARGO_PKG_VERSION"));

/// An output to one bucket or database.
#[derive(Debug)]
pub struct InfluxDb {
    client: Client,
    description: String,
    probe_measurement: String,
}

/// The measurement of probes, unless the configuration names another one.
pub const PROBE_MEASUREMENT: &str = "eds_probe";

/// How a body reaches the server.
#[derive(Debug)]
enum Client {
    Crate(V2),
    Own(Http),
}

impl InfluxDb {
    /// Connects to nothing yet, so a server that is away is no error here.
    pub fn new(settings: &Settings) -> Result<Self, SettingsError> {
        let url = &settings.url;
        let client = match &settings.api {
            // The crate would put its own path in the place of the URL's.
            Api::V2 { org, bucket, token } if url.scheme() == "http" && url.path() == "/" => {
                Client::Crate(V2::new(url, org, bucket, token.as_ref(), settings.timeout)?)
            }
            Api::V2 { .. } | Api::V1 { .. } => Client::Own(Http::new(settings, "ns")?),
        };
        Ok(Self {
            client,
            description: describe(url, &settings.api),
            probe_measurement: PROBE_MEASUREMENT.to_owned(),
        })
    }

    /// The same, with another measurement for probes. Its name needs no escapes.
    #[must_use]
    pub fn with_probe_measurement(mut self, name: &str) -> Self {
        name.clone_into(&mut self.probe_measurement);
        self
    }

    async fn post(&self, body: String) -> Result<(), WriteError> {
        match &self.client {
            Client::Crate(v2) => v2.post(body).await,
            Client::Own(http) => http.post(body).await,
        }
    }
}

/// Writes lines of somebody else as they are, in requests of its own, whichever the API.
#[derive(Debug)]
pub struct LineWriter {
    client: Http,
    description: String,
}

impl LineWriter {
    /// Connects to nothing yet. `precision` is the unit of the lines' timestamps, as the API names it.
    pub fn new(settings: &Settings, precision: &str) -> Result<Self, SettingsError> {
        Ok(Self {
            client: Http::new(settings, precision)?,
            description: describe(&settings.url, &settings.api),
        })
    }

    /// Writes the lines in one request. On `Err` any part of them may have been written.
    pub async fn write(&self, lines: Vec<u8>) -> Result<(), WriteError> {
        self.client.post(lines).await
    }

    /// Where they go, for the log, without secrets.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.description
    }
}

fn describe(url: &Url, api: &Api) -> String {
    struct Place<'a>(&'a Api);
    impl fmt::Display for Place<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Api::V1 { database, .. } => write!(f, "database {database}"),
                Api::V2 { org, bucket, .. } => write!(f, "org {org}, bucket {bucket}"),
            }
        }
    }
    format!("InfluxDB at {url}, {}", Place(api))
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
