//! When Redis loses data, published points keep their values, and the losses are reported.

use std::fs::File;

use crate::prelude::*;

/// Leaves the nodes enough time to report lost data to Redis before the minutes close.
const GRACE: (&str, &str) = ("flush.grace", "3s");
const RECEIVED: &str = "eds_datagrams_received_total";
const NO_REPLAY: (&str, &str) = ("store.replay_window", "0s");

fn load(events: u64, minute: i64) -> Vec<Vec<u8>> {
    let load = testing::load::load(minute..minute + 1, events, 20, 300);
    load.datagrams().collect()
}

/// Nodes on a Redis server that loses data, and the sender to them.
struct Losing {
    site: Site,
    nodes: Vec<Node>,
    sender: Sender,
}

impl Losing {
    fn start(site: Site, keys: &[(&str, &str)]) -> Self {
        let keys = [&[GRACE], keys].concat();
        let nodes = ["one", "two"].map(|name| site.start_node(name, &keys));
        Self { sender: Sender::to_all(&nodes), nodes: nodes.into(), site }
    }

    fn send(&mut self, datagrams: &[Vec<u8>]) {
        self.sender.send_all(datagrams);
        self.wait_recorded();
    }

    fn wait_recorded(&self) {
        // The sender waits only for the first node.
        self.sender.wait_received();
        let received = self.nodes[0].metrics().count(RECEIVED);
        for node in &self.nodes {
            node.wait_count(RECEIVED, |count| count == received);
            node.wait_recorded();
        }
    }

    /// Sends a minute of events, calls `save` halfway through, and returns its result.
    fn send_and_save<S>(&mut self, save: impl FnOnce(&RedisServer) -> S) -> S {
        let datagrams = load(3000, 0);
        let (before, after) = datagrams.split_at(datagrams.len() / 2);
        self.send(before);
        wait_stamped(&self.site.redis);
        let saved = save(&self.site.redis);
        self.send(after);
        saved
    }

    fn wait_exact(&self) {
        self.site.wait_exact(&self.sender.expected.points(), SOON);
    }

    fn restart_redis(&mut self) {
        self.site.redis.kill();
        self.site.redis.restart();
    }

    fn wait_reported(&self) {
        for node in &self.nodes {
            node.wait_count("eds_store_rollbacks_total", |rollbacks| rollbacks > 0);
            let log = node.log();
            let logged: Vec<_> =
                log.lines().filter(|line| line.contains("the store lost acknowledged")).collect();
            assert!(!logged.is_empty(), "{log}");
            for line in logged {
                assert!(line.contains("ERROR") && line.contains("from="), "{line}");
            }
        }
    }

    /// Sends an event of the closed minute with a new user, which would change both counts.
    fn send_late(&mut self) {
        let at = SEED_MINUTE_NS + 1;
        self.sender.send_unrecorded(format!("event_type=type-1,product=product-1 value=late {at}"));
        self.wait_recorded();
    }

    /// Waits until no minute is left in Redis, and asserts that no point has ever changed its value.
    fn assert_unchanged(&self) {
        eventually("no minute is left", SOON, || {
            let is_left = |key: &String| key.ends_with(":minutes") || key.contains(":claims");
            let left: Vec<_> = self.site.redis.keys().into_iter().filter(is_left).collect();
            when(left.is_empty(), format!("{left:?}"))
        });
        self.site.assert_one_value_a_point();
        self.wait_exact();
    }

    /// Waits until the lost data is reported, and asserts that a late event changes no published point.
    fn assert_reported_and_unchanged(&mut self) {
        self.wait_reported();
        self.send_late();
        self.assert_unchanged();
    }
}

fn save(redis: &RedisServer) {
    let _: String = redis.query(&["SAVE"]);
}

/// Waits until a node has checked in at every partition after this call.
fn wait_stamped(redis: &RedisServer) {
    let stamps = || -> BTreeMap<String, Option<u64>> {
        let keys = redis.keys().into_iter().filter(|key| key.ends_with(":witness"));
        keys.map(|key| (key.clone(), redis.query(&["HGET", &key, "stamp"]))).collect()
    };
    let before = stamps();
    eventually("all partitions have new stamps", SOON, || {
        let now = stamps();
        let is_new =
            |(key, stamp): (&String, &Option<u64>)| *stamp > before.get(key).copied().flatten();
        when(!now.is_empty() && now.iter().all(is_new), format!("{now:?} after {before:?}"))
    });
}

#[test]
fn rollback_to_a_snapshot_changes_no_published_point() {
    let mut losing = Losing::start(Site::start(), &[NO_REPLAY]);
    losing.send_and_save(save);
    losing.wait_exact();
    losing.restart_redis();
    losing.assert_reported_and_unchanged();
    // Half of the events are lost, but all events since the last stamp in Redis count as lost.
    let forgotten = losing.nodes[0].metrics().count("eds_events_forgotten_total");
    assert!((1400..=3000).contains(&forgotten), "{forgotten}");
    // The late events of a minute are counted by the node that closes it.
    wait_count(&losing.nodes, "eds_events_late_total", |late| late > 0);
    losing.send(&load(1000, 1));
    losing.wait_exact();
}

#[test]
fn truncated_append_only_file_changes_no_published_point() {
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut losing = Losing::start(Site::with_redis(redis), &[("store.replay_window", "60s")]);
    losing.send(&load(3000, 0));
    let file = append_only_file(&losing.site.redis);
    let recorded = file.metadata().unwrap().len();
    losing.wait_exact();
    // This event is late and kept for replay, so it is sent again after Redis has lost the counts.
    losing.send_late();
    losing.assert_unchanged();
    losing.site.redis.kill();
    File::options().write(true).open(&file).unwrap().set_len(recorded).unwrap();
    losing.site.redis.restart();
    losing.wait_reported();
    losing.assert_unchanged();
    losing.nodes[0].wait_count("eds_events_replayed_total", |replayed| replayed > 0);
}

fn append_only_file(redis: &RedisServer) -> PathBuf {
    let files = fs::read_dir(redis.directory().join("appendonlydir")).unwrap();
    let mut files = files.map(|file| file.unwrap().path());
    let file = files.find(|path| path.to_string_lossy().ends_with(".incr.aof"));
    file.expect("an append-only file")
}

#[test]
fn empty_redis_changes_no_published_point() {
    let mut losing = Losing::start(Site::start(), &[("store.replay_window", "60s")]);
    losing.send(&load(3000, 0));
    losing.wait_exact();
    // Connections survive this.
    let _: String = losing.site.redis.query(&["FLUSHALL"]);
    losing.assert_reported_and_unchanged();
    assert_contains(&losing.nodes[0].log(), ["from=\"the beginning\""]);
}

#[test]
fn stale_replica_changes_no_published_point() {
    let mut losing = Losing::start(Site::start(), &[NO_REPLAY]);
    let stale = RedisServer::start(&[]);
    // Makes `to` a replica of `from` until it has copied the data.
    let copy = |to: &RedisServer, from: &RedisServer| {
        let (host, port) = (from.address().ip().to_string(), from.address().port().to_string());
        let _: String = to.query(&["REPLICAOF", &host, &port]);
        eventually("the data has been copied", SOON, || {
            let keys: u64 = to.query(&["DBSIZE"]);
            let info: String = to.query(&["INFO", "replication"]);
            when(keys >= 20 && info.contains("master_link_status:up"), format!("{keys}: {info}"))
        });
        let _: String = to.query(&["REPLICAOF", "NO", "ONE"]);
    };
    losing.send_and_save(|redis| copy(&stale, redis));
    losing.wait_exact();
    copy(&losing.site.redis, &stale);
    losing.assert_reported_and_unchanged();
}

#[test]
fn witness_on_disk_survives_a_power_cut_of_node_and_redis() {
    let site = Site::start();
    let mut node = site.node("one", &[GRACE, NO_REPLAY]);
    node.set("input.spool_dir", &node.spool().display().to_string());
    node.run();
    let mut losing = Losing { sender: Sender::paced_by(&node), nodes: vec![node], site };
    losing.send_and_save(save);
    losing.wait_exact();
    losing.nodes[0].kill();
    losing.restart_redis();
    losing.nodes[0].run();
    losing.wait_reported();
    losing.assert_unchanged();
    losing.nodes[0].wait_count("eds_events_late_total", |late| late > 0);
}

/// Sets the clock of Redis back by `seconds`. The events recorded after that are then lost.
fn a_rollback_is_noticed_after_redis_clock_was_set_back(seconds: i64, layout: &str) {
    let clock = Clock::ahead_by(0);
    let redis = RedisServer::start_with_clock(&clock, &[]);
    let keys =
        [NO_REPLAY, ("store.layout", layout), ("store.partitions", "4"), ("flush.grace", "20s")];
    let mut losing = Losing::start(Site::with_redis(redis), &keys);
    let datagrams = load(3000, 0);
    let (before, after) = datagrams.split_at(datagrams.len() / 10);
    losing.send(before);
    clock.advance(-seconds);
    wait_stamped(&losing.site.redis);
    save(&losing.site.redis);
    losing.send(after);
    wait_stamped(&losing.site.redis);
    losing.restart_redis();
    losing.wait_reported();
    for node in &losing.nodes {
        let forgotten = node.metrics().count("eds_events_forgotten_total");
        assert!((2600..=3000).contains(&forgotten), "{forgotten}");
        let log = node.log();
        let line = log.lines().find(|line| line.contains("the store lost acknowledged"));
        let time = |name: &str| {
            let value = line.unwrap().split_once(&format!(" {name}="));
            let value = value.unwrap().1.trim_start_matches('"');
            humantime::parse_rfc3339(&value[..24]).unwrap()
        };
        // Both times are given by the current clock of Redis.
        let (from, to) = (time("from"), time("to"));
        assert!(from <= to && to <= clock.now(), "{line:?}");
        let minute = Duration::from_secs(60);
        assert!(clock.now().duration_since(from).unwrap() < minute, "{line:?}");
    }
}

#[test]
fn rollback_is_detected_with_the_clock_of_redis_90_seconds_back() {
    a_rollback_is_noticed_after_redis_clock_was_set_back(90, "sets");
}

#[test]
fn rollback_is_detected_with_the_clock_of_redis_an_hour_back() {
    a_rollback_is_noticed_after_redis_clock_was_set_back(3600, "log");
}

/// Kills a node between a write and its confirmation, and rolls Redis back. Returns the other node and the sender.
pub(crate) fn kill_writer_and_redis(site: Site, layout: &str) -> (Site, Node, Sender) {
    let keys =
        [NO_REPLAY, ("store.layout", layout), ("store.partitions", "1"), ("flush.grace", "5s")];
    let mut losing = Losing::start(site, &keys);
    // InfluxDB accepts the points, but no node receives its response.
    losing.site.writes.set(Mode::TakeAndHang);
    losing.send_and_save(save);
    losing.wait_exact();
    let tokens: Vec<String> = losing.site.redis.query(&["HVALS", "{eds:0}:tokens:default"]);
    let writer = usize::from(tokens[0].starts_with("two#"));
    losing.nodes.swap_remove(writer).kill();
    losing.restart_redis();
    losing.site.writes.set(Mode::Pass);
    (losing.site, losing.nodes.remove(0), losing.sender)
}

fn a_written_point_keeps_its_value_when_writer_and_redis_are_killed(layout: &str) {
    let (site, node, sender) = kill_writer_and_redis(Site::start(), layout);
    let mut losing = Losing { site, nodes: vec![node], sender };
    losing.wait_reported();
    losing.assert_unchanged();
    let other = &losing.nodes[0];
    // The minute is claimed again, with only half of its events.
    other.wait_count("eds_events_late_total", |late| late > 0);
    // No node knows whether all points were written.
    let log = other.log();
    let told = |line: &&str| line.contains("ERROR") && line.contains("an output may be missing");
    assert_eq!(log.lines().filter(told).count(), 1, "{log}");
    assert_eq!(other.metrics().count("eds_publications_unconfirmed_total"), 1);
    // The dead node delays no minute of the other one.
    let expected = std::mem::take(&mut losing.sender.expected);
    losing.sender = Sender::paced_by(&losing.nodes[0]);
    losing.sender.expected = expected;
    losing.send(&load(1000, 1));
    losing.wait_exact();
}

#[test]
fn written_point_keeps_its_value_when_its_writer_dies_and_redis_rolls_back() {
    a_written_point_keeps_its_value_when_writer_and_redis_are_killed("sets");
}

#[test]
fn written_point_keeps_its_value_when_its_writer_dies_and_redis_rolls_back_in_logs() {
    a_written_point_keeps_its_value_when_writer_and_redis_are_killed("log");
}
