//! `[store]` and `[output]`: addresses, users, secrets and certificates.

use redis_link::{Address, Endpoint, Secret, URL_FORMS};

use super::*;
use crate::output::server::{self, Api};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";

/// Returns the configuration from these variables, or the text of its problems.
fn load_variables(variables: &[(&str, &str)]) -> Result<Config, String> {
    load_with("", variables, Flags::default()).map(|(config, _)| config)
}

fn redis(variables: &[(&str, &str)]) -> redis_link::Settings {
    match load_variables(variables).unwrap().store {
        Store::Redis(settings) => settings.redis,
        Store::Memory { .. } => panic!("{variables:?} is not Redis"),
    }
}

fn influxdb(variables: &[(&str, &str)]) -> server::Settings {
    match load_variables(variables).unwrap().outputs.remove(0).target {
        Target::Server(settings) => *settings,
        Target::Stdout => panic!("{variables:?} is not InfluxDB"),
    }
}

#[test]
fn redis_url_and_keys_form_one_address() {
    let redis = redis(&[
        ("EDS_STORE__URL", "rediss://u@h:1/3"),
        ("EDS_STORE__PASSWORD", "p"),
        ("EDS_STORE__CONNECT_TIMEOUT", "1s"),
        ("EDS_STORE__RESPONSE_TIMEOUT", "4s"),
    ]);
    let address = Address::Server(Endpoint::Tcp("h".to_owned(), 1));
    assert_eq!((&redis.address, redis.database, redis.tls.is_some()), (&address, 3, true));
    let (credentials, timeouts) = (&redis.credentials, redis.timeouts);
    assert_eq!(credentials.username.as_deref(), Some("u"));
    assert_eq!(credentials.password, Some(Secret::new("p")));
    assert_eq!(timeouts.connect, Duration::from_secs(1));
    assert_eq!(timeouts.response, Duration::from_secs(4));
}

#[test]
fn invalid_store_urls_are_refused() {
    check_refused(&format!(
        r#"
EDS_STORE__URL=
=> environment EDS_STORE__URL: store.url: "" is not a store URL; use memory:, {URL_FORMS}
EDS_STORE__URL=memory
=> environment EDS_STORE__URL: store.url: "memory" is not a store URL; use memory:, {URL_FORMS}
EDS_STORE__URL=valkey://u:s@h
=> environment EDS_STORE__URL: store.url: "valkey://[hidden]@h" is not a store URL; use memory:, {URL_FORMS}
EDS_STORE__URL=redis://u:s@h/x
=> environment EDS_STORE__URL: store.url: "redis://[hidden]@h/x" has a path that is not a database number; use redis://host:6379/0 or rediss://host:6379/0
"#
    ));
}

#[test]
fn output_urls_are_parsed() {
    let v1 = [("EDS_OUTPUT__API", "v1"), ("EDS_OUTPUT__DATABASE", "d")];
    for (text, base, user) in [
        ("http://h:8086", "http://h:8086/", None),
        ("https://H/influx/", "https://h/influx", None),
        ("http://u:p@h", "http://h/", Some("u")),
    ] {
        let influxdb = influxdb(&[v1[0], v1[1], ("EDS_OUTPUT__URL", text)]);
        let password = user.map(|_| Secret::new("p"));
        let api = Api::V1 { database: "d".to_owned(), username: user.map(str::to_owned), password };
        assert_eq!((influxdb.url.as_str(), influxdb.api, influxdb.ca), (base, api, None));
    }
    check_refused(
        r#"
EDS_OUTPUT__URL=ftp://h
=> environment EDS_OUTPUT__URL: output.url: "ftp://h" is not an output URL; use stdout:, http://host:8086 or https://host:8086
EDS_OUTPUT__URL=stdout
=> environment EDS_OUTPUT__URL: output.url: "stdout" is not a URL (relative URL without a base); use stdout:, http://host:8086 or https://host:8086
EDS_OUTPUT__URL=http://u:s@
=> environment EDS_OUTPUT__URL: output.url: "http://[hidden]@" is not a URL (empty host); use stdout:, http://host:8086 or https://host:8086
EDS_OUTPUT__URL=http://h?db=x
=> environment EDS_OUTPUT__URL: output.url: "http://h[hidden]" has a query or fragment; remove it, and use the other keys in [output] instead
EDS_OUTPUT__URL=http://localhost/db/api/v2/write/
EDS_OUTPUT__ORG=o
EDS_OUTPUT__BUCKET=b
=> environment EDS_OUTPUT__URL: output.url: ends with the path of the write API; remove /write or /api/v2/write, because eds adds this path itself, or use output.api = "remote-write-v1"
EDS_OUTPUT__URL=http://h
EDS_OUTPUT__API=otlp
=> environment EDS_OUTPUT__URL: output.url: has no path; add the path of the server's write API, such as /api/v1/write for remote write to Prometheus or /v1/metrics for OTLP
"#,
    );
}

#[test]
fn each_api_has_required_keys() {
    for loopback in [
        "http://LOCALHOST",
        "http://[::ffff:127.0.0.1]",
        "http://127.0.0.2:8086",
        "http://[::1]:8086",
        "http://localhost",
    ] {
        let (org, bucket) = (("EDS_OUTPUT__ORG", "o"), ("EDS_OUTPUT__BUCKET", "b"));
        let influxdb = influxdb(&[("EDS_OUTPUT__URL", loopback), org, bucket]);
        assert!(matches!(influxdb.api, Api::V2 { token: None, .. }), "{loopback}");
    }
    check_refused(
        r#"
EDS_OUTPUT__URL=https://h
=> output.org: is not set, but output.api = "v2" requires it; set it
=> output.bucket: is not set, but output.api = "v2" requires it; set it
=> output.token_file: is not set, but output.api = "v2" requires a token unless output.url is http:// with an address of this host; set it, or set EDS_OUTPUT__TOKEN
EDS_OUTPUT__URL=https://u:s@h
EDS_OUTPUT__ORG=o
EDS_OUTPUT__BUCKET=b
EDS_OUTPUT__TOKEN=t
=> environment EDS_OUTPUT__URL: output.url: has a user or password, but the v2 API requires a token; remove them and set output.token_file
EDS_OUTPUT__URL=https://h
EDS_OUTPUT__API=v1
EDS_OUTPUT__USERNAME=u
=> output.database: is not set, but output.api = "v1" requires it; set it
=> output.password_file: is not set, but there is a user name; set it, or set EDS_OUTPUT__PASSWORD
EDS_OUTPUT__URL=https://h
EDS_OUTPUT__API=v1
EDS_OUTPUT__DATABASE=d
EDS_OUTPUT__PASSWORD=p
=> output.username: is not set, but there is a password; set it, or remove the password
EDS_OUTPUT__URL=https://h
EDS_OUTPUT__ORG=o
EDS_OUTPUT__BUCKET=b
EDS_OUTPUT__TOKEN=ü
=> environment EDS_OUTPUT__TOKEN: output.token: contains characters that are not allowed in an HTTP header; it must contain nothing but the token
EDS_OUTPUT__URL=https://h
EDS_OUTPUT__API=v1
EDS_OUTPUT__USERNAME=u:v
EDS_OUTPUT__PASSWORD=s
EDS_OUTPUT__DATABASE=d
=> environment EDS_OUTPUT__USERNAME: output.username: has a user name with a colon, which HTTP authentication does not allow; use a different user
EDS_OUTPUT__URL=https://u%3Av:s@h
EDS_OUTPUT__API=v1
EDS_OUTPUT__DATABASE=d
=> environment EDS_OUTPUT__URL: output.url: has a user name with a colon, which HTTP authentication does not allow; use a different user
"#,
    );
}

#[test]
fn keys_of_the_other_api_are_refused() {
    check_refused(
        r#"
EDS_OUTPUT__URL=http://localhost
EDS_OUTPUT__ORG=o
EDS_OUTPUT__BUCKET=b
EDS_OUTPUT__DATABASE=d
=> environment EDS_OUTPUT__DATABASE: output.database: requires output.api = "v1", but it is "v2"; remove this key, or set output.api to "v1"
EDS_OUTPUT__URL=http://localhost
EDS_OUTPUT__API=v1
EDS_OUTPUT__DATABASE=d
EDS_OUTPUT__TOKEN_FILE=/nowhere
=> environment EDS_OUTPUT__TOKEN_FILE: output.token_file: requires output.api = "v2", but it is "v1"; remove this key, or set output.api to "v2"
EDS_OUTPUT__URL=http://h/api/v1/write
EDS_OUTPUT__API=remote-write-v1
EDS_OUTPUT__BUCKET=b
EDS_OUTPUT__TOKEN=t
EDS_OUTPUT__USERNAME=u
EDS_OUTPUT__PASSWORD=p
EDS_OUTPUT__SELF_METRICS=1m
=> environment EDS_OUTPUT__BUCKET: output.bucket: requires output.api = "v2", but it is "remote-write-v1"; remove this key, or set output.api to "v2"
=> environment EDS_OUTPUT__SELF_METRICS: output.self_metrics: requires output.api = "v1" or "v2"; remove this key, and use telemetry.otlp_url, or let Prometheus read /metrics
=> environment EDS_OUTPUT__TOKEN: output.token: is set, but output.username or a user in output.url is also set; remove one of them
EDS_TELEMETRY__TOKEN_FILE=/nowhere
=> environment EDS_TELEMETRY__TOKEN_FILE: telemetry.token_file: is set, but telemetry.otlp_url is not; set it, or remove this key
"#,
    );
    // An empty value, as in a file that lists all keys, is not rejected.
    influxdb(&[
        ("EDS_OUTPUT__URL", "http://localhost"),
        ("EDS_OUTPUT__API", "v1"),
        ("EDS_OUTPUT__DATABASE", "d"),
        ("EDS_OUTPUT__TOKEN_FILE", ""),
    ]);
}

#[test]
fn user_and_password_are_set_in_one_place() {
    check_refused(
        "
EDS_STORE__URL=redis://u:s@h
EDS_STORE__USERNAME=v
=> environment EDS_STORE__USERNAME: store.username: differs from the user in store.url; remove one of them
EDS_STORE__URL=redis://u:s@h
EDS_STORE__PASSWORD=t
=> environment EDS_STORE__URL: store.url: contains a password, but store.password or store.password_file is also set; set the password in only one place
EDS_STORE__URL=redis://u@h
=> store.password_file: is not set, but there is a user name; set it, or set EDS_STORE__PASSWORD
",
    );
}

#[test]
fn secrets_come_from_files_and_the_environment_only() {
    for key in ["[store]\npassword", "[output]\ntoken", "[output]\npassword"] {
        let errors = load_file(&format!("{key} = \"sesame\"")).unwrap_err();
        assert!(
            errors.contains("_file to a file that contains it, or set EDS_")
                && !errors.contains("sesame"),
            "{errors}"
        );
    }
    for flags in [
        Flags { store: Some("redis://u:sesame@h".to_owned()), ..Flags::default() },
        Flags { output: Some("http://u:sesame@localhost".to_owned()), ..Flags::default() },
    ] {
        let v1 = "[output]\napi = \"v1\"\ndatabase = \"d\"";
        let errors = load_with(v1, &[], flags).unwrap_err();
        assert!(errors.contains("every user on this host can read the flags"), "{errors}");
        assert!(!errors.contains("sesame"), "{errors}");
    }
}

#[test]
fn files_are_read_once_and_validated() {
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
    assert_eq!(redis.credentials.password, Some(Secret::new("sesame")));
    let shown = format!("{redis:?}");
    assert!(!shown.contains("sesame") && !shown.contains("65, 65"), "{shown}");
    let tls = redis.tls.unwrap();
    let pem_bytes = || PEM.as_bytes().to_vec();
    assert_eq!((tls.ca, tls.client), (Some(pem_bytes()), Some((pem_bytes(), pem_bytes()))));

    let (two, empty) = (write("two", "sesame\nx\n"), write("empty", "\n"));
    for (key, file, expected) in [
        ("PASSWORD", "/nowhere", "/nowhere cannot be read: No such file"),
        ("PASSWORD", "/", "/ cannot be read: Is a directory"),
        ("PASSWORD", &two, "is not a single line of text"),
        ("PASSWORD", &empty, "is not a single line of text"),
        ("CA", &password, "is not a PEM file"),
        ("CERT", &pem, "store.cert_file: must be set together with store.key_file"),
        ("KEY", &pem, "must be set together with store.key_file"),
    ] {
        let errors = load_variables(&[url, (&format!("EDS_STORE__{key}_FILE"), file)]).unwrap_err();
        assert!(
            errors.contains(expected) && !errors.contains("sesame"),
            "of {key}={file}: {errors}"
        );
    }
    check_refused(&format!(
        "
EDS_STORE__URL=redis://h
EDS_STORE__CA_FILE={pem}
=> environment EDS_STORE__CA_FILE: store.ca_file: is set, but store.url is not encrypted; use rediss:// there, or remove this key
"
    ));
    let certificate = rcgen::generate_simple_self_signed(Vec::new()).unwrap();
    let key = write("key.pem", &certificate.signing_key.serialize_pem());
    let ca = write("output.pem", &certificate.cert.pem());
    let output = "EDS_OUTPUT__ORG=o\nEDS_OUTPUT__BUCKET=b\nEDS_OUTPUT__TOKEN=t\nEDS_OUTPUT__URL";
    let at = "environment EDS_OUTPUT__CA_FILE: output.ca_file:";
    check_refused(&format!(
        "
{output}=https://h
EDS_OUTPUT__CA_FILE={directory}/none
=> {at} {directory}/none cannot be read: No such file or directory (os error 2); use a file that the service's user can read
{output}=https://h
EDS_OUTPUT__CA_FILE={password}
=> {at} {password} is not a PEM file, because it has no -----BEGIN …----- line; use a different file
{output}=https://h
EDS_OUTPUT__CA_FILE={key}
=> {at} {key} cannot be used: the file contains no certificates; use a file with PEM certificates
{output}=http://h
EDS_OUTPUT__CA_FILE={ca}
=> {at} is set, but output.url is not encrypted; use https:// there, or remove this key
",
        directory = directory.path().display()
    ));
}

#[test]
fn unused_keys_are_ignored() {
    let text = "[store]\npassword_file = \"/nowhere\"\nca_file = \"/nowhere\"\n[output]\ntoken_file = \"/nowhere\"";
    assert!(load_file(text).is_ok());
}

/// Returns the warnings for this store, output and UDP address.
fn warnings(store: &str, output: &str, listen: &str) -> Vec<String> {
    let variables = [
        ("EDS_STORE__URL", store),
        ("EDS_OUTPUT__URL", output),
        ("EDS_INPUT__LISTEN", listen),
        ("EDS_OUTPUT__API", "v1"),
        ("EDS_OUTPUT__DATABASE", "eds"),
    ];
    load_variables(&variables).unwrap().warnings()
}

#[test]
fn local_or_encrypted_connections_cause_no_warning() {
    for store in [
        "memory:",
        "redis://127.0.0.1:6379",
        "redis://localhost",
        "redis://[::1]:6379",
        "rediss://redis.example",
        "redis+unix:///run/redis.sock",
    ] {
        assert_eq!(warnings(store, "stdout:", "127.0.0.1:8094"), [""; 0], "{store}");
    }
    for output in [
        "http://127.0.0.1:8086",
        "http://localhost:8086/path",
        "http://[::1]:8086",
        "https://influx.example",
    ] {
        assert_eq!(warnings("memory:", output, "192.0.2.1:8094"), [""; 0], "{output}");
    }
}

#[test]
fn plain_text_to_other_hosts_causes_a_warning() {
    for store in [
        "redis://redis.example:6379",
        "redis://u:p@192.0.2.1/1",
        "redis+cluster://localhost,redis.example",
    ] {
        let warnings = warnings(store, "stdout:", "127.0.0.1:8094");
        assert!(warnings[0].contains("rediss://"), "{warnings:?}");
        assert_eq!(warnings[0].contains("password"), store.contains('@'), "{warnings:?}");
    }
    for output in
        ["http://influx.example", "http://[2001:db8::1]:8086/x", "http://localhost.example:8086"]
    {
        let warnings = warnings("memory:", output, "127.0.0.1:8094");
        assert!(warnings[0].contains("https://"), "{warnings:?}");
    }
    for listen in ["0.0.0.0:8094", "[::]:8094"] {
        let warnings = warnings("memory:", "stdout:", listen);
        assert!(warnings[0].contains("firewall"), "{warnings:?}");
    }
}
