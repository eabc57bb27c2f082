//! The v2 API in the clear, through the `influxdb2` crate.
//!
//! Owns the crate's client. The crate keeps an answer's status and message but drops its headers, so there is no
//! `Retry-After` here. It reads the whole of an error's body; the total time-out alone bounds that.

use std::fmt;
use std::time::Duration;

use influxdb2::api::write::TimestampPrecision;
use influxdb2::{Client, ClientBuilder, RequestError};
use reqwest::Url;

use super::answer::{Dialect, Reply, judge};
use super::message::unanswered;
use super::settings::SettingsError;
use super::{CONNECT_TIMEOUT_MAX, IDLE_TIMEOUT, USER_AGENT};
use crate::diagnosis::{Cause, Diagnosis};
use crate::output::WriteError;
use crate::secret::Secret;
use crate::text::{chain, on_one_line};

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
        // No token is an empty one, for which the crate sends no header.
        let token = token.map_or("", Secret::expose);
        let client = ClientBuilder::with_builder(builder, base.as_str(), org, token)
            .build()
            .map_err(|error| SettingsError(chain(&error)))?;
        Ok(Self { client, org: org.to_owned(), bucket: bucket.to_owned() })
    }
}

impl fmt::Debug for V2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("V2")
            .field("org", &self.org)
            .field("bucket", &self.bucket)
            .finish_non_exhaustive()
    }
}

impl V2 {
    /// Posts the lines, once.
    pub(super) async fn post(&self, body: String) -> Result<(), WriteError> {
        let (org, bucket) = (&self.org, &self.bucket);
        let precision = TimestampPrecision::Nanoseconds;
        match self.client.write_line_protocol_with_precision(org, bucket, body, precision).await {
            Ok(()) => Ok(()),
            Err(RequestError::Http { status, text }) => {
                judge(Dialect::V2, &Reply { status: status.as_u16(), retry_after: None, text })
            }
            Err(RequestError::ReqwestProcessing { source }) if source.is_connect() => {
                // The URL holds nothing that the log does not have already.
                let why = on_one_line(&chain(&source.without_url()));
                Err(WriteError::unavailable(why))
            }
            Err(RequestError::ReqwestProcessing { source }) => {
                let timed_out = source.is_timeout();
                Err(unanswered(&source.without_url(), timed_out))
            }
            // The crate's other errors are of reading data back; none comes of a write.
            Err(error) => {
                let why = on_one_line(&chain(&error));
                Err(WriteError::Failed(Diagnosis::new(Cause::OutputDown, why)))
            }
        }
    }
}
