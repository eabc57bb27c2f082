//! Cluster-wide settings: a node with different ones is refused, and one command changes them.

use std::collections::HashMap;
use std::ops::Range;

use event_data_service::store::redis::FORMATS;

use crate::prelude::*;

/// For each key, the value of the cluster and a different one, as written in a configuration.
const ALIKE: &[(&str, &str, &str)] = &[
    ("store.partitions", "16", "32"),
    ("store.layout", "sets", "log"),
    ("input.max_age", "1h", "2h"),
    ("input.timestamp_precision", "ns", "ms"),
    ("input.measurement_tag", "measurement", "from"),
    ("input.user_field", "value", "user"),
    ("flush.grace", "2s", "3s"),
    ("flush.max_hold", "1m", "2m"),
    ("input.max_series_per_minute", "100000", "99999"),
    ("input.max_users_per_series", "10000000", "0"),
    ("output.url", "", "http://127.0.0.1:9/other"),
    ("output.database", "eds", "other"),
];

#[test]
fn node_with_different_settings_is_refused_with_both_values() {
    let site = Site::start();
    let url = site.writes.url();
    let node = site.start_node("one", &[("input.max_age", "1h")]);
    for &(key, theirs, ours) in ALIKE {
        let theirs = if key == "output.url" { &url } else { theirs };
        let second = site.node("two", &[("input.max_age", "1h"), (key, ours)]);
        let shown = |value: &str| match value.parse::<u64>() {
            Ok(_) => value.to_owned(),
            Err(_) => format!("{value:?}"),
        };
        let (theirs, ours) = (shown(theirs), shown(ours));
        if key.starts_with("output.") {
            // A single text describes the whole output.
            let [theirs, ours] = [&theirs, &ours].map(|value| value.trim_matches('"'));
            let there =
                format!("outputs = \"default {url} api=v1 database=eds\", but this node uses");
            assert!(there.contains(theirs), "{there}");
            second.assert_refused(&[&there, ours, "on every node"]);
        } else {
            second.assert_refused(&[key, &theirs, &ours, "on every node"]);
        }
    }
    // These keys may differ between nodes.
    let keys = [
        ("input.max_age", "60m"),
        ("flush.lease", "7s"),
        ("flush.interval", "300ms"),
        ("input.queue_events", "1000"),
        ("output.batch_lines", "100"),
    ];
    let _other = site.start_node("two", &keys);
    assert_eq!(node.get("/readyz").unwrap().status, 200);
}

fn send(minutes: Range<i64>, sender: &mut Sender) {
    sender.send_all(testing::load::load(minutes, 300, 7, 50).datagrams());
}

/// Waits until the status reports that the settings differ, and not that the node cannot record.
#[track_caller]
fn wait_named(node: &Node) {
    eventually("the status names the cause", SOON, || {
        let status = node.get("/api/v1/status").unwrap().body;
        let named = status.contains("node-settings") && !status.contains("node-cannot-record");
        when(named, status)
    });
}

#[test]
fn settings_apply_changes_grace_and_output_node_by_node() {
    let site = Site::start();
    site.command("CREATE DATABASE other");
    let writes_to_other = HttpProxy::start(Some(site.influxdb));
    let keys = [("flush.grace", "2s"), ("flush.max_hold", "10m")];
    let [mut one, mut two] = ["one", "two"].map(|name| site.start_node(name, &keys));
    let mut sender = Sender::to_all([&one, &two]);
    send(0..10, &mut sender);
    site.wait_exact(&sender.expected.points(), SOON);
    let before = sender.expected.points();

    send(10..15, &mut sender);
    for node in [&mut one, &mut two] {
        node.set("flush.grace", "1s");
        node.set("output.url", &writes_to_other.url());
        node.set("output.database", "other");
    }
    let (code, stdout) = one.command_text(&["settings", "apply", "--output", "stdout:"]);
    let refused = code == Some(1) && stdout.contains("output of every node");
    assert!(refused, "{stdout}");
    let (code, stdout) = one.command_text(&["settings", "show"]);
    let shown = stdout.contains("flush.grace = \"2s\" # here: \"1s\"\n");
    assert!(code == Some(0) && shown, "{stdout}");
    let (code, stdout) = one.command_text(&["settings", "apply"]);
    let applied = Instant::now();
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("flush.grace: \"2s\" → \"1s\"\n"), "{stdout}");
    let [before_change, after_change] = [(&site.writes, "eds"), (&writes_to_other, "other")]
        .map(|(proxy, database)| format!("default {} api=v1 database={database}", proxy.url()));
    let change = format!("outputs: \"{before_change}\" → \"{after_change}\"\n");
    assert!(stdout.contains(&change), "{stdout}");
    assert_eq!(stdout.matches('→').count(), 2, "{stdout}");

    // Both nodes continue recording and report why they publish nothing.
    send(15..20, &mut sender);
    for node in [&one, &two] {
        eventually("the node reports both values and is not ready", SOON, || {
            let answer = node.get("/readyz").unwrap();
            let words =
                ["flush.grace = \\\"1s\\\", but this node uses \\\"2s\\\"", "eds settings apply"];
            let all = words.iter().all(|words| answer.body.contains(words));
            when(answer.status == 503 && all, answer.body)
        });
        wait_named(node);
        wait_for(
            "the metrics and the log report it",
            || node.log().contains("ERROR this node does not close minutes or send counts"),
            |&logged| node.metrics().count("eds_settings_differ") == 1 && logged,
        );
    }
    wait_for(
        "minutes are idle for longer than any grace",
        || applied.elapsed(),
        |&since| since > Duration::from_secs(6),
    );
    assert_eq!(two.terminate().code(), Some(0));
    send(20..25, &mut sender);
    two.run();
    sender.redirect([&two, &one]);
    send(25..30, &mut sender);
    assert_eq!(one.terminate().code(), Some(0));
    send(30..35, &mut sender);
    one.run();
    send(35..40, &mut sender);

    let expected = sender.expected.points();
    eventually("every count is in one of the outputs", SOON, || {
        let [mut all, other] =
            ["eds", "other"].map(|name| read_back::influxdb(site.influxdb, name));
        for (point, value) in other {
            let twice = all.insert(point.clone(), value);
            assert_eq!(twice, None, "{point:?} is in both");
        }
        compare(&expected, &all)
    });
    let wrong = site.writes.writes().into_iter().filter(|write| write.at > applied);
    assert_eq!(wrong.count(), 0, "writes to the old output after the change");
    for point in before.keys() {
        assert!(site.points().contains_key(point));
    }
    assert_eq!(count([&one, &two], "eds_events_late_total"), 0);
    site.wait_redis_clean();
}

#[test]
fn settings_apply_changes_all_or_nothing() {
    let site = Site::start();
    let mut node = site.start_node("one", &[]);
    node.set("store.partitions", "32");
    node.set("flush.grace", "1s");
    node.says(&["settings", "apply"], 1, "Set store.partitions_before = 16");
    let grace = || site.redis.query::<String>(&["HGET", "eds:settings", "flush.grace"]);
    assert_eq!(grace(), "2s");
    assert_eq!(node.get("/readyz").unwrap().status, 200);

    node.says(&["settings", "apply", "--store", "memory:"], 2, "");
}

#[test]
fn node_continues_when_its_settings_agree_again() {
    let site = Site::start();
    let mut node = site.start_node("one", &[]);
    node.set("output.database", "other");
    node.apply_settings();
    let mut sender = Sender::paced_by(&node);
    send(0..2, &mut sender);
    node.wait_count("eds_settings_differ", |differs| differs == 1);
    node.set("output.database", "eds");
    node.apply_settings();
    site.wait_exact(&sender.expected.points(), SOON);
    node.wait_ready();
}

/// This is the case after an upgrade to a version with a new cluster-wide setting.
#[test]
fn first_node_adds_settings_missing_in_redis() {
    let site = Site::start();
    let format = FORMATS.end().to_string();
    let fields = ["partitions", "16", "layout", "sets", "format", &format];
    let old = ["HSET", "eds:settings"].into_iter().chain(fields);
    site.redis.query::<()>(&old.collect::<Vec<_>>());
    let _node = site.start_node("one", &[("input.max_age", "1h")]);
    let fields: HashMap<String, String> = site.redis.query(&["HGETALL", "eds:settings"]);
    assert_eq!(fields["input.max_age"], "1h");
    assert_eq!(fields["partitions"], "16");
}

/// The layout cannot change while a node is running or a minute is unsealed, since no node could seal the old data.
#[test]
fn layout_changes_only_while_nothing_is_open() {
    let site = Site::start();
    let keys = [("store.layout", "sets"), ("flush.max_hold", "10m")];
    let mut node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    send(0..2, &mut sender);
    node.set("store.layout", "log");
    let (code, stdout) = node.command_text(&["settings", "apply"]);
    let is_refused = |stdout: &str, reason: &str| {
        stdout.contains("store.layout = \"sets\", but this configuration has \"log\"")
            && stdout.contains(reason)
    };
    assert!(
        code == Some(1) && is_refused(&stdout, "1 nodes are running, the first is one"),
        "{stdout}"
    );

    node.set("store.layout", "sets");
    node.set("flush.grace", "9m");
    node.apply_settings();
    assert!(node.terminate().success());
    node.run();
    sender.redirect([&node]);
    send(2..4, &mut sender);
    assert!(node.terminate().success());
    node.set("store.layout", "log");
    let (code, stdout) = node.command_text(&["settings", "apply"]);
    assert!(code == Some(1) && is_refused(&stdout, "are not sealed"), "{stdout}");

    node.set("store.layout", "sets");
    node.set("flush.grace", "1s");
    node.apply_settings();
    node.run();
    site.wait_exact(&sender.expected.points(), SOON);
    assert!(node.terminate().success());
    node.set("store.layout", "log");
    node.says(&["settings", "apply"], 0, "");
    node.run();
    sender.redirect([&node]);
    send(4..6, &mut sender);
    site.wait_exact(&sender.expected.points(), SOON);
    assert_eq!(node.metrics().count("eds_events_late_total"), 0);
}
