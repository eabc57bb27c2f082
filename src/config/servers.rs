//! The settings for connecting to Redis and HTTP servers: URLs, users, secrets and certificates. `redis` and `http` read the
//! keys that apply only to a server, so these keys are not checked if no server is configured.

use std::net::IpAddr;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use redis_link::{Credentials, Secret, Timeouts, Tls, UrlError, without_secrets};
use reqwest::Url;

use super::kinds::{certificates, host_and_port, items, pem, secret, secret_file, text};
use super::values::Effective;
use crate::output::server::{Api, Login, Settings};
use crate::relay::{PassthroughHttp, PassthroughSettings};

type UrlLogin = (Option<String>, Option<Secret>);

pub(super) fn store_url(text: &str, allowed: &str) -> Result<Option<redis_link::Settings>, String> {
    if text == "memory:" {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|error| match error {
        UrlError::Scheme(url) => format!("{url:?} is not a store URL; use {allowed}"),
        error @ UrlError::Invalid { .. } => error.to_string(),
    })
}

pub(super) fn output_url(text: &str, allowed: &str) -> Result<Option<Url>, String> {
    if text == "stdout:" {
        return Ok(None);
    }
    let url = http_url(text, "is not an output URL", allowed)?;
    if url.query().is_some() || url.fragment().is_some() {
        return Err(format!(
            "{:?} has a query or fragment; remove it, and use the other keys in [output] instead",
            without_secrets(text)
        ));
    }
    Ok(Some(url))
}

/// Parses `telemetry.otlp_url`, below which the paths for metrics and traces are.
pub(super) fn otlp_url(text: &str, allowed: &str) -> Result<Option<Url>, String> {
    if text.is_empty() {
        return Ok(None);
    }
    let url = http_url(text, "is not the URL of a collector", allowed)?;
    let has_login = !url.username().is_empty() || url.password().is_some();
    if has_login || url.query().is_some() || url.path().contains("/v1/") {
        let url = without_secrets(text);
        return Err(format!(
            "{url:?} has a user, a query, or the path of metrics or traces; use {allowed}"
        ));
    }
    Ok(Some(url))
}

/// Parses `passthrough.url`. For an HTTP server, the caller must still set the credentials, the timeout and the queue size.
pub(super) fn passthrough_url(text: &str, allowed: &str) -> Result<PassthroughSettings, String> {
    if text == "none:" {
        return Ok(PassthroughSettings::Nowhere);
    }
    if let Some(host) = text.strip_prefix("udp://") {
        return host_and_port(host).map(PassthroughSettings::Udp);
    }
    let wrong = |problem: &str| format!("{:?} {problem}; use {allowed}", without_secrets(text));
    let mut url = http_url(text, "is not a destination for lines", allowed)?;
    let [mut db, mut org, mut bucket, mut precision] = [const { None }; 4];
    for (name, value) in url.query_pairs() {
        let place = match &*name {
            "db" => &mut db,
            "org" => &mut org,
            "bucket" => &mut bucket,
            "precision" => &mut precision,
            _ => return Err(wrong(&format!("has an unknown parameter {name:?}"))),
        };
        if place.is_some() || value.is_empty() {
            return Err(wrong(&format!("has an empty or repeated parameter {name}=")));
        }
        *place = Some(value.into_owned());
    }
    let api = match (db, org, bucket) {
        (Some(database), None, None) => Api::V1 { database, username: None, password: None },
        (None, Some(org), Some(bucket)) => Api::V2 { org, bucket, token: None },
        _ => return Err(wrong("has neither a database nor an organization and bucket")),
    };
    url.set_query(None);
    url.set_fragment(None);
    // A URL copied from a client may include the API path.
    let path = url.path().trim_end_matches('/');
    let path = path.strip_suffix("/api/v2/write").unwrap_or(path);
    let path = path.strip_suffix("/write").unwrap_or(path).to_owned();
    url.set_path(&path);
    Ok(PassthroughSettings::Http(Box::new(PassthroughHttp {
        server: Settings { url, api, timeout: Duration::ZERO, ca: None, gzip: false },
        precision: precision.unwrap_or_else(|| "ns".to_owned()),
        queue_bytes: 0,
    })))
}

/// Parses a list of URLs of nodes' HTTP inputs.
pub(super) fn node_urls(text: &str, _: &str) -> Result<Vec<Url>, String> {
    let allowed = "http://host:8096 or https://host:8096";
    let parse = |item: &str| {
        let url = http_url(item, "is not the URL of an HTTP input", allowed)?;
        if matches!(url.path(), "" | "/") && url.query().is_none() {
            Ok(url)
        } else {
            Err(format!("{item:?} has a path or query; use {allowed}"))
        }
    };
    items(text).map(parse).collect()
}

fn http_url(text: &str, otherwise: &str, allowed: &str) -> Result<Url, String> {
    let wrong = |problem: &str| format!("{:?} {problem}; use {allowed}", without_secrets(text));
    let url = Url::parse(text).map_err(|error| wrong(&format!("is not a URL ({error})")))?;
    if matches!(url.scheme(), "http" | "https") { Ok(url) } else { Err(wrong(otherwise)) }
}

/// Returns the host in the URL if the URL is unencrypted and does not point to this host; otherwise, `None`.
pub(super) fn exposed_host(url: &Url) -> Option<&str> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    (url.scheme() == "http" && !is_loopback(host)).then_some(host)
}

pub(super) fn is_loopback(host: &str) -> bool {
    let is_loopback = |ip: IpAddr| ip.to_canonical().is_loopback();
    host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_loopback)
}

/// Adds the values of the other keys in `[store]` to the settings in `store.url`. Returns `None` if the store is in memory.
pub(super) fn redis(
    values: &mut Effective,
    url: Option<redis_link::Settings>,
    timeouts: Timeouts,
) -> Option<redis_link::Settings> {
    let url = url?;
    let in_url = (url.credentials.username, url.credentials.password);
    let (username, password) = login(values, "store", in_url, false);
    let [ca, certificate, key] =
        ["store.ca_file", "store.cert_file", "store.key_file"].map(|path| {
            let file = values.read(path, pem);
            let text =
                "is set, but store.url is not encrypted; use rediss:// there, or remove this key";
            values.together(&[path, "store.url"], file.is_none() || url.tls.is_some(), text);
            file
        });
    values.together(
        &["store.cert_file", "store.key_file"],
        certificate.is_some() == key.is_some(),
        "must be set together with store.key_file; set both or neither",
    );
    Some(redis_link::Settings {
        tls: url.tls.map(|_| Tls { ca, client: certificate.zip(key) }),
        credentials: Credentials { username, password },
        timeouts,
        ..url
    })
}

/// Adds the credentials and CA certificates to the settings of an HTTP server. Removes any credentials from the URL.
pub(super) fn http(values: &mut Effective, section: &str, settings: &mut Settings) {
    let [url_key, ca_key, token_key, token_file] =
        ["url", "ca_file", "token", "token_file"].map(|name| format!("{section}.{name}"));
    let Settings { url, api, ca, .. } = settings;
    let in_url = take_login(url);
    let text = "has a user or password that is not UTF-8; encode it as UTF-8";
    values.together(&[&url_key], in_url.is_some(), text);
    let in_url = in_url.unwrap_or_default();
    match api {
        Api::V1 { username, password, .. } => {
            (*username, *password) = login(values, section, in_url, true);
        }
        Api::V2 { token, .. } => {
            let text = format!(
                "has a user or password, but the v2 API requires a token; remove them and set {token_file}"
            );
            values.together(&[&url_key], in_url == (None, None), &text);
            *token = token_of(values, [&token_key, &token_file]);
        }
        Api::RemoteWrite { login: found, .. } | Api::Otlp { login: found, .. } => {
            let (username, password) = login(values, section, in_url, true);
            let token = token_of(values, [&token_key, &token_file]);
            let is_in_file = values.text(&token_key).is_empty();
            values.together(
                &[if is_in_file { &token_file } else { &token_key }],
                token.is_none() || username.is_none(),
                &format!(
                    "is set, but {section}.username or a user in {url_key} is also set; remove one of them"
                ),
            );
            let basic = username.zip(password).map(|(name, secret)| Login::Basic(name, secret));
            *found = token.map(Login::Bearer).or(basic);
        }
    }
    *ca = values.read(&ca_key, certificates);
    let text =
        format!("is set, but {url_key} is not encrypted; use https:// there, or remove this key");
    values.together(&[&ca_key, &url_key], ca.is_none() || url.scheme() == "https", &text);
}

/// Removes the user, the password and trailing slashes from a URL. Returns the login; `None` if it is not valid UTF-8.
fn take_login(url: &mut Url) -> Option<UrlLogin> {
    let decoded = |text: &str| {
        let text = percent_decode_str(text).decode_utf8().ok()?.into_owned();
        Some(Some(text).filter(|text| !text.is_empty()))
    };
    let username = decoded(url.username())?;
    let password = decoded(url.password().unwrap_or_default())?;
    // These calls fail only for URLs without a host, and http URLs always have a host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    Some((username, password.as_deref().map(Secret::new)))
}

/// Returns the user and password, which may be set in the URL or by the keys in the section. Reports a problem if they
/// contradict each other, are incomplete, or may be exposed.
fn login(values: &mut Effective, section: &str, in_url: UrlLogin, needs_user: bool) -> UrlLogin {
    let [url, name, key, file] =
        ["url", "username", "password", "password_file"].map(|name| format!("{section}.{name}"));
    let variable = format!("EDS_{}__PASSWORD", section.to_uppercase());
    let username = values.read(&name, text);
    let password = secret_of(values, [&key, &file]);
    let user_key = if username.is_none() { &url } else { &name };
    let is_shown = in_url.1.is_some() && values.is_of_a_flag(&url);
    let differs = username.is_some() && in_url.0.is_some() && username != in_url.0;
    let is_twice = password.is_some() && in_url.1.is_some();
    let (username, password) = (username.or(in_url.0), password.or(in_url.1));
    for (keys, holds, text) in [
        (
            &[&*url][..],
            !is_shown,
            format!(
                "contains a password, but every user on this host can read the flags of a process; remove it, and set {file} or \
                 {variable}"
            ),
        ),
        (&[&name, &url], !differs, format!("differs from the user in {url}; remove one of them")),
        (
            &[&url, &key, &file],
            !is_twice,
            format!("contains a password, but {key} or {file} is also set; set the password in only one place"),
        ),
        (
            &[&file, &name, &key, &url],
            username.is_none() || password.is_some(),
            format!("is not set, but there is a user name; set it, or set {variable}"),
        ),
        (
            &[&name, &url, &key, &file],
            username.is_some() || password.is_none() || !needs_user,
            "is not set, but there is a password; set it, or remove the password".to_owned(),
        ),
        (
            &[user_key],
            !needs_user || username.as_ref().is_none_or(|name| !name.contains(':')),
            "has a user name with a colon, which HTTP authentication does not allow; use a different user".to_owned(),
        ),
    ] {
        values.together(keys, holds, &text);
    }
    (username, password)
}

pub(super) fn token_of(values: &mut Effective, keys: [&str; 2]) -> Option<Secret> {
    let token = secret_of(values, keys);
    let is_in_file = values.text(keys[0]).is_empty();
    values.together(
        &[keys[usize::from(is_in_file)]],
        token.as_ref().is_none_or(|token| token.expose().is_ascii()),
        "contains characters that are not allowed in an HTTP header; it must contain nothing but the token",
    );
    token
}

fn secret_of(values: &mut Effective, keys: [&str; 2]) -> Option<Secret> {
    let (given, in_file) = (values.read(keys[0], secret), values.read(keys[1], secret_file));
    let text = format!("is set, but {} is also set; remove one of them", keys[1]);
    values.together(&keys, given.is_none() || in_file.is_none(), &text);
    given.or(in_file)
}

/// Reports each key in `names` that is set, because the value of `selector`, a key in the same section, rules it out.
pub(super) fn refuse_keys(values: &mut Effective, selector: &str, names: &[&str], text: &str) {
    let (section, _) = selector.split_once('.').unwrap_or_default();
    for name in names {
        let key = format!("{section}.{name}");
        let is_unset = values.text(&key).is_empty();
        values.together(&[&key, selector], is_unset, text);
    }
}
