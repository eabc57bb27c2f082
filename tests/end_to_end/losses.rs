//! A loss is remembered, even after its process ends, until an operator acknowledges it.

use crate::prelude::*;
use crate::queries::check_schema;
use crate::status::{site, status};

/// Waits until `eds status` answers with `answer` and `words` whether anything is lost. Returns the status.
#[track_caller]
pub(crate) fn wait_answer(node: &Node, answer: &str, words: &str) -> Value {
    eventually(&format!("the answer is {answer}"), SOON, || {
        let status = status(node);
        let lost = &status["is_anything_lost"];
        let sentence = lost["sentence"].as_str().unwrap_or_default();
        let holds = lost["answer"] == answer && sentence.contains(words);
        when(holds, lost.clone()).map(|()| status)
    })
}

pub(crate) fn loss(node: &Node, arguments: &[&str]) -> Output {
    let output = node.command(&[&["loss"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output
}

pub(crate) fn listed(output: &Output) -> Vec<[String; 4]> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let lines = text.lines().skip(1).map(|line| {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        words.try_into().unwrap_or_else(|words| panic!("{words:?}"))
    });
    lines.collect()
}

fn send(node: &Node, events: i64) {
    let lines = (0..events)
        .map(|event| format!("event_type=e value=u{event:0>200} {}", SEED_MINUTE_NS + event));
    Sender::paced_by(node).send_all(lines);
}

#[track_caller]
fn wait_metric(node: &Node, cause: &str, amount: u64) {
    eventually("the metric has the expected value", SOON, || {
        let metrics = node.metrics();
        let seen = metrics.count_of("eds_losses_unacknowledged", &[("reason", cause)]);
        when(seen == amount, seen)
    });
}

#[test]
fn loss_survives_the_node_until_it_is_acknowledged() {
    let mut site = site();
    let mut node = site.start_node("one", &[("input.queue_events", "1000")]);
    wait_answer(&node, "no", "");
    site.redis.stop();
    send(&node, 3000);
    let dropped = node.metrics().count("eds_events_dropped_total");
    assert!(dropped >= 1000, "{dropped}");
    site.redis.restart();
    let amount = format!("{dropped} events dropped (queue_full)");
    wait_answer(&node, "yes", &amount);
    assert_eq!(node.terminate().code(), Some(3), "the exit code reports the loss, too");

    // The loss is known while no node is running, and after a restart.
    wait_answer(&node, "yes", &amount);
    node.run();
    let lost = wait_answer(&node, "yes", &amount);
    assert_eq!(lost["healthy"], false);
    let cause = &lost["losses"][0];
    assert_eq!((&cause["cause"], &cause["amount"]), (&"queue_full".into(), &dropped.into()));
    assert_eq!(cause["nodes"], serde_json::json!(["one"]));
    wait_metric(&node, "queue_full", dropped);
    let [line] = &listed(&loss(&node, &[]))[..] else {
        panic!("{lost}");
    };
    assert!(line[1].starts_with("one#"), "{line:?}");
    assert_eq!(line[2..], ["queue_full".to_owned(), dropped.to_string()]);
    let body = node.json("/api/v1/losses");
    let file: Value = serde_json::from_str(include_str!("../../docs/openapi.json")).unwrap();
    let schemas = &file["components"]["schemas"];
    check_schema(&file, &schemas["Losses"], &body, "Losses");
    check_schema(&file, &schemas["CauseStatus"], cause, "CauseStatus");
    assert_eq!(body["losses"][0]["amount"], dropped, "{body}");

    assert_eq!(listed(&loss(&node, &["acknowledge"])).len(), 1);
    wait_answer(&node, "no", "");
    wait_metric(&node, "queue_full", 0);
    assert!(loss(&node, &[]).stdout.is_empty());
    let body = node.json("/api/v1/losses");
    assert_eq!(body["losses"][0]["acknowledged"], dropped, "{body}");
}

/// While Redis is down, a node keeps its losses on disk for its next process.
#[test]
fn loss_of_a_process_without_redis_is_recorded_by_the_next_one() {
    let mut site = site();
    site.redis.stop();
    let keys = [
        ("input.queue_events", "1000"),
        ("input.spool_max", "1MiB"),
        ("input.drain_timeout", "1s"),
    ];
    let mut node = crate::spool::spooling(&site, "one", &keys);
    node.launch();
    eventually("the node responds", SOON, || node.get("/healthz"));
    send(&node, 10_000);
    let kept = node.spool().join("losses.json");
    let dropped = eventually("all losses are on disk", SOON, || {
        let text = std::fs::read(&kept).map_err(|error| error.to_string())?;
        let entries: Vec<(String, u64)> = serde_json::from_slice(&text).unwrap();
        let kept: u64 = entries.iter().map(|(_, amount)| amount).sum();
        let dropped = node.metrics().count("eds_events_dropped_total");
        when(kept == dropped, format!("{kept} of {dropped}")).map(|()| dropped)
    });
    node.kill();
    site.redis.restart();
    node.run();
    let lost = wait_answer(&node, "yes", "events dropped (spool_full)");
    let causes = lost["losses"].as_array().unwrap().iter();
    let amount: u64 = causes.map(|cause| cause["amount"].as_u64().unwrap()).sum();
    assert_eq!(amount, dropped, "{lost}");
    eventually("the file is deleted", SOON, || when(!kept.exists(), "it still exists"));
    assert_eq!(node.metrics().count("eds_events_dropped_total"), 0);
}

#[test]
fn node_with_a_memory_store_lists_its_losses() {
    let node = Node::start("one", &[("flush.grace", "300ms")]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let line = |user: &str| format!("event_type=login value={user} {SEED_MINUTE_NS}");
    socket.send_to(line("ann").as_bytes(), node.udp()).unwrap();
    node.wait_count("eds_points_sent_total", |seen| seen == 2);
    socket.send_to(line("late").as_bytes(), node.udp()).unwrap();
    wait_metric(&node, "late", 1);
    let body = node.json("/api/v1/losses");
    assert_eq!(body["losses"][0]["minute"], "20161204:1118", "{body}");
    let body = node.json("/api/v1/status");
    assert_eq!(body["is_anything_lost"]["answer"], "attention", "{body}");
    assert_eq!(node.command(&["loss"]).status.code(), Some(2));
}
