//! URLs of Redis. No error shows a possible password, see [`without_secrets`].

use std::str::FromStr;

use percent_encoding::percent_decode_str;
use url::Url;

use crate::settings::{Address, Credentials, Endpoint, Settings, Tls};

/// The forms of URLs, for messages.
pub const URL_FORMS: &str = "redis://host:6379, rediss://host:6379, redis+unix:///path, \
     redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name";
const SERVER: &str = "write redis://host:6379/0 or rediss://host:6379/0";
const SOCKET: &str = "write redis+unix:///run/redis/redis.sock";
const CLUSTER: &str = "write redis+cluster://host1:6379,host2:6379";
const SENTINEL: &str = "write redis+sentinel://host1:26379,host2:26379/mymaster";
const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// An invalid URL of Redis.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// The scheme is unknown: the URL without its secrets.
    #[error("{0:?} is not a URL of Redis; write {URL_FORMS}")]
    Scheme(String),
    /// The URL is malformed: the URL without its secrets, the mistake, and what to write instead.
    #[error("{0:?} {1}; {2}")]
    Invalid(String, String, &'static str),
}

impl FromStr for Settings {
    type Err = UrlError;

    /// Parses `redis://host:port/database`, `redis+unix:///path?db=database` or `unix:///path`,
    /// `redis+cluster://host:port,host:port` and `redis+sentinel://host:port,host:port/name`, each with
    /// `user:password@` before the first host if needed. `rediss` instead of `redis` is TLS, with the system's authorities.
    fn from_str(text: &str) -> Result<Self, UrlError> {
        let invalid =
            |reason: &str, hint| UrlError::Invalid(without_secrets(text), reason.to_owned(), hint);
        let unknown = || UrlError::Scheme(without_secrets(text));
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        let (hint, port) = match scheme {
            "unix" | "redis+unix" => return socket(text, invalid),
            "redis" | "rediss" => (SERVER, SERVER_PORT),
            "redis+cluster" | "rediss+cluster" => (CLUSTER, SERVER_PORT),
            "redis+sentinel" | "rediss+sentinel" => (SENTINEL, SENTINEL_PORT),
            _ => return Err(unknown()),
        };
        let (login, places) = rest.rsplit_once('@').unwrap_or(("", rest));
        if rest.contains(['?', '#']) || login.contains('/') {
            let hint = "leave it out; in a password write %3F, %23 or %2F";
            return Err(invalid("has a ? or # part, or a / before its host", hint));
        }
        let (hosts, path) = places.split_once('/').unwrap_or((places, ""));
        let mut nodes = Vec::new();
        let mut credentials = Credentials::default();
        for host in hosts.split(',') {
            let at = if login.is_empty() { "" } else { "@" };
            let url = Url::parse(&format!("redis://{login}{at}{host}"))
                .map_err(|error| invalid(&format!("has an invalid host ({error})"), hint))?;
            let name = url.host_str().filter(|name| !name.is_empty());
            let name = name.ok_or_else(|| invalid("has no host", hint))?;
            let name = name.trim_matches(['[', ']']).to_owned();
            nodes.push(Endpoint::Tcp(name, url.port().unwrap_or(port)));
            credentials = user(&url).ok_or_else(|| invalid(NOT_UTF8, WRITE_UTF8))?;
        }
        let mut database = 0;
        let address = match hint {
            CLUSTER if !matches!(path, "" | "0") => {
                let hint = "leave it out; a cluster has no databases";
                return Err(invalid("has a path", hint));
            }
            CLUSTER => Address::Cluster(nodes),
            SENTINEL if path.is_empty() || path.contains('/') => {
                return Err(invalid("does not end with the name of the master", hint));
            }
            SENTINEL => Address::Sentinel(nodes, path.to_owned()),
            _ => {
                let number = path.trim_start_matches('/');
                let number = if number.is_empty() { "0" } else { number };
                let not_one = |_| invalid("has a path that is not a database number", hint);
                database = number.parse().map_err(not_one)?;
                let [server] =
                    nodes.try_into().map_err(|_| invalid("has several hosts", CLUSTER))?;
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

const NOT_UTF8: &str = "has a user, password or path that is not UTF-8";
const WRITE_UTF8: &str = "write it in UTF-8";

fn socket(
    text: &str,
    invalid: impl Fn(&str, &'static str) -> UrlError,
) -> Result<Settings, UrlError> {
    let url =
        Url::parse(text).map_err(|error| invalid(&format!("is not a URL ({error})"), SOCKET))?;
    let path = decoded(url.path()).ok_or_else(|| invalid(NOT_UTF8, WRITE_UTF8))?;
    if url.host_str().is_some_and(|host| !host.is_empty()) || path.len() < 2 {
        return Err(invalid("has no path of a socket", SOCKET));
    }
    let database = match url.query().map(|query| query.strip_prefix("db=")) {
        None => Some(0),
        Some(number) => number.and_then(|number| number.parse().ok()),
    };
    let (Some(database), None) = (database, url.fragment()) else {
        return Err(invalid("has a # part, or a ? part other than ?db=N", "leave it out"));
    };
    Ok(Settings {
        database,
        credentials: user(&url).ok_or_else(|| invalid(NOT_UTF8, WRITE_UTF8))?,
        ..Settings::new(Address::Server(Endpoint::Unix(path.into())))
    })
}

/// Returns the user and password of a URL; `None` if they are not UTF-8.
fn user(url: &Url) -> Option<Credentials> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    Some(Credentials {
        username: some(decoded(url.username())?),
        password: some(decoded(url.password().unwrap_or_default())?),
    })
}

fn decoded(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8().ok()?;
    Some(text.into_owned())
}

/// Returns a URL, valid or not, without possible secrets: everything before the last `@`, since an unescaped password may have any
/// character, and a `?` or `#` part.
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
