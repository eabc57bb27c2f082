//! Zeros: series that have fallen silent get points with value 0, one from the whole cluster, even if nodes die.

use event_data_service::store::redis::scripts;

use crate::prelude::*;
use crate::rollups::skip;

/// More series than partitions, so that some share a partition with the only one that has events.
const SERIES: i64 = 6;

#[test]
fn silent_series_get_each_zero_once_when_a_node_is_killed() {
    let site = Site::start_at_second(10);
    let keys = [("store.partitions", "4"), ("flush.zeros", "2m"), ("flush.lease", "3s")];
    let mut living = site.start_node("living", &keys);
    let proxy = RedisProxy::start(site.redis.address());
    let mut dying = site.start_node("dying", &[&keys[..], &[("store.url", &proxy.url())]].concat());
    let first = (site.clock().now_ns() / MINUTE_NS - 1) * MINUTE_NS;
    let mut expected = Points::new();
    let mut expect = |minute: i64, series: i64, value| {
        for measurement in ["unique_user_event", "cumulative_user_event"] {
            let point = Point {
                minute_start_ns: first + minute * MINUTE_NS,
                series: format!("a={series}"),
                measurement: measurement.to_owned(),
            };
            expected.insert(point, value);
        }
        expected.clone()
    };
    let line = |minute, series| format!("a={series} value=u {}", first + minute * MINUTE_NS);
    let mut sender = Sender::to_all([&living, &dying]);
    sender.send_all((0..SERIES).map(|series| line(0, series)));
    sender.send(line(1, 0));
    let before = (0..SERIES).map(|series| expect(0, series, 1)).last().unwrap();
    site.wait_exact(&before, SOON);

    // In the next minute, all series but one are silent, and the node that seals the first zeros dies.
    let (killed, kills) = mpsc::channel();
    assert!(dying.terminate().success());
    assert!(living.terminate().success());
    site.clock().advance(60);
    let script = scripts()[if has_logs() { "seal.lua" } else { "compact.lua" }];
    dying.launch();
    let pid = dying.pid();
    proxy.at(1, script, When::After, move || {
        signal(pid, "KILL");
        killed.send(()).unwrap();
        Then::Cut
    });
    kills.recv_timeout(SOON).unwrap();
    dying.kill();
    living.run();
    let zeros = (0..SERIES).map(|series| expect(1, series, i64::from(series == 0).unsigned_abs()));
    let zeros = zeros.last().unwrap();
    site.wait_exact(&zeros, SOON);

    skip(site.clock(), &mut living, 60);
    site.wait_exact(&(0..SERIES).map(|series| expect(2, series, 0)).last().unwrap(), SOON);
    skip(site.clock(), &mut living, 60);
    site.wait_exact(&expect(3, 0, 0), SOON);
    // No minute is left that could get zeros.
    site.assert_clean();
    assert_eq!(living.metrics().count("eds_events_late_total"), 0);
}
