//! While Redis is at maxmemory, counts are sent, events wait on the nodes, and no minute closes before they are recorded.

use crate::prelude::*;

const BACK: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(2);

#[test]
fn full_redis_loses_no_event_and_is_drained() {
    let mut site = Site::start();
    let keys = [("flush.grace", "2s"), ("flush.max_hold", "10m"), ("output.timeout", "1s")];
    let nodes = [site.start_node("one", &keys), site.start_node("two", &keys)];
    let count = |name| count(&nodes, name);
    let mut sender = Sender::to_all(&nodes);
    let load = |minute: i64| load(minute..minute + 1, 20_000, 100, 500);
    let send = |sender: &mut Sender, datagrams: &[Vec<u8>]| {
        sender.send_all(datagrams);
    };

    // One minute is closed but cannot be sent, and another is still filling.
    site.writes.set(Mode::Refuse);
    send(&mut sender, &load(0).datagrams().collect::<Vec<_>>());
    wait_for(
        "the first minute is sealed",
        || site.sets(),
        |&sets| sets == 0 && count("eds_series_sealed_total") == 100,
    );
    let first_minute = sender.expected.points();
    let second: Vec<_> = load(1).datagrams().collect();
    let (before, during) = second.split_at(second.len() / 3);
    send(&mut sender, before);
    wait_for("the second minute has begun", || count("eds_events_queued"), |&queued| queued == 0);
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = Instant::now();
    send(&mut sender, during);
    site.writes.set(Mode::Pass);
    site.wait_exact(&first_minute, BACK);
    // A node that starts now has nothing to record, but must not close any minute either.
    let mut idle = site.node("idle", &keys);
    idle.launch();
    for node in nodes.iter().chain([&idle]) {
        eventually("the node reports the cause and the remedy", SOON, || {
            let answer = node.get("/readyz").map_err(|error| error.to_string())?;
            let says = answer.body.contains("raise maxmemory");
            let up = node.metrics().count("eds_store_up");
            when(answer.status == 503 && says && up == 0, format!("{answer:?}"))
        });
    }
    eventually("five times the grace has passed", SOON, || {
        when(full.elapsed() > 5 * GRACE, "not yet")
    });
    for node in &nodes {
        let metrics = node.metrics();
        metrics.assert_ledger_adds_up();
        let queued = metrics.count("eds_events_queued");
        assert!(queued > 10_000, "{queued}");
        assert!(metrics.count("eds_record_failures_total") > 0);
        assert!(metrics.count("eds_partitions_lagging") > 0);
    }
    site.wait_exact(&first_minute, Duration::ZERO);
    for arguments in [["outputs", "list"], ["quarantine", "list"]] {
        let (code, text) = nodes[0].command_text(&arguments);
        assert_eq!(code, Some(0), "{text}");
    }

    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    idle.wait_ready();
    for node in nodes.iter().chain([&idle]) {
        eventually("the node is ready again", SOON, || {
            let answer = node.get("/readyz").map_err(|error| error.to_string())?;
            let up = node.metrics().count("eds_store_up");
            when(answer.status == 200 && up == 1, format!("{answer:?}"))
        });
    }
    site.wait_exact(&sender.expected.points(), BACK);
    crate::failover::assert_all_recorded(&nodes);
    assert_eq!(count("eds_events_late_total"), 0);
    assert_eq!(count("eds_partitions_lagging"), 0);
    site.assert_clean();
}
