//! Secrets appear nowhere: not in logs, responses, listings, help, errors, or the `Debug` output of types that hold them.

use std::num::NonZeroU16;

use event_data_service::config::{self, Flags};
use event_data_service::event::Partitions;
use event_data_service::store::redis::{Layout, RedisStore, Settings};
use redis_link::{Address, Credentials, Endpoint, Secret, Timeouts, Tls};
use testing::influxdb::{ADMIN, ADMIN_PASSWORD};

use crate::prelude::*;

/// Part of every secret in these tests and of nothing else. Has no characters that a URL would escape.
const MARK: &str = "hUsHhUsH";
/// The password of the database, which must not be shown either.
const OTHER_MARK: &str = ADMIN_PASSWORD;

fn secret(name: &str) -> String {
    format!("{MARK}-{name}")
}

#[track_caller]
fn assert_hidden(source: &str, text: &str) {
    for mark in [MARK, OTHER_MARK, "correct%20horse", "correct+horse"] {
        if let Some(line) = text.lines().find(|line| line.contains(mark)) {
            panic!("{source} shows a secret: {line}");
        }
    }
}

#[track_caller]
fn assert_output_hidden(source: &str, output: &Output) {
    assert_hidden(source, &String::from_utf8_lossy(&output.stdout));
    assert_hidden(source, &String::from_utf8_lossy(&output.stderr));
}

fn assert_node_hidden(node: &Node) {
    for path in ["/metrics", "/healthz", "/readyz", "/nothing"] {
        if let Ok(answer) = node.get(path) {
            assert_hidden(path, &answer.body);
        }
    }
    let (stdout, log) = (node.stdout(), node.log());
    assert!(!log.is_empty());
    assert_hidden("the log", &log);
    assert_hidden("standard output", &stdout);
}

/// The passthrough server is down. Its token is in the environment, or its password is in the URL.
#[test]
fn relay_prints_no_secret() {
    let server = format!("127.0.0.1:{}", free_port());
    let (token, password) = (secret("token"), secret("password"));
    let with_token = format!("http://{server}?org=o&bucket=b");
    let with_password = format!("http://eds:{password}@{server}?db=d");
    for (url, variables) in
        [(with_token, vec![("EDS_PASSTHROUGH__TOKEN", &token)]), (with_password, vec![])]
    {
        let keys =
            [("passthrough.url", &*url), ("log.level", "trace"), ("input.drain_timeout", "0s")];
        let mut relay = Node::relay("relay", &["127.0.0.1:9"], &keys);
        for (name, value) in variables {
            relay.set_environment(name, value);
        }
        relay.run();
        relay.send(b"cpu usage=1");
        relay.wait_log("to the server in passthrough.url; lines are queued");
        assert_node_hidden(&relay);
        assert_eq!(relay.terminate().code(), Some(3));
        assert_hidden("the log", &relay.log());
        for arguments in [&["--check"][..], &["--check", "--explain"], &["--help"]] {
            let mut command = eds();
            command.arg("relay").args(arguments).envs(relay.environment());
            let output = command.arg("--config").arg(relay.config_path()).output();
            assert_output_hidden(&format!("{arguments:?}"), &output.unwrap());
        }
    }
}

/// Asserts that no command shows a secret when it uses the configuration of this node.
fn assert_commands_hidden(node: &Node) {
    node.write_config();
    for arguments in [
        &["check"][..],
        &["check", "--explain"],
        &["run", "--help"],
        &["quarantine", "list"],
        &["quarantine", "retry", "--all"],
        &["quarantine", "retry", "--help"],
        &["send", "--help"],
    ] {
        let mut command = eds();
        command.args(arguments).envs(node.environment());
        if arguments[0] != "send" {
            command.arg("--config").arg(node.config_path());
        }
        let output = command.output().expect("the binary starts");
        assert_output_hidden(&format!("{arguments:?}"), &output);
    }
}

fn redis() -> RedisServer {
    let password = format!(">{}", secret("redis"));
    RedisServer::start_asked_by_admin(&[
        "--user", "eds", "on", &password, "~*", "+@all", "--user", "default", "off",
    ])
}

fn through_a_minute(node: &Node) {
    let mut sender = Sender::paced_by(node);
    sender.send(format!("event_type=a,product=b value=ann {SEED_MINUTE_NS}"));
    sender.wait_received();
}

#[test]
fn no_secret_is_printed_while_all_works() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let influxdb = runtime.block_on(async {
        let influxdb = InfluxServer::start_with_auth().await;
        influxdb.query("", "CREATE DATABASE eds").await;
        influxdb
    });
    let redis = redis();
    let directory = tempfile::tempdir().unwrap();
    let password_file = directory.path().join("password");
    fs::write(&password_file, ADMIN_PASSWORD).unwrap();
    for format in ["text", "json"] {
        let mut node = Node::new(
            "one",
            &[
                ("log.level", "trace"),
                ("log.format", format),
                ("store.url", &redis.url()),
                ("store.username", "eds"),
                ("output.url", &influxdb.url()),
                ("output.api", "v1"),
                ("output.database", "eds"),
                ("output.username", ADMIN),
                ("output.password_file", &password_file.display().to_string()),
            ],
        );
        node.set_environment("EDS_STORE__PASSWORD", &secret("redis"));
        node.run();
        through_a_minute(&node);
        if format == "text" {
            node.wait_count("eds_points_sent_total", |sent| sent == 2);
        }
        assert_node_hidden(&node);
        assert_commands_hidden(&node);
        node.signal("HUP");
        assert!(node.terminate().success());
        assert_node_hidden(&node);
    }
}

#[test]
fn a_new_password_of_an_output_is_used_after_a_reload() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let influxdb = runtime.block_on(InfluxServer::start_with_auth());
    let query = |text: &str| drop(runtime.block_on(influxdb.query("", text)));
    query("CREATE DATABASE eds");
    query("CREATE USER writer WITH PASSWORD 'first'");
    query("GRANT ALL ON eds TO writer");
    let directory = tempfile::tempdir().unwrap();
    let password_file = directory.path().join("password");
    fs::write(&password_file, "first").unwrap();
    let keys = [
        ("store.url", "memory:"),
        ("output.url", &influxdb.url()),
        ("output.api", "v1"),
        ("output.database", "eds"),
        ("output.username", "writer"),
        ("output.password_file", &password_file.display().to_string()),
        ("log.level", "info"),
    ];
    let node = Node::start("one", &keys);
    through_a_minute(&node);
    node.wait_count("eds_points_sent_total", |sent| sent == 2);

    query("SET PASSWORD FOR writer = 'second'");
    Sender::paced_by(&node)
        .send_unrecorded(format!("event_type=c,product=d value=ann {SEED_MINUTE_NS}").as_bytes());
    node.wait_count("eds_write_failures_total", |failures| failures > 0);
    fs::write(&password_file, "second").unwrap();
    node.signal("HUP");
    node.wait_count("eds_points_sent_total", |sent| sent == 4);
}

#[test]
fn a_new_password_of_redis_is_used_after_a_reload() {
    let redis = redis();
    let directory = tempfile::tempdir().unwrap();
    let password_file = directory.path().join("password");
    let url = |password: &str| redis.url().replace("//", &format!("//eds:{password}@"));
    for is_in_url in [false, true] {
        let mut node = Node::new("one", &[("store.url", &*redis.url()), ("log.level", "info")]);
        redis.query::<()>(&["ACL", "SETUSER", "eds", "resetpass", ">first"]);
        fs::write(&password_file, "first").unwrap();
        if is_in_url {
            node.set("store.url", &url("first"));
        } else {
            node.set("store.username", "eds");
            node.set("store.password_file", &password_file.display().to_string());
        }
        node.run();
        through_a_minute(&node);

        redis.query::<()>(&["ACL", "SETUSER", "eds", "resetpass", ">second"]);
        redis.query::<()>(&["CLIENT", "KILL", "USER", "eds"]);
        node.wait_log("Redis rejected the credentials");
        fs::write(&password_file, "second").unwrap();
        if is_in_url {
            node.set("store.url", &url("second"));
            node.write_config();
        }
        node.signal("HUP");
        through_a_minute(&node);
        assert!(!node.log().contains("only after a restart"), "{}", node.log());
        assert!(node.terminate().success());
    }
}

#[test]
fn no_secret_is_printed_while_all_fails() {
    let redis = redis();
    let nobody = format!("127.0.0.1:{}", free_port());
    let in_url = |scheme: &str, host: &str| format!("{scheme}://eds:{}@{host}", secret("url"));
    let output_v2 = [
        ("output.url".to_owned(), format!("http://{nobody}")),
        ("output.org".to_owned(), "o".to_owned()),
        ("output.bucket".to_owned(), "b".to_owned()),
    ];
    for (store, refused) in [
        (in_url("redis", &nobody), false),
        (in_url("rediss", &nobody), false),
        (in_url("redis", &redis.address().to_string()), true),
    ] {
        let mut node = Node::new("one", &[("log.level", "trace"), ("store.url", &store)]);
        for (key, value) in &output_v2 {
            node.set(key, value);
        }
        node.set_environment("EDS_OUTPUT__TOKEN", &secret("token"));
        node.launch();
        if refused {
            let status = node.wait_for_exit(SOON);
            assert_eq!(status.code(), Some(1));
            assert!(node.log().contains("store.password_file"), "{}", node.log());
        } else {
            node.wait_log("the store is unavailable");
            through_a_minute(&node);
        }
        assert_node_hidden(&node);
        assert_commands_hidden(&node);
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let influxdb = runtime.block_on(InfluxServer::start_with_auth());
    let there = influxdb.url().replace("http://", "");
    for host in [there, nobody] {
        let keys = [
            ("log.level", "trace"),
            ("output.url", &in_url("http", &host)),
            ("output.api", "v1"),
            ("output.database", "eds"),
        ];
        let node = Node::start("one", &keys);
        through_a_minute(&node);
        node.wait_count("eds_write_failures_total", |failures| failures > 0);
        assert_node_hidden(&node);
        assert_commands_hidden(&node);
    }
}

/// Asserts that `eds check` and `eds run` reject this configuration without showing a secret.
#[track_caller]
fn assert_mistake_hidden(text: &str, variables: &[(&str, &str)], flags: &[&str]) {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("eds.toml");
    fs::write(&file, text).unwrap();
    for verb in ["check", "run"] {
        let mut command: Command = eds();
        command.arg(verb).arg("--config").arg(&file).args(flags);
        let output = command.envs(variables.iter().copied()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{text} {variables:?}");
        assert_output_hidden(text, &output);
    }
}

#[test]
fn no_configuration_error_prints_a_secret() {
    let [one, two] = ["one", "two"].map(secret);
    let in_file = [
        format!("[store]\npassword = \"{one}\"\n"),
        format!("[output]\ntoken = \"{one}\"\n"),
        format!("[store]\nurl = \"redis://u:{one}@h:port\"\n"),
        format!("[store]\nurl = \"redis://u:{one}#{two}@h\"\n"),
        format!("[store]\nurl = \"radis://u:{one}@h\"\n"),
        format!("[store]\nurl = \"redis://u:{one}@h/x\"\n"),
        format!("[output]\nurl = \"http://u:{one}@h:8086?p={two}\"\n"),
        format!("[output]\nurl = \"u:{one}@h\"\n"),
        format!("[store]\nurl = \"redis://u:{one}@h\"\npassword_file = \"/does/not/exist\"\n"),
        format!("[store]\npassword = \"{one}\n"),
        format!("[store]\npasword = \"{one}\"\n"),
        format!("pass = \"{one}\"\n"),
        format!("[store]\npassword = [\"{one}\"]\n"),
    ];
    for text in &in_file {
        assert_mistake_hidden(text, &[], &[]);
    }
    let url = format!("redis://u:{one}@h");
    assert_mistake_hidden("", &[], &["--store", &url]);
    assert_mistake_hidden("", &[], &["--output", &url]);
    assert_mistake_hidden("", &[("EDS_STORE__PASWORD", &one)], &[]);
    let twice = [("EDS_STORE__PASSWORD", one.as_str()), ("EDS_STORE__URL", &url)];
    assert_mistake_hidden("", &twice, &[]);
    let controlled = format!("{one}\n{two}");
    let broken = [("EDS_STORE__PASSWORD", controlled.as_str()), ("EDS_STORE__URL", "redis://h")];
    assert_mistake_hidden("", &broken, &[]);
}

#[test]
fn debug_output_hides_secrets() {
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(["h".to_owned()]).unwrap();
    let key_pem = made.signing_key.serialize_pem();
    let key_line = key_pem.lines().nth(1).expect("a line of base64").to_owned();
    fs::write(path("cert"), made.cert.pem()).unwrap();
    fs::write(path("key"), &key_pem).unwrap();
    fs::write(path("token"), secret("token")).unwrap();
    let text = format!(
        "[store]\nurl = \"rediss://u:{}@h\"\ncert_file = \"{}\"\nkey_file = \"{}\"\n[output]\nurl = \"https://h\"\n\
         org = \"o\"\nbucket = \"b\"\ntoken_file = \"{}\"\n",
        secret("url"),
        path("cert"),
        path("key"),
        path("token")
    );
    fs::write(path("eds.toml"), text).unwrap();
    let mut flags = Flags { config: Some(path("eds.toml").into()), ..Flags::default() };
    let (config, effective) = config::load(&flags, []).unwrap();
    flags.store = Some(format!("redis://u:{}@h", secret("flag")));
    let refused = config::load(&flags, []).unwrap_err();

    let credentials = Credentials {
        username: Some("u".to_owned()),
        password: Some(Secret::new(&secret("store"))),
    };
    let pem = |name| fs::read(path(name)).unwrap();
    let settings = Settings {
        redis: redis_link::Settings {
            address: Address::Server(Endpoint::Tcp("h".to_owned(), 1)),
            tls: Some(Tls { ca: Some(pem("cert")), client: Some((pem("cert"), pem("key"))) }),
            database: 0,
            credentials,
            timeouts: Timeouts {
                connect: Duration::from_secs(1),
                response: Duration::from_secs(1),
            },
            dial: None,
        },
        prefix: "eds".to_owned(),
        partitions: Partitions::new(NonZeroU16::MIN),
        layout: Layout::Sets,
        retention: Duration::from_secs(60),
        counts_max: 1,
        node: "n".to_owned(),
    };
    let store = RedisStore::new(&settings).unwrap();
    let shown = [
        format!("{config:?} {effective:?} {refused:?}"),
        format!("{settings:?} {store:?} {:?}", effective.to_toml(true)),
    ];
    // The key must appear neither as text nor as byte values.
    let bytes = format!("{:?}", &key_line.as_bytes()[..8]);
    for text in &shown {
        assert_hidden("Debug", text);
        assert!(!text.contains(&key_line), "the private key is shown");
        assert!(!text.contains(bytes.trim_matches(['[', ']'])), "the private key is shown");
    }
}
