//! What the log tells of events that are not counted: enough to find who sends them, and never so much that it floods.

use std::net::UdpSocket;

use crate::support::eventually::{SOON, eventually, when};
use crate::support::load::{MINUTE_NS, SEED_MINUTE_NS};
use crate::support::node::Node;

/// Sends it, and waits until the node has taken so many events.
#[track_caller]
fn send(socket: &UdpSocket, node: &Node, datagram: &[u8], received: u64) {
    socket.send_to(datagram, node.udp()).unwrap();
    eventually("it is received", SOON, || {
        let seen = node.metrics().count("eds_events_received_total");
        when(seen == received, seen)
    });
}

fn lines(node: &Node, words: &str) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains(words));
    lines.map(ToOwned::to_owned).collect()
}

#[test]
fn late_events_are_told_once_a_minute() {
    let keys = [("flush.grace", "300ms"), ("log.level", "info")];
    let mut node = Node::start("one", &keys);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut received = 0;
    let mut send = |node: &Node, minute: i64, user: &str| {
        received += 1;
        let at = SEED_MINUTE_NS + minute * MINUTE_NS;
        let line = format!("event_type=login value={user} {at}");
        send(&socket, node, line.as_bytes(), received);
    };
    let wait = |node: &Node, metric: &str, count: u64| {
        eventually("it is counted", SOON, || {
            let seen = node.metrics().count(metric);
            when(seen == count, seen)
        });
    };
    send(&node, 0, "ann");
    send(&node, 1, "ann");
    wait(&node, "eds_points_sent_total", 4);
    for (late, minute) in (1..).zip([0, 0, 1]) {
        send(&node, minute, &format!("late{late}"));
        wait(&node, "eds_events_late_total", late);
    }
    let told = "the counts of their minutes were fixed";
    let first = lines(&node, told);
    assert_eq!(first.len(), 1, "{first:?}");
    for word in [
        "WARN",
        "events=1 ",
        "partitions={",
        "20161204:1118",
        "after=",
    ] {
        assert!(first[0].contains(word), "{word}: {first:?}");
    }
    // What was not told by then is told at the end.
    assert_eq!(node.terminate().code(), Some(0));
    let all = lines(&node, told);
    assert_eq!(all.len(), 2, "{all:?}");
    for word in ["events=2 ", "first=20161204:1118 last=20161204:1119"] {
        assert!(all[1].contains(word), "{word}: {all:?}");
    }
}
