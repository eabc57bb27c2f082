//! Relays appear in `eds status`, on a node's page and in its API, and each relay shows its own state.

use crate::acl::rights_of;
use crate::losses::{listed, loss, wait_answer};
use crate::prelude::*;
use crate::queries::check_schema;
use crate::relay::{send, start_relay};
use crate::status::ask;

fn status(node: &Node) -> Value {
    node.json("/api/v1/status")
}

#[track_caller]
fn wait_relay(node: &Node, name: &str, is_meant: impl Fn(&Value) -> bool) -> Value {
    eventually("the node shows the relay", SOON, || {
        let status = status(node);
        let relays = status["relays"].as_array().unwrap();
        let found = relays.iter().any(|shown| shown["name"] == name && is_meant(shown));
        when(found, status.clone()).map(|()| status)
    })
}

fn finding<'a>(status: &'a Value, id: &str) -> Option<&'a Value> {
    let findings = status["findings"].as_array().unwrap();
    findings.iter().find(|found| found["id"] == id)
}

/// Creates the Redis user of relays as in `config/redis-acl.conf`, and returns the URL for relays.
fn url_of_relays(redis: &RedisServer) -> String {
    let command = ["ACL", "SETUSER", "eds-relay"].into_iter();
    let command: Vec<_> = command.chain(rights_of("eds-relay ")).collect();
    redis.query::<String>(&command);
    let url = redis.url();
    url.replace("redis://", "redis://eds-relay:change-me@")
}

#[test]
fn relay_is_shown_with_the_nodes() {
    let site = Site::start_at_second(10);
    let node = site.start_node("one", &[("flush.grace", "1h"), ("flush.max_hold", "1h")]);
    let url = url_of_relays(&site.redis);
    let keys = [("node", "east"), ("store.url", &*url)];
    let mut relay = start_relay("east", std::slice::from_ref(&node), &keys);

    send(["a=b value=u", "gorets:1|c", "a=b value=u\\"], &relay, &[]);
    // The receiver passes on examples of lines once per second, after it has counted them.
    let seen = wait_relay(&node, "east", |shown| {
        let unsent = shown["unsent"].as_array().map_or(0, Vec::len);
        shown["totals"]["received"] == 3 && shown["to"][0]["sent"] == 1 && unsent == 2
    });
    let file = include_str!("../../docs/openapi.json");
    let file: Value = serde_json::from_str(file).unwrap();
    let schema = &file["components"]["schemas"]["RelayStatus"];
    check_schema(&file, schema, &seen["relays"][0], "RelayStatus");
    let relay_seen = &seen["relays"][0];
    assert_eq!(relay_seen["listen"][0], relay.udp().to_string());
    assert_eq!(relay_seen["silent"], false);
    for (id, word) in [("relay-discards", "gorets:1|c"), ("relay-rejects", "trailing_backslash")] {
        let found = finding(&seen, id).unwrap_or_else(|| panic!("{id}: {seen}"));
        assert_eq!(found["where"], "relay east");
        assert!(found["why"].as_str().unwrap().contains(word), "{found}");
    }
    assert_eq!(seen["healthy"], false);
    let output = ask(&node, &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    let own = relay.get("/").unwrap();
    assert_eq!(own.status, 200);
    for text in [&table, &own.body] {
        assert_contains(
            text,
            ["relay east: discards lines", "1 lines", "gorets:1|c", "listening on 127.0.0.1:"],
        );
    }
    let keys = site.redis.keys();
    assert!(keys.iter().any(|key| key == "{eds:relays}:east"), "{keys:?}");

    // A relay counts as silent after 15 s without a report.
    relay.signal("STOP");
    site.clock().advance(20);
    let silent = wait_relay(&node, "east", |shown| shown["silent"] == true);
    assert!(finding(&silent, "relay-silent").is_some(), "{silent}");
    assert_eq!(silent["is_anything_lost"]["answer"], "unknown");
    relay.signal("CONT");
    wait_relay(&node, "east", |shown| shown["silent"] == false);
    assert_eq!(relay.terminate().code(), Some(0));
    wait_for(
        "the relay has removed its report",
        || status(&node),
        |status| status["relays"] == Value::Array(Vec::new()),
    );
}

#[test]
fn loss_of_a_relay_survives_it_until_acknowledged() {
    let site = Site::with_redis(RedisServer::start(&["--appendonly", "yes"]));
    let url = url_of_relays(&site.redis);
    let node = site.start_node("one", &[("flush.grace", "1h"), ("flush.max_hold", "1h")]);
    let nobody = format!("nowhere.invalid:{}", free_port());
    let nowhere = format!("http://127.0.0.1:{}/?db=eds", free_port());
    let keys =
        [("store.url", &*url), ("passthrough.url", &*nowhere), ("input.drain_timeout", "100ms")];
    let mut relay = Node::relay("west", &[&nobody], &keys);
    relay.set("node", "west");
    relay.launch();
    eventually("the relay responds", SOON, || relay.get("/healthz").map(drop));
    send(["a=b value=u"; 5], &relay, &[]);
    let lost = "5 events not sent to any node (relay_nowhere)";
    let seen = wait_answer(&node, "yes", lost);
    let found = finding(&seen, "relay-nowhere").unwrap();
    assert_eq!((&found["where"], &found["severity"]), (&"relay west".into(), &"critical".into()));
    wait_relay(&node, "west", |shown| shown["to"][0]["up"] == false);
    eventually("the lost events are logged", SOON, || {
        let log = relay.log();
        let mut errors = log.lines().filter(|line| line.contains("ERROR"));
        let is_told =
            errors.any(|line| line.contains("relay_nowhere") && line.contains("amount=5"));
        when(is_told, log.clone())
    });
    // Passthrough lines that are still queued at shutdown are also lost.
    send(["cpu load=1 1"; 3], &relay, &[]);
    relay.wait_count("eds_relay_passthrough_queued", |waiting| waiting == 3);
    assert_eq!(relay.terminate().code(), Some(3));
    wait_answer(&node, "yes", lost);
    wait_answer(&node, "yes", "3 passthrough lines dropped (relay_passthrough_dropped)");
    let mut lines = listed(&loss(&node, &["acknowledge"]));
    lines.sort_by(|a, b| a[2].cmp(&b[2]));
    let of_west = lines.iter().all(|line| line[1].starts_with("west#"));
    let amounts: Vec<_> = lines.iter().map(|line| (&*line[2], &*line[3])).collect();
    let expected = [("relay_nowhere", "5"), ("relay_passthrough_dropped", "3")];
    assert!(of_west && amounts == expected, "{lines:?}");
    wait_answer(&node, "no", "");
    let refused: Vec<BTreeMap<String, String>> = site.redis.query(&["ACL", "LOG"]);
    assert!(refused.is_empty(), "denied by Redis: {refused:?}");
}

/// A relay never waits for Redis.
#[test]
fn relay_forwards_while_its_redis_does_not_answer() {
    let node = Node::start("one", &[("flush.grace", "1h"), ("flush.max_hold", "1h")]);
    // This server accepts connections but never responds.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let mut relay = start_relay("relay", std::slice::from_ref(&node), &[("store.url", &url)]);
    relay.send(b"a=b value=u");
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 1);
    relay.wait_log("cannot report the state of this relay to Redis");
    assert_eq!(relay.terminate().code(), Some(0));
}
