//! The URLs of the store, the outputs and the passthrough server, and URLs without passwords.

use std::net::IpAddr;
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use redis_link::{UrlError, without_secrets};
use reqwest::Url;

use super::kinds::host_and_port;
use crate::output::influxdb::Api;
use crate::secret::Secret;

/// The URL of an HTTP server.
#[derive(Debug)]
pub(super) struct Server {
    /// Scheme, host, port and path, without a slash at its end.
    pub(super) url: Url,
    pub(super) username: Option<String>,
    pub(super) password: Option<Secret>,
}

impl Server {
    /// Separates user and password from a URL; `None`: they are not UTF-8.
    fn of(mut url: Url) -> Option<Self> {
        let decoded = |text: &str| {
            let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
            Some(Some(text).filter(|text| !text.is_empty()))
        };
        let username = decoded(url.username())?;
        let password = decoded(url.password().unwrap_or_default())?;
        // These fail only for URLs without a host, which http always has.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Some(Self { url, username, password: password.as_deref().map(Secret::new) })
    }
}

/// Returns the host of an HTTP server to which data leaves this host unencrypted.
pub(super) fn exposed_host(url: &Url) -> Option<&str> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    (url.scheme() == "http" && !is_loopback(host)).then_some(host)
}

/// Returns whether the name or address is of this host.
pub(super) fn is_loopback(host: &str) -> bool {
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Returns a URL that was accepted, without its password, and whether it had one.
pub(super) fn without_password(text: &str) -> (String, bool) {
    match Url::parse(text) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(None);
            (url.to_string(), true)
        }
        Ok(_) => (text.to_owned(), false),
        // A URL with several hosts does not parse.
        Err(_) => {
            let shown = without_secrets(text);
            let is_hidden = shown != text;
            (shown, is_hidden)
        }
    }
}

/// Reads the URL of the store; `None`: in memory.
pub(super) fn store_url(text: &str, allowed: &str) -> Result<Option<redis_link::Settings>, String> {
    if text == "memory:" {
        return Ok(None);
    }
    redis_link::Settings::from_str(text).map(Some).map_err(|error| match error {
        UrlError::Scheme(url) => format!("{url:?} is not a store; write {allowed}"),
        error @ UrlError::Invalid { .. } => error.to_string(),
    })
}

/// Reads the URL of an output; `None`: standard output.
pub(super) fn output_url(text: &str, allowed: &str) -> Result<Option<Server>, String> {
    if text == "stdout:" {
        return Ok(None);
    }
    let wrong = |what: &str| format!("{:?} {what}", without_secrets(text));
    let url = http(text, "is not an output", allowed)?;
    if url.path().trim_end_matches('/').ends_with("/write") {
        return Err(wrong(
            "ends in the path of a write; leave /write or /api/v2/write out, and all that follows: output.api says which is \
             added, and the keys of [output] say the rest",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong("has a ? or # part; leave it out; the keys of [output] say the rest"));
    }
    Server::of(url).map(Some).ok_or_else(|| wrong(NOT_UTF8))
}

const NOT_UTF8: &str = "has a user or password that is not UTF-8; write it in UTF-8";

/// Reads a URL of http or https.
fn http(text: &str, otherwise: &str, allowed: &str) -> Result<Url, String> {
    let wrong = |what: &str| format!("{:?} {what}; write {allowed}", without_secrets(text));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL ({error})")))?;
    if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(wrong(otherwise)) }
}

/// The destination of the lines that are no events.
#[derive(Debug, Default)]
pub(super) enum RestUrl {
    #[default]
    Nowhere,
    /// `HOST:PORT`
    Udp(String),
    Http {
        /// Without its query, and without a path of the write API.
        server: Server,
        /// The database or bucket of the query, without credentials.
        api: Api,
        precision: String,
    },
}

/// Reads the destination of the lines that are no events.
pub(super) fn rest_url(text: &str, allowed: &str) -> Result<RestUrl, String> {
    if text == "none:" {
        return Ok(RestUrl::Nowhere);
    }
    if let Some(host) = text.strip_prefix("udp://") {
        return host_and_port(host).map(RestUrl::Udp);
    }
    let wrong = |what: &str| format!("{:?} {what}; write {allowed}", without_secrets(text));
    let mut url = http(text, "is nowhere that lines can go", allowed)?;
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
    let api = match (db, org, bucket) {
        (Some(database), None, None) => Api::V1 { database, username: None, password: None },
        (None, Some(org), Some(bucket)) => Api::V2 { org, bucket, token: None },
        _ => return Err(wrong("names neither a database nor a bucket")),
    };
    url.set_query(None);
    url.set_fragment(None);
    // A client's URL may include the path of the API.
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/api/v2/write").unwrap_or(path);
    let path = path.strip_suffix("/write").unwrap_or(path).to_owned();
    url.set_path(&path);
    Ok(RestUrl::Http {
        server: Server::of(url).ok_or_else(|| format!("{:?} {NOT_UTF8}", without_secrets(text)))?,
        api,
        precision: precision.unwrap_or_else(|| "ns".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown_however_many_hosts_a_url_has() {
        for (url, expected) in [
            ("redis://u:geheim@h/1", Some("redis://u@h/1")),
            ("redis://:geheim@a:6379/1", None),
            ("redis+cluster://:geheim@a:7000,b:7001", None),
            ("redis+sentinel://eds:geheim@a:26379,b:26379/mymaster", None),
        ] {
            let (shown, is_hidden) = without_password(url);
            assert!(is_hidden && !shown.contains("geheim"), "{shown}");
            assert_eq!(expected.unwrap_or(&shown), shown);
        }
        for url in ["redis://a:6379", "redis+cluster://a:7000,b:7001"] {
            assert_eq!(without_password(url), (url.to_owned(), false));
        }
    }
}
