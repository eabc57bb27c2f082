//! The kinds of values that only a relay has: its nodes, what an event is, and where the rest goes.

use std::net::Ipv6Addr;
use std::str::FromStr;

use redis_link::without_secrets;
use reqwest::Url;

use super::kind::{Form, Read, items};
use super::url::{OutputUrlParts, without_user};
use crate::relay::EventRule;

/// Hosts with a port each, by name or address.
#[derive(Debug)]
pub(super) struct Hosts;

impl Read for Hosts {
    type Value = Vec<String>;

    fn in_file(&self) -> Form {
        Form::List
    }

    fn read(&self, text: &str) -> Result<Vec<String>, String> {
        let mut hosts = Vec::new();
        for item in items(text) {
            let item = host_and_port(item)?;
            if hosts.contains(&item) {
                return Err(format!("{item:?} is there twice; leave one out"));
            }
            hosts.push(item);
        }
        Ok(hosts)
    }
}

/// Which lines are events; empty: all that are lines of a node.
#[derive(Debug)]
pub(super) struct EventRules;

impl Read for EventRules {
    type Value = Vec<EventRule>;

    fn in_file(&self) -> Form {
        Form::List
    }

    fn read(&self, text: &str) -> Result<Vec<EventRule>, String> {
        let rule = |item: &str| {
            let hint = "write a measurement, a tag key with = behind it, or TAG=VALUE";
            let rule = EventRule::from_str(item);
            rule.map_err(|wrong| format!("{item:?} {wrong}; {hint}"))
        };
        items(text).map(rule).collect()
    }
}

/// Where a relay sends what is no event.
#[derive(Debug)]
pub(super) struct RestUrl;

impl Read for RestUrl {
    type Value = RestUrlParts;

    fn in_file(&self) -> Form {
        Form::Url
    }

    fn range(&self) -> String {
        "none:, udp://host:port, http://host:8086?db=… or http://host:8086?org=…&bucket=…"
            .to_owned()
    }

    fn read(&self, text: &str) -> Result<RestUrlParts, String> {
        rest(text, &self.range())
    }
}

/// Where a relay sends what is no event, taken apart.
#[derive(Debug, Default)]
pub(super) enum RestUrlParts {
    #[default]
    Nowhere,
    /// `HOST:PORT`
    Udp(String),
    Http {
        /// Without its query, and without a path of the write API.
        url: OutputUrlParts,
        place: Place,
        precision: String,
    },
}

/// What a query names.
#[derive(Debug)]
pub(super) enum Place {
    /// For the v1 API.
    Database(String),
    /// For the v2 API.
    Bucket { org: String, bucket: String },
}

/// Takes such a URL apart. `forms` says what may be written.
fn rest(text: &str, forms: &str) -> Result<RestUrlParts, String> {
    let shown = without_secrets(text);
    let wrong = |what: &str| format!("{shown:?} {what}; write {forms}");
    if text == "none:" {
        return Ok(RestUrlParts::Nowhere);
    }
    if let Some(host) = text.strip_prefix("udp://") {
        return host_and_port(host).map(RestUrlParts::Udp);
    }
    let mut url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(wrong("is nowhere that lines can go"));
    }
    let [mut db, mut org, mut bucket, mut precision] = [const { None }; 4];
    for (name, value) in url.query_pairs() {
        let place = match &*name {
            "db" => &mut db,
            "org" => &mut org,
            "bucket" => &mut bucket,
            "precision" => &mut precision,
            _ => return Err(wrong(&format!("has a part {name:?} in its query"))),
        };
        if place.is_some() || value.is_empty() {
            return Err(wrong(&format!("has no {name}= in its query, or more than one")));
        }
        *place = Some(value.into_owned());
    }
    let place = match (db, org, bucket) {
        (Some(database), None, None) => Place::Database(database),
        (None, Some(org), Some(bucket)) => Place::Bucket { org, bucket },
        _ => return Err(wrong("names neither a database nor a bucket")),
    };
    url.set_query(None);
    url.set_fragment(None);
    // As clients of the API have it, too.
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/api/v2/write").unwrap_or(path);
    let path = path.strip_suffix("/write").unwrap_or(path).to_owned();
    url.set_path(&path);
    Ok(RestUrlParts::Http {
        url: without_user(&url).ok_or_else(|| wrong("has a user that is not UTF-8"))?,
        place,
        precision: precision.unwrap_or_else(|| "ns".to_owned()),
    })
}

/// A host with a port, as it is.
fn host_and_port(text: &str) -> Result<String, String> {
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let is_name = |host: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        !host.is_empty() && host.bytes().all(is_plain)
    };
    let is_v6 = |host: &str| {
        let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
        inner.is_some_and(|inner| inner.parse::<Ipv6Addr>().is_ok())
    };
    match text.rsplit_once(':') {
        Some((host, port)) if is_port(port) && (is_name(host) || is_v6(host)) => {
            Ok(text.to_owned())
        }
        _ => Err(format!(
            "{text:?} is not a host with a port; write one such as \"node-1:8094\" or \"[::1]:8094\""
        )),
    }
}
