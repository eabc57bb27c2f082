//! Queries succeed even if the other side has closed idle connections.

use crate::prelude::*;
use crate::queries::five_minutes_ago_ns;

const PATHS: [&str; 5] = [
    "/api/v1/top?by=unique",
    "/api/v1/live",
    "/api/v1/minutes",
    "/api/v1/series",
    "/api/v1/coverage",
];

/// Starts two nodes that have answered queries and are now idle except for their periodic work.
fn asked(site: &Site, url: &str) -> [Node; 2] {
    let keys = [("store.url", url), ("flush.grace", "300ms")];
    let nodes = ["one", "two"].map(|name| site.start_node(name, &keys));
    let mut sender = Sender::paced_by(&nodes[0]);
    sender.send(format!("event_type=a,product=x value=ann {}", five_minutes_ago_ns()));
    site.wait_exact(&sender.expected.points(), SOON);
    assert_eq!(failures(&nodes), [""; 0]);
    nodes
}

/// Sends 30 queries and returns the failed responses.
fn failures(nodes: &[Node; 2]) -> Vec<String> {
    let all = (0..30).map(|number| (&nodes[number % 2], PATHS[number / 2 % PATHS.len()]));
    let answers = all.map(|(node, path)| (path, node.get(path).expect("a node answers")));
    let failed = answers.filter(|(_, answer)| answer.status != 200);
    failed.map(|(path, answer)| format!("{path}: {} {}", answer.status, answer.body)).collect()
}

#[test]
fn queries_work_again_once_a_killed_redis_is_back() {
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut site = Site::with_redis(redis);
    let url = site.redis.url();
    let nodes = asked(&site, &url);
    for _ in 0..3 {
        site.redis.kill();
        site.redis.restart();
        assert_eq!(failures(&nodes), [""; 0]);
    }
}
