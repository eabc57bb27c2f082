//! What Prometheus gets of a node.

use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::site::Site;
use crate::support::eventually::{SOON, eventually, when};
use crate::support::http_client::{Answer, exchange};
use crate::support::load::{Load, MINUTE_NS, SEED_MINUTE_NS, Sender, seed};
use crate::support::metrics::Metrics;
use crate::support::node::Node;

/// What Prometheus 2 sends.
const OPEN_METRICS_FIRST: &str = "application/openmetrics-text;version=1.0.0,\
    application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

fn scrape(node: &Node, head: &str) -> Answer {
    let request = format!("GET /metrics HTTP/1.0\r\n{head}\r\n");
    let answer = exchange(node.http(), request.as_bytes()).unwrap();
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
        .expect("promtool, of Debian's package prometheus");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

/// A node that has recorded and sent, with the site that it needs.
fn under_load() -> (Site, Node) {
    let site = Site::start();
    let node = site.start_node("one", &[("input.max_series_per_minute", "4")]);
    let mut sender = Sender::paced_by(&node);
    let load = Load {
        seed: seed(),
        minutes_ns: vec![SEED_MINUTE_NS, SEED_MINUTE_NS + MINUTE_NS],
        events: 3000,
        series: 300,
        users: 50,
    };
    for datagram in load.datagrams() {
        sender.send_unrecorded(&datagram, &node, &[]);
    }
    sender.send_unrecorded(b"what is this\n", &node, &[]);
    eventually("it has sent some", SOON, || {
        let sent = node.metrics().count("eds_points_sent_total");
        when(sent > 100, sent)
    });
    (site, node)
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    let (_site, node) = under_load();
    let answer = scrape(&node, "");
    let metrics = Metrics::parse(&answer.body);
    for name in [
        "eds_events_overflowed_total",
        "eds_events_rejected_total",
        "eds_write_seconds_count",
    ] {
        assert!(metrics.count(name) > 0, "{name}");
    }
    let checked = promtool(&answer.body);
    assert!(
        checked.status.success() && checked.stderr.is_empty(),
        "{checked:?}"
    );
    // It does look.
    let wrong = answer.body.replace("_total", "_all");
    assert!(!promtool(&wrong).status.success());
}

#[test]
fn open_metrics_is_told_only_where_it_is_asked_for() {
    let (_site, node) = under_load();
    for (accept, is_open) in [
        ("", false),
        ("Accept: */*\r\n", false),
        ("Accept: text/plain\r\n", false),
        ("Accept: text/plain\r\nAccept: application/json\r\n", false),
        ("Accept: application/openmetrics-text\r\n", true),
        ("Accept: \u{80}\r\n", false),
        (&format!("Accept: {OPEN_METRICS_FIRST}\r\n"), true),
    ] {
        let Answer { head, body, .. } = scrape(&node, accept);
        let (kind, version) = if is_open {
            ("application/openmetrics-text", "1.0.0")
        } else {
            ("text/plain", "0.0.4")
        };
        let told = format!("content-type: {kind}; version={version}; charset=utf-8");
        assert!(head.contains(&told), "{accept}: {head}");
        assert_eq!(body.ends_with("\n# EOF\n"), is_open, "{accept}: {body}");
        let counter = if is_open { "" } else { "_total" };
        let line = format!("\n# TYPE eds_claims{counter} counter\neds_claims_total ");
        assert!(body.contains(&line), "{accept}: {body}");
    }
}
