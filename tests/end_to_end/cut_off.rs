//! A node that cannot reach Redis while its peers can, and connections on which responses are slow.

use crate::failover::assert_all_recorded;
use crate::prelude::*;

/// The lease used in tests plus the time that a takeover takes.
const TAKEN_OVER: Duration = Duration::from_secs(10);
const BACK: Duration = Duration::from_secs(60);

fn load(minute: i64, events: u64) -> Plan {
    testing::load::load(minute..minute + 1, events, 50, 500)
}

#[test]
fn node_cut_off_from_redis_delays_no_minute_and_loses_no_event() {
    let mut site = Site::start();
    let keys = [
        ("flush.grace", "2s"),
        ("flush.max_hold", "10m"),
        ("output.timeout", "1s"),
        ("store.response_timeout", "1s"),
        ("store.partitions", "8"),
    ];
    let others = ["one", "two"]
        .map(|name| site.start_node(name, &[&keys[..], &[("flush.interval", "1s")]].concat()));
    let proxy = TcpProxy::start(site.redis.address());
    let own = [("store.url", &*proxy.url()), ("flush.interval", "20ms")];
    let cut_off = site.start_node("cut-off", &[&keys[..], &own].concat());
    let mut sender = Sender::to_all(others.iter().chain([&cut_off]));
    let mut send = |load: Plan| {
        sender.send_all(load.datagrams());
        sender.expected.points()
    };

    // The node has claims when it is cut off: for counts that no node can send. It asks for claims more often than the others,
    // but one of these may still be faster for all partitions of a minute.
    site.writes.set(Mode::Refuse);
    let mut published = 0;
    while cut_off.metrics().count("eds_claims_total") == 0 {
        send(load(published, 10_000));
        published += 1;
        let claims = u64::try_from(8 * published).unwrap();
        eventually("all partitions are claimed", BACK, || {
            let found = count(others.iter().chain([&cut_off]), "eds_claims_total");
            when(found >= claims, found)
        });
    }
    proxy.set(Traffic::Stall);
    site.writes.set(Mode::Pass);
    let expected = send(load(published, 10_000));
    site.wait_exact(&expected, TAKEN_OVER + Duration::from_secs(2));
    cut_off.wait_answer("/readyz", 503, "");

    // Events that only this node has wait for Redis: those in a new minute count, those in a published one are late.
    let (mut own_minute, mut too_late) = (Sender::paced_by(&cut_off), Expected::default());
    for datagram in load(published + 1, 3000).datagrams() {
        own_minute.send(&datagram);
    }
    for user in 0..300 {
        let at = SEED_MINUTE_NS + published * MINUTE_NS;
        let line = format!("event_type=type-1,product=product-1 value=late{user} {at}");
        too_late.receive(line.as_bytes());
        own_minute.send_unrecorded(line.as_bytes());
    }
    own_minute.wait_received();
    site.wait_exact(&expected, Duration::ZERO);

    proxy.set(Traffic::Open);
    let mut expected = expected;
    expected.extend(own_minute.expected.points());
    site.wait_exact(&expected, BACK);
    let all = [&others[0], &others[1], &cut_off];
    eventually("the late events are counted", BACK, || {
        let late = count(all, "eds_events_late_total");
        when(late >= 300, late)
    });
    for node in all {
        let metrics = node.metrics();
        metrics.assert_ledger_adds_up();
        let received = metrics.count("eds_events_received_total");
        assert_eq!(received, metrics.count("eds_events_recorded_total"));
    }
    site.wait_exact(&expected, Duration::ZERO);
    site.assert_clean();
}

#[test]
fn slow_answers_lose_no_event() {
    let site = Site::start();
    let proxy = TcpProxy::start(site.redis.address());
    let url = proxy.url();
    let keys = [
        ("store.url", url.as_str()),
        ("flush.grace", "4s"),
        ("flush.max_hold", "10m"),
        ("store.response_timeout", "1s"),
        ("store.partitions", "8"),
    ];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let mut sender = Sender::to_all(&nodes);
    let ms = Duration::from_millis;
    // The last one is too slow to deliver any response before the timeout.
    let last = Traffic::Trickle(1, ms(500));
    let ways = [Traffic::Delay(ms(50)), Traffic::Trickle(20, ms(1)), last];
    for (minute, way) in (0_i64..).zip(ways) {
        proxy.set(way);
        sender.send_all(load(minute, 10_000).datagrams());
        if way == last {
            wait_count(&nodes, "eds_store_up", |up| up == 0);
            proxy.set(Traffic::Open);
        }
        site.wait_exact(&sender.expected.points(), BACK);
    }
    proxy.set(Traffic::Open);
    assert_all_recorded(&nodes);
    wait_count(&nodes, "eds_partitions_lagging", |lagging| lagging == 0);
    // Events recorded just before a connection was lost are recorded again, possibly after their minute was published.
    let [late, replayed] =
        ["eds_events_late_total", "eds_events_replayed_total"].map(|name| count(&nodes, name));
    assert!(late <= replayed, "{late} late, {replayed} replayed");
    site.assert_clean();
}
