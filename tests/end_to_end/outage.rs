//! Half an hour of event time without Redis, without InfluxDB, and without both.

use crate::failover::assert_all_recorded;
use crate::prelude::*;

const MINUTES: i64 = 31;
const EVENTS: u64 = 62_000;
const GRACE: Duration = Duration::from_secs(3);
/// Allows for the pauses between attempts, the grace, and the backlog.
const BACK: Duration = Duration::from_secs(120);

fn half_hour(number: i64) -> Plan {
    load(number * MINUTES..(number + 1) * MINUTES, EVENTS, 40, 500)
}

fn durable_redis() -> RedisServer {
    RedisServer::start(&["--appendonly", "yes", "--appendfsync", "everysec"])
}

#[test]
fn half_an_hour_without_redis_influxdb_or_both_loses_no_event() {
    let mut site = Site::with_redis(durable_redis());
    let keys = [("flush.grace", "3s"), ("flush.max_hold", "10m"), ("output.timeout", "1s")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let mut sender = Sender::to_all(&nodes);
    for (number, (redis, influxdb)) in (0..).zip([(true, false), (false, true), (true, true)]) {
        if influxdb {
            site.writes.set(Mode::Refuse);
        }
        let mut send = |datagrams: &[Vec<u8>]| {
            sender.send_all(datagrams);
        };
        // Every minute has some events before Redis stops, and looks idle when Redis is back.
        let datagrams: Vec<_> = half_hour(number).datagrams().collect();
        let (before, during) = datagrams.split_at(datagrams.len() / 20);
        send(before);
        if redis {
            wait_count(&nodes, "eds_events_queued", |queued| queued == 0);
            site.redis.stop();
        }
        let stopped = Instant::now();
        send(during);
        if redis {
            assert!(nodes[0].metrics().count("eds_events_queued") >= EVENTS * 9 / 10);
        } else {
            eventually("all sets are sealed", BACK, || {
                let sets = site.sets();
                let queued = count(&nodes, "eds_events_queued");
                when(sets + usize::try_from(queued).unwrap() == 0, format!("{sets} sets"))
            });
        }
        if redis {
            eventually("twice the grace has passed", SOON, || {
                when(stopped.elapsed() > 2 * GRACE, "not yet")
            });
            site.redis.restart();
        }
        site.writes.set(Mode::Pass);
        site.wait_exact(&sender.expected.points(), BACK);
    }
    assert_all_recorded(&nodes);
    assert_eq!(count(&nodes, "eds_events_dropped_total"), 0);
    // Events recorded just before Redis stopped are recorded again, possibly after their minute was published.
    let [late, replayed] =
        ["eds_events_late_total", "eds_events_replayed_total"].map(|name| count(&nodes, name));
    assert!(late <= replayed, "{late} late, {replayed} replayed");
    site.assert_clean();
}

/// Events beyond the queue are dropped and counted, and the others are published exactly.
#[test]
fn events_beyond_a_short_queue_are_counted_during_an_outage() {
    const QUEUE: u64 = 20_000;
    let mut site = Site::with_redis(durable_redis());
    let keys = [("flush.grace", "2s"), ("input.queue_events", "20000")];
    let nodes = [site.start_node("one", &keys)];
    site.redis.stop();
    let mut sender = Sender::to_all(&nodes);
    // All events differ, so that the published ones can be compared with the ledger.
    for number in 0..EVENTS {
        let minute = i64::try_from(number).unwrap() % MINUTES;
        let at = SEED_MINUTE_NS + minute * MINUTE_NS + i64::try_from(number).unwrap();
        sender.send(format!("event_type=type{},product=b value=user{number} {at}", number % 40));
    }
    sender.wait_received();
    let metrics = nodes[0].metrics();
    let (queued, dropped) = (
        metrics.count("eds_events_queued"),
        metrics.count_of("eds_events_dropped_total", &[("reason", "queue_full")]),
    );
    assert_eq!(queued + dropped, EVENTS);
    assert!((QUEUE * 9 / 10..=QUEUE).contains(&queued), "{queued}");
    // The node logs the first drops while it is running, and further drops once a minute.
    eventually("the drops are logged", SOON, || {
        let log = nodes[0].log();
        let mut lines = log.lines().filter(|line| line.contains("ERROR"));
        let reported = lines.find(|line| line.contains("queue_full") && line.contains("amount="));
        when(reported.is_some_and(|line| line.contains("input.spool_dir")), format!("{reported:?}"))
    });
    site.redis.restart();
    eventually("the queued events are published", BACK, || {
        let points = site.points();
        for measurement in ["unique_user_event", "cumulative_user_event"] {
            let counts = points.iter().filter(|(point, _)| point.measurement == measurement);
            let published: u64 = counts.map(|(_, count)| count).sum();
            if published != queued {
                return Err(format!("{published} of {queued} {measurement}"));
            }
        }
        Ok(())
    });
    site.wait_redis_clean();
    let metrics = nodes[0].metrics();
    metrics.assert_ledger_adds_up();
    assert_eq!(metrics.count("eds_events_recorded_total"), queued);
    assert_eq!(metrics.count("eds_events_late_total"), 0);
    nodes[0].wait_count("eds_events_queued", |queued| queued == 0);
}
