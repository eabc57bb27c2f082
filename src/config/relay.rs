//! Builds the settings of a relay from the values of the keys.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use redis_link::Timeouts;

use super::access::read_access;
use super::kinds::certificates;
use super::node::line_rules;
use super::requests::{self, Requests};
use super::sections::{Http, Input, Log, Passthrough, Relay, Store, Top};
use super::servers::{self, exposed_host, refuse_keys};
use super::sources::host_name;
use super::telemetry::{self, Telemetry};
use super::values::Effective;
use crate::event::{LineLimits, LineRules, Precision};
use crate::http::Access;
use crate::output::server::Api;
use crate::relay::{PassthroughSettings, leads_to_any};

/// The validated configuration of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The configuration file that was read; `None` if `--config` is not set and the default file does not exist.
    pub(crate) file: Option<PathBuf>,
    pub(crate) name: String,
    /// The settings for the nodes' Redis and the prefix of its keys; `None` if the relay does not report its state.
    pub(crate) store: Option<(redis_link::Settings, String)>,
    pub(crate) input: Input,
    pub(crate) rules: LineRules,
    pub(crate) relay: Relay,
    pub(crate) passthrough: PassthroughSettings,
    pub(crate) http: Http,
    /// Who may use the HTTP server.
    pub(crate) access: Arc<Mutex<Access>>,
    /// `None` if events do not arrive by HTTP.
    pub(crate) requests: Option<Requests>,
    /// Trusted CA certificates for `relay.http_to`.
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) log: Log,
}

impl RelayConfig {
    /// Returns warnings about settings that are valid but unwise. Each warning is a sentence that names the keys involved.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::from_iter(self.telemetry.as_ref().and_then(Telemetry::warning));
        if let PassthroughSettings::Http(http) = &self.passthrough
            && let Some(host) = exposed_host(&http.server.url)
        {
            warnings.push(format!(
                "passthrough.url is not encrypted, so anyone on the network between this host and {host} can read and change \
                 the lines, and read the credentials; use https://"
            ));
        }
        if self.rules.precision != Precision::Nanoseconds {
            warnings.push(
                "input.timestamp_precision is not \"ns\", so events without a timestamp that have the same user and series and arrive \
                 within one unit get the same timestamp and count as one event"
                    .to_owned(),
            );
        }
        warnings
    }
}

pub(super) fn build(values: &mut Effective) -> RelayConfig {
    let (input, relay, mut http) = (Input::read(values), Relay::read(values), Http::read(values));
    values.together(
        &["relay.to"],
        !relay.to.is_empty(),
        "is not set, so there are no nodes to send events to; set it, or use --to",
    );
    let is_own = |to: &&String| to.parse().is_ok_and(|to| leads_to_any(&input.listen, to));
    if let Some(own) = relay.to.iter().find(is_own) {
        let text = format!(
            "contains {own}, an address on which this relay itself listens, so every line would loop back; list only nodes, or relays \
             that are closer to the nodes"
        );
        values.together(&["relay.to", "input.listen"], false, &text);
    }
    let Store { url, prefix, connect_timeout, response_timeout, .. } = Store::read(values);
    let timeouts = Timeouts { connect: connect_timeout, response: response_timeout };
    http.hosts.extend(host_name());
    let access = read_access(values, &mut http);
    let requests = requests::read(values);
    values.together(
        &["input.http.listen", "relay.http_to"],
        requests.is_none() || !relay.http_to.is_empty(),
        "is set, but relay.http_to is not, so there is no node to send requests to; set both, or neither",
    );
    RelayConfig {
        file: values.file.clone(),
        name: Top::read(values).node,
        store: servers::redis(values, url, timeouts).map(|redis| (redis, prefix)),
        // The relay does not limit lengths, because the nodes do.
        rules: line_rules(&input, LineLimits::NONE),
        input,
        relay,
        passthrough: passthrough(values),
        http,
        access,
        requests,
        ca: values.read("relay.ca_file", certificates),
        telemetry: telemetry::read(values),
        log: Log::read(values),
    }
}

fn passthrough(values: &mut Effective) -> PassthroughSettings {
    let Passthrough { url: mut passthrough, timeout, queue_bytes } = Passthrough::read(values);
    let (is_v1, is_v2) = match &passthrough {
        PassthroughSettings::Http(http) => {
            let is_v1 = matches!(http.server.api, Api::V1 { .. });
            (is_v1, !is_v1)
        }
        PassthroughSettings::Nowhere | PassthroughSettings::Udp(_) => (false, false),
    };
    for (is_used, parameter, names) in [
        (is_v1, "?db=", &["username", "password", "password_file"][..]),
        (is_v2, "?bucket=", &["token", "token_file"]),
    ] {
        if !is_used {
            let text = format!(
                "requires {parameter} in passthrough.url; add it there, or remove this key"
            );
            refuse_keys(values, "passthrough.url", names, &text);
        }
    }
    if let PassthroughSettings::Http(http) = &mut passthrough {
        http.queue_bytes = queue_bytes;
        http.server.timeout = timeout;
        servers::http(values, "passthrough", &mut http.server);
    }
    passthrough
}
