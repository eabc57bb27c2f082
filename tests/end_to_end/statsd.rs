//! `statsd` sets, through a relay and directly.

use crate::prelude::*;

#[test]
fn statsd_sets_are_counted_once_per_relay() {
    let site = Site::start();
    let statsd = ("input.statsd", "true");
    let nodes = ["one", "two"].map(|name| site.start_node(name, &[statsd]));
    let to = nodes.each_ref().map(|node| node.udp().to_string());
    let mut relay = Node::relay("relay", &to.each_ref().map(String::as_str), &[statsd]);
    relay.run();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for user in ["ann", "bob", "ann"] {
        let datagram = format!("login:{user}|s|#region:eu\nhits:1|c\n");
        socket.send_to(datagram.as_bytes(), relay.udp()).unwrap();
    }
    for node in &nodes {
        node.wait_count("eds_events_recorded_total", |recorded| recorded == 3);
    }
    assert_eq!(relay.metrics().count("eds_relay_passthrough_dropped_total"), 3);
    // Each event has the relay's timestamp, so the copy for the second node is the same event.
    eventually("each event is counted once", SOON, || {
        let repeated =
            nodes.each_ref().map(|node| node.metrics().count("eds_events_repeated_total"));
        when(repeated.iter().sum::<u64>() == 3, format!("{repeated:?}"))
    });
    socket.send_to(b"login:eve|s", nodes[0].udp()).unwrap();
    nodes[0].wait_count("eds_events_recorded_total", |recorded| recorded == 4);
}
