//! Builds the settings of the exporter from `[telemetry]`.

use std::time::Duration;

use super::kinds::certificates;
use super::sections;
use super::servers::{exposed_host, refuse_keys, token_of};
use super::values::Effective;
use crate::output::server::{Api, Login, Settings};

/// The timeout for sending metrics or traces.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where a process sends its own metrics and traces.
#[derive(Debug, Clone)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Settings,
    pub(crate) traces: Settings,
    pub(crate) interval: Duration,
}

/// Reads `[telemetry]`. Returns `None` without a collector.
pub(super) fn read(values: &mut Effective) -> Option<Telemetry> {
    let sections::Telemetry { otlp_url, interval } = sections::Telemetry::read(values);
    let Some(url) = otlp_url else {
        let text = "is set, but telemetry.otlp_url is not; set it, or remove this key";
        refuse_keys(values, "telemetry.otlp_url", &["token", "token_file", "ca_file"], text);
        return None;
    };
    let token = token_of(values, ["telemetry.token", "telemetry.token_file"]);
    let ca: Option<Vec<u8>> = values.read("telemetry.ca_file", certificates);
    let text =
        "is set, but telemetry.otlp_url is not encrypted; use https:// there, or remove this key";
    let is_encrypted = url.scheme() == "https";
    values.together(
        &["telemetry.ca_file", "telemetry.otlp_url"],
        ca.is_none() || is_encrypted,
        text,
    );
    let settings = |path: &str| {
        let mut url = url.clone();
        url.set_path(&format!("{}{path}", url.path().trim_end_matches('/')));
        let api = Api::Otlp { login: token.clone().map(Login::Bearer), tenant: None };
        Settings { url, api, timeout: EXPORT_TIMEOUT, ca: ca.clone(), gzip: true }
    };
    Some(Telemetry { metrics: settings("/v1/metrics"), traces: settings("/v1/traces"), interval })
}

impl Telemetry {
    /// Returns a warning if the token can be read on the network.
    pub(super) fn warning(&self) -> Option<String> {
        let host = exposed_host(&self.metrics.url)?;
        let Api::Otlp { login: Some(_), .. } = self.metrics.api else { return None };
        Some(format!(
            "telemetry.otlp_url is not encrypted, so anyone on the network between this host and {host} can read the token; use https://"
        ))
    }
}
