//! While InfluxDB is down, Redis does not fill up, no events are lost, and retries are rare.

use crate::prelude::*;

const BACK: Duration = Duration::from_secs(60);

#[test]
fn minutes_are_sealed_while_influxdb_is_unreachable() {
    let mut site = Site::start();
    let keys = [("flush.grace", "1s"), ("output.timeout", "1s"), ("store.partitions", "8")];
    // With equal intervals, the same node would always be first, and the other would never see a failure.
    let other_interval = [&keys[..], &[("flush.interval", "170ms")]].concat();
    let nodes = [site.start_node("one", &keys), site.start_node("two", &other_interval)];
    let mut sender = Sender::to_all(&nodes);

    for (minute, mode) in (0..).zip([Mode::Refuse, Mode::Answer(503), Mode::Hang]) {
        if mode == Mode::Hang {
            // A node holds back only after it has seen the output fail.
            eventually("both nodes report that InfluxDB is down", BACK, || {
                let up = nodes.each_ref().map(|node| node.metrics().count("eds_output_up"));
                when(up == [0, 0], format!("{up:?}"))
            });
            site.writes.take_under_way_max();
        }
        site.writes.set(mode);
        let writes_before = site.writes.attempts().len();
        let load = load(minute..minute + 1, 10_000, 100, 500);
        sender.send_all(load.datagrams());
        let name = format!("20161204:{}:", 1118 + minute);
        eventually(&format!("all sets are sealed in mode {mode:?}"), SOON, || {
            let keys = site.redis.keys();
            let sets = site.sets();
            let counts = keys.iter().filter(|key| key.contains(&name) && key.ends_with("counts"));
            let counts = counts.count();
            when(sets == 0 && counts == 8, format!("{sets} sets, {counts} hashes of counts"))
        });
        if mode == Mode::Hang {
            // Each probe hangs until it times out, so a concurrent second one would overlap with it.
            eventually("InfluxDB is probed repeatedly", BACK, || {
                let probes = site.writes.attempts().len() - writes_before;
                when(probes >= 4, probes)
            });
        }
    }
    assert!(site.writes.writes().iter().all(|write| !write.confirmed));
    let at_a_time = site.writes.take_under_way_max();
    assert!(at_a_time <= 1, "{at_a_time} concurrent writes while InfluxDB was down");

    site.writes.set(Mode::Pass);
    site.wait_exact(&sender.expected.points(), BACK);
    // This includes a node that has no counts left to send because the other was faster.
    eventually("both nodes report that InfluxDB is back", BACK, || {
        let know = |node: &Node| {
            node.metrics().count("eds_output_up") == 1
                && node.log().contains("the output is accepting points again")
        };
        let know = nodes.each_ref().map(know);
        when(know == [true, true], format!("{know:?}"))
    });
    site.assert_clean();
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
}
