//! Two nodes on one Redis that both get nearly every datagram publish each number once, and exactly.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;
use testing::eventually::{SOON, eventually, when};
use testing::load::seed;
use testing::read_back;
use testing::truth::{Points, Truth, compare};

use crate::site::Site;
use crate::support::node::eds;

/// Slow enough for an unoptimized build and two busy cores: a socket's buffer holds more than a second of it.
const EVENTS_PER_SECOND: &str = "30000";

/// Sends a synthetic load over three minutes of 2016 and gives the counts that `eds send` says must come out.
fn send(to: &[String], events: u64, more: &[&str]) -> Points {
    let directory = TempDir::new().unwrap();
    let truth = directory.path().join("truth");
    let mut command = eds();
    command
        .args(["send", "--quiet", "--events", &events.to_string()])
        .args(["--minutes", "3", "--start", "2016-12-04T18:38:00Z"])
        .args(["--drop-rate", "0.01", "--seed", &seed().to_string()])
        .arg("--expected")
        .arg(&truth)
        .args(more)
        .stdin(Stdio::null());
    for address in to {
        command.args(["--to", address]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    points(&truth)
}

fn points(truth: &Path) -> Points {
    let points = read_back::written(&fs::read(truth).unwrap());
    assert!(!points.is_empty());
    points
}

#[test]
fn the_expected_counts_of_eds_send_are_what_the_addresses_received() {
    const DATAGRAMS_PER_SECOND_MAX: u64 = 2000;
    let socket = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let receivers = [socket(), socket()];
    let to = receivers
        .each_ref()
        .map(|socket| socket.local_addr().unwrap().to_string());

    let receiving: Vec<_> = receivers
        .into_iter()
        .map(|socket| {
            std::thread::spawn(move || {
                let mut datagrams = Vec::new();
                let mut datagram = vec![0; 1 << 16];
                // An empty datagram is the end.
                while let n @ 1.. = socket.recv(&mut datagram).unwrap() {
                    datagrams.push(datagram[..n].to_vec());
                }
                datagrams
            })
        })
        .collect();
    let rate = DATAGRAMS_PER_SECOND_MAX.to_string();
    let expected = send(&to, 10_000, &["--rate", &rate, "--lines-per-datagram", "2"]);
    for address in &to {
        UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .send_to(b"", address)
            .unwrap();
    }

    let received: Vec<_> = receiving
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_ne!(
        received[0], received[1],
        "each misses some datagrams of its own"
    );
    let mut truth = Truth::default();
    received
        .iter()
        .flatten()
        .for_each(|datagram| truth.receive(datagram));
    compare(&truth.points(), &expected).unwrap();
}

#[test]
fn a_million_events_that_reach_both_nodes_are_counted_once() {
    const EVENTS: u64 = 1_000_000;
    let site = Site::start();
    let keys = [("flush.grace", "5s"), ("flush.max_hold", "10m")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let to = nodes.each_ref().map(|node| node.udp().to_string());
    let expected = send(&to, EVENTS, &["--rate", EVENTS_PER_SECOND]);
    site.wait_exact(&expected, Duration::from_secs(60));

    for node in &nodes {
        eventually("everything received is recorded", SOON, || {
            let metrics = node.metrics();
            metrics.assert_ledger_adds_up();
            let [received, recorded] = ["eds_events_received_total", "eds_events_recorded_total"]
                .map(|name| metrics.count(name));
            when(received == recorded, format!("{recorded} of {received}"))
        });
        let metrics = node.metrics();
        let received = metrics.count("eds_events_received_total");
        assert!(
            (EVENTS * 98 / 100..EVENTS * 998 / 1000).contains(&received),
            "{received}"
        );
        assert_eq!(metrics.count("eds_kernel_drops_total"), 0);
        assert_eq!(metrics.count("eds_events_late_total"), 0);
    }
    site.wait_redis_clean();
    site.assert_one_value_a_point();
}
