//! Valid and invalid Redis URLs.

use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Server(Endpoint::Tcp(host.to_owned(), port))
}

fn unix(path: &str) -> Address {
    Address::Server(Endpoint::Unix(path.into()))
}

#[test]
fn urls_are_parsed() {
    let nodes = |port: u16| {
        vec![Endpoint::Tcp("a".to_owned(), 7000), Endpoint::Tcp("::1".to_owned(), port)]
    };
    let cluster = Address::Cluster(nodes(6379));
    let sentinel = Address::Sentinel(nodes(26379), "main".to_owned());
    for (text, address, tls, database, user, password) in [
        ("redis://h", tcp("h", 6379), false, 0, None, None),
        ("redis://h:1/3", tcp("h", 1), false, 3, None, None),
        ("redis://[::1]:1/", tcp("::1", 1), false, 0, None, None),
        ("redis://:p%40%2Fs%25@h", tcp("h", 6379), false, 0, None, Some("p@/s%")),
        ("redis://u:p@h", tcp("h", 6379), false, 0, Some("u"), Some("p")),
        ("rediss://h", tcp("h", 6379), true, 0, None, None),
        ("unix:///run/a%20b.sock", unix("/run/a b.sock"), false, 0, None, None),
        ("redis+unix:///r.sock?db=2", unix("/r.sock"), false, 2, None, None),
        ("redis+cluster://u:p@a:7000,[::1]", cluster, false, 0, Some("u"), Some("p")),
        ("rediss+sentinel://:p@a:7000,[::1]/main", sentinel, true, 0, None, Some("p")),
    ] {
        let settings: Settings = text.parse().unwrap();
        let Credentials { username, password: found } = &settings.credentials;
        let found = (
            &settings.address,
            settings.tls.is_some(),
            settings.database,
            username.as_deref(),
            found.as_ref().map(Secret::expose),
        );
        let password = password.map(Into::into);
        assert_eq!(found, (&address, tls, database, user, password), "of {text}");
        assert!(!format!("{settings:?}").contains("\"p\""), "of {text}");
    }
}

#[test]
fn invalid_urls_are_refused_with_a_hint() {
    for (text, expected) in [
        ("redis:h", format!("\"redis:h\" is not a Redis URL; use {URL_FORMS}")),
        ("http://u:s@h", format!("\"http://[hidden]@h\" is not a Redis URL; use {URL_FORMS}")),
        ("redis://", format!("\"redis://\" has no host; {SERVER}")),
        (
            "redis://u:s@h:port",
            format!(
                "\"redis://[hidden]@h:port\" has an invalid host (invalid port number); {SERVER}"
            ),
        ),
        (
            "redis://h/x",
            format!("\"redis://h/x\" has a path that is not a database number; {SERVER}"),
        ),
        ("redis://a,b", format!("\"redis://a,b\" has more than one host; {CLUSTER}")),
        ("unix://", format!("\"unix://\" has no socket path; {SOCKET}")),
        (
            "redis+unix:///s?x=1",
            "\"redis+unix:///s[hidden]\" has a query other than ?db=N; remove it".to_owned(),
        ),
        (
            "redis+cluster://a,:1",
            format!("\"redis+cluster://a,:1\" has an invalid host (empty host); {CLUSTER}"),
        ),
        (
            "redis+cluster://a,b/2",
            "\"redis+cluster://a,b/2\" has a path; remove it; a cluster has no databases"
                .to_owned(),
        ),
        (
            "redis+sentinel://u:s@a,b",
            format!(
                "\"redis+sentinel://[hidden]@a,b\" does not end with the master's name; {SENTINEL}"
            ),
        ),
    ] {
        assert_eq!(text.parse::<Settings>().unwrap_err().to_string(), expected);
    }
    for text in ["redis://h?password=s", "redis://u:s/s@h", "redis://u:s?@h"] {
        let error = text.parse::<Settings>().unwrap_err().to_string();
        assert!(error.contains("write ? as %3F") && !error.contains("=s"), "{error}");
    }
}

#[test]
fn displayed_urls_have_no_secrets() {
    for (text, expected) in [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:s@h:1", "redis://[hidden]@h:1"),
        ("redis://u:s/?#@s@h", "redis://[hidden]@h"),
        ("u:s://s@h", "[hidden]@h"),
        ("http://h?token=s", "http://h[hidden]"),
    ] {
        assert_eq!(without_secrets(text), expected);
    }
}
