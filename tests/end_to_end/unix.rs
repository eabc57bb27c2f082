//! Unix sockets: senders wait while the node has no room, and every accepted datagram is counted.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::thread::{self, JoinHandle};

use crate::prelude::*;

fn place() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("eds.sock");
    (directory, path)
}

fn node(site: &Site, path: &Path, keys: &[(&str, &str)]) -> Node {
    let mut node = site.node("one", keys);
    node.listen_on(&[format!("unix:{}", path.display())]);
    node
}

/// Sends this many events, one per datagram, or until sending fails. Returns the expected counts.
fn send(path: PathBuf, events: i64) -> JoinHandle<Expected> {
    thread::spawn(move || {
        let socket = UnixDatagram::unbound().unwrap();
        let mut expected = Expected::default();
        for number in 0..events {
            let (series, user) = (number % 7, number % 100);
            let line = format!("event_type=e{series} value=u{user} {}", SEED_MINUTE_NS + number);
            if socket.send_to(line.as_bytes(), &path).is_err() {
                break;
            }
            expected.receive(line.as_bytes());
        }
        expected
    })
}

#[test]
fn unix_senders_wait_while_the_queue_is_full() {
    const EVENTS: i64 = 20_000;
    let site = Site::start();
    let (_directory, path) = place();
    let mut node = node(&site, &path, &[("input.queue_events", "2000")]);
    node.run();
    site.redis.signal("STOP");
    let sender = send(path.clone(), EVENTS);
    node.wait_count("eds_listeners_full", |full| full == 1);
    let client = UnixDatagram::unbound().unwrap();
    client.set_nonblocking(true).unwrap();
    eventually("a nonblocking send fails", SOON, || match client.send_to(b"# no event", &path) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(()),
        sent => Err(format!("{sent:?}")),
    });
    let metrics = node.metrics();
    metrics.assert_ledger_adds_up();
    assert!(!sender.is_finished());
    let received = metrics.count("eds_events_received_total");
    assert!((2000..4000).contains(&received), "{received}");

    site.redis.signal("CONT");
    let expected = sender.join().unwrap();
    site.wait_exact(&expected.points(), SOON);
    let metrics = node.metrics();
    metrics.assert_ledger_adds_up();
    for (name, count) in [
        ("eds_events_recorded_total", 20_000),
        ("eds_events_dropped_total", 0),
        ("eds_listeners_full", 0),
    ] {
        assert_eq!(metrics.count(name), count, "{name}");
    }
    assert!(node.terminate().success());
    assert!(!path.exists(), "the socket file still exists");
}

#[test]
fn empty_datagrams_are_counted() {
    let site = Site::start();
    let (_directory, path) = place();
    let mut node = node(&site, &path, &[]);
    node.run();
    let (_relay_directory, relay_path) = place();
    let mut relay = Node::relay("relay", &["127.0.0.1:9"], &[]);
    relay.listen_on(&[format!("unix:{}", relay_path.display())]);
    relay.run();
    let socket = UnixDatagram::unbound().unwrap();
    for (program, path, metric) in [
        (&mut node, path, "eds_datagrams_received_total"),
        (&mut relay, relay_path, "eds_relay_datagrams_received_total"),
    ] {
        for number in 1..=3 {
            socket.send_to(b"", &path).unwrap();
            program.wait_count(metric, |count| count == number);
        }
        assert!(program.terminate().success(), "{}", program.log());
        let log = program.log();
        assert!(!log.contains("ERROR"), "{log}");
    }
}

#[test]
fn events_received_before_a_stop_are_counted() {
    let site = Site::start();
    let (_directory, path) = place();
    let mut node = node(&site, &path, &[("input.threads", "2")]);
    node.run();
    let sender = send(path, i64::MAX);
    node.wait_count("eds_events_recorded_total", |recorded| recorded > 5000);
    assert!(node.terminate().success());
    let expected = sender.join().unwrap();
    let _next = site.start_node("two", &[]);
    site.wait_exact(&expected.points(), SOON);
}

#[test]
fn send_writes_to_a_unix_socket_and_udp() {
    let site = Site::start();
    let (directory, path) = place();
    let mut node = site.node("one", &[]);
    node.set_environment("EDS_INPUT__SOCKET_MODE", "0620");
    let both = [node.udp().to_string(), format!("unix:{}", path.display())];
    node.listen_on(&both);
    node.run();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o620);
    let expected = directory.path().join("expected");
    let mut command = eds();
    command.args(["send", "--quiet", "--events", "5000", "--start", "2016-12-04T18:38:00Z"]);
    for to in &both {
        command.args(["--to", to]);
    }
    let output = command.arg("--expected").arg(&expected).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = read_back::written(&std::fs::read(&expected).unwrap());
    site.wait_exact(&expected, SOON);
}

/// A listener thread that waits for room must not delay the stop.
#[test]
fn node_with_waiting_senders_stops_in_time_and_counts_drops() {
    let site = Site::start();
    let (_directory, path) = place();
    let keys = [("input.queue_events", "1000"), ("input.drain_timeout", "1s")];
    let mut node = node(&site, &path, &keys);
    node.run();
    site.redis.signal("STOP");
    let sender = send(path, i64::MAX);
    node.wait_count("eds_listeners_full", |full| full == 1);
    assert_eq!(node.terminate().code(), Some(3), "{}", node.log());
    let points = sender.join().unwrap().points();
    let events = points.iter().filter(|(point, _)| point.measurement == "cumulative_user_event");
    let taken = format!("received={}", events.map(|(_, count)| count).sum::<u64>());
    let log = node.log();
    let last = log.lines().rfind(|line| line.contains("received=")).unwrap();
    assert!(last.contains(&taken), "{taken}: {last}");
}

#[test]
fn stopping_relay_forwards_everything_in_its_socket() {
    // Few enough to fit in the buffer of the UDP socket of the node.
    const EVENTS: i64 = 1000;
    let site = Site::start();
    let (_directory, path) = place();
    let node = site.start_node("one", &[]);
    let mut relay = Node::relay("relay", &[&node.udp().to_string()], &[]);
    relay.listen_on(&[format!("unix:{}", path.display())]);
    relay.run();
    let expected = send(path.clone(), EVENTS).join().unwrap();
    assert_eq!(relay.terminate().code(), Some(0), "{}", relay.log());
    assert!(!path.exists());
    site.wait_exact(&expected.points(), SOON);
}
