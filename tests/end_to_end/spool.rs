//! While Redis is down, events that do not fit in memory wait on disk, and survive faults of the node.

use std::fs;

use event_data_service::spool::segment;

use crate::prelude::*;

/// Allows for timeouts, pauses between attempts, and the grace after an outage.
pub(crate) const BACK: Duration = Duration::from_secs(90);
/// So small that nearly all events go to disk.
const QUEUE: u64 = 1000;

/// Returns the datagrams of this many minutes in chronological order.
pub(crate) fn datagrams(minutes: u32, events_per_minute: u64) -> Vec<Vec<u8>> {
    let events = u64::from(minutes) * events_per_minute;
    let any_order = load(0..minutes.into(), events, 20, 500);
    let in_order = Plan { shuffle: false, ..any_order };
    in_order.datagrams().collect()
}

/// Returns a node with a short queue and a large spool.
pub(crate) fn spooling(site: &Site, name: &str, keys: &[(&str, &str)]) -> Node {
    let mut node = site.node(name, &[("input.queue_events", "1000")]);
    node.set("input.spool_dir", &node.spool().display().to_string());
    for (key, value) in keys {
        node.set(key, value);
    }
    node
}

fn launch(node: &mut Node) {
    node.launch();
    eventually("the node responds", SOON, || node.get("/healthz"));
}

/// Launches a [`spooling`] node without Redis and sends it these datagrams.
#[track_caller]
fn filled(site: &Site, keys: &[(&str, &str)], datagrams: &[Vec<u8>]) -> (Node, Sender) {
    let mut node = spooling(site, "one", keys);
    launch(&mut node);
    let mut sender = Sender::paced_by(&node);
    sender.send_all(datagrams);
    (node, sender)
}

fn segments(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "spool"));
    paths.sort_unstable();
    paths
}

fn events_on_disk(directory: &Path) -> u64 {
    let events = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap();
        segment::read(&bytes, |_, _, _| ()).map_or(0, |contents| contents.events)
    };
    segments(directory).iter().map(events).sum()
}

#[track_caller]
fn wait_spooled(node: &Node) -> u64 {
    eventually("all spooled events are on disk", SOON, || {
        let spooled = node.metrics().count("eds_events_spooled");
        let on_disk = events_on_disk(&node.spool());
        if on_disk == spooled {
            Ok(spooled)
        } else {
            Err(format!("{on_disk} of {spooled} events on disk"))
        }
    })
}

#[track_caller]
pub(crate) fn assert_nothing_lost(metrics: &Metrics) {
    metrics.assert_ledger_adds_up();
    for name in ["eds_events_dropped_total", "eds_events_late_total"] {
        assert_eq!(metrics.count(name), 0, "{name}");
    }
}

#[track_caller]
pub(crate) fn wait_spool_empty(node: &Node) {
    eventually("the spool is empty", SOON, || {
        let metrics = node.metrics();
        let left = segments(&node.spool());
        let seen = format!(
            "{left:?}, {} events queued, {} bytes",
            metrics.count("eds_events_queued"),
            metrics.count("eds_spool_bytes")
        );
        when(
            left.is_empty()
                && metrics.count("eds_events_queued") == 0
                && metrics.count("eds_spool_bytes") == 0,
            seen,
        )
    });
}

#[track_caller]
pub(crate) fn assert_drained(site: &Site, node: &Node, sender: &Sender) {
    site.wait_exact(&sender.expected.points(), BACK);
    wait_spool_empty(node);
    assert_nothing_lost(&node.metrics());
}

#[test]
fn half_an_hour_without_redis_loses_no_event() {
    const MINUTES: u32 = 31;
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let keys = [("flush.max_hold", "20s")];
    let (mut node, mut sender) = filled(&site, &keys, &datagrams(MINUTES, 9000));
    let spooled = wait_spooled(&node);
    assert!(spooled >= 9000 * 31 - 2 * QUEUE, "{spooled}");

    site.redis.restart();
    node.wait_ready();
    assert_drained(&site, &node, &sender);
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_spool_written_total"), spooled);
    site.assert_clean();

    // After that, events go through memory again.
    let directly = datagrams(1, 500);
    let before = node.metrics().count("eds_events_recorded_total");
    for datagram in &directly {
        sender.send_unrecorded(datagram);
    }
    wait_for(
        "the events are recorded",
        || node.metrics().count("eds_events_recorded_total") - before,
        |&recorded| recorded == 500,
    );
    assert!(segments(&node.spool()).is_empty());
}

#[test]
fn spooled_events_survive_a_kill() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let mut node = spooling(&site, "one", &[("input.queue_events", "1")]);
    launch(&mut node);
    let mut sender = Sender::paced_by(&node);
    // One event fits in memory and is lost with the process, so it is not expected.
    let first = datagrams(1, 1).remove(0);
    sender.send_unrecorded(&first);
    sender.wait_received();
    sender.send_all(datagrams(3, 9000));
    let spooled = wait_spooled(&node);
    assert_eq!(spooled, 27_000);
    node.kill();

    // The second kill happens while the spool is being recorded.
    launch(&mut node);
    assert!(node.metrics().count("eds_spool_bytes") > 0);
    site.redis.restart();
    node.wait_count("eds_events_recorded_total", |recorded| recorded > 0);
    node.kill();
    node.run();
    assert_drained(&site, &node, &sender);
}

#[test]
fn stop_while_redis_is_unreachable_keeps_spooled_events_for_the_next_start() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let keys = [("input.drain_timeout", "500ms")];
    let (mut node, sender) = filled(&site, &keys, &datagrams(3, 9000));
    assert!(node.terminate().success());
    assert_eq!(events_on_disk(&node.spool()), 27_000, "events in memory must be on disk, too");
    let log = node.log();
    assert!(log.contains("writing them to input.spool_dir"), "{log}");
    assert!(!log.contains("giving it up"), "{log}");

    site.redis.restart();
    node.run();
    assert_drained(&site, &node, &sender);
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_spool_restored_total"), 27_000);
}

#[test]
fn node_waits_for_another_that_replays_its_spool() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let proxy = RedisProxy::start(site.redis.address());
    // Each transaction of the slow node takes a second to reach Redis.
    for nth in 1..=70 {
        let slow = || {
            thread::sleep(Duration::from_secs(1));
            Then::Pass
        };
        proxy.at(nth, "EXEC", When::Before, slow);
    }
    let keys = [("store.partitions", "1"), ("input.spool_max", "4MiB"), ("flush.max_hold", "90s")];
    let mut nodes = [spooling(&site, "quick", &keys), spooling(&site, "slow", &keys)];
    nodes[1].set("store.url", &proxy.url());
    nodes.iter_mut().for_each(launch);
    let mut expected = Expected::default();
    let mut senders = nodes.each_ref().map(Sender::paced_by);
    // Each event reaches only one node, and the slow node has events of every minute.
    for (i, datagram) in datagrams(10, 15_000).iter().enumerate() {
        expected.receive(datagram);
        senders[i % 2].send(datagram);
    }
    for (sender, node) in senders.iter().zip(&nodes) {
        sender.wait_received();
        wait_spooled(node);
    }
    site.redis.restart();
    wait_spool_empty(&nodes[0]);
    let left = nodes[1].metrics().count("eds_spool_bytes");
    assert!(left > 0, "the slow node has finished before the quick one");
    site.wait_exact(&expected.points(), Duration::from_secs(180));
    for node in &nodes {
        wait_spool_empty(node);
        assert_nothing_lost(&node.metrics());
    }
    site.wait_redis_clean();
}

#[test]
fn events_beyond_the_spool_are_counted_exactly() {
    const EVENTS: u64 = 300_000;
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let keys = [("input.spool_max", "1MiB")];
    let (node, _) = filled(&site, &keys, &datagrams(10, 30_000));
    wait_spooled(&node);
    let metrics = node.metrics();
    metrics.assert_ledger_adds_up();
    let full = metrics.count_of("eds_events_dropped_total", &[("reason", "spool_full")]);
    let kept = metrics.count("eds_events_queued");
    assert!(full > 0);
    assert_eq!(full + kept, EVENTS);
    let bytes: u64 =
        segments(&node.spool()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!((500_000..=1 << 20).contains(&bytes), "{bytes}");
    assert!(node.log().contains("input.spool_max"), "the log does not say why");

    site.redis.restart();
    node.wait_count("eds_events_recorded_total", |recorded| recorded == kept);
    wait_spool_empty(&node);
}

#[test]
fn damaged_segment_loses_only_its_damaged_frames_and_is_kept() {
    let mut site = Site::with_redis(RedisServer::down(&[]));
    let keys = [("input.drain_timeout", "0s")];
    let (mut node, _) = filled(&site, &keys, &datagrams(3, 9000));
    assert!(node.terminate().success());
    let spool = node.spool();
    let path = segments(&spool).remove(0);
    let mut bytes = fs::read(&path).unwrap();
    bytes[segment::MAGIC.len() + 20] ^= 0x40;
    // An incomplete frame, as left by a process that died during a write.
    bytes.extend([0x00, 0x10, 0x00, 0x00, 0x01]);
    fs::write(&path, bytes).unwrap();
    fs::write(spool.join("00000000000000000000.spool"), "of something else").unwrap();
    let left = events_on_disk(&spool);
    assert!(0 < left && left < 27_000, "{left}");

    site.redis.restart();
    node.run();
    node.wait_count("eds_events_recorded_total", |recorded| recorded == left);
    wait_spool_empty(&node);
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_spool_damaged_total"), 1);
    assert_eq!(metrics.count("eds_spool_restored_total"), left);
    assert!(path.with_extension("damaged").exists());
    assert!(spool.join("00000000000000000000.damaged").exists());
    assert!(node.log().contains("some spooled events could not be read"));
}
