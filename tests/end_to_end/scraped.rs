//! The metrics for Prometheus: formats, process metrics, capacities, and the backlog.

use std::io::Write;

use reqwest::header::{ACCEPT, HeaderMap, HeaderValue};
use serde_json::json;
use testing::http::{self, Answer};

use crate::prelude::*;

/// The `Accept` header of Prometheus 2.
const OPEN_METRICS_FIRST: &str = "application/openmetrics-text;version=1.0.0,\
    application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

fn scrape(node: &Node, accept: &[&str]) -> Answer {
    let accept = accept.iter().map(|media_type| HeaderValue::from_str(media_type).unwrap());
    let headers: HeaderMap = accept.map(|value| (ACCEPT, value)).collect();
    let request = http::get(node.http(), "/metrics").headers(headers);
    let answer = http::answer(request).unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer
}

fn promtool(text: &str) -> Output {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool (Debian package prometheus) is installed");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn under_load() -> (Site, Node) {
    let site = Site::start();
    let node = site.start_node("one", &[("input.max_series_per_minute", "4")]);
    let mut sender = Sender::paced_by(&node);
    let load = load(0..2, 3000, 300, 50);
    for datagram in load.datagrams() {
        sender.send_unrecorded(&datagram);
    }
    sender.send_unrecorded(b"what is this\n");
    node.wait_count("eds_points_sent_total", |sent| sent > 100);
    (site, node)
}

#[test]
fn promtool_accepts_the_metrics() {
    let (_site, node) = under_load();
    let answer = scrape(&node, &[]);
    let metrics = Metrics::parse(&answer.body);
    for name in
        ["eds_events_overflowed_total", "eds_events_rejected_total", "eds_write_seconds_count"]
    {
        assert!(metrics.count(name) > 0, "{name}");
    }
    assert_sound(&answer.body);
    // Make sure that promtool detects a wrong name.
    let wrong = answer.body.replace("_total", "_all");
    assert!(!promtool(&wrong).status.success());
}

#[track_caller]
fn assert_sound(text: &str) {
    let checked = promtool(text);
    assert!(checked.status.success() && checked.stderr.is_empty(), "{checked:?}");
}

#[test]
fn promtool_accepts_the_metrics_of_a_relay() {
    let mut relay = Node::relay("relay", &["127.0.0.1:9", "nowhere.invalid:9"], &[]);
    relay.run();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for line in ["a=b value=u", "a=b value=u\\", "cpu usage=1"] {
        socket.send_to(line.as_bytes(), relay.udp()).unwrap();
    }
    let sums = [
        "eds_relay_events_sent_total",
        "eds_relay_events_dropped_total",
        "eds_relay_lines_rejected_total",
        "eds_relay_passthrough_dropped_total",
    ];
    for name in sums {
        relay.wait_count(name, |count| count == 1);
    }
    assert_sound(&scrape(&relay, &[]).body);
    let open = scrape(&relay, &[OPEN_METRICS_FIRST]).body;
    assert!(open.ends_with("\n# EOF\n"), "{open}");
}

#[test]
fn openmetrics_is_sent_only_on_request() {
    let (_site, node) = under_load();
    for (accept, is_open) in [
        (&[][..], false),
        (&["*/*"], false),
        (&["text/plain"], false),
        (&["text/plain", "application/json"], false),
        (&["application/openmetrics-text"], true),
        (&["\u{80}"], false),
        (&[OPEN_METRICS_FIRST], true),
    ] {
        let Answer { headers, body, .. } = scrape(&node, accept);
        let (kind, version) = if is_open {
            ("application/openmetrics-text", "1.0.0")
        } else {
            ("text/plain", "0.0.4")
        };
        let expected = format!("{kind}; version={version}; charset=utf-8");
        assert_eq!(headers["content-type"], expected, "{accept:?}");
        assert_eq!(body.ends_with("\n# EOF\n"), is_open, "{accept:?}: {body}");
        let counter = if is_open { "" } else { "_total" };
        let line = format!("\n# TYPE eds_claims{counter} counter\neds_claims_total ");
        assert!(body.contains(&line), "{accept:?}: {body}");
    }
}

#[test]
fn process_metrics_have_standard_names() {
    let before = SystemTime::now();
    let node = Node::start("one", &[]);
    let metrics = node.metrics();
    let since = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    let started = metrics.value("process_start_time_seconds");
    assert!(since(before) <= started && started <= since(SystemTime::now()));
    let [resident, taken] =
        ["resident", "virtual"].map(|kind| metrics.count(&format!("process_{kind}_memory_bytes")));
    assert!(1 << 20 < resident && resident < taken, "{resident} {taken}");
    let [open, most] = ["open", "max"].map(|kind| metrics.count(&format!("process_{kind}_fds")));
    assert!(5 < open && open < most, "{open} {most}");
    assert!(metrics.count("process_threads") > 2);
    let cpu = || node.metrics().value("process_cpu_seconds_total");
    let first = cpu();
    wait_for("the CPU time grows", cpu, |&now| now > first);
}

#[test]
fn bounded_gauges_are_reported_with_their_maximum() {
    let keys = [
        ("input.queue_events", "1234"),
        ("input.queue_bytes", "3MiB"),
        ("input.spool_max", "5MiB"),
        ("input.receive_buffer", "128KiB"),
        ("store.memory_max", "7MiB"),
    ];
    let mut node = Node::new("one", &keys);
    node.set("input.spool_dir", &node.spool().display().to_string());
    node.run();
    let mut sender = Sender::paced_by(&node);
    // An event of the current minute, which is still open.
    sender.send_unrecorded(b"a=b value=c");
    node.wait_count("eds_store_memory_bytes", |bytes| bytes > 0);
    let metrics = node.metrics();
    for (level, most, value) in [
        ("eds_events_queued", "eds_events_queued_max", 1234),
        ("eds_queue_bytes", "eds_queue_max_bytes", 3 << 20),
        ("eds_spool_bytes", "eds_spool_max_bytes", 5 << 20),
        ("eds_store_memory_bytes", "eds_store_memory_max_bytes", 7 << 20),
        ("eds_http_connections", "eds_http_connections_max", 1024),
        ("eds_counts_quarantined", "eds_counts_quarantined_max", 160_000),
        ("eds_kernel_drops_total", "eds_receive_buffer_bytes", 128 << 10),
    ] {
        assert!(metrics.has(level), "{level}");
        assert_eq!(metrics.count(most), value, "{most}");
    }
    // The scrape itself uses one connection.
    assert!(metrics.count("eds_http_connections") >= 1);
}

#[test]
fn the_age_of_the_oldest_unsent_minute_grows_until_it_is_sent() {
    let mut site = Site::start();
    let node = site.start_node("one", &[]);
    // The metric is absent until the node has read the store.
    let name = "eds_oldest_unsent_minute_age_seconds";
    wait_for("the age is known", || node.metrics().has(name), |&is_known| is_known);
    let age = || node.metrics().value(name);
    let mut sender = Sender::paced_by(&node);
    site.writes.set(Mode::Refuse);
    let ended = SystemTime::now() - Duration::from_secs(600);
    let ended_ns = i64::try_from(ended.duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap();
    sender.send(format!("a=b value=c {ended_ns}"));
    wait_for("the minute is old", age, |&age| (540.0..700.0).contains(&age));
    let first = age();
    wait_for("the age grows", age, |&age| age > first + 2.0);
    site.writes.set(Mode::Pass);
    site.wait_exact(&sender.expected.points(), SOON);
    wait_for("the age is zero again", age, |&age| age == 0.0);
}

/// Tests the rule in `docs/monitoring.md`: 970 of 1000 events per minute are below its limit of 0.99, and 995 are not.
#[test]
fn coverage_alert_names_the_node_with_the_lossy_path() {
    let document = include_str!("../../docs/monitoring.md");
    let (_, expression) = document.split_once("```promql\n").unwrap();
    let (expression, _) = expression.split_once("```").unwrap();
    let expression = expression.split_whitespace().collect::<Vec<_>>().join(" ");
    let rules = json!({"groups": [{"name": "eds", "rules": [
        {"alert": "PathLosesEvents", "expr": expression}]}]});
    let series = |name: &str, node: &str, each_minute: u64| {
        let series = format!("eds_events_{name}_total{{job=\"eds\",instance=\"{node}\"}}");
        json!({"series": series, "values": format!("0+{each_minute}x20")})
    };
    let nodes = [("a", 1000), ("b", 970), ("c", 995)];
    let repeats = nodes.map(|(_, seen)| seen).iter().sum::<u64>() - 1000;
    let inputs = nodes.iter().flat_map(|&(node, seen)| {
        let repeated = if node == "a" { repeats } else { 0 };
        // Events by HTTP reach one node.
        let by_http = if node == "c" { 500 } else { 0 };
        let counts = [
            ("recorded", seen + by_http),
            ("repeated", repeated),
            ("seen", seen),
            ("by_http", by_http),
        ];
        counts.map(|(name, count)| series(name, node, count))
    });
    let inputs: Vec<_> = inputs.collect();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &serde_json::Value| {
        std::fs::write(directory.path().join(name), content.to_string()).unwrap();
    };
    write("rules.json", &rules);
    let expected = json!([{"exp_labels": {"job": "eds", "instance": "b"}}]);
    write(
        "test.json",
        &json!({"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [{
            "interval": "1m", "input_series": inputs, "alert_rule_test": [
                {"eval_time": "15m", "alertname": "PathLosesEvents", "exp_alerts": expected}]}]}),
    );
    let tested = Command::new("promtool")
        .args(["test", "rules", "test.json"])
        .current_dir(directory.path())
        .output()
        .expect("promtool (Debian package prometheus) is installed");
    assert!(tested.status.success(), "{tested:?}");
}
