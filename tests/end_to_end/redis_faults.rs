//! No events are lost while Redis is down, restarts, stops responding, or becomes a replica.

use event_data_service::store::redis::scripts;

use crate::prelude::*;

const BACK: Duration = Duration::from_secs(60);

fn load(events: u64) -> Plan {
    testing::load::load(0..1, events, 50, 500)
}

/// After an outage, minutes look idle in Redis, although each node still has events that no other node has.
#[test]
fn events_that_waited_longer_than_max_hold_are_counted() {
    const OUTAGE: Duration = Duration::from_secs(6);
    let redis = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let mut site = Site::with_redis(redis);
    let keys = [("flush.grace", "2s"), ("flush.max_hold", "4s")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let mut senders = nodes.each_ref().map(Sender::paced_by);
    let mut expected = Expected::default();
    let mut send = |datagrams: &[Vec<u8>]| {
        for (i, datagram) in datagrams.iter().enumerate() {
            expected.receive(datagram);
            senders[i % 2].send(datagram);
        }
    };
    let recorded = || {
        let recorded = |node: &Node| node.metrics().count("eds_events_recorded_total");
        nodes.iter().map(recorded).sum::<u64>()
    };

    let datagrams: Vec<_> = load(3000).datagrams().collect();
    let (before, during) = datagrams.split_at(datagrams.len() / 2);
    send(before);
    eventually("the first half is recorded", SOON, || when(recorded() == 1500, recorded()));
    site.redis.stop();
    let stopped = Instant::now();
    send(during);
    eventually("the outage is over", SOON, || when(stopped.elapsed() > OUTAGE, "not yet"));
    site.redis.restart();
    eventually("the second half is recorded", BACK, || when(recorded() == 3000, recorded()));
    site.wait_exact(&expected.points(), BACK);
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
}

#[test]
fn silent_redis_is_detected_and_loses_no_event() {
    let site = Site::start();
    let proxy = RedisProxy::start(site.redis.address());
    let keys = [("store.url", &*proxy.url()), ("store.response_timeout", "1s")];
    let mut node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    let datagrams: Vec<_> = load(20_000).datagrams().collect();
    for (i, datagram) in datagrams.iter().enumerate() {
        if i == datagrams.len() / 2 {
            proxy.mute(true);
        }
        sender.send(datagram);
    }
    eventually("the node is no longer ready", BACK, || {
        let answer = node.get("/readyz").unwrap();
        when(answer.status == 503, answer.body)
    });
    proxy.mute(false);
    node.wait_ready();
    sender.wait_received();
    site.wait_exact(&sender.expected.points(), BACK);
    assert_eq!(node.metrics().count("eds_events_late_total"), 0);
    site.assert_clean();
}

#[test]
fn lost_answer_at_any_step_changes_no_number() {
    lose_answers(
        "sets",
        &[
            ("EXEC", 2, Then::SwallowAnswers),
            ("EXEC", 12, Then::Cut),
            (scripts()["claim.lua"], 5, Then::Cut),
            (scripts()["compact.lua"], 2, Then::SwallowAnswers),
            (scripts()["compact.lua"], 5, Then::Cut),
            (scripts()["acknowledge.lua"], 1, Then::SwallowAnswers),
            (scripts()["acknowledge.lua"], 3, Then::Cut),
        ],
    );
}

#[test]
fn lost_answer_at_any_step_of_logs_changes_no_number() {
    lose_answers(
        "log",
        &[
            (scripts()["append.lua"], 2, Then::SwallowAnswers),
            (scripts()["append.lua"], 12, Then::Cut),
            (scripts()["claim.lua"], 5, Then::Cut),
            (scripts()["cut.lua"], 1, Then::SwallowAnswers),
            (scripts()["cut.lua"], 4, Then::Cut),
            ("LRANGE", 2, Then::Cut),
            (scripts()["seal.lua"], 2, Then::SwallowAnswers),
            (scripts()["seal.lua"], 5, Then::Cut),
            (scripts()["acknowledge.lua"], 1, Then::SwallowAnswers),
        ],
    );
}

/// Redis executes every command, but the node loses the response or the connection.
fn lose_answers(layout: &str, steps: &[(&'static str, usize, Then)]) {
    let site = Site::start();
    let proxy = RedisProxy::start(site.redis.address());
    let url = proxy.url();
    let keys = [
        ("store.url", url.as_str()),
        ("store.layout", layout),
        ("store.response_timeout", "500ms"),
        ("store.partitions", "8"),
    ];
    let node = site.start_node("one", &keys);
    let (report, reports) = mpsc::channel();
    for &(needle, n, then) in steps {
        // Responses must be swallowed from before the command is forwarded. A connection is cut after that.
        let when = if then == Then::Cut { When::After } else { When::Before };
        let report = report.clone();
        proxy.at(n, needle, when, move || {
            report.send((needle, n)).unwrap();
            then
        });
    }

    let mut sender = Sender::paced_by(&node);
    sender.send_all(load(10_000).datagrams());
    site.wait_exact(&sender.expected.points(), BACK);
    site.assert_clean();
    // Only replayed events may arrive after their counts were sealed.
    let metrics = node.metrics();
    let late = metrics.count("eds_events_late_total");
    let replayed = metrics.count("eds_events_replayed_total");
    assert!(late <= replayed, "{late} late, {replayed} replayed");
    let missed = steps.len() - reports.try_iter().count();
    assert_eq!(missed, 0, "some faults did not occur");
}

/// The clients of the server stay connected and do not notice the change.
#[test]
fn redis_that_became_a_replica_gets_the_last_events_again() {
    let site = Site::start();
    let master = RedisServer::start(&["--repl-diskless-sync-delay", "0"]);
    // Long enough that claims are unlikely to reach the replica.
    let keys = [("flush.interval", "8s"), ("flush.grace", "9s"), ("flush.lease", "30s")];
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    sender.send_all(load(6000).datagrams());
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 6000);
    let port = master.address().port().to_string();
    site.redis.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    wait_for("the replica has the data of its master", || site.redis.keys(), Vec::is_empty);
    site.redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    site.wait_exact(&sender.expected.points(), BACK);
    let metrics = node.metrics();
    assert!(metrics.count("eds_events_replayed_total") >= 6000);
    assert_eq!(metrics.count("eds_events_late_total"), 0);
    site.wait_redis_clean();
}
