//! The v2 API over `http://`, through the `influxdb2` crate.
//!
//! The crate drops the headers of an answer, `Retry-After` among them. It reads the whole body of an error, which only the
//! timeout of the request limits.

use std::time::Duration;

use influxdb2::api::write::TimestampPrecision;
use influxdb2::{Client, ClientBuilder, RequestError};
use reqwest::Url;

use super::answer::{Dialect, Reply, judge, unanswered};
use super::{CONNECT_TIMEOUT_MAX, IDLE_TIMEOUT, SettingsError, USER_AGENT};
use crate::output::WriteError;
use crate::secret::Secret;
use crate::text::chain;

/// A client of one bucket.
pub(super) struct V2 {
    client: Client,
    org: String,
    bucket: String,
}

impl V2 {
    /// `base` is an `http://` URL without a path: the crate would replace one.
    pub(super) fn new(
        base: &Url,
        org: &str,
        bucket: &str,
        token: Option<&Secret>,
        timeout: Duration,
    ) -> Result<Self, SettingsError> {
        let builder = reqwest_0_11::Client::builder()
            .http1_only()
            .user_agent(USER_AGENT)
            .connect_timeout(timeout.min(CONNECT_TIMEOUT_MAX))
            .timeout(timeout)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .redirect(reqwest_0_11::redirect::Policy::none())
            .no_proxy();
        // The crate sends no header for an empty token.
        let token = token.map_or("", Secret::expose);
        let client = ClientBuilder::with_builder(builder, base.as_str(), org, token).build();
        let client = client.map_err(|error| SettingsError(chain(&error)))?;
        Ok(Self { client, org: org.to_owned(), bucket: bucket.to_owned() })
    }

    /// Posts the lines, once.
    pub(super) async fn post(&self, body: String) -> Result<(), WriteError> {
        let (org, bucket) = (&self.org, &self.bucket);
        let precision = TimestampPrecision::Nanoseconds;
        match self.client.write_line_protocol_with_precision(org, bucket, body, precision).await {
            Ok(()) => Ok(()),
            Err(RequestError::Http { status, text }) => {
                judge(Dialect::V2, &Reply { status: status.as_u16(), retry_after: None, text })
            }
            Err(RequestError::ReqwestProcessing { source }) => {
                let (is_connect, is_timeout) = (source.is_connect(), source.is_timeout());
                Err(unanswered(&source.without_url(), is_connect, is_timeout))
            }
            // The other errors are of queries.
            Err(error) => Err(unanswered(&error, false, true)),
        }
    }
}
