//! `eds status` names the right cause of faults in Redis, outputs and nodes, with a remedy.

use crate::prelude::*;
use crate::queries::{check_schema, five_minutes_ago_ns};

pub(crate) fn site() -> Site {
    Site::with_redis(RedisServer::start(&["--appendonly", "yes"]))
}

pub(crate) fn ask(node: &Node, arguments: &[&str]) -> Output {
    node.command(&[&["status"], arguments].concat())
}

/// Returns the output of `eds status --json` after checking the exit code.
pub(crate) fn status(node: &Node) -> Value {
    let output = ask(node, &["--json"]);
    let status: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let expected = i32::from(status["healthy"] != true);
    assert_eq!(output.status.code(), Some(expected), "{status}");
    status
}

pub(crate) fn all_words(finding: &Value) -> String {
    let texts = ["where", "what", "why", "remedy"].map(|part| finding[part].as_str().unwrap());
    texts.join(" | ")
}

#[track_caller]
pub(crate) fn wait_first(node: &Node, id: &str, words: &[&str]) -> Value {
    eventually(&format!("{id} is the first finding"), SOON, || {
        let status = status(node);
        let first = &status["findings"][0];
        let holds = first["id"] == id && words.iter().all(|word| all_words(first).contains(word));
        when(holds, status["findings"].clone()).map(|()| status)
    })
}

#[track_caller]
pub(crate) fn wait_healthy(node: &Node) -> Value {
    eventually("the cluster is healthy", SOON, || {
        let status = status(node);
        let is_there = status["nodes"][0]["outputs"].is_array();
        when(status["healthy"] == true && is_there, status.clone()).map(|()| status)
    })
}

fn send(sender: &mut Sender, events: i64) {
    let at = five_minutes_ago_ns();
    for event in 0..events {
        let (series, at) = (event % 10, at + event);
        sender.send(format!("event_type=e{series},product=p value=user{event} {at}"));
    }
}

#[test]
fn healthy_cluster_is_shown_as_a_table_and_as_json() {
    let site = site();
    let nodes = ["one", "two"].map(|name| site.start_node(name, &[]));
    let mut sender = Sender::to_all(&nodes);
    send(&mut sender, 500);
    site.wait_exact(&sender.expected.points(), SOON);
    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let answered = eventually("both nodes report all events", SOON, || {
        let status = wait_healthy(&nodes[0]);
        let seen = |node: &Value| node["coverage"] == 1.0 && node["totals"]["recorded"] == 500;
        let nodes = status["nodes"].as_array().unwrap();
        when(nodes.len() == 2 && nodes.iter().all(seen), status.clone()).map(|()| status)
    });
    assert_eq!(answered["is_anything_lost"]["answer"], "no");
    let schema = &file["components"]["schemas"];
    for (name, part) in [
        ("NodeStatus", &answered["nodes"][0]),
        ("PartitionsStatus", &answered["partitions"]),
        ("OutputStatus", &answered["outputs"][0]),
        ("RedisStatus", &answered["redis"]),
    ] {
        check_schema(&file, &schema[name], part, name);
    }
    let output = ask(&nodes[1], &[]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_contains(
        &table,
        [
            "healthy, at ",
            "Has anything been lost? No: ",
            "one ",
            "two ",
            "append-only file",
            "InfluxDB at http",
        ],
    );
    // A node that was stopped properly is not reported as missing.
    let [one, mut two] = nodes;
    assert!(two.terminate().success());
    let status = wait_healthy(&one);
    assert_eq!(status["nodes"].as_array().unwrap().len(), 1, "{status}");
}

#[test]
fn memory_store_is_shown_by_its_node_only() {
    let node = Node::start("one", &[]);
    let output = ask(&node, &[]);
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains(&format!("http://{}/api/v1/status", node.http())), "{words}");
    let output = ask(&node, &["--watch", "--store", "redis://127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2), "--watch needs a terminal");
    assert!(String::from_utf8_lossy(&output.stderr).contains("terminal"));
}

#[test]
fn what_is_unknown_without_redis_is_left_out() {
    let mut site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    site.redis.stop();
    let status = wait_first(&node, "redis-down", &["start Redis", "refused"]);
    assert_eq!(status["is_anything_lost"]["answer"], "unknown");
    for unknown in [
        "/partitions/by_state",
        "/outputs/0/up",
        "/outputs/0/unsent",
        "/outputs/0/quarantined",
        "/redis/memory_by_formula",
        "/redis/servers/0/used_memory",
        "/redis/servers/0/persistence",
    ] {
        assert_eq!(status.pointer(unknown), None, "{unknown} of {status}");
    }
    eventually("the metrics leave out unknown values", SOON, || {
        let metrics = node.metrics();
        let told: Vec<_> = [
            "eds_backlog_pending",
            "eds_backlog_claimed",
            "eds_backlog_unsent",
            "eds_counts_quarantined",
            "eds_oldest_unsent_minute_age_seconds",
        ]
        .into_iter()
        .filter(|name| metrics.has(name))
        .collect();
        when(told.is_empty(), format!("{told:?}"))
    });
}

#[test]
fn status_names_a_rejecting_node_with_reason_example_and_remedy() {
    let site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for line in 0..200 {
        let line = format!("page.views\u{1b}:{line}|c\npage.views.{}:1|c", "x".repeat(500));
        socket.send_to(line.as_bytes(), node.udp()).unwrap();
    }
    let words = ["node one", "400 of 400 lines (100%)"];
    // The receiver passes on examples of lines once per second, after it has counted them.
    let status = wait_for(
        "both reasons are reported",
        || wait_first(&node, "rejects-lines", &words),
        |status| {
            let reported = status["nodes"][0]["rejected"].as_array().unwrap();
            reported.len() == 2 && reported.iter().all(|loss| loss["lines"] == 200)
        },
    );
    assert_eq!(status["healthy"], false);
    let lost = &status["is_anything_lost"];
    assert_eq!(lost["answer"], "attention", "{lost}");
    let sentence = lost["sentence"].as_str().unwrap();
    assert!(sentence.contains("400 of 400 lines"), "{sentence}");
    let reported = status["nodes"][0]["rejected"].as_array().unwrap();
    for (reason, example) in
        [("user_missing", "page.views\\x1b:"), ("tag_too_long", "page.views.xxx")]
    {
        let found = reported.iter().find(|loss| loss["reason"] == reason);
        let found = found.unwrap_or_else(|| panic!("{reason}: {reported:?}"));
        let shown = found["example"].as_str().unwrap();
        assert!(shown.starts_with(example) && shown.len() <= 200, "{shown}");
    }
    let first = reported[0]["reason"].as_str().unwrap();
    let remedy = ["input.max_tag", "input.user_field"];
    let remedy = remedy[usize::from(first == "user_missing")];
    let finding = all_words(&status["findings"][0]);
    assert!(finding.contains(first) && finding.contains(remedy), "{finding}");
    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let schema = &file["components"]["schemas"]["NodeStatus"];
    check_schema(&file, schema, &status["nodes"][0], "NodeStatus");
    let table = String::from_utf8(ask(&node, &[]).stdout).unwrap();
    assert_contains(&table, ["not healthy", "Has anything been lost? Attention: ", "rejected 400"]);
    assert!(!table.contains('\u{1b}'), "{table:?}");
}
