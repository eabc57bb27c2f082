//! InfluxDB and servers that implement its write API; `docs/decisions/0002-https-to-influxdb.md` explains the two clients.

mod query;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use influxdb2::api::write::TimestampPrecision;
use influxdb2::{ClientBuilder, RequestError};
use redis_link::Secret;

pub(crate) use self::query::{FoundPoint, PointReader, ReadError};
use super::line_protocol::body;
use super::server::{
    Api, CONNECT_TIMEOUT_MAX, Dialect, IDLE_TIMEOUT, Settings, SettingsError, USER_AGENT, Writer,
    judge, unanswered,
};
use super::{Output, SealedCounts, WriteError};
use crate::event::Minute;
use crate::text::chain;

/// An output that writes to one bucket or database.
pub struct InfluxDb {
    client: Client,
    description: String,
    probe_measurement: String,
}

enum Client {
    /// The `influxdb2` crate's client, which drops response headers such as `Retry-After`, and reads errors of any length.
    Crate {
        settings: Settings,
        org: String,
        bucket: String,
        token: Option<Secret>,
        /// The client for the token with which it was created.
        current: Mutex<(Arc<str>, Arc<influxdb2::Client>)>,
    },
    Own(Writer),
}

impl InfluxDb {
    /// Creates the output without connecting. The measurement name used for probes must not need escaping.
    pub fn new(settings: &Settings, probe_measurement: &str) -> Result<Self, SettingsError> {
        let url = &settings.url;
        let client = match &settings.api {
            // The `influxdb2` crate would replace the URL's path, and does not compress.
            Api::V2 { org, bucket, token }
                if url.scheme() == "http" && url.path() == "/" && !settings.gzip =>
            {
                let text = text(token.as_ref());
                let client = Arc::new(crate_client(settings, org, &text)?);
                Client::Crate {
                    settings: settings.clone(),
                    org: org.clone(),
                    bucket: bucket.clone(),
                    token: token.clone(),
                    current: Mutex::new((text, client)),
                }
            }
            _ => Client::Own(Writer::new(settings, "ns")?),
        };
        let (description, probe_measurement) = (settings.describe(), probe_measurement.to_owned());
        Ok(Self { client, description, probe_measurement })
    }

    async fn post(&self, lines: String) -> Result<(), WriteError> {
        let (client, org, bucket) = match &self.client {
            Client::Crate { settings, org, bucket, token, current } => {
                let text = text(token.as_ref());
                let mut current = current.lock().unwrap_or_else(PoisonError::into_inner);
                if current.0 != text {
                    let client = crate_client(settings, org, &text)?;
                    *current = (text, Arc::new(client));
                }
                (Arc::clone(&current.1), org, bucket)
            }
            Client::Own(writer) => return writer.write(lines).await,
        };
        let precision = TimestampPrecision::Nanoseconds;
        match client.write_line_protocol_with_precision(org, bucket, lines, precision).await {
            Ok(()) => Ok(()),
            Err(RequestError::Http { status, text }) => {
                judge(Dialect::V2, status.as_u16(), None, &text)
            }
            Err(RequestError::ReqwestProcessing { source }) => {
                let (is_connect, is_timeout) = (source.is_connect(), source.is_timeout());
                Err(unanswered(&source.without_url(), is_connect, is_timeout))
            }
            // All other errors occur only in queries.
            Err(error) => Err(unanswered(&error, false, true)),
        }
    }
}

/// Returns the token; empty if there is none, in which case the crate sends no `Authorization` header.
fn text(token: Option<&Secret>) -> Arc<str> {
    token.map_or_else(|| "".into(), Secret::expose)
}

fn crate_client(
    settings: &Settings,
    org: &str,
    token: &str,
) -> Result<influxdb2::Client, SettingsError> {
    let builder = reqwest_0_11::Client::builder()
        .http1_only()
        .user_agent(USER_AGENT)
        .connect_timeout(settings.timeout.min(CONNECT_TIMEOUT_MAX))
        .timeout(settings.timeout)
        .pool_idle_timeout(IDLE_TIMEOUT)
        .redirect(reqwest_0_11::redirect::Policy::none())
        .no_proxy();
    let client = ClientBuilder::with_builder(builder, settings.url.as_str(), org, token).build();
    client.map_err(|error| SettingsError(chain(&error)))
}

impl fmt::Debug for InfluxDb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("InfluxDb").field(&self.description).finish()
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
