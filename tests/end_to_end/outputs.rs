//! Several outputs: an output that is down or refuses counts affects no other, and outputs can be added and removed.

use crate::prelude::*;

/// Minutes close 2 s after their last event, and nodes poll every 200 ms.
const IN_TIME: Duration = Duration::from_secs(6);
const BACK: Duration = Duration::from_secs(60);

/// Makes the node write to the site's database and to the databases of `others`.
pub(crate) fn set_outputs(node: &mut Node, site: &Site, others: &[(&str, &Site)]) {
    let url = site.writes.url();
    let urls: Vec<_> = others.iter().map(|(_, backup)| backup.writes.url()).collect();
    let here = [("default", url.as_str())].into_iter();
    let there = others.iter().zip(&urls);
    let all = here.chain(there.map(|((name, _), url)| (*name, url.as_str())));
    let keys: Vec<_> = all
        .map(|(name, url)| {
            [("name", name), ("url", url), ("api", "v1"), ("database", DATABASE), ("timeout", "1s")]
        })
        .collect();
    let keys: Vec<&[(&str, &str)]> = keys.iter().map(|keys| &keys[..]).collect();
    node.set_outputs(&keys);
}

fn send(sender: &mut Sender, minute: i64) -> Points {
    let start = SEED_MINUTE_NS + minute * MINUTE_NS;
    let line = |number| {
        format!("event_type=t{},product=p value=u{} {}", number % 20, number % 70, start + number)
    };
    sender.send_all((0..200).map(line));
    let mut points = sender.expected.points();
    points.retain(|point, _| point.minute_start_ns == start);
    points
}

fn has(points: &Points, expected: &Points) -> Result<(), String> {
    let found = expected.keys().filter_map(|point| Some((point.clone(), *points.get(point)?)));
    compare(expected, &found.collect())
}

#[test]
fn unreachable_output_delays_no_other_and_catches_up() {
    const MINUTES: i64 = 8;
    let site = Site::start();
    let mut backup = Site::only(InfluxServer::start());
    let keys = [("store.partitions", "8")];
    let mut nodes = ["one", "two"].map(|name| site.node(name, &keys));
    for node in &mut nodes {
        set_outputs(node, &site, &[("backup", &backup)]);
        node.run();
    }
    let [one, two] = &nodes;
    let mut sender = Sender::to_all([one, two]);
    let took = |sender: &mut Sender, minute: i64| {
        let expected = send(sender, minute);
        let sent = Instant::now();
        eventually("the working output has the minute", IN_TIME, || has(&site.points(), &expected));
        sent.elapsed()
    };
    let before = (0..3).map(|minute| took(&mut sender, minute));
    let before = before.max().unwrap();
    backup.writes.set(Mode::Hang);
    let during = (3..3 + MINUTES).map(|minute| took(&mut sender, minute));
    let during = during.max().unwrap();
    assert!(during < before + Duration::from_secs(2), "{before:?} {during:?}");
    assert_eq!(site.sets(), 0, "some sets are not sealed");
    eventually("only the failing output has unsent counts", SOON, || {
        let unsent = |output| one.count_of_output("eds_backlog_unsent", output);
        let (here, there) = (unsent("default"), unsent("backup"));
        let partitions = 8 * MINUTES.unsigned_abs();
        when(here == 0 && (1..=partitions).contains(&there), (here, there))
            .map_err(|seen| format!("{seen:?}"))
    });
    // One node may have sealed, and therefore sent, all minutes.
    eventually("a node reports that the backup is down", SOON, || {
        let up = [one, two].map(|node| {
            ["default", "backup"].map(|output| node.count_of_output("eds_output_up", output))
        });
        let here = up.iter().all(|[here, _]| *here == 1);
        let gone = up.iter().any(|[_, there]| *there == 0);
        when(here && gone, format!("{up:?}"))
    });
    let ready = one.get("/readyz").unwrap();
    assert_eq!(ready.status, 200);
    let warning = "output backup: is not accepting points";
    assert!(ready.body.contains(warning), "{}", ready.body);

    backup.writes.set(Mode::Pass);
    let expected = sender.expected.points();
    backup.wait_exact(&expected, BACK);
    site.wait_exact(&expected, SOON);
    assert_eq!(count([one, two], "eds_events_late_total"), 0);
    site.assert_clean();
}

#[test]
fn counts_refused_by_one_output_are_quarantined_for_it_only() {
    const VALUES_MAX: usize = 4;
    let site = Site::start();
    let backup = Site::only(InfluxServer::start_with_tag_limit(VALUES_MAX));
    let mut node = site.node("one", &[]);
    set_outputs(&mut node, &site, &[("backup", &backup)]);
    node.run();
    let mut sender = Sender::paced_by(&node);
    for value in 0..=VALUES_MAX {
        let at = SEED_MINUTE_NS + i64::try_from(value).unwrap() * MINUTE_NS;
        sender.send(format!("event_type=t{value} value=ann {at}"));
        sender.wait_received();
        let named = format!("event_type=t{value}");
        eventually("the unlimited database has the minute", SOON, || {
            let points = site.points();
            when(points.keys().any(|point| point.series == named), points.len())
        });
    }
    wait_for(
        "the limited database refuses the last series",
        || node.count_of_output("eds_counts_quarantined", "backup"),
        |&refused| refused == 1,
    );
    assert_eq!(node.count_of_output("eds_points_quarantined_total", "default"), 0);

    node.says(&["quarantine", "list"], 2, "configured outputs: default, backup");
    node.says(&["quarantine", "list", "--output", "default"], 0, "nothing is quarantined");
    let of_backup = ["quarantine", "list", "--output", "backup"];
    node.says(&of_backup, 0, "event_type=t4");
    let (code, stdout) = node.command_text(&["outputs", "list"]);
    let lines: Vec<Vec<&str>> =
        stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(code, Some(0), "{stdout}");
    assert_eq!(lines[1], ["backup", "0", "-", "1", "yes"], "{stdout}");
    assert_eq!(lines[2], ["default", "0", "-", "0", "yes"], "{stdout}");

    let of_t0 = "unique_user_event, cumulative_user_event WHERE event_type = 't0'";
    backup.command(&format!("DROP SERIES FROM {of_t0}"));
    node.says(&["quarantine", "retry", "--all", "--output", "backup"], 0, "");
    let mut expected = sender.expected.points();
    site.wait_exact(&expected, SOON);
    expected.retain(|point, _| point.series != "event_type=t0");
    backup.wait_exact(&expected, SOON);
    site.assert_clean();
}

#[test]
fn output_is_added_and_removed_node_by_node() {
    let site = Site::start();
    let mut backup = Site::only(InfluxServer::start());
    let [mut one, mut two] = ["one", "two"].map(|name| site.start_node(name, &[]));
    let mut sender = Sender::to_all([&one, &two]);
    let restart = |one: &mut Node, two: &mut Node, others: &[(&str, &Site)]| {
        for node in [&mut *one, &mut *two] {
            set_outputs(node, &site, others);
        }
        one.apply_settings();
        for node in [two, one] {
            assert_eq!(node.terminate().code(), Some(0));
            node.run();
        }
    };
    let mut here = send(&mut sender, 0);
    site.wait_exact(&here, SOON);

    restart(&mut one, &mut two, &[("backup", &backup)]);
    sender = Sender::to_all([&one, &two]);
    let added = send(&mut sender, 1);
    here.extend(added.clone());
    site.wait_exact(&here, SOON);
    backup.wait_exact(&added, SOON);

    backup.writes.set(Mode::Refuse);
    here.extend(send(&mut sender, 2));
    site.wait_exact(&here, SOON);
    one.says(&["outputs", "drop", "backup"], 1, "is configured here");
    restart(&mut one, &mut two, &[]);
    sender = Sender::to_all([&one, &two]);
    here.extend(send(&mut sender, 3));
    site.wait_exact(&here, SOON);

    wait_for(
        "the metric shows unsent counts",
        || one.count_of_output("eds_backlog_unsent", "backup"),
        |&unsent| unsent > 0,
    );
    one.wait_log("WARN the store has unsent or quarantined counts for outputs that are not configured on this node");
    let line = || {
        let stdout = one.says(&["outputs", "list"], 0, "");
        let line = stdout.lines().find(|line| line.starts_with("backup "));
        line.map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    };
    let waiting = line().expect("the output is listed");
    assert_eq!((&*waiting[2], &*waiting[4]), ("20161204:1120", "no"));
    one.says(&["outputs", "drop", "bakcup"], 2, "Did you mean backup");
    one.says(&["outputs", "drop", "backup"], 0, "20 unsent counts");
    assert_eq!(line(), None);
    eventually("the metric is gone", SOON, || {
        let metrics = one.metrics();
        let unsent = metrics.count_of("eds_backlog_unsent", &[("output", "backup")]);
        when(unsent == 0, unsent)
    });
    backup.writes.set(Mode::Pass);
    site.wait_exact(&here, SOON);
    backup.wait_exact(&added, SOON);
    site.assert_clean();
}

/// The node sends all points to every output, even the slowest, before it exits.
#[test]
fn a_stop_with_a_memory_store_waits_for_every_output() {
    let site = Site::with(RedisServer::down(&[]), InfluxServer::start());
    let mut backup = Site::only(InfluxServer::start());
    let mut node = site.node("one", &[("store.url", "memory:"), ("input.drain_timeout", "50s")]);
    set_outputs(&mut node, &site, &[("backup", &backup)]);
    node.run();
    backup.writes.set(Mode::Answer(503));
    let mut sender = Sender::paced_by(&node);
    for user in 0..5 {
        sender.send(format!("event_type=a value=u{user} {SEED_MINUTE_NS}"));
    }
    sender.wait_received();
    let expected = sender.expected.points();
    site.wait_exact(&expected, SOON);
    node.signal("TERM");
    node.wait_log("draining");
    wait_for("the node keeps retrying", || backup.writes.writes().len(), |&tried| tried >= 3);
    backup.writes.set(Mode::Pass);
    assert_eq!(node.wait_for_exit(BACK).code(), Some(0));
    compare(&expected, &backup.points()).unwrap();
    compare(&expected, &site.points()).unwrap();
}

#[test]
fn probe_uses_its_configured_measurement() {
    for (name, keys) in [
        ("eds_probe", &[][..]),
        ("health-of.eds", &[("output.probe_measurement", "health-of.eds")]),
    ] {
        let site = Site::start();
        let first_column = |influxql: &str| -> Vec<String> {
            let series = site.query(influxql);
            let rows = series.iter().flat_map(|table| table["values"].as_array().unwrap());
            rows.map(|row| row[0].as_str().unwrap().to_owned()).collect()
        };
        let node = site.start_node("one", keys);
        eventually("the output is probed at startup", SOON, || {
            let found = first_column("SHOW MEASUREMENTS");
            when(found == [name], found.join(", "))
        });
        let mut sender = Sender::paced_by(&node);
        sender.send(format!("event_type=a,product=b value=user {SEED_MINUTE_NS}"));
        site.wait_exact(&sender.expected.points(), SOON);
        let mut all = [name, "cumulative_user_event", "unique_user_event"];
        all.sort_unstable();
        assert_eq!(first_column("SHOW MEASUREMENTS"), all);
        for counts in ["cumulative_user_event", "unique_user_event"] {
            let tags = first_column(&format!("SHOW TAG KEYS FROM {counts}"));
            assert_eq!(tags, ["event_type", "product"]);
            let query = format!("SELECT count(value) FROM {counts}");
            assert_eq!(site.query(&query)[0]["values"][0][1], 1, "of {counts}");
        }
    }
}
