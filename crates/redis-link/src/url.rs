//! Parses Redis URLs. Error messages never contain anything that could be part of a password; see [`without_secrets`].

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::secret::Secret;
use crate::settings::{Address, Credentials, Endpoint, Settings, Tls};

/// The supported forms of a Redis URL, for use in error messages.
pub const URL_FORMS: &str = "redis://host:6379, rediss://host:6379, redis+unix:///path, \
     redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name";
const SERVER: &str = "use redis://host:6379/0 or rediss://host:6379/0";
const SOCKET: &str = "use redis+unix:///run/redis/redis.sock";
const CLUSTER: &str = "use redis+cluster://host1:6379,host2:6379";
const SENTINEL: &str = "use redis+sentinel://host1:26379,host2:26379/mymaster";

/// An invalid Redis URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The URL has no scheme or an unknown one. Contains the URL without its secrets.
    #[error("{0:?} is not a Redis URL; use {URL_FORMS}")]
    Scheme(String),
    /// The URL is malformed. Contains the URL without its secrets, the mistake, and how to fix it.
    #[error("{0:?} {1}; {2}")]
    Invalid(String, String, &'static str),
}

impl FromStr for Settings {
    type Err = UrlError;

    /// Parses a URL in one of the [`URL_FORMS`], optionally with `user:password@` before the first host.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let invalid =
            |reason: &str, hint| UrlError::Invalid(without_secrets(text), reason.to_owned(), hint);
        let unknown = || UrlError::Scheme(without_secrets(text));
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        let (hint, port) = match scheme {
            "unix" | "redis+unix" => (SOCKET, 0),
            "redis" | "rediss" => (SERVER, 6379),
            "redis+cluster" | "rediss+cluster" => (CLUSTER, 6379),
            "redis+sentinel" | "rediss+sentinel" => (SENTINEL, 26379),
            _ => return Err(unknown()),
        };
        let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (place, query) = match place.split_once('?') {
            Some(parts) if hint == SOCKET => parts,
            _ => (place, "db=0"),
        };
        if login.contains(['/', '?', '#']) || place.contains(['?', '#']) {
            let hint =
                "remove it; if it is part of the password, write ? as %3F, # as %23 and / as %2F";
            return Err(invalid("contains a ? or #, or a / before the host", hint));
        }
        let decoded = |part: &str| match percent_decode_str(part).decode_utf8() {
            Ok(text) => Ok((!text.is_empty()).then(|| text.into_owned())),
            Err(_) => Err(invalid(
                "has a user, password or path that is not valid UTF-8",
                "encode it as UTF-8",
            )),
        };
        let (username, password) = login.split_once(':').unwrap_or((login, ""));
        let credentials = Credentials {
            username: decoded(username)?,
            password: decoded(password)?.as_deref().map(Secret::new),
        };
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let mut nodes = Vec::new();
        for host in hosts.split(',').filter(|_| hint != SOCKET) {
            let url = Url::parse(&format!("redis://{host}"))
                .map_err(|error| invalid(&format!("has an invalid host ({error})"), hint))?;
            let name = url.host_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| invalid("has no host", hint))?;
            let name = name.trim_matches(['[', ']']).to_owned();
            nodes.push(Endpoint::Tcp(name, url.port().unwrap_or(port)));
        }
        let mut database = 0;
        let address = match hint {
            SOCKET if hosts.is_empty() && !path.is_empty() => {
                let number = query.strip_prefix("db=").and_then(|number| number.parse().ok());
                let invalid_query = || invalid("has a query other than ?db=N", "remove it");
                database = number.ok_or_else(invalid_query)?;
                Address::Server(Endpoint::Unix(decoded(place)?.unwrap_or_default().into()))
            }
            SOCKET => return Err(invalid("has no socket path", hint)),
            CLUSTER if !matches!(path, "" | "0") => {
                let hint = "remove it; a cluster has no databases";
                return Err(invalid("has a path", hint));
            }
            CLUSTER => Address::Cluster(nodes),
            SENTINEL if path.is_empty() || path.contains('/') => {
                return Err(invalid("does not end with the master's name", hint));
            }
            SENTINEL => Address::Sentinel(nodes, path.to_owned()),
            _ => {
                let number = path.trim_start_matches('/');
                let number = if number.is_empty() { "0" } else { number };
                let not_a_number = |_| invalid("has a path that is not a database number", hint);
                database = number.parse().map_err(not_a_number)?;
                let [server] =
                    nodes.try_into().map_err(|_| invalid("has more than one host", CLUSTER))?;
                Address::Server(server)
            }
        };
        Ok(Self {
            database,
            credentials,
            tls: scheme.starts_with("rediss").then(Tls::default),
            ..Self::new(address)
        })
    }
}

/// Replaces everything before the last `@`, and everything from the first `?` or `#` after it, with `[hidden]`, and returns
/// the rest of the URL. The last `@` is used because an unescaped password may itself contain one.
#[must_use]
pub fn without_secrets(url: &str) -> String {
    let is_scheme = |scheme: &str| scheme.chars().all(|c| c.is_ascii_alphanumeric() || c == '+');
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) if is_scheme(scheme) => (format!("{scheme}://"), rest),
        _ => (String::new(), url),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("[hidden]@", rest),
        None => ("", rest),
    };
    let (rest, tail) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "[hidden]"),
        None => (rest, ""),
    };
    format!("{scheme}{user}{rest}{tail}")
}

#[cfg(test)]
mod tests;
