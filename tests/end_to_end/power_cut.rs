//! After a power cut, all nodes start at once, and none knows which events the others have on disk.

use crate::prelude::*;
use crate::spool::{BACK, assert_nothing_lost, datagrams, spooling, wait_spool_empty};

const GRACE: Duration = Duration::from_secs(3);

#[test]
fn first_node_waits_for_a_node_with_events_on_disk() {
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut site = Site::with_redis(redis);
    let grace = format!("{}s", GRACE.as_secs());
    let keys =
        [("flush.grace", grace.as_str()), ("store.partitions", "1"), ("input.drain_timeout", "0s")];
    let mut first = site.start_node("first", &keys);
    let mut other = spooling(&site, "other", &keys);
    other.run();

    let datagrams = datagrams(1, 18_000);
    let (before, after) = datagrams.split_at(datagrams.len() / 2);
    let mut expected = Expected::default();
    let mut sender = Sender::paced_by(&first);
    for datagram in before {
        expected.receive(datagram);
        sender.send(datagram);
    }
    sender.wait_received();
    eventually("all events of the minute are recorded and seen", SOON, || {
        let queued = first.metrics().count("eds_events_queued");
        let values = |suffix: &str| -> Vec<String> {
            let keys = site.redis.keys();
            let key = keys.iter().find(|key| key.ends_with(suffix));
            key.map_or(vec![], |key| site.redis.query(&["HVALS", key]))
        };
        let (arrivals, idle) = (values(":arrivals"), values(":idle"));
        let seen = match (&arrivals[..], &idle[..]) {
            ([count], [seen]) => seen.starts_with(&format!("{count}|")),
            _ => false,
        };
        when(queued == 0 && seen, format!("{queued} queued, {arrivals:?}, {idle:?}"))
    });
    site.redis.stop();
    let mut sender = Sender::paced_by(&other);
    for datagram in after {
        expected.receive(datagram);
        sender.send(datagram);
    }
    sender.wait_received();
    first.kill();
    assert!(other.terminate().success());
    // The power cut lasts long enough for the minute to look idle.
    thread::sleep(GRACE);

    site.redis.restart();
    first.run();
    other.launch();
    site.wait_exact(&expected.points(), BACK);
    wait_spool_empty(&other);
    for node in [&first, &other] {
        assert_nothing_lost(&node.metrics());
    }
    site.assert_clean();
}
