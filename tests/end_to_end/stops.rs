//! A stopped node publishes as many counts as possible, reports losses in its log and exit code, and ends in time.

use crate::prelude::*;

const LOST: Option<i32> = Some(3);
/// The extra time of a stop, in addition to `input.drain_timeout`, on a busy machine.
const BESIDE: Duration = Duration::from_secs(8);
/// Keeps every minute open.
const NEVER: [(&str, &str); 2] = [("flush.grace", "1h"), ("flush.max_hold", "1h")];

fn send(sender: &mut Sender, node: &Node, users: &[&str], nanos: i64) {
    for (user, at) in users.iter().zip(nanos..) {
        sender.send(format!("event_type=login,product=shop value={user} {at}"));
    }
    sender.wait_received();
    node.wait_recorded();
}

/// Stops the node, asserts that it ends within this time, and returns its exit code.
#[track_caller]
fn stop(node: &mut Node, within: Duration) -> Option<i32> {
    let began = Instant::now();
    let code = node.terminate().code();
    assert!(began.elapsed() < within, "{:?}", began.elapsed());
    code
}

#[test]
fn memory_store_publishes_ended_minutes_at_a_stop() {
    let mut node = Node::start("one", &NEVER);
    let mut sender = Sender::paced_by(&node);
    // More minutes than a node claims in one round.
    for minute in 0..40 {
        let at = SEED_MINUTE_NS + minute * MINUTE_NS;
        send(&mut sender, &node, &["ann", "ben", "ann"], at);
    }
    assert_eq!(node.stdout(), "");
    assert_eq!(stop(&mut node, SOON), Some(0));
    compare(&sender.expected.points(), &read_back::written(node.stdout().as_bytes())).unwrap();
    assert_contains(&node.last_ledger(), ["INFO", "recorded=120", "unpublished=0"]);
}

#[test]
fn memory_store_drops_the_open_minute_at_a_stop_and_reports_it() {
    let mut node = Node::start("one", &NEVER);
    let mut sender = Sender::paced_by(&node);
    send(&mut sender, &node, &["ann"], SEED_MINUTE_NS);
    let over = sender.expected.points();
    // This minute is not over when the node stops, however slow the test is.
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap();
    send(&mut sender, &node, &["ann", "ben", "eve"], now + MINUTE_NS);
    assert_eq!(stop(&mut node, SOON), LOST);
    // Publishing only some of its events would give the minute a wrong value.
    compare(&over, &read_back::written(node.stdout().as_bytes())).unwrap();
    let words = ["WARN", "received=4", "recorded=4", "dropped=0", "unpublished=3"];
    assert_contains(&node.last_ledger(), words);
}

/// The node has only the first events of that minute, and its next process receives the others.
#[test]
fn memory_store_drops_a_minute_that_ends_during_the_stop() {
    let mut output = HttpProxy::start(None);
    output.set(Mode::Refuse);
    let keys = [
        ("output.url", &*output.url()),
        ("output.api", "v1"),
        ("output.database", "eds"),
        ("flush.grace", "1h"),
        ("flush.max_hold", "1h"),
        ("input.drain_timeout", "5m"),
    ];
    let mut node = Node::new("one", &keys);
    // By the node's clock, it starts 30 s before a minute ends.
    let ahead = 30 - chrono::Utc::now().timestamp().rem_euclid(60);
    node.skew(ahead);
    node.run();
    let now = || chrono::Utc::now().timestamp_nanos_opt().unwrap() + ahead * 1_000_000_000;
    eventually("a minute has some seconds left", SOON, || {
        when(now() % MINUTE_NS < MINUTE_NS * 3 / 4, now())
    });
    let mut sender = Sender::paced_by(&node);
    send(&mut sender, &node, &["ann"], SEED_MINUTE_NS);
    let over = sender.expected.points();
    let end = (now() / MINUTE_NS + 1) * MINUTE_NS;
    send(&mut sender, &node, &["ann", "ben"], end - MINUTE_NS);
    node.signal("TERM");
    node.wait_log("draining");
    assert!(now() < end, "the stop came after the end of the minute");
    eventually("the minute has been over for a while", 3 * SOON, || {
        when(now() > end + MINUTE_NS / 20, now())
    });
    output.set(Mode::Pass);
    assert_eq!(node.wait_for_exit(SOON).code(), LOST);
    let writes = output.writes();
    let written = writes.iter().flat_map(|write| read_back::written(&write.body)).collect();
    compare(&over, &written).unwrap();
    assert_contains(&node.last_ledger(), ["WARN", "recorded=3", "unpublished=2"]);
}

#[test]
fn memory_store_drops_unsent_counts_at_a_stop() {
    let mut output = HttpProxy::start(None);
    output.set(Mode::Refuse);
    let url = output.url();
    let keys = [
        ("output.url", &*url),
        ("output.api", "v1"),
        ("output.database", "eds"),
        ("flush.grace", "200ms"),
        ("input.drain_timeout", "2s"),
    ];
    let mut node = Node::start("one", &keys);
    let mut sender = Sender::paced_by(&node);
    send(&mut sender, &node, &["ann", "ben"], SEED_MINUTE_NS);
    node.wait_count("eds_output_up", |count| count == 0);
    assert_eq!(stop(&mut node, Duration::from_secs(2) + BESIDE), LOST);
    assert_contains(&node.last_ledger(), ["WARN", "recorded=2", "unpublished=2"]);
}

/// Returns a node with an event that it cannot record. Redis never responds, or only at the start if `answered`.
fn with_a_mute_redis(site: &Site, drain_timeout: &str, answered: bool) -> (Node, RedisProxy) {
    let proxy = RedisProxy::start(site.redis.address());
    let url = proxy.url();
    let keys = [
        ("store.url", &*url),
        ("store.connect_timeout", "30s"),
        ("store.response_timeout", "30s"),
        ("store.replay_window", "0s"),
        ("input.drain_timeout", drain_timeout),
    ];
    let mut node = site.node("one", &keys);
    if answered {
        node.run();
    }
    proxy.mute(true);
    if !answered {
        node.launch();
        eventually("the node responds", SOON, || node.get("/metrics"));
    }
    let mut sender = Sender::paced_by(&node);
    sender.send_unrecorded(format!("event_type=login value=ann {SEED_MINUTE_NS}"));
    sender.wait_received();
    (node, proxy)
}

#[test]
fn hanging_redis_does_not_delay_a_stop_and_losses_set_the_exit_code() {
    let site = Site::start();
    for answered in [true, false] {
        let (mut node, _proxy) = with_a_mute_redis(&site, "1s", answered);
        assert_eq!(stop(&mut node, Duration::from_secs(1) + BESIDE), LOST);
        assert_contains(&node.last_ledger(), ["WARN", "received=1", "dropped=1", "queued=0"]);
    }
}

#[test]
fn node_refused_after_its_start_logs_the_outcome_of_its_events() {
    let site = Site::start();
    let _one = site.start_node("one", &[("flush.grace", "2s")]);
    let proxy = RedisProxy::start(site.redis.address());
    let url = proxy.url();
    let keys = [
        ("store.url", &*url),
        ("store.response_timeout", "30s"),
        ("store.replay_window", "0s"),
        ("flush.grace", "3s"),
    ];
    let mut two = site.node("two", &keys);
    // The node reads its socket before it receives the cluster-wide settings.
    let (keeping, kept) = mpsc::channel::<()>();
    proxy.at(1, "HGETALL\r\n$12\r\neds:settings", When::Before, move || {
        let _ = kept.recv();
        Then::Pass
    });
    two.launch();
    eventually("the node responds", SOON, || two.get("/metrics"));
    let mut sender = Sender::paced_by(&two);
    sender.send_unrecorded(format!("event_type=login value=ann {SEED_MINUTE_NS}"));
    sender.wait_received();
    drop(keeping);
    assert_eq!(two.wait_for_exit(SOON).code(), Some(1));
    assert_contains(&two.log(), ["on every node"]);
    assert_contains(&two.last_ledger(), ["WARN", "received=1", "dropped=1"]);
}

#[test]
fn second_signal_ends_a_node_at_once_and_logs_the_ledger() {
    let site = Site::start();
    for answered in [true, false] {
        let (mut node, _proxy) = with_a_mute_redis(&site, "10m", answered);
        // Uses INT, because two pending TERM signals would merge into one.
        node.signal("INT");
        if answered {
            node.wait_log("draining");
        }
        assert_eq!(stop(&mut node, BESIDE), LOST);
        assert_contains(&node.last_ledger(), ["WARN", "received=1", "dropped=1", "queued=0"]);
    }
}

#[test]
fn long_backlog_does_not_delay_a_stop() {
    let load = load(0..20, 5_000, 100, 50);
    // The output does not respond, accepts writes of two points slowly, or refuses them.
    for mode in [Mode::Hang, Mode::Trickle, Mode::Answer(400)] {
        let mut site = Site::start();
        site.writes.set(Mode::Refuse);
        let keys = [
            ("flush.grace", "1s"),
            ("flush.lease", "1m"),
            ("output.timeout", "20s"),
            ("output.batch_lines", "2"),
        ];
        let mut node = site.start_node("one", &keys);
        let mut sender = Sender::paced_by(&node);
        for datagram in load.datagrams() {
            sender.send(&datagram);
        }
        node.wait_count("eds_series_sealed_total", |counted| counted > 1_500);
        // After several failures, a node sends only probes, each of which may hang for as long as a write. So it must know that
        // the output works.
        for mode in [Mode::Pass, mode] {
            let written = site.writes.writes().len();
            site.writes.set(mode);
            eventually("the counts are being sent", SOON, || {
                when(site.writes.writes().len() > written, written)
            });
        }
        // All events are in Redis, for the next process.
        assert_eq!(stop(&mut node, BESIDE), Some(0), "{mode:?}");
    }
}
