//! All configuration errors and their messages.

mod outputs;
mod relay_keys;
mod servers;

use std::collections::BTreeSet;
use std::time::Duration;

use tracing::Level;

use self::relay_keys::{RELAY, load_relay_with};
use super::*;

/// Loads the text of a file with these variables and flags.
fn load_with(
    text: &str,
    variables: &[(&str, &str)],
    flags: Flags,
) -> Result<(Config, Effective), String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("eds.toml");
    std::fs::write(&path, text).unwrap();
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into()));
    let flags = Flags { config: Some(path.clone()), ..flags };
    let shown = |errors: ConfigErrors| errors.to_string().replace(path.to_str().unwrap(), "FILE");
    load(&flags, environment).map_err(shown)
}

fn load_file(text: &str) -> Result<Config, String> {
    load_with(text, &[], Flags::default()).map(|(config, _)| config)
}

/// Cases: lines of a file, variables such as `EDS_NODE=one`, and, after `=>`, the expected error lines.
#[track_caller]
fn check_refused(cases: &str) {
    let is_error = |line: &str| line.starts_with("=> ");
    let lines: Vec<&str> = cases.trim().lines().collect();
    for case in lines.chunk_by(|line, next| !is_error(line) || is_error(next)) {
        let (errors, given): (Vec<&str>, Vec<&str>) = case.iter().partition(|line| is_error(line));
        let (variables, text): (Vec<&str>, Vec<&str>) =
            given.iter().partition(|line| line.starts_with("EDS_"));
        let variables: Vec<_> = variables.iter().filter_map(|line| line.split_once('=')).collect();
        let expected: Vec<_> = errors.iter().map(|line| &line[3..]).collect();
        let refused = load_with(&text.join("\n"), &variables, Flags::default()).unwrap_err();
        assert_eq!(refused, expected.join("\n"), "of {given:?}");
    }
}

#[test]
fn empty_configuration_is_valid() {
    let config = load_file("").unwrap();
    assert!(matches!(config.store, Store::Memory { bytes_max, .. } if bytes_max == 1 << 30));
    assert_eq!(config.input.listen, ["127.0.0.1:8094".parse().unwrap()]);
    assert_eq!(config.input.max_datagram, 65_536);
    assert_eq!(config.flush.lease, Duration::from_secs(30));
    assert!(matches!(config.outputs[0].target, Target::Stdout));
    let log = (config.log.level, config.log.format);
    assert_eq!(log, (Some(Level::INFO), LogFormat::Text));
    assert!(!config.node.is_empty());
}

#[test]
fn unknown_names_are_refused_with_the_nearest_known_one() {
    check_refused(
        r#"
nod = "x"
=> FILE:1: unknown key nod; did you mean node?
[input]
lisen = []
=> FILE:2: unknown key input.lisen; did you mean input.listen?
[input]
grace = "1s"
=> FILE:2: unknown key input.grace; did you mean flush.grace?
[ouput]
url = "x"
=> FILE:1: unknown section [ouput]; did you mean [output]?
level = "info"
=> FILE:1: unknown key level; did you mean log.level?
log = 1
=> FILE:1: log: is a section; put [log] on a separate line, with its keys below
EDS_INPUT_LISTEN=1
=> environment EDS_INPUT_LISTEN: unknown key; did you mean EDS_INPUT__LISTEN?
EDS_input__listen=1
=> environment EDS_input__listen: unknown key; did you mean EDS_INPUT__LISTEN?
EDS_OUTPUT__TOKENS=1
=> environment EDS_OUTPUT__TOKENS: unknown key; did you mean EDS_OUTPUT__TOKEN?
EDS_=1
=> environment EDS_: unknown key; did you mean EDS_NODE?
"#,
    );
    assert!(load_with("", &[("EDSEL", "1"), ("LISTEN", "x")], Flags::default()).is_ok());
}

#[test]
fn malformed_values_are_refused_with_the_expected_form() {
    check_refused(
        r#"
node = 1
=> FILE:1: node: is a TOML integer; use a quoted string: 1 to 64 of A-Z a-z 0-9 . _ -
[input]
linger = 100
=> FILE:2: input.linger: is a TOML integer; use a quoted string: 1ms to 10s
[input]
listen = "[::1]:1"
=> FILE:2: input.listen: is a TOML string; use a list of strings, such as ["127.0.0.1:8094"]
[input]
threads = "2"
=> FILE:2: input.threads: is a TOML string; use a whole number without quotes: 1 to 64
[input]
threads = 1.5
=> FILE:2: input.threads: is a TOML float; use a whole number without quotes: 1 to 64
[[log]]
level = "info"
=> FILE:1: log: is a section; put [log] on a separate line, with its keys below
"#,
    );
}

#[test]
fn values_out_of_range_are_refused_with_the_range() {
    check_refused(
        r#"
EDS_NODE=a b
=> environment EDS_NODE: node: "a b" is not a valid name; use 1 to 64 of A-Z a-z 0-9 . _ -
EDS_NODE=
=> environment EDS_NODE: node: "" is not a valid name; use 1 to 64 of A-Z a-z 0-9 . _ -
EDS_INPUT__USER_FIELD=a=b
=> environment EDS_INPUT__USER_FIELD: input.user_field: "a=b" is not a valid field or tag key; it must not be empty and must not contain spaces, commas, =, " or \
EDS_INPUT__LISTEN=
=> environment EDS_INPUT__LISTEN: input.listen: is empty; set at least one address, such as "127.0.0.1:8094"
EDS_INPUT__LISTEN=127.0.0.1:1, 127.0.0.1:1
=> environment EDS_INPUT__LISTEN: input.listen: "127.0.0.1:1" is listed twice; list it only once
EDS_HTTP__LISTEN=localhost:80
=> environment EDS_HTTP__LISTEN: http.listen: "localhost:80" is not an address; use an IP address and a port, such as "127.0.0.1:8094" or "[::1]:8094"
EDS_INPUT__QUEUE_EVENTS=0
=> environment EDS_INPUT__QUEUE_EVENTS: input.queue_events: "0" is out of range; use 1 to 1000000000
EDS_STORE__PARTITIONS=-1
=> environment EDS_STORE__PARTITIONS: store.partitions: "-1" is out of range; use 1 to 1024
EDS_STORE__PARTITIONS=many
=> environment EDS_STORE__PARTITIONS: store.partitions: "many" is not a whole number; use 1 to 1024
EDS_INPUT__MAX_AGE=30s
=> environment EDS_INPUT__MAX_AGE: input.max_age: "30s" is out of range; use 1m to 100years
EDS_INPUT__MAX_AGE=90
=> environment EDS_INPUT__MAX_AGE: input.max_age: "90" is not a duration; use a number with a unit, such as "100ms", "30s" or "1h"
EDS_INPUT__RECEIVE_BUFFER=8000000
=> environment EDS_INPUT__RECEIVE_BUFFER: input.receive_buffer: "8000000" is not a size; use a number with a unit, such as "512B", "64KiB" or "8MiB"
EDS_INPUT__MAX_DATAGRAM=1MiB
=> environment EDS_INPUT__MAX_DATAGRAM: input.max_datagram: "1MiB" is out of range; use 512B to 64KiB
EDS_STORE__LAYOUT=hll
=> environment EDS_STORE__LAYOUT: store.layout: "hll" is unknown; use one of: sets, log
EDS_LOG__FORMAT=xml
=> environment EDS_LOG__FORMAT: log.format: "xml" is unknown; use one of: text, json, journald
"#,
    );
}

#[test]
fn keys_are_checked_against_each_other() {
    // An invalid value is not compared with other keys.
    check_refused(
        r#"
[flush]
grace = "10s"
max_hold = "5s"
=> FILE:3: flush.max_hold: is shorter than flush.grace, so no minute would ever become idle; raise it or lower flush.grace
[flush]
interval = "20s"
=> flush.lease: is shorter than 3 × flush.interval, so claims could expire before they are renewed; raise it or lower flush.interval
[flush]
zeros = "90s"
=> FILE:2: flush.zeros: is not a whole number of minutes; use for example 5m
[flush]
zeros = "61m"
=> FILE:2: flush.zeros: "61m" is out of range; use 0s to 1h
[flush]
interval = "20h"
=> FILE:2: flush.interval: "20h" is out of range; use 10ms to 1m
[http]
listen = "0.0.0.0:8095"
=> FILE:2: http.listen: accepts requests from other hosts, but neither http.tokens_file nor http.client_ca_file is set; set one of them, use 127.0.0.1 or [::1], or set http.public = true if a firewall or proxy protects this address
[input]
measurement_tag = "eds_overflow"
=> FILE:2: input.measurement_tag: is a reserved tag key; choose a different key
[input]
measurement_tag = "time"
=> FILE:2: input.measurement_tag: is a reserved tag key; choose a different key
[input]
max_datagram = "1KiB"
=> input.max_line: is 8192 bytes, which exceeds input.max_datagram (1024 bytes); lower it or raise input.max_datagram
"#,
    );
}

#[test]
fn client_certificates_protect_http() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(directory.path().join(name), text).unwrap();
        directory.path().join(name).display().to_string()
    };
    let made = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let (pem, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let (certificate, key) = (write("cert.pem", &pem), write("key.pem", &key));
    let tls = format!("cert_file = \"{certificate}\"\nkey_file = \"{key}\"");
    let clients = |file: &str| format!("[http]\nclient_ca_file = \"{file}\"");
    let open = "listen = \"0.0.0.0:8095\"";
    let valid = clients(&certificate);
    let config = load_file(&format!("{valid}\n{tls}\n{open}")).unwrap();
    assert!(config.access.lock().unwrap().requires_certificate);

    let (empty, none) =
        (write("empty.pem", ""), directory.path().join("none").display().to_string());
    let damaged = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
    let damaged = write("damaged.pem", damaged);
    let at = "=> FILE:2: http.client_ca_file:";
    check_refused(&format!(
        "
{valid}
{at} is set, but http.cert_file is not, and clients present certificates only with TLS; set http.cert_file and http.key_file, or remove this key
{}
{tls}
{open}
{at} {none} cannot be read: No such file or directory (os error 2); use a file that the service's user can read
{}
{tls}
{at} {empty} is not a PEM file, because it has no -----BEGIN …----- line; use a different file
{}
{tls}
{at} {key} cannot be used: the file contains no certificates; use a file with PEM certificates
{}
{tls}
{at} {damaged} cannot be used: invalid peer certificate: BadEncoding; use a file with PEM certificates
",
        clients(&none), clients(&empty), clients(&key), clients(&damaged),
    ));
}

#[test]
fn impossible_spool_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let spool = |name: &str| format!("[input]\nspool_dir = \"{}\"", path(name));
    std::fs::write(path("file"), "").unwrap();
    for name in ["file", "file/below/it"] {
        let (text, file) = (spool(name), path("file"));
        check_refused(&format!(
            "{text}\n=> FILE:2: input.spool_dir: {file} is not a directory; use a directory that the service's user \
             can write to"
        ));
    }
    for name in ["", "to/be/made"] {
        load_file(&spool(name)).unwrap();
    }
    let left = std::fs::read_dir(directory.path()).unwrap();
    assert_eq!(left.count(), 1, "the check has created a directory");
    // Operator commands do not write to the spool directory, and do not serve HTTP.
    let flags = Flags { config: Some(path("file").into()), ..Flags::default() };
    let served =
        "[http]\nlisten = \"0.0.0.0:8095\"\ntokens_file = \"/nowhere\"\ncert_file = \"/nowhere\"";
    std::fs::write(path("file"), format!("{}\n{served}", spool("file"))).unwrap();
    load_without_secrets_of_output(&flags, Vec::new()).unwrap();
}

#[test]
fn all_errors_are_reported_at_once_in_order() {
    let flags = Flags { http: Some("x".to_owned()), ..Flags::default() };
    let text = "[log]\nlevel = 1\nlvl = 2\n[input]\nthreads = 0\n[output]\nurl = \"http://h\"\napi = \"v1\"";
    let errors = load_with(text, &[("EDS_X", "")], flags).unwrap_err();
    let origins: Vec<&str> = errors.lines().map(|line| line.split(": ").next().unwrap()).collect();
    assert_eq!(
        origins,
        ["FILE:2", "FILE:3", "FILE:5", "environment EDS_X", "--http", "output.database"]
    );
}

#[test]
fn a_file_that_is_not_toml_is_reported_by_line_and_never_quoted() {
    check_refused(
        r"
token = sesame
[log
=> FILE:1: invalid TOML: string values must be quoted, expected literal string
=> FILE:2: invalid TOML: unclosed table, expected `]`
",
    );
    check_refused(
        r#"
node = "a"
[store]
url = "memory:"
password_file = "/one" # url = "no"
url = "redis://sesame@host"
[log]
level = "info"
[store]
[log]
node = "b"
[output]
url = { a = "sesame", b = "sesame", a = "sesame" }
=> FILE:5: url is defined here and on line 3; keep one definition
=> FILE:8: [store] is defined here and on line 2; keep one definition
=> FILE:9: [log] is defined here and on line 6; keep one definition
=> FILE:12: a is defined twice in one value; keep one definition
"#,
    );
    let flags = Flags { config: Some("/nowhere/eds.toml".into()), ..Flags::default() };
    assert_eq!(
        load(&flags, []).unwrap_err().to_string(),
        "/nowhere/eds.toml: cannot be read: No such file or directory (os error 2); use --config to specify a readable file"
    );
}

#[test]
fn later_sources_win_and_are_remembered() {
    let flags = Flags { listen: vec!["127.0.0.1:3".to_owned()], ..Flags::default() };
    let variables = [("EDS_LOG__LEVEL", "warn"), ("EDS_INPUT__LISTEN", "127.0.0.1:2")];
    let text = "node = \"a\"\n[log]\nlevel = \"debug\"\nformat = \"json\"\n[input]\nqueue_events = 0x1_00\n";
    let (config, effective) = load_with(text, &variables, flags).unwrap();
    assert_eq!(config.node, "a");
    let log = (config.log.level, config.log.format);
    assert_eq!(log, (Some(Level::WARN), LogFormat::Json));
    assert_eq!(config.input.listen, ["127.0.0.1:3".parse().unwrap()]);
    assert_eq!(config.batcher.limits.events, 256);
    let shown = effective.to_toml(true);
    for (line, origin) in [
        ("level = \"warn\"", "environment EDS_LOG__LEVEL"),
        ("listen = [\"127.0.0.1:3\"]", "--listen"),
        ("threads = 1", "default"),
    ] {
        assert!(
            shown
                .lines()
                .any(|shown| shown.starts_with(line) && shown.ends_with(&format!("# {origin}"))),
            "{line}"
        );
    }
    assert!(
        shown.lines().any(|line| line.starts_with("node = \"a\"") && line.ends_with("eds.toml:1")),
        "{shown}"
    );
    // Loading the output as a file results in the same configuration.
    let again = load_file(&shown).unwrap();
    let again = Config { file: config.file.clone(), ..again };
    assert_eq!(format!("{again:?}"), format!("{config:?}"));
}

#[test]
fn key_table_is_consistent() {
    let mut seen = BTreeSet::new();
    for key in KEYS {
        assert!(seen.insert(key.path), "{} is listed twice", key.path);
        let is_short = key.doc.len() < 100 && !key.doc.ends_with('.');
        assert!(is_short, "{}", key.path);
        // Each listed word is accepted, and each range includes both ends.
        let allowed = key.allowed;
        let ends: Vec<&str> = match allowed.strip_prefix("one of: ") {
            Some(words) => words.split(", ").collect(),
            None if allowed.contains(" of ") => Vec::new(),
            None => allowed.split_once(" to ").map_or(Vec::new(), |(min, max)| vec![min, max]),
        };
        for value in ends {
            let set = [(&*key.variable(), value)];
            let refused = if key.programs.contains(&Program::Node) {
                load_with("", &set, Flags::default()).map(drop)
            } else {
                load_relay_with(RELAY, &set).map(drop)
            };
            if let Err(errors) = refused {
                let explanations = [
                    "do not fit",
                    "raise it or lower",
                    "lower it or raise",
                    "must be set together",
                    "requires a database",
                ];
                let is_explained = explanations.iter().any(|words| errors.contains(words));
                assert!(is_explained, "{value}: {errors}");
            }
        }
    }
}

/// Nodes compare the effective cluster-wide settings, in a canonical spelling. A value that has no effect is empty.
#[test]
fn equivalent_values_compare_equal() {
    let alike = |text: &str| {
        let config = load_file(text).unwrap();
        config.alike
    };
    let first = alike(
        "[flush]\nmax_hold = \"60s\"\nzeros = \"300s\"\n[input]\nmax_users_per_series = 0x10\n[store]\npartitions_before = 4\n\
         partitions_from = \"2026-11-22T03:10:00+01:00\"\n[output]\nurl = \"http://localhost/\"\norg = \"o\"\nbucket = \"b\"",
    );
    let second = alike(
        "[flush]\nmax_hold = \"1m\"\nzeros = \"5m\"\n[input]\nmax_users_per_series = 16\n[store]\npartitions_before = 4\n\
         partitions_from = 2026-11-22T02:10:00Z\n[output]\nurl = \"http://localhost\"\norg = \"o\"\nbucket = \"b\"",
    );
    assert_eq!(first, second);
    for expected in [
        ("flush.max_hold", "1m"),
        ("flush.zeros", "5m"),
        ("store.partitions_from", "2026-11-22T02:10:00Z"),
        ("outputs", "default http://localhost api=v2 org=o bucket=b"),
    ] {
        assert!(first.iter().any(|(key, value)| (*key, value.as_str()) == expected), "{first:?}");
    }
    for (key, value) in alike("") {
        let is_empty = key.contains("partitions_") || key == "rollups";
        assert_eq!(value.is_empty(), is_empty, "{key} = {value}");
    }
}

#[test]
fn incompatible_keys_of_several_sections_are_refused() {
    let redis = "[store]\nurl = \"redis://h\"\n";
    for (text, keys) in [
        ("[input]\nlinger = \"5s\"", ["input.linger", "flush.grace"]),
        ("[flush]\ninterval = \"5s\"", ["flush.interval", "flush.grace"]),
    ] {
        let errors = load_file(&format!("{redis}{text}")).unwrap_err();
        let (blamed, other) = (format!(": {}: is ", keys[0]), format!(" {}, ", keys[1]));
        assert!(errors.contains(&blamed) && errors.contains(&other), "{errors}");
    }
    let errors = load_file(&format!("{redis}replay_window = \"2s\"")).unwrap_err();
    assert!(
        errors.contains("store.replay_window: is shorter than store.response_timeout"),
        "{errors}"
    );
    for text in ["replay_window = \"0s\"", "replay_window = \"3s\""] {
        load_file(&format!("{redis}{text}")).unwrap();
    }
    // With an in-memory store, lag is not reported and responses are never late.
    load_file("[store]\nreplay_window = \"2s\"\n[flush]\ninterval = \"5s\"\nlease = \"15s\"")
        .unwrap();
}

#[test]
fn unwise_combinations_cause_warnings() {
    let warnings = |text: &str| {
        let config = load_file(&format!("[store]\nurl = \"redis://localhost\"\n{text}")).unwrap();
        config.warnings().join("\n")
    };
    assert_eq!(warnings(""), "");
    for (text, words) in [
        (
            "[flush]\ninterval = \"3s\"",
            "flush.interval (3s) is longer than half of flush.grace (5s)",
        ),
        ("[flush]\nlease = \"5s\"", "flush.lease (5s) is shorter than"),
        (
            "response_timeout = \"8s\"",
            "store.replay_window (10s) is shorter than the time it takes to detect",
        ),
        (
            "response_timeout = \"10s\"\n[flush]\nmax_hold = \"10s\"",
            "is not shorter than flush.max_hold (10s)",
        ),
        ("[input]\ndrain_timeout = \"2s\"", "input.drain_timeout (2s) is shorter than"),
    ] {
        let warned = warnings(text);
        assert!(warned.contains(words), "{text}: {warned}");
    }
    let spooled = "[input]\nspool_dir = \"/var/lib/eds\"\ndrain_timeout = \"2s\"";
    assert_eq!(warnings(spooled), "");
}

/// Regression test: a name was printed unescaped, so a message could continue on a second line or move the cursor.
#[test]
fn error_is_one_line_with_any_file_name() {
    check_refused(
        r#"
[flush]
"gra\nse" = "5s"
["\u001b[2J"]
=> FILE:2: unknown key flush.gra\nse; did you mean flush.grace?
=> FILE:3: unknown section [\u{1b}[2J]; did you mean [http]?
"#,
    );
}
