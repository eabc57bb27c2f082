//! The addresses of the store and the output.
//!
//! No message shows what may be a password: see [`shown`].

use std::path::PathBuf;

use reqwest::Url;

use super::nodes_url;
use crate::secret::{HIDDEN, Secret};

/// A store's URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreParts {
    Memory,
    Redis(RedisParts),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RedisParts {
    pub(super) place: Place,
    pub(super) database: u32,
    pub(super) user: User,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    Tcp {
        host: String,
        port: u16,
        tls: bool,
    },
    Unix(PathBuf),
    Cluster {
        nodes: Vec<(String, u16)>,
        tls: bool,
    },
    Sentinel {
        sentinels: Vec<(String, u16)>,
        name: String,
        tls: bool,
    },
}

/// An output's URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OutputParts {
    Stdout,
    Http {
        base: String,
        tls: bool,
        loopback: bool,
        user: User,
    },
}

/// The user and the password within a URL.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: Option<String>,
    pub(super) password: Option<Secret>,
}

const STORE_WANTED: &str = "write memory:, redis://host:6379, rediss://host:6379, redis+unix:///path, \
     redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name";
const OUTPUT_WANTED: &str = "write stdout:, http://host:8086 or https://host:8086";
const REDIS_PORT: u16 = 6379;

pub(super) fn store(text: &str) -> Result<StoreParts, String> {
    if text == "memory:" {
        return Ok(StoreParts::Memory);
    }
    let wrong = |what: &str, mend: &str| format!("{:?} {what}; {mend}", shown(text));
    let scheme = text.split(':').next().unwrap_or_default();
    match scheme {
        "redis" | "rediss" | "unix" | "redis+unix" => {}
        "redis+cluster" | "rediss+cluster" | "redis+sentinel" | "rediss+sentinel" => {
            return nodes_url::store(text, scheme);
        }
        _ => return Err(wrong("is no store", STORE_WANTED)),
    }
    let url =
        Url::parse(text).map_err(|error| wrong(&format!("is no URL ({error})"), STORE_WANTED))?;
    if url.fragment().is_some() {
        return Err(wrong(
            "has a # part",
            "leave it out; a # in a password is written %23",
        ));
    }
    let user = user(&url).ok_or_else(|| {
        wrong(
            "has a user or password that is not UTF-8",
            "write it in UTF-8",
        )
    })?;
    if scheme.ends_with("unix") {
        let path = decoded(url.path())
            .ok_or_else(|| wrong("has a path that is not UTF-8", "write it in UTF-8"))?;
        if url.host_str().is_some_and(|host| !host.is_empty()) || path.len() < 2 {
            return Err(wrong(
                "names no socket",
                "write redis+unix:///run/redis/redis.sock",
            ));
        }
        let database = match url.query().map(|query| query.strip_prefix("db=")) {
            None => Some(0),
            Some(number) => number.and_then(|number| number.parse().ok()),
        };
        let database =
            database.ok_or_else(|| wrong("has a ? part other than ?db=N", "leave it out"))?;
        return Ok(StoreParts::Redis(RedisParts {
            place: Place::Unix(path.into()),
            database,
            user,
        }));
    }
    let host = url.host_str().filter(|host| !host.is_empty());
    let host = host.ok_or_else(|| wrong("names no host", STORE_WANTED))?;
    if url.query().is_some() {
        return Err(wrong(
            "has a ? part",
            "leave it out; the keys of [store] say the rest",
        ));
    }
    let database = url.path().trim_start_matches('/');
    let database = if database.is_empty() {
        Ok(0)
    } else {
        database.parse()
    };
    let database = database.map_err(|_| {
        wrong(
            "has a path that is no database number",
            "write redis://host:6379/0",
        )
    })?;
    let place = Place::Tcp {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(REDIS_PORT),
        tls: scheme == "rediss",
    };
    Ok(StoreParts::Redis(RedisParts {
        place,
        database,
        user,
    }))
}

pub(super) fn output(text: &str) -> Result<OutputParts, String> {
    if text == "stdout:" {
        return Ok(OutputParts::Stdout);
    }
    let wrong = |what: &str, mend: &str| format!("{:?} {what}; {mend}", shown(text));
    let mut url = match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => url,
        Ok(_) => return Err(wrong("is no output", OUTPUT_WANTED)),
        Err(error) => return Err(wrong(&format!("is no URL ({error})"), OUTPUT_WANTED)),
    };
    if url.path().trim_end_matches('/').ends_with("/write") {
        return Err(wrong(
            "ends in the path of a write",
            "leave /write or /api/v2/write out, and all that follows: output.api says which is added, and the keys of \
             [output] say the rest",
        ));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(wrong(
            "has a ? or # part",
            "leave it out; the keys of [output] say the rest",
        ));
    }
    let user = user(&url).ok_or_else(|| {
        wrong(
            "has a user or password that is not UTF-8",
            "write it in UTF-8",
        )
    })?;
    // These fail only for URLs without a host, which http always has.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let loopback = host == "localhost"
        || host
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    let tls = url.scheme() == "https";
    let base = url.as_str().trim_end_matches('/').to_owned();
    Ok(OutputParts::Http {
        base,
        tls,
        loopback,
        user,
    })
}

pub(super) fn user(url: &Url) -> Option<User> {
    let some = |text: String| (!text.is_empty()).then_some(text);
    let name = some(decoded(url.username())?);
    let password =
        some(decoded(url.password().unwrap_or_default())?).map(|password| Secret::new(&password));
    Some(User { name, password })
}

/// Undoes `%41`; `None` when the result is not UTF-8. A `%` that begins no such code stands for itself.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        let digit = |digit: u8| {
            char::from(digit)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        if let (b'%', [high, low, after @ ..]) = (byte, tail)
            && let (Some(high), Some(low)) = (digit(*high), digit(*low))
        {
            bytes.push(high << 4 | low);
            rest = after;
        } else {
            bytes.push(*byte);
            rest = tail;
        }
    }
    String::from_utf8(bytes).ok()
}

/// A URL, right or wrong, without anything that may be a password. All before the last `@` goes, for an
/// unescaped password may hold any character; so does a `?` or `#` part.
pub(super) fn shown(text: &str) -> String {
    let (scheme, rest) = match text.split_once("://") {
        Some((scheme, rest))
            if scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '+') =>
        {
            (format!("{scheme}://"), rest)
        }
        _ => (String::new(), text),
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => (format!("{HIDDEN}@"), rest),
        None => (String::new(), rest),
    };
    let (rest, tail) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], HIDDEN),
        None => (rest, ""),
    };
    format!("{scheme}{user}{rest}{tail}")
}

/// A URL as it is, only without its password; whole when it has none. For URLs that were accepted.
pub(super) fn without_password(text: &str) -> (String, bool) {
    match Url::parse(text) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(None);
            (url.to_string(), true)
        }
        _ => (text.to_owned(), false),
    }
}
