//! What others on the network may read or forge, told at the start.
//!
//! Within this host nobody listens who could not read the process itself; beyond it somebody may.

use std::net::{IpAddr, SocketAddr};

use crate::config::{Config, OutputUrl, RedisAddress, StoreUrl};

/// Warns of everything that leaves this host in the clear, or comes in from anywhere.
pub(super) fn warn(config: &Config) {
    for warning in warnings(config) {
        tracing::warn!("{warning}");
    }
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    if let StoreUrl::Redis(redis) = &config.store.url
        && let Some(host) = hosts_in_the_clear(&redis.address).find(|host| !is_loopback(host))
    {
        let password = if redis.password.is_some() {
            ", the password included"
        } else {
            ""
        };
        warnings.push(format!(
            "store.url is not encrypted: whoever is on the way to {host} can read and change all events and \
             counts{password}; use rediss://"
        ));
    }
    if let OutputUrl::InfluxDb(server) = &config.output.url
        && let Some(rest) = server.base_url.strip_prefix("http://")
        && let host = host_of(rest)
        && !is_loopback(host)
    {
        warnings.push(format!(
            "output.url is not encrypted: whoever is on the way to {host} can read and change all counts, the \
             token or password included where there is one; use https://"
        ));
    }
    let anywhere: Vec<_> = config.input.listen.iter().filter(|at| is_any(at)).collect();
    if !anywhere.is_empty() {
        warnings.push(format!(
            "input.listen takes events at every address of this host ({anywhere:?}), and UDP knows no sender: name \
             one address, and let a firewall admit the senders only"
        ));
    }
    warnings
}

/// The hosts of Redis that are spoken to without TLS.
fn hosts_in_the_clear(address: &RedisAddress) -> impl Iterator<Item = &str> {
    let (one, many) = match address {
        RedisAddress::Tcp { host, .. } => (Some(host.as_str()), &[][..]),
        RedisAddress::Cluster { nodes, tls: None } => (None, &nodes[..]),
        RedisAddress::Sentinel {
            sentinels,
            tls: None,
            ..
        } => (None, &sentinels[..]),
        _ => (None, &[][..]),
    };
    one.into_iter()
        .chain(many.iter().map(|(host, _)| host.as_str()))
}

fn is_any(address: &SocketAddr) -> bool {
    address.ip().is_unspecified()
}

/// The host in what follows `http://`, an IPv6 one without its brackets.
fn host_of(rest: &str) -> &str {
    let authority = rest.split('/').next().unwrap_or_default();
    match authority
        .strip_prefix('[')
        .and_then(|rest| rest.split_once(']'))
    {
        Some((host, _)) => host,
        None => authority.split(':').next().unwrap_or_default(),
    }
}

fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Flags;

    /// The warnings of this store, output and UDP address.
    fn of(store: &str, output: &str, listen: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("eds.toml");
        let api = if output == "stdout:" {
            ""
        } else {
            "api = \"v1\"\ndatabase = \"eds\"\n"
        };
        let text = format!(
            "[input]\nlisten = [\"{listen}\"]\n[store]\nurl = \"{store}\"\n[output]\nurl = \"{output}\"\n{api}"
        );
        std::fs::write(&file, text).unwrap();
        let flags = Flags {
            config: Some(file),
            ..Flags::default()
        };
        warnings(&Config::load(&flags, []).unwrap())
    }

    #[test]
    fn what_stays_on_this_host_or_is_encrypted_is_not_warned_of() {
        for store in [
            "memory:",
            "redis://127.0.0.1:6379",
            "redis://localhost",
            "redis://[::1]:6379",
            "rediss://redis.example",
            "redis+unix:///run/redis.sock",
        ] {
            assert_eq!(of(store, "stdout:", "127.0.0.1:8094"), [""; 0], "{store}");
        }
        for output in [
            "http://127.0.0.1:8086",
            "http://localhost:8086/path",
            "http://[::1]:8086",
            "https://influx.example",
        ] {
            assert_eq!(of("memory:", output, "192.0.2.1:8094"), [""; 0], "{output}");
        }
    }

    #[test]
    fn plain_text_that_leaves_this_host_is_warned_of() {
        for store in ["redis://redis.example:6379", "redis://u:p@192.0.2.1/1"] {
            let warnings = of(store, "stdout:", "127.0.0.1:8094");
            assert!(warnings[0].contains("rediss://"), "{warnings:?}");
            assert_eq!(
                warnings[0].contains("password"),
                store.contains('@'),
                "{warnings:?}"
            );
        }
        for output in [
            "http://influx.example",
            "http://[2001:db8::1]:8086/x",
            "http://localhost.example:8086",
        ] {
            let warnings = of("memory:", output, "127.0.0.1:8094");
            assert!(warnings[0].contains("https://"), "{warnings:?}");
        }
        for listen in ["0.0.0.0:8094", "[::]:8094"] {
            let warnings = of("memory:", "stdout:", listen);
            assert!(warnings[0].contains("firewall"), "{warnings:?}");
        }
    }
}
