//! Configuration of a relay.

use redis_link::Secret;

use super::*;
use crate::relay::{EventRule, PassthroughSettings};

/// A relay configuration without mistakes.
pub(super) const RELAY: &str = "[relay]\nto = [\"node-1:8094\", \"[::1]:8094\"]\n";

/// Loads a relay configuration with these variables.
pub(super) fn load_relay_with(
    text: &str,
    variables: &[(&str, &str)],
) -> Result<RelayConfig, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("relay.toml");
    std::fs::write(&path, text).unwrap();
    let environment = variables.iter();
    let environment = environment.map(|(name, value)| (name.into(), value.into()));
    let flags = RelayFlags { config: Some(path.clone()), ..RelayFlags::default() };
    let shown = |errors: ConfigErrors| errors.to_string().replace(path.to_str().unwrap(), "FILE");
    let loaded = load_relay(&flags, environment);
    loaded.map(|(config, _)| config).map_err(shown)
}

#[track_caller]
fn check_refused(variables: &[(&str, &str)], words: &str) {
    let refused = load_relay_with(RELAY, variables).unwrap_err();
    assert!(refused.contains(words), "{refused}");
}

#[test]
fn relay_requires_only_its_nodes() {
    let refused = load_relay_with("", &[]).unwrap_err();
    assert!(refused.starts_with("relay.to: is not set"), "{refused}");
    let config = load_relay_with(RELAY, &[]).unwrap();
    assert_eq!(config.relay.to, ["node-1:8094", "[::1]:8094"]);
    assert_eq!(config.input.listen, ["127.0.0.1:8092".parse().unwrap()]);
    assert_eq!(config.relay.datagram_max, 1432);
    assert!(config.relay.events.is_empty() && config.relay.number == 0);
    assert!(matches!(config.passthrough, PassthroughSettings::Nowhere));
    assert_eq!(config.warnings(), [""; 0]);
}

#[test]
fn nodes_and_events_are_validated_lists() {
    for to in ["node-1", "node-1:0", ":8094", "a b:1", "::1:8094", "[x]:1"] {
        check_refused(&[("EDS_RELAY__TO", to)], "is not a host and port");
    }
    check_refused(&[("EDS_RELAY__TO", "a:1,b:1,a:1")], "is listed twice");
    check_refused(&[("EDS_RELAY__EVENTS", "a,=b")], "\"=b\" has no tag key; use MEAS");
    let events = [("EDS_RELAY__EVENTS", "login, a=,b=c d")];
    let config = load_relay_with(RELAY, &events).unwrap();
    let expected = ["login", "a=", "b=c d"].map(|rule| rule.parse::<EventRule>().unwrap());
    assert_eq!(config.relay.events, expected);
}

#[test]
fn passthrough_api_follows_from_its_url() {
    fn load(url: &str, more: &[(&str, &str)]) -> String {
        let variables = [&[("EDS_PASSTHROUGH__URL", url)][..], more].concat();
        let config = load_relay_with(RELAY, &variables).unwrap();
        let url = match &config.passthrough {
            PassthroughSettings::Http(http) => format!("url: {:?} ", http.server.url.as_str()),
            _ => String::new(),
        };
        format!("{url}{:?}", config.passthrough)
    }
    assert_eq!(load("udp://host:8089", &[]), r#"Udp("host:8089")"#);
    for (url, expected) in [
        ("http://h:8086?db=a%20b", r#"database: "a b""#),
        ("http://h:8086/write?db=d", r#"url: "http://h:8086/""#),
        ("https://h/x/api/v2/write?org=o&bucket=b&precision=s", r#"url: "https://h/x""#),
        ("http://h?org=o&bucket=b", r#"org: "o", bucket: "b""#),
        ("http://h?org=o&bucket=b&precision=ms", r#"precision: "ms""#),
        ("http://u:geheim@h?db=d", r#"username: Some("u"), password: Some([hidden])"#),
    ] {
        let rest = load(url, &[]);
        assert!(rest.contains(expected) && !rest.contains("geheim"), "{rest}");
    }
    let rest = load("http://h?org=o&bucket=b", &[("EDS_PASSTHROUGH__TOKEN", "geheim")]);
    assert!(rest.contains("token: Some([hidden])"), "{rest}");
    for (url, words) in [
        ("udp://host", "is not a host and port"),
        ("tcp://h:1", "is not a destination for lines"),
        ("http://h", "has neither a database nor an organization and bucket"),
        ("http://h?org=o", "has neither a database nor an organization and bucket"),
        ("http://h?db=a&db=b", "has an empty or repeated parameter db="),
        ("http://h?db=a&q=b", "has an unknown parameter \"q\""),
        ("http://u@h?db=a", "passthrough.password_file: is not set, but there is a user name"),
        ("http://u:p@h?org=o&bucket=b", "has a user or password, but the v2 API requires a token"),
        ("http://u%3Av:p@h?db=a", "has a user name with a colon"),
    ] {
        check_refused(&[("EDS_PASSTHROUGH__URL", url)], words);
    }
    for (url, variable, words) in [
        ("none:", ("EDS_PASSTHROUGH__TOKEN", "t"), "requires ?bucket= in passthrough.url"),
        ("http://h?db=d", ("EDS_PASSTHROUGH__TOKEN", "t"), "requires ?bucket= in passthrough.url"),
        (
            "http://h?org=o&bucket=b",
            ("EDS_PASSTHROUGH__USERNAME", "u"),
            "requires ?db= in passthrough.url",
        ),
        ("http://h?db=d", ("EDS_PASSTHROUGH__CA_FILE", "Cargo.toml"), "is not a PEM file"),
    ] {
        check_refused(&[("EDS_PASSTHROUGH__URL", url), variable], words);
    }
}

#[test]
fn relay_that_sends_to_itself_is_refused() {
    for (listen, to) in [
        ("127.0.0.1:8092", "127.0.0.1:8092"),
        ("0.0.0.0:8092", "127.0.0.1:8092"),
        ("[::]:8092", "0.0.0.0:8092"),
    ] {
        let variables = [("EDS_INPUT__LISTEN", listen), ("EDS_RELAY__TO", to)];
        check_refused(&variables, "this relay itself listens");
    }
}

#[test]
fn relay_reports_under_its_configured_name_and_store() {
    let config = load_relay_with(RELAY, &[("EDS_NODE", "east")]).unwrap();
    assert!(config.name == "east" && config.store.is_none());
    let variables = [
        ("EDS_STORE__URL", "redis://u@h:1"),
        ("EDS_STORE__PASSWORD", "geheim"),
        ("EDS_STORE__PREFIX", "other"),
    ];
    let (redis, prefix) = load_relay_with(RELAY, &variables).unwrap().store.unwrap();
    assert_eq!(prefix, "other");
    assert_eq!(redis.credentials.password, Some(Secret::new("geheim")));
}

#[test]
fn unwise_relay_settings_cause_warnings() {
    for (variable, words) in [
        (("EDS_PASSTHROUGH__URL", "http://h?db=d"), "passthrough.url is not encrypted"),
        (("EDS_INPUT__TIMESTAMP_PRECISION", "s"), "is not \"ns\""),
    ] {
        let warnings = load_relay_with(RELAY, &[variable]).unwrap().warnings();
        assert!(matches!(&warnings[..], [warning] if warning.contains(words)), "{warnings:?}");
    }
}

/// A node and a relay may run in containers with the same environment.
#[test]
fn variables_of_the_other_program_are_ignored() {
    load_relay_with(RELAY, &[("EDS_STORE__URL", "redis://h")]).unwrap();
    load_with("", &[("EDS_RELAY__TO", "a:1")], Flags::default()).unwrap();
    check_refused(&[("EDS_RELAY__TOO", "a:1")], "did you mean EDS_RELAY__TO?");
    let refused = load_relay_with("[flush]\ngrace = \"5s\"", &[]).unwrap_err();
    assert!(refused.contains("unknown section [flush]; did you mean ["), "{refused}");
}
