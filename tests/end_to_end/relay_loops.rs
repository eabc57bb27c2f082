//! Relays that send to themselves are refused at startup, and loops of several relays are broken at run time.

use crate::prelude::*;
use crate::relay::{assert_ledger_adds_up, send};
use crate::status::status;

/// The maximum number of times the relays of a loop may receive a line in total.
const RECEIVED_MAX: u64 = 20;

#[track_caller]
fn check_is_refused(mut relay: Node, key: &str) {
    let port = relay.udp().port();
    relay.launch();
    let ended = relay.wait_for_exit(SOON);
    let log = relay.log();
    // The exit code is 2 if the address is in the configuration.
    assert!([Some(1), Some(2)].contains(&ended.code()), "{log}");
    let words = [key, &port.to_string(), "this relay itself"];
    assert!(words.iter().all(|word| log.contains(word)), "{log}");
}

#[test]
fn relay_that_sends_to_itself_is_refused() {
    for listen in ["127.0.0.1", "0.0.0.0", "[::]"] {
        for to in ["127.0.0.1", "0.0.0.0", "localhost"] {
            let mut relay = Node::relay("relay", &[], &[]);
            let port = relay.udp().port();
            relay.listen_on(&[format!("{listen}:{port}")]);
            relay.set_list("relay.to", &[format!("{to}:{port}")]);
            check_is_refused(relay, "relay.to");
        }
    }
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], &[]);
    let rest = format!("udp://localhost:{}", relay.udp().port());
    relay.set("passthrough.url", &rest);
    check_is_refused(relay, "passthrough.url");
}

/// Starts two relays that send to each other. The first also sends to a node.
fn circle(node: &Node) -> [Node; 2] {
    let mut relays = ["one", "two"].map(|name| Node::relay(name, &[], &[]));
    let [one, two] = relays.each_ref().map(|relay| relay.udp().to_string());
    relays[0].set_list("relay.to", &[two, node.udp().to_string()]);
    relays[1].set_list("relay.to", &[one]);
    relays.iter_mut().for_each(Node::run);
    relays
}

/// Waits until a relay breaks and reports the loop, and asserts that lines went round only a few times.
#[track_caller]
fn wait_ended(relays: &[Node], lines: u64, received_max: u64) {
    eventually("the loop is broken and reported", SOON, || {
        let sum =
            |name: &str| -> u64 { relays.iter().map(|relay| relay.metrics().count(name)).sum() };
        let received = sum("eds_relay_lines_received_total");
        assert!(received <= received_max, "{lines} lines became {received}");
        let looped = sum("eds_relay_lines_looped_total");
        let told = relays.iter().any(|relay| {
            let log = relay.log();
            let mut lines = log.lines();
            lines.any(|line| line.contains("form a loop") && line.contains("source=127.0.0.1:"))
        });
        when(looped > 0 && told, format!("{looped} of {received} looped, reported: {told}"))
    });
}

#[test]
fn events_sent_to_relays_in_a_loop_all_reach_the_nodes() {
    const EVENTS: u64 = 5000;
    let node = Node::start("node", &[("flush.grace", "1h"), ("flush.max_hold", "1h")]);
    let relays = circle(&node);
    let event = |at: u64| format!("a=b value=u{at} {}", SEED_MINUTE_NS + at.cast_signed());
    for at in 0..EVENTS / 100 {
        let lines: Vec<_> = (0..100).map(|nth| event(at * 100 + nth)).collect();
        // The events enter at both relays, between circulating lines.
        for part in lines.chunks(10) {
            send([part.join("\n")], &relays[usize::from(at % 2 == 0)], &relays);
        }
    }
    eventually("all events are recorded", SOON, || {
        let metrics = node.metrics();
        let recorded = metrics.count("eds_events_recorded_total");
        let repeated = metrics.count("eds_events_repeated_total");
        let new = recorded - repeated;
        when(new == EVENTS, format!("{new} of {EVENTS}"))
    });
    wait_ended(&relays, EVENTS, EVENTS * RECEIVED_MAX);
    assert_ledger_adds_up(&relays[1].metrics(), &[&relays[0].udp().to_string()]);
}

/// Passthrough lines carry no loop mark, because other servers read them.
#[test]
fn passthrough_lines_in_a_loop_are_dropped_and_reported() {
    for count in [2, 3] {
        let site = Site::with_redis(RedisServer::start(&["--appendonly", "yes"]));
        let node = site.start_node("one", &[]);
        let names = (0..count).map(|number| format!("relay-{number}"));
        let to = node.udp().to_string();
        let mut relays: Vec<_> = names.map(|name| Node::relay(&name, &[&to], &[])).collect();
        let addresses: Vec<_> = relays.iter().map(Node::udp).collect();
        for (place, relay) in relays.iter_mut().enumerate() {
            let next = addresses[(place + 1) % count];
            relay.set("node", &format!("relay-{place}"));
            relay.set("store.url", &site.redis.url());
            relay.set("passthrough.url", &format!("udp://{next}"));
            relay.run();
        }
        send(["gorets:1|c"], &relays[0], &[]);
        let looped = |relay: &Node| {
            let reason = [("reason", "looped")];
            let metrics = relay.metrics();
            metrics.count_of("eds_relay_passthrough_dropped_total", &reason)
        };
        eventually("the loop is broken and reported", SOON, || {
            let dropped: u64 = relays.iter().map(looped).sum();
            let mut logs = relays.iter().map(Node::log);
            let is_logged = logs.any(|log| log.contains("relays form a loop"));
            let status = status(&node);
            let mut findings = status["findings"].as_array().unwrap().iter();
            let is_found = findings.any(|finding| {
                let summary = finding["what"].as_str().unwrap();
                finding["id"] == "relay-loop" && summary.contains("passthrough lines")
            });
            when(
                dropped == 1 && is_logged && is_found,
                format!("{dropped} dropped, logged: {is_logged}, {status}"),
            )
        });
        let [first, .., last] = &mut relays[..] else {
            panic!("there are at least two relays");
        };
        let closed = if looped(first) == 1 { last } else { first };
        closed.kill();
        eventually("a relay logs that it sends lines again", SOON, || {
            let mut logs = relays.iter().map(Node::log);
            when(logs.any(|log| log.contains("sending them again")), "not yet")
        });
    }
}
