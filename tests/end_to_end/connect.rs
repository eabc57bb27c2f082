//! `eds check --connect` tries each resource that a node uses, and reports each result; it changes nothing.

use crate::prelude::*;

fn check(node: &Node, arguments: &[&str]) -> (Output, String) {
    let output = node.command(&[&["check"], arguments].concat());
    let said = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    (output, said)
}

#[track_caller]
fn line(said: &str, thing: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains(thing));
    let line = lines.next().unwrap_or_else(|| panic!("{thing:?} is not in:\n{said}"));
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
    let (output, said) = check(&node, &["--connect"]);
    assert!(output.status.success(), "{said}");
    for thing in [
        "Redis at 127.0.0.1",
        "maxmemory-policy noeviction",
        "the Redis user has all permissions",
        "output default: InfluxDB",
        "input.listen: 127.0.0.1",
        "http.listen: 127.0.0.1",
        "input.spool_dir",
        "file descriptors",
        "input.receive_buffer",
    ] {
        assert!(line(&said, thing).starts_with("ok "), "{said}");
    }
    assert_eq!(site.redis.keys(), [""; 0], "nothing is left in Redis");
    let (output, said) = check(&node, &["--quiet"]);
    assert!(output.status.success() && said.is_empty() && output.stderr.is_empty(), "{output:?}");
    let (_, said) = check(&node, &["--connect", "--quiet"]);
    assert!(!said.contains("ok "), "{said}");
    node.run();
    let (output, said) = check(&node, &["--connect"]);
    assert!(output.status.success(), "{said}");
    assert!(line(&said, "input.listen").contains("is in use"), "{said}");
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
    let (output, said) = check(&node, &["--connect", "--quiet"]);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for (thing, words) in [
        (
            "denies the configured user a permission",
            &["PROBLEM", "smembers", "zpopmin", "config/redis-acl.conf"][..],
        ),
        ("no append-only file", &["unwise", "`CONFIG SET appendonly yes`"]),
        ("output default", &["PROBLEM", "401", "output.username and output.password_file"]),
        ("input.listen", &["PROBLEM", "192.0.2.1", "an address of this host"]),
        ("input.receive_buffer", &["unwise", "net.core.rmem_max"]),
    ] {
        let line = line(&said, thing);
        assert!(words.iter().all(|word| line.contains(word)), "{words:?}: {line}");
    }
    redis.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (_, said) = check(&node, &["--connect"]);
    assert!(line(&said, "allkeys-lru").contains("noeviction"), "{said}");

    let mut node =
        Node::new("one", &[("store.url", &format!("redis://127.0.0.1:{}", free_port()))]);
    node.set("output.url", &format!("http://127.0.0.1:{}", free_port()));
    node.set("output.org", "any");
    node.set("output.bucket", "any");
    let (output, said) = check(&node, &["--connect"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(line(&said, "Redis at").contains("start it"), "{said}");
    assert!(line(&said, "output default").contains("start the server"), "{said}");
}
