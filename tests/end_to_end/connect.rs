//! `eds check --connect` tests every resource that a node uses and reports each result, without changing anything.

use std::os::unix::fs::PermissionsExt as _;

use crate::prelude::*;

fn check(node: &Node, arguments: &[&str]) -> (Output, String) {
    let output = node.command(&[&["check"], arguments].concat());
    let stdout = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    (output, stdout)
}

#[track_caller]
fn line(stdout: &str, subject: &str) -> String {
    let mut lines = stdout.lines().skip_while(|line| !line.contains(subject));
    let line = lines.next().unwrap_or_else(|| panic!("{subject:?} is not in:\n{stdout}"));
    let remedy = lines.next().filter(|line| line.trim().starts_with("do: "));
    format!("{line} {}", remedy.unwrap_or_default())
}

#[test]
fn check_prints_each_success_unless_quiet() {
    let site = Site::with_redis(RedisServer::start(&["--appendonly", "yes"]));
    let spool = tempfile::tempdir().unwrap();
    let keys = [
        ("input.spool_dir", spool.path().to_str().unwrap()),
        ("input.spool_max", "1MiB"),
        ("input.receive_buffer", "64KiB"),
    ];
    let mut node = site.node("one", &keys);
    let (output, stdout) = check(&node, &["--connect"]);
    assert!(output.status.success(), "{stdout}");
    for subject in [
        "Redis at 127.0.0.1",
        "maxmemory-policy noeviction",
        "the Redis user has all required permissions",
        "output default: InfluxDB",
        "input.listen: 127.0.0.1",
        "http.listen: 127.0.0.1",
        "input.spool_dir",
        "file descriptors",
        "input.receive_buffer",
    ] {
        assert!(line(&stdout, subject).starts_with("ok "), "{stdout}");
    }
    assert_eq!(site.redis.keys(), [""; 0], "the check left keys in Redis");
    let (output, stdout) = check(&node, &["--quiet"]);
    assert!(output.status.success() && stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
    let (_, stdout) = check(&node, &["--connect", "--quiet"]);
    assert!(!stdout.contains("ok "), "{stdout}");
    node.run();
    let (output, stdout) = check(&node, &["--connect"]);
    assert!(output.status.success(), "{stdout}");
    assert!(line(&stdout, "input.listen").contains("is in use"), "{stdout}");
}

#[test]
fn check_prints_each_problem_with_its_remedy() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(InfluxServer::start_with_auth());
    let users = [
        "--user",
        "eds",
        "on",
        ">secret",
        "~{eds:*",
        "~eds:settings",
        "+@all",
        "-smembers",
        "-zpopmin",
    ];
    let redis = RedisServer::start_asked_by_admin(&users);
    let url = redis.url();
    let mut node = Node::new(
        "one",
        &[
            ("store.url", &url),
            ("store.username", "eds"),
            ("output.url", &server.url()),
            ("output.api", "v1"),
            ("output.database", "eds"),
            ("output.username", "admin"),
            ("input.receive_buffer", "1GiB"),
        ],
    );
    node.set_environment("EDS_STORE__PASSWORD", "secret");
    node.set_environment("EDS_OUTPUT__PASSWORD", "wrong");
    node.listen_on(&["192.0.2.1:8094"]);
    let (output, stdout) = check(&node, &["--connect", "--quiet"]);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    for (subject, words) in [
        (
            "denies the configured user a required permission",
            &["PROBLEM", "smembers", "zpopmin", "config/redis-acl.conf"][..],
        ),
        ("no append-only file", &["WARNING", "`CONFIG SET appendonly yes`"]),
        ("output default", &["PROBLEM", "401", "output.username and output.password_file"]),
        ("input.listen", &["PROBLEM", "192.0.2.1", "an address of this host"]),
        ("input.receive_buffer", &["WARNING", "net.core.rmem_max"]),
    ] {
        let line = line(&stdout, subject);
        assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    }
    redis.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (_, stdout) = check(&node, &["--connect"]);
    assert!(line(&stdout, "allkeys-lru").contains("noeviction"), "{stdout}");

    let mut node =
        Node::new("one", &[("store.url", &format!("redis://127.0.0.1:{}", free_port()))]);
    node.set("output.url", &format!("http://127.0.0.1:{}", free_port()));
    node.set("output.org", "any");
    node.set("output.bucket", "any");
    let (output, stdout) = check(&node, &["--connect"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(line(&stdout, "Redis at").contains("start Redis"), "{stdout}");
    assert!(line(&stdout, "output default").contains("start the server"), "{stdout}");
}

#[test]
fn check_finds_that_the_spool_directory_cannot_be_created() {
    let parent = tempfile::tempdir().unwrap();
    fs::set_permissions(parent.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let spool = parent.path().join("spool");
    let node = Node::new("one", &[("input.spool_dir", spool.to_str().unwrap())]);
    node.write_config();
    let eds = env!("CARGO_BIN_EXE_eds");
    // Root may write to any directory, unless it gives up this capability.
    let is_root = tempfile::tempfile_in(&parent).is_ok();
    let mut check = Command::new(if is_root { "setpriv" } else { eds });
    if is_root {
        check.args(["--bounding-set", "-dac_override", eds]);
    }
    let checked = check.args(["check", "--connect", "--config"]).arg(node.config_path()).output();
    let stdout = String::from_utf8(checked.unwrap().stdout).unwrap();
    let line = line(&stdout, "input.spool_dir");
    assert!(line.contains("PROBLEM") && line.contains("user can write to"), "{stdout}");
}
