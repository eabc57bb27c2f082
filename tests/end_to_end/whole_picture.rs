//! Two relays send every event to two nodes, which share Redis and write to two databases. A third gets all other lines.
//! During the load, one of the two is down, and a node and a relay are killed and restarted.

use crate::outputs::set_outputs;
use crate::prelude::*;
use crate::relay::assert_ledger_adds_up;
use crate::upgrade::{UNREAD_BYTES_MAX, send_into_room};

/// The grace is longer than any killed process is down.
const KEYS: [(&str, &str); 2] = [("flush.grace", "8s"), ("flush.max_hold", "10m")];
/// Allows for the longest pause between two probes, the backlog, and the grace.
const PUBLISHED: Duration = Duration::from_secs(120);
const REST: &str = "telegraf";
const EVENTS_PER_DATAGRAM: u64 = 15;

#[test]
fn two_relays_two_nodes_and_two_databases_are_exact_through_outages_and_kills() {
    the_whole_picture_is_exact(60_000, Duration::from_secs(40));
}

#[test]
#[ignore = "takes eight minutes: scripts/test --test end_to_end --run-ignored only million_events_through"]
fn million_events_through_two_relays_two_nodes_and_two_databases_are_exact() {
    the_whole_picture_is_exact(1_000_000, Duration::from_secs(400));
}

/// Sends ten minutes of events within `lasts`. One line in ten is not an event.
fn the_whole_picture_is_exact(events: u64, lasts: Duration) {
    let site = Site::start();
    site.command(&format!("CREATE DATABASE {REST}"));
    let rest = format!("http://{}?db={REST}", site.influxdb);
    let mut backup = Site::only(InfluxServer::start());
    let mut nodes = ["one", "two"].map(|name| {
        let mut node = site.node(name, &KEYS);
        set_outputs(&mut node, &site, &[("backup", &backup)]);
        node.run();
        node
    });
    let to = nodes.each_ref().map(|node| node.udp().to_string());
    let to = to.each_ref().map(String::as_str);
    let mut relays = ["1", "2"].map(|number| {
        let keys = [("relay.number", number), ("passthrough.url", &rest)];
        let mut relay = Node::relay(&format!("relay{number}"), &to, &keys);
        relay.run();
        relay
    });
    let addresses = relays.each_ref().map(Node::udp);
    let sent = AtomicU64::new(0);
    let datagrams = events / EVENTS_PER_DATAGRAM;
    let wait_sent = |percent: u64| {
        eventually("the load continues", lasts, || {
            let sent = sent.load(Ordering::SeqCst);
            when(sent * 100 >= datagrams * percent, sent)
        });
    };
    let (expected, others) = thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let plan = Plan { shuffle: false, ..load(0..10, events, 100, 2000) };
            let (mut expected, mut others) = (Expected::default(), 0);
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let began = Instant::now();
            for (number, mut datagram) in (0_u32..).zip(plan.datagrams()) {
                let due = lasts * number / u32::try_from(datagrams).unwrap();
                thread::sleep(due.saturating_sub(began.elapsed()));
                expected.receive(&datagram);
                // Five lines for every three datagrams, each of them a separate point.
                for _ in 0..=(number % 3).min(1) {
                    let line = format!(
                        "\ncpu,host=h{} usage=0.5 {}",
                        others % 10,
                        SEED_MINUTE_NS + others
                    );
                    datagram.extend_from_slice(line.as_bytes());
                    others += 1;
                }
                for address in addresses {
                    send_into_room(&socket, &datagram, address, UNREAD_BYTES_MAX);
                }
                sent.fetch_add(1, Ordering::SeqCst);
            }
            (expected, others)
        });
        wait_sent(8);
        backup.writes.set(Mode::Refuse);
        for (percent, victim) in [(20, &mut nodes[0]), (50, &mut relays[1])] {
            wait_sent(percent);
            victim.kill();
            wait_sent(percent + 5);
            victim.run();
        }
        wait_sent(90);
        backup.writes.set(Mode::Pass);
        loading.join().unwrap()
    });
    let expected = expected.points();
    site.wait_exact(&expected, PUBLISHED);
    backup.wait_exact(&expected, PUBLISHED);
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    eventually("all passthrough lines are written", SOON, || {
        let written = site.query(&format!("SELECT COUNT(usage) FROM {REST}..cpu"));
        let written = written.first().and_then(|series| series["values"][0][1].as_i64());
        when(written == Some(others), format!("{written:?} of {others}"))
    });
    for relay in &mut relays {
        assert_ledger_adds_up(&relay.metrics(), &to);
        assert_eq!(relay.terminate().code(), Some(0), "{}", relay.log());
    }
    site.assert_clean();
}
