//! Remedies for findings about the lines that senders send. Once corrected, they send valid lines to the next process.

use super::{Remedy, findings, site, wait_gone};
use crate::prelude::*;
use crate::queries::five_minutes_ago_ns;
use crate::status::{all_words, status, wait_first, wait_healthy};

fn restart(node: &mut Node) {
    node.kill();
    node.run();
}

#[test]
fn rejected_lines_are_corrected() {
    let site = site();
    let mut node = site.start_node("one", &[]);
    let at = five_minutes_ago_ns();
    for (id, good) in [("rejects-lines", 0), ("rejects-few", 500)] {
        let mut sender = Sender::paced_by(&node);
        let lines = (0..good).map(|event| format!("event_type=e value=u{event} {}", at + event));
        sender.send_all(lines);
        sender.send_unrecorded(b"page.views:1|c");
        let remedy = Remedy::of(&node, id, &["node one", "page.views"]);
        assert!(!remedy.text.is_empty());
        restart(&mut node);
        wait_gone(&node, id);
    }
    wait_healthy(&node);
}

#[test]
fn coarse_timestamps_are_refined() {
    let site = site();
    let mut node = site.start_node("one", &[]);
    let at = five_minutes_ago_ns();
    let send = |node: &Node, stamp: &dyn Fn(i64) -> i64| {
        let mut sender = Sender::paced_by(node);
        let lines =
            (0..300).map(|event| format!("event_type=coarse,product=p value=ann {}", stamp(event)));
        sender.send_all(lines);
        // The next lines must be judged separately.
        node.wait_count("eds_events_queued", |queued| queued == 0);
    };
    // Microsecond timestamps, as sent from Python.
    send(&node, &|event| at + event * 37_000);
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 300);
    assert_eq!(wait_healthy(&node)["findings"], serde_json::json!([]));
    // Millisecond timestamps, as from `Date.now() * 1e6` in JavaScript: fifty events per millisecond, and then one.
    for (id, of_a_stamp) in [("stamps-coincide", 50), ("stamps-rounded", 1)] {
        send(&node, &|event| at + event / of_a_stamp * 1_000_000);
        let remedy = Remedy::of(&node, id, &["node one", "event_type=coarse,product=p"]);
        remedy.says(&["nanoseconds", "docs/input.md"]);
        if id == "stamps-coincide" {
            wait_first(&node, id, &["whole milliseconds"]);
            let log = node.log();
            let line = log.lines().find(|line| line.contains("count as one"));
            let line = line.expect("the log warns");
            assert!(line.contains("WARN") && line.contains("event_type=coarse"), "{line}");
        }
        restart(&mut node);
        send(&node, &|event| at + 123_457 + event * 1_000_001);
        wait_gone(&node, id);
    }
}

#[test]
fn unstamped_copies_are_stamped() {
    let site = site();
    let mut nodes = ["one", "two"].map(|name| site.start_node(name, &[]));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut user = 0;
    eventually("both nodes get the same lines", SOON, || {
        for _ in 0..10 {
            user += 1;
            for node in &nodes {
                let line = format!("event_type=login,product=p value=user{user}");
                socket.send_to(line.as_bytes(), node.udp()).unwrap();
            }
        }
        let status = status(&nodes[0]);
        let found = findings(&status, "unstamped-copies");
        let found: Vec<_> = found.iter().map(all_words).collect();
        let copies = ["node one | two nodes receive the same lines", "node two"];
        let is_told = found.len() == 2
            && copies.iter().all(|words| found[0].contains(words))
            && found[1].contains("eds relay");
        when(is_told, status)
    });
    for node in &nodes {
        let log = node.log();
        let warned = log.lines().filter(|line| line.contains("these lines count twice"));
        assert_eq!(warned.filter(|line| line.contains("WARN")).count(), 1);
        let answer = node.get("/api/v1/status").unwrap().body;
        assert!(!answer.contains("\"unstamped\":"), "samples must not be served: {answer}");
    }
    let remedy = Remedy::of(&nodes[0], "unstamped-copies", &[]);
    remedy.says(&["timestamp", "docs/input.md"]);
    for node in &mut nodes {
        restart(node);
    }
    let at = five_minutes_ago_ns();
    for event in 0..10 {
        for node in &nodes {
            let line = format!("event_type=login,product=p value=user{event} {}", at + event);
            socket.send_to(line.as_bytes(), node.udp()).unwrap();
        }
    }
    wait_gone(&nodes[0], "unstamped-copies");
}
