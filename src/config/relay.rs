//! The settings of a relay.

use std::path::PathBuf;
use std::time::Duration;

use super::Log;
use super::keys::{http, input, relay, rest, top};
use super::reader::Reader;
use super::relay_kind::{Place, RestUrlParts};
use super::service::http_hosts;
use super::store::{self, RelayStore, UserKeys, user};
use super::url::{OutputUrlParts, host_in_the_clear, is_loopback};
use crate::event::{LineLimits, LineRules, Precision};
use crate::output::influxdb::{Api, Settings, certificates};
use crate::relay::{PassthroughHttp, PassthroughSettings, RelaySettings, leads_to_any};
use crate::secret::Secret;

/// A relay's configuration without mistakes.
#[derive(Debug, Clone)]
pub struct RelayConfig {
    /// The file that was read; none where nobody names one and there is none in the usual place.
    pub file: Option<PathBuf>,
    /// Name of this relay: 1 to 64 of `[A-Za-z0-9._-]`.
    pub name: String,
    /// Where it reports itself; `None`: nowhere.
    pub store: Option<RelayStore>,
    /// How it behaves.
    pub settings: RelaySettings,
    /// At shutdown, the longest to send what waits for the rest.
    pub drain_timeout: Duration,
    /// What is logged, and how.
    pub log: Log,
}

impl RelayConfig {
    /// What is allowed and unwise, a sentence each that names the keys.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let PassthroughSettings::Http(rest) = &self.settings.passthrough
            && let Some(host) = host_in_the_clear(&rest.server.url)
            && !is_loopback(host)
        {
            warnings.push(format!(
                "rest.url is not encrypted: whoever is on the way to {host} can read and change the lines, the token or \
                 password included where there is one; use https://"
            ));
        }
        if self.settings.rules.precision != Precision::Nanoseconds {
            warnings.push(
                "input.timestamp_precision is not \"ns\": events of a user in one series that come without a timestamp \
                 within one unit get the same, and are one event"
                    .to_owned(),
            );
        }
        warnings
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> RelayConfig {
    let to = reader.read(&relay::to);
    reader.together(
        &[relay::to.path],
        !to.is_empty(),
        "is not set: there is no node to send events to; set it, or give --to",
    );
    let settings = RelaySettings {
        listen: reader.read(&input::listen),
        receive_buffer: reader.read(&input::receive_buffer),
        socket_mode: reader.read(&input::socket_mode),
        threads: reader.read(&input::threads),
        rules: rules(reader),
        events: reader.read(&relay::events),
        to,
        datagram_max: reader.length(&relay::datagram_max),
        linger: reader.read(&relay::linger),
        number: reader.read(&relay::number),
        passthrough: passthrough(reader),
        http: reader.read(&http::listen),
        http_hosts: http_hosts(reader),
    };
    let listens = &settings.listen;
    let is_own = |to: &&String| to.parse().is_ok_and(|to| leads_to_any(listens, to));
    if let Some(own) = settings.to.iter().find(is_own) {
        let text = format!(
            "names {own}, where this relay itself listens: whatever it sends there would come back; name the nodes, or a relay nearer to them"
        );
        reader.together(&[relay::to.path, input::listen.path], false, &text);
    }
    RelayConfig {
        file: reader.file(),
        name: reader.read(&top::node),
        store: store::read_for_relay(reader),
        settings,
        drain_timeout: reader.read(&input::drain_timeout),
        log: super::log(reader),
    }
}

/// The grammar of the nodes. How long something may be is theirs to judge.
fn rules(reader: &mut Reader<'_>) -> LineRules {
    LineRules {
        user_field: reader.read(&input::user_field),
        precision: reader.read(&input::timestamp_precision),
        measurement_tag: reader.optional(&input::measurement_tag),
        limits: LineLimits::NONE,
    }
}

fn passthrough(reader: &mut Reader<'_>) -> PassthroughSettings {
    let url = reader.read(&rest::url);
    let timeout = reader.read(&rest::timeout);
    let queue_bytes = reader.length(&rest::queue_bytes);
    let ca = reader.pem(&rest::ca_file);
    if let Some(Err(reason)) = ca.as_deref().map(certificates) {
        let file = reader.text(rest::ca_file.path);
        let text = format!("{file} cannot be used: {reason}; name a file of PEM certificates");
        reader.wrong(rest::ca_file.path, &text);
    }
    let token = reader.secret(&rest::token, &rest::token_file);
    let is_ascii = token.as_ref().is_none_or(|token| token.expose().is_ascii());
    let text =
        "holds a token with a character that HTTP cannot carry; write only the token into it";
    reader.together(&[rest::token_file.path], is_ascii, text);
    let of_url = match &url {
        RestUrlParts::Http { url, .. } => (url.username.clone(), url.password.as_deref()),
        RestUrlParts::Nowhere | RestUrlParts::Udp(_) => (None, None),
    };
    let keys = UserKeys {
        url: rest::url.path,
        username: &rest::username,
        password: &rest::password,
        password_file: &rest::password_file,
    };
    let (username, password) = user(reader, &keys, of_url.0, of_url.1.map(Secret::new));
    reader.together(
        &[rest::username.path, rest::url.path],
        username.is_some() == password.is_some(),
        "and the password go together; set rest.username and rest.password_file, or neither",
    );
    let (is_v1, is_v2) = match &url {
        RestUrlParts::Http { place, .. } => {
            let is_v1 = matches!(place, Place::Database(_));
            (is_v1, !is_v1)
        }
        RestUrlParts::Nowhere | RestUrlParts::Udp(_) => (false, false),
    };
    for (path, is_set, has_use, place) in [
        (rest::token_file.path, token.is_some(), is_v2, "?bucket="),
        (rest::username.path, username.is_some(), is_v1, "?db="),
    ] {
        let text =
            format!("is for http with {place} in rest.url, which is not there; leave it out");
        reader.together(&[path, rest::url.path], has_use || !is_set, &text);
    }
    match url {
        RestUrlParts::Nowhere => PassthroughSettings::Nowhere,
        RestUrlParts::Udp(to) => PassthroughSettings::Udp(to),
        RestUrlParts::Http { url: OutputUrlParts { base: url, .. }, place, precision } => {
            let api = match place {
                Place::Database(database) => Api::V1 { database, username, password },
                Place::Bucket { org, bucket } => Api::V2 { org, bucket, token },
            };
            let server = Settings { url, api, timeout, ca };
            PassthroughSettings::Http(Box::new(PassthroughHttp { server, precision, queue_bytes }))
        }
    }
}
