//! Remedies for findings about relays.

use super::{Remedy, site, wait_gone};
use crate::prelude::*;
use crate::relay::send;
use crate::status::wait_healthy;

fn relay(site: &Site, name: &str, to: &[&str], keys: &[(&str, &str)]) -> Node {
    let mut relay = Node::relay(name, to, keys);
    relay.set("node", name);
    relay.set("store.url", &site.redis.url());
    relay
}

/// Starts a relay that cannot become ready.
fn launch(relay: &mut Node) {
    relay.launch();
    eventually("the relay responds", SOON, || relay.get("/healthz").map(drop));
}

fn both(keys: &[(&str, &str)]) -> (Site, Node, Node) {
    let site = site();
    let node = site.start_node("one", &[]);
    let mut relay = relay(&site, "east", &[&node.udp().to_string()], keys);
    relay.run();
    (site, node, relay)
}

#[test]
fn suspended_relay_is_resumed() {
    let (_site, node, relay) = both(&[]);
    wait_healthy(&node);
    relay.signal("STOP");
    Remedy::of(&node, "relay-silent", &["relay east"]).says(&["check its host"]);
    relay.signal("CONT");
    wait_gone(&node, "relay-silent");
}

#[test]
fn unreachable_node_address_is_corrected() {
    let site = site();
    let node = site.start_node("one", &[]);
    let mut relay = relay(&site, "east", &["nowhere.invalid:8094"], &[]);
    launch(&mut relay);
    send(["a=b value=u"; 5], &relay, &[]);
    let lost = Remedy::of(&node, "relay-nowhere", &["relay east"]);
    lost.says(&["relay.to"]);
    Remedy::of(&node, "relay-node-down", &["relay east"]).says(&["its address in relay.to"]);
    relay.kill();
    relay.set_list("relay.to", &[node.udp()]);
    relay.run();
    lost.run("eds loss acknowledge", &node);
    wait_gone(&node, "relay-nowhere");
    wait_gone(&node, "relay-node-down");
}

#[test]
fn lines_rejected_by_a_relay_are_corrected() {
    let (_site, node, mut relay) = both(&[("passthrough.url", "none:")]);
    send(["gorets:1|c", "a=b value=u\\"], &relay, &[]);
    Remedy::of(&node, "relay-discards", &["relay east"]).says(&["passthrough.url"]);
    Remedy::of(&node, "relay-rejects", &["relay east"]).says(&["docs/input.md"]);
    // A corrected sender sends no such lines to the next process.
    relay.kill();
    relay.run();
    send(["a=b value=u"], &relay, &[]);
    wait_gone(&node, "relay-discards");
    wait_gone(&node, "relay-rejects");
}

#[test]
fn failing_socket_of_a_relay_is_replaced_by_a_restart() {
    let site = site();
    let node = site.start_node("one", &[]);
    let mut relay = relay(&site, "east", &[&node.udp().to_string()], &[]);
    relay.hold_socket();
    relay.run();
    relay.shut_down_held_socket();
    Remedy::of(&node, "socket-fails", &["relay east"]).says(&["check its log and restart it"]);
    relay.kill();
    relay.let_go_of_socket();
    relay.run();
    wait_gone(&node, "socket-fails");
}

#[test]
fn small_receive_buffer_of_a_relay_is_raised() {
    let (_site, node, mut relay) = both(&[("input.receive_buffer", "64KiB")]);
    let flood = |relay: &Node| {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        relay.signal("STOP");
        for _ in 0..400 {
            socket.send_to(&[b'#'; 1000], relay.udp()).unwrap();
        }
        relay.signal("CONT");
        relay.wait_count("eds_relay_datagrams_received_total", |received| received > 0);
    };
    flood(&relay);
    let remedy = Remedy::of(&node, "kernel-drops", &["relay east"]);
    remedy.says(&["raise input.receive_buffer"]);
    relay.kill();
    relay.set("input.receive_buffer", "4MiB");
    relay.run();
    flood(&relay);
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "kernel-drops");
}

#[test]
fn passthrough_server_that_is_down_is_started() {
    let mut site = site();
    let node = site.start_node("one", &[]);
    let url = format!("{}?db={DATABASE}", site.writes.url());
    let keys = [("passthrough.url", &*url), ("passthrough.queue_bytes", "64KiB")];
    let mut relay = relay(&site, "east", &[&node.udp().to_string()], &keys);
    relay.run();
    site.writes.set(Mode::Refuse);
    let line = format!("cpu,host=a load=1,text=\"{}\" 1", "x".repeat(500));
    send(vec![&*line; 400], &relay, &[]);
    Remedy::of(&node, "relay-passthrough-down", &["relay east"])
        .says(&["start the server", "passthrough.url"]);
    let lost = Remedy::of(&node, "relay-passthrough-drops", &["relay east"]);
    lost.says(&["raise passthrough.queue_bytes"]);
    site.writes.set(Mode::Pass);
    wait_gone(&node, "relay-passthrough-down");
    relay.kill();
    relay.set("passthrough.queue_bytes", "64MiB");
    relay.run();
    send(vec![&*line; 400], &relay, &[]);
    lost.run("eds loss acknowledge", &node);
    wait_gone(&node, "relay-passthrough-drops");
}

#[test]
fn relay_loop_is_removed() {
    let site = site();
    let node = site.start_node("one", &[]);
    let mut relays = ["east", "west"].map(|name| relay(&site, name, &[], &[]));
    let [east, west] = relays.each_ref().map(|relay| relay.udp().to_string());
    let to_node = node.udp().to_string();
    relays[0].set_list("relay.to", &[&west, &to_node]);
    relays[1].set_list("relay.to", &[&east]);
    for relay in &mut relays {
        relay.run();
    }
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(b"a=b value=u", relays[0].udp()).unwrap();
    Remedy::of(&node, "relay-loop", &["relay"]).says(&["relay.to"]);
    for relay in &mut relays {
        relay.kill();
        relay.set_list("relay.to", &[&to_node]);
        relay.run();
        socket.send_to(b"a=b value=u", relay.udp()).unwrap();
    }
    wait_gone(&node, "relay-loop");
}

#[test]
fn duplicate_relay_name_is_changed() {
    let (site, node, first) = both(&[]);
    let mut second = relay(&site, "east", &[&node.udp().to_string()], &[]);
    second.run();
    Remedy::of(&node, "name-taken", &["relay east"]).says(&["EDS_NODE"]);
    second.kill();
    second.set_environment("EDS_NODE", "west");
    second.run();
    wait_gone(&node, "name-taken");
    drop(first);
}

#[test]
fn unreadable_report_of_a_relay_is_readable_after_the_upgrade() {
    let (site, node, _relay) = both(&[]);
    let now: Vec<i64> = site.redis.query(&["TIME"]);
    let ms = (now[0] * 1000 + 5000).to_string();
    site.redis.query::<()>(&["SET", "{eds:relays}:old", "old#1 0.0.9\n{\"uptime_seconds\": []}"]);
    site.redis.query::<()>(&["ZADD", "{eds:relays}", &ms, "old"]);
    Remedy::of(&node, "report-unreadable", &["relay old"])
        .says(&["the version of eds that wrote the report"]);
    let mut upgraded = relay(&site, "old", &[&node.udp().to_string()], &[]);
    upgraded.run();
    wait_gone(&node, "report-unreadable");
}
