//! Addresses as URLs.

use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisError};

use crate::settings::{Address, Credentials, Settings, SettingsError, Tls};

impl FromStr for Settings {
    type Err = SettingsError;

    /// Reads `redis://`, `rediss://` and `unix://` as the crate `redis` does; `redis+cluster://host:port,host:port` and
    /// `redis+sentinel://host:port,host:port/name`, which may have `user:password@` before the first host. Over TLS, with
    /// `rediss+cluster://` and `rediss+sentinel://` too, the system's authorities are trusted.
    fn from_str(url: &str) -> Result<Self, SettingsError> {
        let server = |url: &str| Ok::<_, SettingsError>(url.into_connection_info()?);
        let Some((scheme, rest)) = url
            .split_once("+cluster://")
            .or_else(|| url.split_once("+sentinel://"))
        else {
            let info = server(url)?;
            return Ok(of(
                &info,
                match info.addr().clone() {
                    ConnectionAddr::TcpTls { host, port, .. } => Address::Tls {
                        host,
                        port,
                        certificates: Tls::default(),
                    },
                    ConnectionAddr::Tcp(host, port) => Address::Tcp { host, port },
                    ConnectionAddr::Unix(path) => Address::Unix(path),
                    _ => return Err(unknown("an address of a kind that is not known").into()),
                },
            ));
        };
        let (user, places) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, name) = places.split_once('/').unwrap_or((places, ""));
        let user = format!("redis://{user}{}", if user.is_empty() { "" } else { "@" });
        let mut nodes = Vec::new();
        for host in hosts.split(',') {
            match server(&format!("redis://{host}"))?.addr() {
                ConnectionAddr::Tcp(host, port) => nodes.push((host.clone(), *port)),
                _ => return Err(unknown("hosts and ports are wanted").into()),
            }
        }
        let certificates = (scheme == "rediss").then(Tls::default);
        let address = if url[scheme.len()..].starts_with("+cluster") {
            Address::Cluster {
                nodes,
                certificates,
            }
        } else {
            Address::Sentinel {
                sentinels: nodes,
                name: name.to_owned(),
                certificates,
            }
        };
        Ok(of(&server(&format!("{user}localhost"))?, address))
    }
}

/// This address, and the database and credentials of a URL.
fn of(info: &ConnectionInfo, address: Address) -> Settings {
    let server = info.redis_settings();
    Settings {
        database: u32::try_from(server.db()).unwrap_or_default(),
        credentials: Credentials {
            username: server.username().map(ToOwned::to_owned),
            password: server.password().map(ToOwned::to_owned),
        },
        ..Settings::new(address)
    }
}

fn unknown(words: &'static str) -> RedisError {
    (ErrorKind::InvalidClientConfig, words).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let read = |url: &str| url.parse::<Settings>().unwrap();
        let settings = read("redis://u:p@h:1/3");
        assert!(matches!(&settings.address, Address::Tcp { host, port: 1 } if host == "h"));
        assert_eq!(settings.database, 3);
        assert_eq!(settings.credentials.password.as_deref(), Some("p"));
        let settings = read("redis+cluster://:p@a:1,b:2/");
        let Address::Cluster {
            nodes,
            certificates: None,
        } = &settings.address
        else {
            panic!("{settings:?}");
        };
        assert_eq!(nodes, &[("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(settings.credentials.password.as_deref(), Some("p"));
        assert!(!format!("{settings:?}").contains("\"p\""));
        let settings = read("rediss+sentinel://s:26379/main");
        let Address::Sentinel {
            name,
            certificates: Some(_),
            ..
        } = &settings.address
        else {
            panic!("{settings:?}");
        };
        assert_eq!(name, "main");
        for wrong in ["http://h", "redis+cluster://", "redis+cluster://a:b"] {
            wrong.parse::<Settings>().unwrap_err();
        }
    }
}
