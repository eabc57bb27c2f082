//! Remedies of faults of the lines that senders send. A corrected sender sends none of them to the next process.

use std::net::UdpSocket;

use testing::eventually::{SOON, eventually, when};

use super::{Remedy, findings, site, wait_gone};
use crate::queries::five_minutes_ago_ns;
use crate::status::{status, wait_healthy};
use crate::support::load::Sender;
use crate::support::node::Node;

/// The same node, with another process.
fn restart(node: &mut Node) {
    node.kill();
    node.run();
}

#[test]
fn lines_that_are_rejected_are_sent_right() {
    let site = site();
    let mut node = site.start_node("one", &[]);
    let at = five_minutes_ago_ns();
    for (id, good) in [("rejects-lines", 0), ("rejects-few", 500)] {
        let mut sender = Sender::paced_by(&node);
        let lines = (0..good).map(|event| format!("event_type=e value=u{event} {}", at + event));
        sender.send_all(lines, &node, &[]);
        sender.send_unrecorded(b"page.views:1|c", &node, &[]);
        let remedy = Remedy::of(&node, id, &["node one", "page.views"]);
        assert!(!remedy.text.is_empty());
        restart(&mut node);
        wait_gone(&node, id);
    }
    wait_healthy(&node);
}

#[test]
fn coarse_stamps_are_made_finer() {
    let site = site();
    let mut node = site.start_node("one", &[]);
    let at = five_minutes_ago_ns();
    let send = |node: &Node, stamp: &dyn Fn(i64) -> i64| {
        let mut sender = Sender::paced_by(node);
        let lines =
            (0..300).map(|event| format!("event_type=coarse,product=p value=ann {}", stamp(event)));
        sender.send_all(lines, node, &[]);
        // The next lines are judged alone.
        node.wait_count("eds_events_queued", |queued| queued == 0);
    };
    // Each millisecond has fifty events, and then one.
    for (id, of_a_stamp) in [("stamps-coincide", 50), ("stamps-rounded", 1)] {
        send(&node, &|event| at + event / of_a_stamp * 1_000_000);
        let remedy = Remedy::of(&node, id, &["node one"]);
        remedy.says(&["nanoseconds", "docs/input.md"]);
        restart(&mut node);
        send(&node, &|event| at + 123_457 + event * 1_000_001);
        wait_gone(&node, id);
    }
}

#[test]
fn lines_without_a_time_that_two_nodes_get_are_stamped() {
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
        when(!found.is_empty(), status)
    });
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
