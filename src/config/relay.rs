//! The settings of a relay.

use std::path::PathBuf;

use super::credentials::{HttpKeys, http, refuse_keys};
use super::sections::{Http, Input, Log, Relay, Rest, Store, Top};
use super::sources::host_name;
use super::store;
use super::urls::{self, RestUrl, exposed_host};
use super::values::Effective;
use crate::event::{LineLimits, LineRules, Precision};
use crate::output::influxdb::Api;
use crate::relay::{PassthroughHttp, PassthroughSettings, leads_to_any};

/// A valid configuration of a relay.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The file that was read; `None`: no flag names a file, and the default file does not exist.
    pub(crate) file: Option<PathBuf>,
    pub(crate) name: String,
    /// The Redis to which the relay reports its state; `None`: it reports none.
    pub(crate) store: Option<RelayStore>,
    pub(crate) input: Input,
    /// The grammar of the nodes.
    pub(crate) rules: LineRules,
    pub(crate) relay: Relay,
    pub(crate) passthrough: PassthroughSettings,
    pub(crate) http: Http,
    pub(crate) log: Log,
}

/// The Redis of the nodes, to which a relay reports its state.
#[derive(Debug, Clone)]
pub(crate) struct RelayStore {
    pub(crate) redis: redis_link::Settings,
    /// The prefix of all keys.
    pub(crate) prefix: String,
}

impl RelayConfig {
    /// Returns warnings about settings that are valid but unwise. Each is a sentence that names the keys.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let PassthroughSettings::Http(rest) = &self.passthrough
            && let Some(host) = exposed_host(&rest.server.url)
        {
            warnings.push(format!(
                "rest.url is not encrypted: whoever is on the way to {host} can read and change the lines, the token or \
                 password included where there is one; use https://"
            ));
        }
        if self.rules.precision != Precision::Nanoseconds {
            warnings.push(
                "input.timestamp_precision is not \"ns\": events of a user in one series that come without a timestamp \
                 within one unit get the same, and are one event"
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
        "is not set: there is no node to send events to; set it, or give --to",
    );
    let is_own = |to: &&String| to.parse().is_ok_and(|to| leads_to_any(&input.listen, to));
    if let Some(own) = relay.to.iter().find(is_own) {
        let text = format!(
            "names {own}, where this relay itself listens: whatever it sends there would come back; name the nodes, or a relay nearer to them"
        );
        values.together(&["relay.to", "input.listen"], false, &text);
    }
    store::ignore_unused(values);
    let store = Store::read(values);
    let prefix = store.prefix.clone();
    http.hosts.extend(host_name());
    RelayConfig {
        file: values.file.clone(),
        name: Top::read(values).node,
        store: store::connection(values, store).map(|redis| RelayStore { redis, prefix }),
        // The nodes check lengths.
        rules: LineRules {
            user_field: input.user_field.clone(),
            precision: input.timestamp_precision,
            measurement_tag: input.measurement_tag.clone(),
            limits: LineLimits::NONE,
        },
        input,
        relay,
        passthrough: passthrough(values),
        http,
        log: Log::read(values),
    }
}

fn passthrough(values: &mut Effective) -> PassthroughSettings {
    let of_v1 = ["rest.username", "rest.password", "rest.password_file"];
    let of_v2 = ["rest.token", "rest.token_file"];
    let text =
        |place| format!("is for http with {place} in rest.url, which is not there; leave it out");
    let url = values.read("rest.url", urls::rest_url);
    let (is_v1, is_v2) = match &url {
        RestUrl::Http { api: Api::V1 { .. }, .. } => (true, false),
        RestUrl::Http { .. } => (false, true),
        RestUrl::Nowhere | RestUrl::Udp(_) => (false, false),
    };
    if !is_v1 {
        refuse_keys(values, "rest.url", &of_v1, &text("?db="));
    }
    if !is_v2 {
        refuse_keys(values, "rest.url", &of_v2, &text("?bucket="));
    }
    if !is_v1 && !is_v2 {
        values.ignore(&["rest.ca_file"]);
    }
    let keys = Rest::read(values);
    let (server, api, precision) = match keys.url {
        RestUrl::Nowhere => return PassthroughSettings::Nowhere,
        RestUrl::Udp(to) => return PassthroughSettings::Udp(to),
        RestUrl::Http { server, api, precision } => (server, api, precision),
    };
    let given = HttpKeys {
        username: keys.username,
        password: [keys.password, keys.password_file],
        token: [keys.token, keys.token_file],
        ca: keys.ca_file,
        timeout: keys.timeout,
    };
    let server = http(values, "rest", server, api, given);
    PassthroughSettings::Http(Box::new(PassthroughHttp {
        server,
        precision,
        queue_bytes: keys.queue_bytes,
    }))
}
