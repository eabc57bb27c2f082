//! A Redis that loses data: an old snapshot, a truncated log, a replica with a lag, an empty server. Published points keep
//! their values, and losses are reported.

use std::fs::File;

use crate::prelude::*;

/// Long enough to report the lost data to Redis, and to close the remaining minutes.
const GRACE: (&str, &str) = ("flush.grace", "3s");

fn load(events: u64, minute: i64) -> Vec<Vec<u8>> {
    let load = testing::load::load(minute..minute + 1, events, 20, 300);
    load.datagrams().collect()
}

fn send(sender: &mut Sender, nodes: &[Node], datagrams: &[Vec<u8>]) {
    for datagram in datagrams {
        let others: Vec<_> = nodes[1..].iter().map(Node::udp).collect();
        sender.send(datagram, &nodes[0], &others);
    }
    wait_recorded(nodes);
}

/// Sends an event of a closed minute, with a new user, so that it would change every number.
fn send_late(sender: &mut Sender, nodes: &[Node], user: &str) {
    let line = format!("event_type=type-1,product=product-1 value={user} {}", SEED_MINUTE_NS + 1);
    let others: Vec<_> = nodes[1..].iter().map(Node::udp).collect();
    sender.send_unrecorded(line.as_bytes(), &nodes[0], &others);
    wait_recorded(nodes);
}

fn wait_recorded(nodes: &[Node]) {
    eventually("everything is recorded", SOON, || {
        let queued: Vec<_> =
            nodes.iter().map(|node| node.metrics().count("eds_events_queued")).collect();
        when(queued.iter().all(|it| *it == 0), format!("{queued:?}"))
    });
}

/// Everything that Redis has is done.
fn wait_done(redis: &RedisServer) {
    eventually("no minute is left", SOON, || {
        let is_left = |key: &String| key.ends_with(":minutes") || key.contains(":claims");
        let left: Vec<_> = redis.keys().into_iter().filter(is_left).collect();
        when(left.is_empty(), format!("{left:?}"))
    });
}

/// Waits until every node has reported the lost data, with the interval.
fn wait_reported(nodes: &[Node]) {
    for node in nodes {
        node.wait_count("eds_store_rollbacks_total", |rollbacks| rollbacks > 0);
        let log = node.log();
        let logged: Vec<_> = log.lines().filter(|line| line.contains("the store forgot")).collect();
        assert!(!logged.is_empty(), "{log}");
        for line in logged {
            assert!(line.contains("ERROR") && line.contains("from="), "{line}");
        }
    }
}

/// Waits until a node has visited every partition.
fn wait_stamped(redis: &RedisServer) {
    let [seconds, micros]: [u64; 2] = redis.query(&["TIME"]);
    let now_ms = seconds * 1000 + micros / 1000;
    // Without the witnesses of a clock that was ahead.
    let looked_at = now_ms + 1..now_ms + 60_000;
    eventually("all partitions are looked at", SOON, || {
        let keys = redis.keys().into_iter();
        let clocks: Vec<u64> = keys
            .filter(|key| key.ends_with(":witness"))
            .map(|key| redis.query(&["HGET", &key, "clock"]))
            .collect();
        when(
            !clocks.is_empty() && clocks.iter().all(|clock| looked_at.contains(clock)),
            format!("{clocks:?} after {now_ms}"),
        )
    });
}

fn two_nodes(site: &Site, keys: &[(&str, &str)]) -> [Node; 2] {
    let keys = [&[GRACE], keys].concat();
    ["one", "two"].map(|name| site.start_node(name, &keys))
}

/// The points are as they were, and were never written with another value.
fn assert_unchanged(site: &Site, sender: &Sender) {
    wait_done(&site.redis);
    site.assert_one_value_a_point();
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn a_snapshot_of_the_middle_of_a_minute_changes_no_published_point() {
    let mut site = Site::start();
    let nodes = two_nodes(&site, &[("store.replay_window", "0s")]);
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams = load(3000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 2);
    send(&mut sender, &nodes, before);
    wait_stamped(&site.redis);
    let _: String = site.redis.query(&["SAVE"]);
    send(&mut sender, &nodes, after);
    site.wait_exact(&sender.expected.points(), SOON);
    site.redis.kill();
    site.redis.restart();
    wait_reported(&nodes);
    send_late(&mut sender, &nodes, "late");
    assert_unchanged(&site, &sender);
    // Half of the events are in the lost data, and no node can record them again.
    let forgotten = nodes[0].metrics().count("eds_events_forgotten_total");
    // At most: all events since the last stamp in Redis count as forgotten.
    assert!((1400..=3000).contains(&forgotten), "{forgotten}");
    // Each minute's by the node that closes it, whichever that is.
    wait_count(&nodes, "eds_events_late_total", |late| late > 0);
    // The nodes keep working.
    send(&mut sender, &nodes, &load(1000, 1));
    site.wait_exact(&sender.expected.points(), SOON);
}

/// Redis' clock is set back by this many seconds, and the events recorded under the earlier time are lost.
fn a_rollback_is_noticed_after_redis_clock_was_set_back(seconds: i64, layout: &str) {
    let clock = Clock::ahead_by(0);
    let redis = RedisServer::start_with_clock(&clock, &[]);
    let mut site = Site::with_redis(redis);
    let keys = [
        ("store.replay_window", "0s"),
        ("store.layout", layout),
        ("store.partitions", "4"),
        ("flush.grace", "20s"),
    ];
    let nodes = two_nodes(&site, &keys);
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams = load(3000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 10);
    send(&mut sender, &nodes, before);
    clock.advance(-seconds);
    wait_stamped(&site.redis);
    let _: String = site.redis.query(&["SAVE"]);
    send(&mut sender, &nodes, after);
    wait_stamped(&site.redis);
    site.redis.kill();
    site.redis.restart();
    wait_reported(&nodes);
    for node in &nodes {
        let forgotten = node.metrics().count("eds_events_forgotten_total");
        assert!((2600..=3000).contains(&forgotten), "{forgotten}");
        let log = node.log();
        let line = log.lines().find(|line| line.contains("the store forgot"));
        let time = |name: &str| {
            let value = line.unwrap().split_once(&format!(" {name}="));
            let value = value.unwrap().1.trim_start_matches('"');
            humantime::parse_rfc3339(&value[..24]).unwrap()
        };
        // By the clock as Redis has it now.
        let (from, to) = (time("from"), time("to"));
        assert!(from <= to && to <= clock.now(), "{line:?}");
        let minute = Duration::from_secs(60);
        assert!(clock.now().duration_since(from).unwrap() < minute, "{line:?}");
    }
}

#[test]
fn a_clock_of_redis_set_back_by_90_seconds_hides_no_rollback() {
    a_rollback_is_noticed_after_redis_clock_was_set_back(90, "sets");
}

#[test]
fn a_clock_of_redis_set_back_by_an_hour_hides_no_rollback() {
    a_rollback_is_noticed_after_redis_clock_was_set_back(3600, "sets");
}

#[test]
fn a_clock_of_redis_set_back_by_an_hour_hides_no_rollback_in_logs() {
    a_rollback_is_noticed_after_redis_clock_was_set_back(3600, "log");
}

/// Kills the node that writes a minute when InfluxDB has it, before it can say so, and brings Redis back from a snapshot of the middle
/// of that minute. Returns the other node.
pub(crate) fn kill_writer_and_redis(site: &mut Site, layout: &str) -> (Node, Sender) {
    let keys = [
        ("store.replay_window", "0s"),
        ("store.layout", layout),
        ("store.partitions", "1"),
        ("flush.grace", "5s"),
    ];
    let mut nodes = two_nodes(site, &keys);
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams = load(3000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 2);
    send(&mut sender, &nodes, before);
    wait_stamped(&site.redis);
    let _: String = site.redis.query(&["SAVE"]);
    // InfluxDB takes the points, and no node gets the confirmation.
    site.writes.set(Mode::TakeAndHang);
    send(&mut sender, &nodes, after);
    site.wait_exact(&sender.expected.points(), SOON);
    let tokens: Vec<String> = site.redis.query(&["HVALS", "{eds:0}:tokens:default"]);
    let writer = usize::from(tokens[0].starts_with("two#"));
    nodes[writer].kill();
    site.redis.kill();
    site.redis.restart();
    site.writes.set(Mode::Pass);
    let [one, two] = nodes;
    (if writer == 0 { two } else { one }, sender)
}

fn a_written_point_keeps_its_value_when_writer_and_redis_are_killed(layout: &str) {
    let mut site = Site::start();
    let (other, sender) = kill_writer_and_redis(&mut site, layout);
    let other = [other];
    wait_reported(&other);
    wait_done(&site.redis);
    // The minute was claimed again, with only half of its events.
    other[0].wait_count("eds_events_late_total", |late| late > 0);
    assert_unchanged(&site, &sender);
    // No node knows whether all points were written.
    let log = other[0].log();
    let told = |line: &&str| line.contains("ERROR") && line.contains("an output may lack");
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
    let unconfirmed = "eds_publications_unconfirmed_total";
    assert_eq!(other[0].metrics().count(unconfirmed), 1);
    // The other node keeps working: the node that is gone delays no minute.
    let mut sender = Sender::paced_by(&other[0]);
    send(&mut sender, &other, &load(1000, 1));
    eventually("the next minute is exact", SOON, || {
        let mut points = site.points();
        let expected = sender.expected.points();
        points.retain(|point, _| expected.contains_key(point));
        compare(&expected, &points)
    });
}

#[test]
fn a_written_point_keeps_its_value_when_its_writer_dies_and_redis_goes_back() {
    a_written_point_keeps_its_value_when_writer_and_redis_are_killed("sets");
}

#[test]
fn a_written_point_keeps_its_value_when_its_writer_dies_and_redis_goes_back_in_logs() {
    a_written_point_keeps_its_value_when_writer_and_redis_are_killed("log");
}

fn append_only_file(redis: &RedisServer) -> PathBuf {
    let directory = redis.directory().join("appendonlydir");
    let is_log = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let files = std::fs::read_dir(directory).unwrap();
    let mut logs = files.map(|file| file.unwrap().path()).filter(is_log);
    logs.next().expect("an append-only file")
}

fn length(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

#[test]
fn a_log_without_its_last_seconds_changes_no_published_point() {
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut site = Site::with_redis(redis);
    let nodes = two_nodes(&site, &[("store.replay_window", "60s")]);
    let mut sender = Sender::paced_by(&nodes[0]);
    send(&mut sender, &nodes, &load(3000, 0));
    let log = append_only_file(&site.redis);
    let recorded = length(&log);
    site.wait_exact(&sender.expected.points(), SOON);
    // It is counted as late, kept for replay, and comes again to a Redis that has forgotten the counts.
    send_late(&mut sender, &nodes, "late");
    wait_done(&site.redis);
    site.redis.kill();
    let file = File::options().write(true).open(&log).unwrap();
    file.set_len(recorded).unwrap();
    site.redis.restart();
    wait_reported(&nodes);
    assert_unchanged(&site, &sender);
    nodes[0].wait_count("eds_events_replayed_total", |replayed| replayed > 0);
}

#[test]
fn an_empty_redis_in_its_place_changes_no_published_point() {
    let site = Site::start();
    let nodes = two_nodes(&site, &[("store.replay_window", "60s")]);
    let mut sender = Sender::paced_by(&nodes[0]);
    send(&mut sender, &nodes, &load(3000, 0));
    site.wait_exact(&sender.expected.points(), SOON);
    // No connection is lost by this.
    let _: String = site.redis.query(&["FLUSHALL"]);
    wait_reported(&nodes);
    send_late(&mut sender, &nodes, "late");
    assert_unchanged(&site, &sender);
    let log = nodes[0].log();
    assert!(log.contains("from=\"the beginning\""), "{log}");
}

#[test]
fn a_stale_replica_in_its_place_changes_no_published_point() {
    let site = Site::start();
    let nodes = two_nodes(&site, &[("store.replay_window", "0s")]);
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams = load(3000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 2);
    send(&mut sender, &nodes, before);
    let stale = RedisServer::start(&[]);
    let role = |redis: &RedisServer, of: Option<&RedisServer>| {
        let (host, port) = match of {
            Some(of) => (of.address().ip().to_string(), of.address().port().to_string()),
            None => ("NO".to_owned(), "ONE".to_owned()),
        };
        let _: String = redis.query(&["REPLICAOF", &host, &port]);
    };
    let wait_keys = |redis: &RedisServer, least: u64| {
        eventually("the data is there", SOON, || {
            let keys: u64 = redis.query(&["DBSIZE"]);
            let info: String = redis.query(&["INFO", "replication"]);
            when(keys >= least && info.contains("master_link_status:up"), format!("{keys}: {info}"))
        });
    };
    role(&stale, Some(&site.redis));
    wait_keys(&stale, 20);
    role(&stale, None);
    send(&mut sender, &nodes, after);
    site.wait_exact(&sender.expected.points(), SOON);
    role(&site.redis, Some(&stale));
    wait_keys(&site.redis, 20);
    role(&site.redis, None);
    wait_reported(&nodes);
    send_late(&mut sender, &nodes, "late");
    assert_unchanged(&site, &sender);
}

#[test]
fn a_redis_without_an_append_only_file_is_told_with_the_remedy() {
    let site = Site::start();
    let node = site.start_node("one", &[]);
    let log = node.log();
    let warned = |line: &&str| line.contains("WARN") && line.contains("appendonly yes");
    assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
    let warns = || node.get("/readyz").unwrap().body.contains("appendonly yes");
    assert!(warns());
    let _: String = site.redis.query(&["CONFIG", "SET", "appendonly", "yes"]);
    eventually("the warning goes", SOON, || when(!warns(), "it is there"));
    assert_eq!(node.log().lines().filter(warned).count(), 1);
}

#[test]
fn the_witness_on_disk_outlives_a_power_cut_of_node_and_redis() {
    let mut site = Site::start();
    let mut node = site.node("one", &[GRACE, ("store.replay_window", "0s")]);
    let spool = node.spool().display().to_string();
    node.set("input.spool_dir", &spool);
    node.run();
    let mut nodes = [node];
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams = load(2000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 2);
    send(&mut sender, &nodes, before);
    let _: String = site.redis.query(&["SAVE"]);
    send(&mut sender, &nodes, after);
    site.wait_exact(&sender.expected.points(), SOON);
    nodes[0].kill();
    site.redis.kill();
    site.redis.restart();
    nodes[0].run();
    wait_reported(&nodes);
    assert_unchanged(&site, &sender);
    nodes[0].wait_count("eds_events_late_total", |late| late > 0);
}
