//! `[store]` and `[output]`: addresses, users, secrets, certificates.

use std::path::Path;

use super::super::url;
use super::*;
use crate::secret::{Pem, Secret};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// The configuration of these variables, or what is wrong with it.
fn load_variables(variables: &[(&str, &str)]) -> Result<Config, String> {
    load_with("", variables, Flags::default()).map(|(config, _)| config)
}

fn check_variables(variables: &[(&str, &str)], expected: &str) {
    assert_eq!(
        load_variables(variables).unwrap_err(),
        expected,
        "of {variables:?}"
    );
}

fn redis(variables: &[(&str, &str)]) -> Redis {
    match load_variables(variables).unwrap().store.url {
        StoreUrl::Redis(redis) => *redis,
        StoreUrl::Memory { .. } => panic!("{variables:?} is no Redis"),
    }
}

fn influxdb(variables: &[(&str, &str)]) -> InfluxDb {
    match load_variables(variables).unwrap().output.url {
        OutputUrl::InfluxDb(influxdb) => *influxdb,
        OutputUrl::Stdout => panic!("{variables:?} is no InfluxDB"),
    }
}

fn tcp(host: &str, port: u16) -> RedisAddress {
    RedisAddress::Tcp {
        host: host.to_owned(),
        port,
    }
}

#[test]
fn store_urls_are_taken_apart() {
    for (text, address, database, user, password) in [
        ("redis://h", tcp("h", 6379), 0, None, None),
        ("redis://h:1/3", tcp("h", 1), 3, None, None),
        ("redis://[::1]:1/", tcp("::1", 1), 0, None, None),
        (
            "redis://:p%40%2Fs%25@h",
            tcp("h", 6379),
            0,
            None,
            Some("p@/s%"),
        ),
        ("redis://u:p@h", tcp("h", 6379), 0, Some("u"), Some("p")),
        (
            "unix:///run/a%20b.sock",
            RedisAddress::Unix("/run/a b.sock".into()),
            0,
            None,
            None,
        ),
        (
            "redis+unix:///r.sock?db=2",
            RedisAddress::Unix("/r.sock".into()),
            2,
            None,
            None,
        ),
        (
            "rediss://h",
            RedisAddress::Tls {
                host: "h".to_owned(),
                port: 6379,
                tls: Tls {
                    ca: None,
                    identity: None,
                },
            },
            0,
            None,
            None,
        ),
    ] {
        let redis = redis(&[("EDS_STORE__URL", text)]);
        let shown = redis.password.as_ref().map(Secret::expose);
        let found = (
            redis.address,
            redis.database,
            redis.username.as_deref(),
            shown,
        );
        assert_eq!(found, (address, database, user, password), "of {text}");
    }
}

#[test]
fn store_urls_that_are_none_are_refused() {
    let wanted = "write memory:, redis://host:6379, rediss://host:6379, redis+unix:///path, redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name";
    for (text, expected) in [
        ("", format!("\"\" is no store; {wanted}")),
        ("memory", format!("\"memory\" is no store; {wanted}")),
        (
            "valkey://h",
            format!("\"valkey://h\" is no store; {wanted}"),
        ),
        ("redis://", format!("\"redis://\" names no host; {wanted}")),
        (
            "redis://u:s@h:port",
            format!("\"redis://[hidden]@h:port\" is no URL (invalid port number); {wanted}"),
        ),
        (
            "redis://h/x",
            "\"redis://h/x\" has a path that is no database number; write redis://host:6379/0"
                .to_owned(),
        ),
        (
            "redis://h?password=s",
            "\"redis://h[hidden]\" has a ? part; leave it out; the keys of [store] say the rest"
                .to_owned(),
        ),
        (
            "unix://",
            "\"unix://\" names no socket; write redis+unix:///run/redis/redis.sock".to_owned(),
        ),
        (
            "redis+cluster://a,:1",
            "\"redis+cluster://a,:1\" has a host that is none (empty host); \
             write redis+cluster://host1:6379,host2:6379"
                .to_owned(),
        ),
        (
            "redis+cluster://a,b/2",
            "\"redis+cluster://a,b/2\" has a path; leave it out; a cluster has no databases"
                .to_owned(),
        ),
        (
            "redis+sentinel://u:s@a,b",
            "\"redis+sentinel://[hidden]@a,b\" does not name the master; \
             write redis+sentinel://host1:26379,host2:26379/mymaster"
                .to_owned(),
        ),
    ] {
        let expected = format!("environment EDS_STORE__URL: store.url: {expected}");
        check_variables(&[("EDS_STORE__URL", text)], &expected);
    }
}

#[test]
fn store_urls_of_several_hosts_are_taken_apart() {
    let nodes = |port: u16| vec![("a".to_owned(), 7000), ("::1".to_owned(), port)];
    for (text, address) in [
        (
            "redis+cluster://u:p@a:7000,[::1]",
            RedisAddress::Cluster {
                nodes: nodes(6379),
                tls: None,
            },
        ),
        (
            "redis+sentinel://u:p@a:7000,[::1]/main",
            RedisAddress::Sentinel {
                sentinels: nodes(26379),
                name: "main".to_owned(),
                tls: None,
            },
        ),
    ] {
        let config = load_variables(&[("EDS_STORE__URL", text)]).unwrap();
        let StoreUrl::Redis(redis) = config.store.url else {
            panic!("{text}");
        };
        assert_eq!(redis.address, address, "{text}");
        assert_eq!(redis.password, Some(Secret::new("p")), "{text}");
    }
}

#[test]
fn output_urls_are_taken_apart() {
    let v1 = [("EDS_OUTPUT__API", "v1"), ("EDS_OUTPUT__DATABASE", "d")];
    for (text, base, user) in [
        ("http://h:8086/", "http://h:8086", None),
        ("https://H/influx/", "https://h/influx", None),
        ("http://u:p@h", "http://h", Some("u")),
    ] {
        let influxdb = influxdb(&[v1[0], v1[1], ("EDS_OUTPUT__URL", text)]);
        let password = user.map(|_| Secret::new("p"));
        let api = Api::V1 {
            database: "d".to_owned(),
            username: user.map(str::to_owned),
            password,
        };
        assert_eq!(
            influxdb,
            InfluxDb {
                base_url: base.to_owned(),
                api,
                ca: None
            }
        );
    }
    let wanted = "write stdout:, http://host:8086 or https://host:8086";
    for (text, expected) in [
        ("ftp://h", format!("\"ftp://h\" is no output; {wanted}")),
        ("stdout", format!("\"stdout\" is no URL (relative URL without a base); {wanted}")),
        ("http://u:s@", format!("\"http://[hidden]@\" is no URL (empty host); {wanted}")),
        (
            "http://h?db=x",
            "\"http://h[hidden]\" has a ? or # part; leave it out; the keys of [output] say the rest".to_owned(),
        ),
        (
            "http://h/db/api/v2/write/?bucket=b",
            "\"http://h/db/api/v2/write/[hidden]\" ends in the path of a write; leave /write or /api/v2/write out, and \
             all that follows: output.api says which is added, and the keys of [output] say the rest"
                .to_owned(),
        ),
    ] {
        let expected = format!("environment EDS_OUTPUT__URL: output.url: {expected}");
        check_variables(&[("EDS_OUTPUT__URL", text)], &expected);
    }
}

#[test]
fn each_api_has_its_needs() {
    let url = ("EDS_OUTPUT__URL", "https://h");
    let (org, bucket) = (("EDS_OUTPUT__ORG", "o"), ("EDS_OUTPUT__BUCKET", "b"));
    check_variables(
        &[url],
        "output.org: is not set, but output.api = \"v2\" needs it; set it\n\
         output.bucket: is not set, but output.api = \"v2\" needs it; set it\n\
         output.token_file: is not set, but output.api = \"v2\" needs a token unless the server is plain http \
         on this host; set it, or EDS_OUTPUT__TOKEN",
    );
    for loopback in [
        "http://127.0.0.2:8086",
        "http://[::1]:8086",
        "http://localhost",
    ] {
        let influxdb = influxdb(&[("EDS_OUTPUT__URL", loopback), org, bucket]);
        assert!(
            matches!(influxdb.api, Api::V2 { token: None, .. }),
            "{loopback}"
        );
    }
    check_variables(
        &[
            ("EDS_OUTPUT__URL", "https://u:s@h"),
            org,
            bucket,
            ("EDS_OUTPUT__TOKEN", "t"),
        ],
        "environment EDS_OUTPUT__URL: output.url: holds a user or password, but api = \"v2\" takes a token; \
         leave them out and set output.token_file",
    );
    check_variables(
        &[
            url,
            ("EDS_OUTPUT__API", "v1"),
            ("EDS_OUTPUT__USERNAME", "u"),
        ],
        "environment EDS_OUTPUT__USERNAME: output.username: and the password go together; set output.username \
         and output.password_file, or neither\n\
         output.database: is not set, but output.api = \"v1\" needs it; set it",
    );
}

#[test]
fn keys_of_the_other_api_are_refused() {
    let url = ("EDS_OUTPUT__URL", "http://localhost");
    let (org, bucket) = (("EDS_OUTPUT__ORG", "o"), ("EDS_OUTPUT__BUCKET", "b"));
    let database = ("EDS_OUTPUT__DATABASE", "d");
    check_variables(
        &[url, org, bucket, database],
        "environment EDS_OUTPUT__DATABASE: output.database: is for output.api = \"v1\", which is not in force; leave \
         it out, or set output.api to \"v1\"",
    );
    // Where nothing stands, as in a file that lists all keys, there is nothing to refuse.
    let v1 = ("EDS_OUTPUT__API", "v1");
    let empty = ("EDS_OUTPUT__TOKEN_FILE", "");
    influxdb(&[url, v1, database, empty]);
    check_variables(
        &[url, v1, database, ("EDS_OUTPUT__TOKEN_FILE", "/nowhere")],
        "environment EDS_OUTPUT__TOKEN_FILE: output.token_file: is for output.api = \"v2\", which is not in force; \
         leave it out, or set output.api to \"v2\"",
    );
}

#[test]
fn a_user_and_a_password_stand_in_one_place() {
    let url = ("EDS_STORE__URL", "redis://u:s@h");
    check_variables(
        &[url, ("EDS_STORE__USERNAME", "v")],
        "environment EDS_STORE__USERNAME: store.username: differs from the user in store.url; keep one of them",
    );
    check_variables(
        &[url, ("EDS_STORE__PASSWORD", "t")],
        "environment EDS_STORE__URL: store.url: holds a password, and so does store.password or \
         store.password_file; keep one of them",
    );
    check_variables(
        &[("EDS_STORE__URL", "redis://u@h")],
        "store.password_file: is not set, but there is a user name; set it, or EDS_STORE__PASSWORD",
    );
    let redis = redis(&[
        ("EDS_STORE__URL", "redis://u@h"),
        ("EDS_STORE__PASSWORD", "t"),
    ]);
    assert_eq!(
        (redis.username.as_deref(), redis.password),
        (Some("u"), Some(Secret::new("t")))
    );
}

#[test]
fn secrets_come_from_files_and_the_environment_only() {
    for key in ["[store]\npassword", "[output]\ntoken", "[output]\npassword"] {
        let errors = load_file(&format!("{key} = \"sesame\"")).unwrap_err();
        assert!(
            errors.contains("_file, or set EDS_") && !errors.contains("sesame"),
            "{errors}"
        );
    }
    for flags in [
        Flags {
            store: Some("redis://u:sesame@h".to_owned()),
            ..Flags::default()
        },
        Flags {
            output: Some("http://u:sesame@localhost".to_owned()),
            ..Flags::default()
        },
    ] {
        let v1 = "[output]\napi = \"v1\"\ndatabase = \"d\"";
        let errors = load_with(v1, &[], flags).unwrap_err();
        assert!(
            errors.contains("which everyone on this host can see"),
            "{errors}"
        );
        assert!(!errors.contains("sesame"), "{errors}");
    }
}

#[test]
fn files_are_read_once_and_must_hold_what_they_should() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
        directory.path().join(name).to_str().unwrap().to_owned()
    };
    let (password, pem) = (write("password", "sesame\r\n"), write("ca.pem", PEM));
    let url = ("EDS_STORE__URL", "rediss://h");
    let redis = redis(&[
        url,
        ("EDS_STORE__PASSWORD_FILE", &password),
        ("EDS_STORE__CA_FILE", &pem),
        ("EDS_STORE__CERT_FILE", &pem),
        ("EDS_STORE__KEY_FILE", &pem),
    ]);
    assert_eq!(redis.password, Some(Secret::new("sesame")));
    let shown = format!("{redis:?}");
    assert!(
        shown.contains("[hidden]") && !shown.contains("sesame") && !shown.contains("65, 65"),
        "{shown}"
    );
    let Pem { path, bytes } = match redis.address {
        RedisAddress::Tls {
            tls:
                Tls {
                    ca: Some(ca),
                    identity: Some(_),
                },
            ..
        } => ca,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (path.as_path(), bytes.as_slice()),
        (Path::new(&pem), PEM.as_bytes())
    );

    let refused = |key: &str, file: &str, expected: &str| {
        let errors = load_variables(&[url, (key, file)]).unwrap_err();
        assert!(
            errors.contains(expected) && !errors.contains("sesame"),
            "of {key}={file}: {errors}"
        );
    };
    refused(
        "EDS_STORE__PASSWORD_FILE",
        "/nowhere",
        "/nowhere cannot be read: No such file",
    );
    refused(
        "EDS_STORE__PASSWORD_FILE",
        "/",
        "/ cannot be read: Is a directory",
    );
    refused(
        "EDS_STORE__PASSWORD_FILE",
        &write("two", "sesame\nx\n"),
        "does not hold one line of text",
    );
    refused(
        "EDS_STORE__PASSWORD_FILE",
        &write("empty", "\n"),
        "does not hold one line of text",
    );
    refused("EDS_STORE__CA_FILE", &password, "is no PEM file");
    refused(
        "EDS_STORE__CERT_FILE",
        &pem,
        "store.cert_file: and store.key_file go together",
    );
    refused("EDS_STORE__KEY_FILE", &pem, "store.key_file go together");
    check_variables(
        &[
            ("EDS_STORE__URL", "redis://h"),
            ("EDS_STORE__CA_FILE", &pem),
        ],
        "environment EDS_STORE__CA_FILE: store.ca_file: is set, but store.url is not encrypted; write rediss:// \
         there or leave this out",
    );
}

#[test]
fn keys_without_a_use_are_left_alone() {
    let text = "[store]\npassword_file = \"/nowhere\"\nca_file = \"/nowhere\"\n[output]\ntoken_file = \"/nowhere\"";
    assert!(load_file(text).is_ok());
}

#[test]
fn what_is_shown_of_a_url_holds_no_secret() {
    for (text, expected) in [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://u:s@h:1", "redis://[hidden]@h:1"),
        ("redis://u:s/?#@s@h", "redis://[hidden]@h"),
        ("u:s://s@h", "[hidden]@h"),
        ("http://h?token=s", "http://h[hidden]"),
    ] {
        let shown = url::shown(text);
        assert!(
            shown == expected || shown == format!("u:s://{expected}"),
            "of {text}: {shown}"
        );
    }
    let (url, hidden) = url::without_password("redis://u:s@h/1");
    assert_eq!((url.as_str(), hidden), ("redis://u@h/1", true));
}
