//! Store addresses of several hosts: `redis+cluster://h1:p1,h2:p2` and `redis+sentinel://h1:p1,h2:p2/name`.
//!
//! No message shows what may be a password: see [`shown`].

use reqwest::Url;

use super::url::{Place, RedisParts, StoreParts, shown, user};

const CLUSTER_WANTED: &str = "write redis+cluster://host1:6379,host2:6379";
const SENTINEL_WANTED: &str = "write redis+sentinel://host1:26379,host2:26379/mymaster";
const CLUSTER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

/// Takes such an address apart. `scheme` is what stands before its `://`.
pub(super) fn store(text: &str, scheme: &str) -> Result<StoreParts, String> {
    let sentinel = scheme.ends_with("+sentinel");
    let (wanted, port) = if sentinel {
        (SENTINEL_WANTED, SENTINEL_PORT)
    } else {
        (CLUSTER_WANTED, CLUSTER_PORT)
    };
    let wrong = |what: &str, mend: &str| format!("{:?} {what}; {mend}", shown(text));
    let rest = text
        .strip_prefix(scheme)
        .and_then(|rest| rest.strip_prefix("://"))
        .ok_or_else(|| wrong("names no host", wanted))?;
    if rest.contains(['?', '#']) {
        return Err(wrong(
            "has a ? or # part",
            "leave it out; in a password write %3F or %23",
        ));
    }
    let (login, rest) = rest
        .rsplit_once('@')
        .map_or(("", rest), |(login, rest)| (login, rest));
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut nodes = Vec::new();
    let mut login_of = None;
    for host in hosts.split(',') {
        // Each host by itself makes a URL, which knows how hosts, ports and escapes are written.
        let at = if login.is_empty() { "" } else { "@" };
        let url = Url::parse(&format!("redis://{login}{at}{host}"))
            .map_err(|error| wrong(&format!("has a host that is none ({error})"), wanted))?;
        let name = url.host_str().filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| wrong("has an empty host", wanted))?;
        nodes.push((
            name.trim_matches(['[', ']']).to_owned(),
            url.port().unwrap_or(port),
        ));
        login_of = Some(url);
    }
    let user = login_of.as_ref().and_then(user).ok_or_else(|| {
        wrong(
            "has a user or password that is not UTF-8",
            "write it in UTF-8",
        )
    })?;
    let tls = scheme.starts_with("rediss");
    let place = match (sentinel, path) {
        (true, "") => return Err(wrong("does not name the master", SENTINEL_WANTED)),
        (true, name) if name.contains('/') => {
            return Err(wrong(
                "has more than a name behind its hosts",
                SENTINEL_WANTED,
            ));
        }
        (true, name) => Place::Sentinel {
            sentinels: nodes,
            name: name.to_owned(),
            tls,
        },
        (false, "" | "0") => Place::Cluster { nodes, tls },
        (false, _) => {
            return Err(wrong(
                "has a path",
                "leave it out; a cluster has no databases",
            ));
        }
    };
    Ok(StoreParts::Redis(RedisParts {
        place,
        database: 0,
        user,
    }))
}
