//! A node that dies at the worst moment loses nothing: another finishes its work soon after the lease expires.

use event_data_service::store::redis::scripts;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(5);
/// How long publishing may take after the lease of a dead node has expired.
const TAKE_OVER: Duration = Duration::from_secs(5);

struct Moment {
    layout: &'static str,
    script: &'static str,
    n: usize,
    when: When,
}

#[test]
fn node_killed_after_claiming_is_replaced() {
    let script = scripts()["compact.lua"];
    killed_at(&Moment { layout: "sets", script, n: 1, when: When::Before }, false);
}

#[test]
fn node_killed_while_compacting_is_replaced() {
    let script = scripts()["compact.lua"];
    killed_at(&Moment { layout: "sets", script, n: 3, when: When::After }, false);
}

/// The node dies after it has cut the logs, or after it has sealed some of their counts.
#[test]
fn node_killed_while_counting_logs_is_replaced() {
    for (script, n) in [(scripts()["cut.lua"], 1), (scripts()["seal.lua"], 2)] {
        killed_at(&Moment { layout: "log", script, n, when: When::After }, false);
    }
}

#[test]
fn node_killed_between_write_and_acknowledgement_is_replaced() {
    let script = scripts()["acknowledge.lua"];
    killed_at(&Moment { layout: "sets", script, n: 1, when: When::Before }, true);
}

/// Kills one of two nodes at `moment`. `is_written` tells whether a write has been confirmed by then.
fn killed_at(moment: &Moment, is_written: bool) {
    /// Enough series for many compactions.
    const SERIES: u32 = 1500;
    /// If the other node happens to claim the minutes first, the test tries again with later ones.
    const ROUNDS_MAX: i64 = 5;

    let site = Site::start();
    let keys = [
        ("store.partitions", "1"),
        ("store.layout", moment.layout),
        ("flush.grace", "2s"),
        ("flush.max_hold", "10m"),
    ];
    let living = site.start_node("living", &[&keys[..], &[("flush.interval", "1500ms")]].concat());
    let proxy = RedisProxy::start(site.redis.address());
    let through_proxy = [("flush.interval", "50ms"), ("store.url", &proxy.url())];
    let mut dying = site.start_node("dying", &[&keys[..], &through_proxy].concat());

    let (killed, kills) = mpsc::channel();
    let pid = dying.pid();
    proxy.at(moment.n, moment.script, moment.when, move || {
        signal(pid, "KILL");
        killed.send(Instant::now()).unwrap();
        Then::Cut
    });

    let confirmed = || {
        let writes = site.writes.writes();
        writes.iter().filter(|write| write.confirmed).count()
    };
    let mut sender = Sender::to_all([&living, &dying]);
    for round in 0..ROUNDS_MAX {
        let confirmed_before = confirmed();
        let load = load(3 * round..3 * round + 3, 20_000, SERIES, 1000);
        sender.send_all(load.datagrams());
        let expected = sender.expected.points();

        let Ok(at) = kills.recv_timeout(Duration::from_secs(10)) else {
            site.wait_exact(&expected, LEASE + TAKE_OVER);
            continue;
        };
        let confirmed = confirmed() - confirmed_before;
        site.wait_exact(&expected, (LEASE + TAKE_OVER).saturating_sub(at.elapsed()));
        assert_eq!(confirmed > 0, is_written, "{confirmed} writes");
        assert!(living.metrics().count("eds_claims_taken_over_total") > 0);
        assert_eq!(living.metrics().count("eds_events_late_total"), 0);
        dying.kill();
        site.assert_clean();
        return;
    }
    panic!("the other node was first in each of {ROUNDS_MAX} rounds");
}

#[test]
fn node_suspended_beyond_its_lease_changes_nothing() {
    let site = Site::start();
    let keys = [("store.partitions", "1"), ("flush.max_hold", "10m")];
    let proxy = RedisProxy::start(site.redis.address());
    // With this timeout the node keeps its connection, so only the fencing token tells it that it is too late.
    let through_proxy = [
        ("store.url", &*proxy.url()),
        ("store.response_timeout", "1m"),
        ("store.replay_window", "1m"),
    ];
    let sleeping = site.start_node("sleeping", &[&keys[..], &through_proxy].concat());
    let pid = sleeping.pid();
    let (asleep, sleeps) = mpsc::channel();
    let (step, number) =
        if has_logs() { (scripts()["seal.lua"], 1) } else { (scripts()["compact.lua"], 2) };
    proxy.at(number, step, When::Before, move || {
        signal(pid, "STOP");
        asleep.send(()).unwrap();
        Then::Pass
    });

    let mut sender = Sender::paced_by(&sleeping);
    for datagram in load(0..1, 10_000, 1500, 1000).datagrams() {
        sender.send(&datagram);
    }
    sleeps.recv_timeout(SOON).unwrap();
    let living = site.start_node("living", &keys);
    let expected = sender.expected.points();
    site.wait_exact(&expected, LEASE + TAKE_OVER);

    sleeping.signal("CONT");
    sleeping.wait_count("eds_claims_lost_total", |lost| lost > 0);
    site.wait_exact(&expected, Duration::ZERO);
    assert_eq!(count([&sleeping, &living], "eds_events_late_total"), 0);
    assert!(living.metrics().count("eds_claims_taken_over_total") > 0);
    site.assert_clean();
}

#[test]
fn node_killed_repeatedly_under_load_loses_no_event_of_the_other() {
    const EVENTS: u64 = 150_000;
    const KILLS: u32 = 12;

    let site = Site::start();
    let keys = [("flush.grace", "3s"), ("flush.max_hold", "10m"), ("store.partitions", "8")];
    let living = site.start_node("living", &keys);
    let mut dying = site.start_node("dying", &keys);

    let load = load(0..3, EVENTS, 200, 2000);
    let mut sender = Sender::to_all([&living, &dying]);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(load.seed);
            for _ in 0..KILLS {
                thread::sleep(Duration::from_millis(random.random_range(200..1500)));
                dying.kill();
                dying.launch();
            }
            // The node has time to claim minutes before it is killed for the last time.
            thread::sleep(Duration::from_millis(random.random_range(200..1500)));
            dying.kill();
        });
        sender.send_all(load.datagrams());
    });
    site.wait_exact(&sender.expected.points(), LEASE + TAKE_OVER + Duration::from_secs(3));
    assert_eq!(living.metrics().count("eds_events_late_total"), 0);
    site.assert_clean();
}
