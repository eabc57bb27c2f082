//! `eds relay` in front of real nodes: under any fault, each node gets every event once, and other lines are passed on.

use testing::process::resident_kib;

use crate::hostile::hostile_datagram;
use crate::prelude::*;
use crate::upgrade::{EndsWith, Loader, PUBLISHED, UNREAD_BYTES_MAX};

const KEYS: [(&str, &str); 2] = [("flush.grace", "8s"), ("flush.max_hold", "10m")];
/// Keeps every minute open during the test.
const OPEN: [(&str, &str); 2] = [("flush.grace", "1h"), ("flush.max_hold", "1h")];

#[track_caller]
pub(crate) fn start_relay(name: &str, nodes: &[Node], keys: &[(&str, &str)]) -> Node {
    let mut relay = relay(name, nodes, keys);
    relay.run();
    relay
}

fn relay(name: &str, nodes: &[Node], keys: &[(&str, &str)]) -> Node {
    let to: Vec<_> = nodes.iter().map(|node| node.udp().to_string()).collect();
    let to: Vec<_> = to.iter().map(String::as_str).collect();
    Node::relay(name, &to, keys)
}

fn nodes(site: &Site, keys: &[(&str, &str)]) -> [Node; 2] {
    ["one", "two"].map(|name| site.start_node(name, keys))
}

/// Sends datagrams to a relay, no faster than the relay and these nodes read them.
#[track_caller]
pub(crate) fn send<D: AsRef<[u8]>>(
    datagrams: impl IntoIterator<Item = D>,
    relay: &Node,
    nodes: &[Node],
) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for (number, datagram) in datagrams.into_iter().enumerate() {
        socket.send_to(datagram.as_ref(), relay.udp()).unwrap();
        if number % 64 == 63 {
            wait_taken(relay, nodes);
        }
    }
    wait_taken(relay, nodes);
}

#[track_caller]
fn wait_taken(relay: &Node, nodes: &[Node]) {
    eventually("all sent datagrams are read", SOON, || {
        let sockets = nodes.iter().chain([relay]).map(|node| udp_socket(node.udp()));
        let unread: u64 = sockets.flatten().map(|socket| socket.unread_bytes).sum();
        when(unread == 0, unread)
    });
}

/// Asserts that every line is counted exactly once for each node. Returns the number of lines received.
#[track_caller]
pub(crate) fn assert_ledger_adds_up(metrics: &Metrics, nodes: &[&str]) -> u64 {
    let count = |name: &str| metrics.count(&format!("eds_relay_{name}"));
    let received = count("lines_received_total");
    let events = count("events_total");
    let rest =
        ["passthrough_sent_total", "passthrough_dropped_total", "passthrough_queued"].map(count);
    let refused = ["lines_rejected_total", "lines_looped_total"].map(count);
    let sum = events + rest.iter().chain(&refused).sum::<u64>();
    assert_eq!(received, sum, "{events} events, {rest:?} other, {refused:?} rejected and looped");
    for node in nodes {
        let count_to =
            |name: &str| metrics.count_of(&format!("eds_relay_events_{name}"), &[("to", node)]);
        let parts = ["sent_total", "dropped_total", "queued"].map(count_to);
        assert_eq!(events, parts.iter().sum::<u64>(), "{node}: {parts:?}");
    }
    received
}

#[test]
fn either_relay_and_either_node_may_be_killed_under_load() {
    let site = Site::start();
    let mut nodes = nodes(&site, &KEYS);
    let mut relays = ["east", "west"].map(|name| start_relay(name, &nodes, &[]));
    let addresses = relays.each_ref().map(Node::udp);
    let loader = Loader::default();
    let expected = thread::scope(|scope| {
        let ends = EndsWith(&loader.ended);
        // A sender to both relays loses nothing when one of them dies.
        let loading = scope.spawn(|| loader.run(UNREAD_BYTES_MAX, |_| addresses.to_vec()));
        for _ in 0..2 {
            for victim in relays.iter_mut().chain(&mut nodes) {
                loader.wait_sent(300);
                victim.kill();
                loader.wait_sent(100);
                victim.run();
            }
        }
        loader.wait_sent(300);
        drop(ends);
        loading.join().unwrap()
    });
    site.wait_exact(&expected.points(), PUBLISHED);
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_clean();
    for relay in &mut relays {
        assert_eq!(relay.terminate().code(), Some(0), "{}", relay.log());
    }
}

#[test]
fn relay_with_an_inherited_socket_restarts_under_load_without_loss() {
    let site = Site::start();
    let nodes = nodes(&site, &KEYS);
    let mut relay = relay("one", &nodes, &[]);
    relay.hold_socket();
    relay.run();
    let udp = relay.udp();
    let unread_bytes_max = relay.held_buffer_bytes() / 2;
    let loader = Loader::default();
    let expected = thread::scope(|scope| {
        let ends = EndsWith(&loader.ended);
        let loading = scope.spawn(|| loader.run(unread_bytes_max, |_| vec![udp]));
        for _ in 0..4 {
            loader.wait_sent(300);
            assert_eq!(relay.terminate().code(), Some(0), "{}", relay.log());
            loader.wait_sent(100);
            assert!(udp_socket(udp).unwrap().unread_bytes > 0);
            relay.run();
        }
        drop(ends);
        loading.join().unwrap()
    });
    site.wait_exact(&expected.points(), PUBLISHED);
    assert_eq!(udp_socket(udp).unwrap().drops, 0);
    assert_eq!(count(&nodes, "eds_kernel_drops_total"), 0);
    site.assert_one_value_a_point();
}

#[test]
fn unreachable_node_affects_no_other_and_is_reported() {
    const LINES: u64 = 3000;
    let node = Node::start("one", &OPEN);
    let closed = format!("127.0.0.1:{}", free_port());
    let living = node.udp().to_string();
    let to = ["nowhere.invalid:8094", &closed, &living];
    let mut relay = Node::relay("relay", &to, &[]);
    relay.run();
    let lines = (0..LINES).map(|at| format!("a=b value=u {}", SEED_MINUTE_NS + at.cast_signed()));
    send(lines, &relay, std::slice::from_ref(&node));
    node.wait_count("eds_events_recorded_total", |recorded| recorded == LINES);
    eventually("all events are sent", SOON, || {
        let metrics = relay.metrics();
        let received = assert_ledger_adds_up(&metrics, &to);
        let queued = metrics.count("eds_relay_events_queued");
        when((received, queued) == (LINES, 0), (received, queued))
            .map_err(|seen| format!("{seen:?}"))
    });
    let metrics = relay.metrics();
    let count_to =
        |name: &str, to: &str| metrics.count_of(&format!("eds_relay_{name}"), &[("to", to)]);
    let no_address = [("to", to[0]), ("reason", "no_address")];
    let dropped = metrics.count_of("eds_relay_events_dropped_total", &no_address);
    assert_eq!(dropped, LINES);
    assert!(count_to("refusals_total", &closed) > 0);
    assert_eq!(to.map(|to| count_to("node_up", to)), [0, 0, 1]);
    let ready = relay.get("/readyz").unwrap();
    assert_eq!(ready.status, 200, "{}", ready.body);
    for name in &to[..2] {
        assert!(ready.body.contains(&format!("cannot send to a node ({name}:")), "{}", ready.body);
        assert!(relay.log().contains(name), "{}", relay.log());
    }
    assert!(relay.get("/healthz").unwrap().body.contains("ok"));
    // The exit code is 0, because one node has all events.
    assert_eq!(relay.terminate().code(), Some(0));
    drop(node);

    // Without that node, events reach no node.
    relay.set_list("relay.to", &to[..1]);
    relay.launch();
    relay.wait_answer("/readyz", 503, "");
    send(["a=b value=u"], &relay, &[]);
    assert_eq!(relay.terminate().code(), Some(3));
    let last = relay.last_ledger();
    assert!(last.contains("nowhere=1"), "{last}");
}

#[test]
fn lines_without_timestamps_are_equal_on_all_nodes() {
    const LINES: u64 = 2000;
    let site = Site::start();
    let nodes = nodes(&site, &OPEN);
    let relays = ["1", "2"].map(|number| start_relay(number, &nodes, &[("relay.number", number)]));
    let datagram = ["a=b value=u"; 10].join("\n");
    for relay in &relays {
        send((0..LINES / 10).map(|_| &datagram), relay, &nodes);
    }
    wait_count(&nodes, "eds_events_recorded_total", |recorded| recorded == 4 * LINES);
    assert_eq!(count(&nodes, "eds_events_repeated_total"), 2 * LINES);
    let keys = site.redis.keys();
    let sets = keys.iter().filter(|key| key.contains(":cumulative_user:"));
    let events: u64 = sets.map(|key| site.redis.query::<u64>(&["SCARD", key])).sum();
    assert_eq!(events, 2 * LINES);
}

#[test]
fn passthrough_lines_are_forwarded_unchanged_by_udp() {
    let rest = UdpSocket::bind("127.0.0.1:0").unwrap();
    rest.set_read_timeout(Some(SOON)).unwrap();
    let url = format!("udp://{}", rest.local_addr().unwrap());
    let node = Node::start("one", &OPEN);
    let mut relay = relay("relay", std::slice::from_ref(&node), &[("passthrough.url", &url)]);
    relay.set_list("relay.events", &["login", "kind=event"]);
    relay.run();
    let passed: [&[u8]; 4] = [
        b"# of telegraf\r\ncpu,host=a usage=0.5 5\r\n\r\nmem,host=a value=3i 5\r\n",
        b"\x00\xff no line protocol\n\"",
        b"gorets:1|c",
        b"# nothing but a comment",
    ];
    for datagram in passed {
        send([datagram], &relay, &[]);
        let mut buffer = [0; 2000];
        let length = rest.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], datagram);
    }
    let at = SEED_MINUTE_NS;
    let mixed =
        format!("login value=u {at}\ncpu,host=a usage=1 5\na=b,kind=event value=u {at}\r\nx");
    send([mixed], &relay, &[]);
    let mut buffer = [0; 2000];
    let length = rest.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"cpu,host=a usage=1 5\nx\n");
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 2);
    let metrics = relay.metrics();
    let received = assert_ledger_adds_up(&metrics, &[&node.udp().to_string()]);
    assert_eq!((received, metrics.count("eds_relay_passthrough_sent_total")), (9, 7));
}

#[test]
fn passthrough_waits_for_its_server_and_a_bad_line_is_dropped_alone() {
    const LINES: u64 = 5000;
    let mut site = Site::start();
    let node = site.start_node("one", &OPEN);
    let url = format!("{}?db={DATABASE}", site.writes.url());
    let relay = start_relay("relay", std::slice::from_ref(&node), &[("passthrough.url", &url)]);
    site.writes.set(Mode::Refuse);
    let line = |at: u64| {
        let at_nanos = SEED_MINUTE_NS + at.cast_signed();
        let event = format!("a=b value=u {at_nanos}\n");
        let passthrough = match at {
            // The server refuses a field whose type has changed.
            1234 => format!("cpu,host=a usage=\"high\" {at_nanos}"),
            // The server repeats this line in a header, which makes its response invalid.
            3456 => "cpu,host=a\u{1} usage=99999999999999999999i".to_owned(),
            _ => format!("cpu,host=h{} usage=0.5 {at_nanos}", at % 10),
        };
        format!("{passthrough}\n{event}")
    };
    send((0..LINES).map(line), &relay, std::slice::from_ref(&node));
    // Events do not wait for passthrough lines.
    node.wait_count("eds_events_recorded_total", |recorded| recorded == LINES);
    eventually("the server is reported as down", SOON, || {
        let metrics = relay.metrics();
        let up = metrics.count("eds_relay_passthrough_up");
        when(up == 0 && metrics.count("eds_relay_passthrough_queued") == LINES, up)
    });
    site.writes.set(Mode::Pass);
    eventually("all passthrough lines are sent", SOON, || {
        let metrics = relay.metrics();
        assert_ledger_adds_up(&metrics, &[&node.udp().to_string()]);
        let queued = metrics.count("eds_relay_passthrough_queued");
        when(queued == 0, queued)
    });
    let metrics = relay.metrics();
    assert_eq!(metrics.count("eds_relay_passthrough_sent_total"), LINES - 2);
    let refused = [("reason", "refused")];
    assert_eq!(metrics.count_of("eds_relay_passthrough_dropped_total", &refused), 2);
    let written = site.query("SELECT COUNT(usage) FROM cpu");
    assert_eq!(written[0]["values"][0][1].as_u64(), Some(LINES - 2));
    assert!(
        relay.log().contains("the server in passthrough.url rejected passthrough lines"),
        "{}",
        relay.log()
    );
}

/// Tests a line that a filter always refuses, and one that is refused together with a line accepted before.
#[test]
fn passthrough_line_that_is_never_accepted_does_not_block_others() {
    let mut site = Site::start();
    site.writes.set(Mode::Filter("wicked", 403));
    let node = site.start_node("one", &OPEN);
    let url = format!("{}?db={DATABASE}", site.writes.url());
    let relay = start_relay("relay", std::slice::from_ref(&node), &[("passthrough.url", &url)]);
    let rest_sends = |lines: [&str; 3], stamp: &str, sent, refused| {
        let lines = lines.map(|line| format!("{line}{stamp}"));
        send(lines, &relay, std::slice::from_ref(&node));
        eventually("the other lines are written", SOON, || {
            let metrics = relay.metrics();
            let reason = [("reason", "refused")];
            let seen = (
                metrics.count("eds_relay_passthrough_sent_total"),
                metrics.count_of("eds_relay_passthrough_dropped_total", &reason),
            );
            when(seen == (sent, refused), format!("{seen:?}"))
        });
    };
    rest_sends(["cpu a=1", "cpu b=2", "cpu c=3"], " 5", 3, 0);
    rest_sends(["cpu d=4", "cpu text=\"wicked\"", "cpu e=5"], " 5", 5, 1);
    // The filter now also refuses the line that is known to be accepted.
    site.writes.set(Mode::Filter("cpu", 400));
    rest_sends(["mem a=1", "cpu f=6", "mem b=2"], " 5", 7, 2);
    // Likewise, but no line without a timestamp can replace the known line.
    site.writes.set(Mode::Filter("mem", 400));
    rest_sends(["cpu a=1", "mem c=3", "cpu b=2"], "", 9, 3);
}

#[test]
fn unwritten_passthrough_lines_set_the_exit_code() {
    let mut site = Site::start();
    site.writes.set(Mode::Refuse);
    let node = Node::start("one", &OPEN);
    let url = format!("{}?db={DATABASE}", site.writes.url());
    let keys = [
        ("passthrough.url", &*url),
        ("input.drain_timeout", "500ms"),
        ("passthrough.queue_bytes", "64KiB"),
    ];
    let mut relay = start_relay("relay", std::slice::from_ref(&node), &keys);
    let filler = "x".repeat(1000);
    // The queue holds 64 of these lines, and the writer may hold another batch.
    send((0..300).map(|at| format!("cpu text=\"{filler}\" {at}")), &relay, &[]);
    relay.wait_count("eds_relay_lines_received_total", |received| received == 300);
    let full = relay
        .metrics()
        .count_of("eds_relay_passthrough_dropped_total", &[("reason", "queue_full")]);
    assert!((170..=236).contains(&full), "{full}");
    assert_eq!(relay.terminate().code(), Some(3));
    let last = relay.last_ledger();
    assert!(last.contains("passthrough_dropped=300"), "{last}");
}

/// The ledger adds up, the memory of the relay does not grow, and nodes accept the syntax of all forwarded events.
#[test]
fn random_and_mutated_datagrams_are_harmless() {
    const DATAGRAMS: u64 = 100_000;
    const GROWTH_KIB_MAX: u64 = 16 * 1024;
    let mut random = SmallRng::seed_from_u64(seed());
    let site = Site::start();
    let node = site.start_node("one", &[("log.level", "info")]);
    let name = node.udp().to_string();
    let rest = UdpSocket::bind("127.0.0.1:0").unwrap();
    let url = format!("udp://{}", rest.local_addr().unwrap());
    let keys = [("passthrough.url", &*url), ("log.level", "info")];
    let relay = start_relay("relay", std::slice::from_ref(&node), &keys);
    let mut warm_kib = 0;
    for part in 0..20 {
        let datagrams = (0..DATAGRAMS / 20).map(|_| hostile_datagram(&mut random));
        send(datagrams, &relay, std::slice::from_ref(&node));
        assert_ledger_adds_up(&relay.metrics(), &[&name]);
        if part == 9 {
            warm_kib = resident_kib(relay.pid());
        }
    }
    let received = eventually("no lines are queued", SOON, || {
        let metrics = relay.metrics();
        let received = assert_ledger_adds_up(&metrics, &[&name]);
        let queued = ["events_queued", "passthrough_queued"]
            .map(|gauge| metrics.count(&format!("eds_relay_{gauge}")));
        when(queued == [0, 0], format!("{queued:?}")).map(|()| received)
    });
    let metrics = relay.metrics();
    assert_eq!(metrics.count("eds_relay_kernel_drops_total"), 0);
    assert!(received > DATAGRAMS / 2, "only {received} lines");
    let end_kib = resident_kib(relay.pid());
    assert!(end_kib < warm_kib + GROWTH_KIB_MAX, "grew from {warm_kib} to {end_kib} KiB");
    let sent = metrics.count("eds_relay_events_sent_total");
    node.wait_count("eds_events_received_total", |received| received == sent);
    assert!(sent > DATAGRAMS / 20, "only {sent} events");
    let theirs = node.metrics();
    for reason in event_data_service::event::Rejection::ALL {
        let label = reason.label();
        let rejected = theirs.count_of("eds_events_rejected_total", &[("reason", label)]);
        let is_theirs = label.contains("timestamp_in_")
            || ["too_old", "too_far_ahead"].contains(&label)
            || label.ends_with("_too_long");
        assert!(rejected == 0 || is_theirs, "{rejected} events are {label}");
    }
    assert!(relay.get("/healthz").unwrap().status == 200);
}
