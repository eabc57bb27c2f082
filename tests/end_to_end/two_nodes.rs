//! Two nodes on one Redis that both get nearly every datagram publish each number once, and exactly.

use crate::failover::assert_all_recorded;
use crate::prelude::*;

/// Slow enough for an unoptimized build and two busy cores: a socket's buffer holds more than a second of it.
const EVENTS_PER_SECOND: &str = "30000";

#[test]
fn a_million_events_that_reach_both_nodes_are_counted_once() {
    const EVENTS: u64 = 1_000_000;
    let site = Site::start();
    let keys = [("flush.grace", "5s"), ("flush.max_hold", "10m")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let directory = TempDir::new().unwrap();
    let expected = directory.path().join("expected");
    let mut command = eds();
    command
        .args(["send", "--quiet", "--events", &EVENTS.to_string()])
        .args(["--rate", EVENTS_PER_SECOND, "--seed", &seed().to_string()])
        .args(["--minutes", "3", "--start", "2016-12-04T18:38:00Z"])
        .args(["--drop-rate", "0.01", "--expected"])
        .arg(&expected)
        .stdin(Stdio::null());
    for node in &nodes {
        command.args(["--to", &node.udp().to_string()]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let expected = read_back::written(&fs::read(expected).unwrap());
    assert!(!expected.is_empty());
    site.wait_exact(&expected, Duration::from_secs(60));

    assert_all_recorded(&nodes);
    for node in &nodes {
        let metrics = node.metrics();
        let received = metrics.count("eds_events_received_total");
        assert!((EVENTS * 98 / 100..EVENTS * 998 / 1000).contains(&received), "{received}");
        assert_eq!(metrics.count("eds_kernel_drops_total"), 0);
        assert_eq!(metrics.count("eds_events_late_total"), 0);
    }
    site.assert_clean();
}
