//! A node drops the events that it cannot take, and counts them exactly.

use std::net::UdpSocket;

use loadgen::Plan;
use testing::eventually::{SOON, eventually, when};
use testing::redis::RedisServer;

use crate::site::Site;
use crate::support::load::Sender;
use crate::support::node::Node;

fn load(events: u64) -> Plan {
    testing::load::load(0..1, events, 50, 500)
}

#[test]
fn what_the_kernel_drops_is_counted_to_the_datagram() {
    const DATAGRAMS: u64 = 2000;
    let node = Node::start("stopped", &[("input.receive_buffer", "64KiB")]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 1..=3 {
        // While it is stopped its socket fills up.
        node.signal("STOP");
        for datagram in load(15 * 2000).datagrams() {
            socket.send_to(&datagram, node.udp()).unwrap();
        }
        node.signal("CONT");
        eventually("every datagram is received or counted as dropped", SOON, || {
            let metrics = node.metrics();
            let received = metrics.count("eds_datagrams_received_total");
            let dropped = metrics.count("eds_kernel_drops_total");
            let seen = format!("{received} received, {dropped} dropped");
            assert!(received + dropped <= round * DATAGRAMS, "{seen}");
            when(received + dropped == round * DATAGRAMS && dropped > 0, seen)
        });
    }
    node.metrics().assert_ledger_adds_up();
}

#[test]
fn what_the_queue_has_no_room_for_is_counted_to_the_event() {
    const QUEUE: u64 = 1000;
    const EVENTS: u64 = 6000;
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let mut node = site.node("one", &[("input.queue_events", "1000")]);
    node.launch();
    eventually("it answers", SOON, || node.get("/healthz"));
    let mut sender = Sender::paced_by(&node);
    sender.send_all(load(EVENTS).datagrams(), &node, &[]);
    let metrics = node.metrics();
    let [queued, dropped] =
        ["eds_events_queued", "eds_events_dropped_total"].map(|name| metrics.count(name));
    assert_eq!(queued + dropped, EVENTS);
    assert!((QUEUE / 2..=QUEUE).contains(&queued), "{queued}");
    // The log has the drops while the node runs, and later drops once a minute.
    eventually("the log says so", SOON, || {
        let log = node.log();
        let mut lines = log.lines().filter(|line| line.contains("ERROR"));
        let said = lines.find(|line| line.contains("queue_full") && line.contains("amount="));
        when(said.is_some_and(|line| line.contains("input.spool_dir")), format!("{said:?}"))
    });

    site.redis.restart();
    node.wait_ready();
    node.wait_count("eds_events_recorded_total", |recorded| recorded == queued);
}
