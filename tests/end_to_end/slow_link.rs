//! A burst of series with long names is published exactly even if the link to Redis is too slow for it.

use std::fmt::Write as _;

use crate::prelude::*;

/// The number of well-behaved series, with [`USERS`] users each.
const HONEST: usize = 64;
const USERS: usize = 5;
/// Few partitions make for large transactions.
const TIGHT: [(&str, &str); 3] = [
    ("store.partitions", "2"),
    ("store.response_timeout", "1500ms"),
    ("store.replay_window", "2s"),
];

/// Sends a burst that takes the link several response timeouts, mixed with other series, and waits until it is published.
fn publishes_exactly(
    layout: &str,
    bytes_per_second: u32,
    series_count: usize,
    own: &[(&str, &str)],
) {
    let site = Site::start();
    let proxy = TcpProxy::start(site.redis.address());
    let keys = [
        ("store.url", &*proxy.url()),
        ("store.layout", layout),
        ("flush.max_hold", "10m"),
        ("flush.grace", "1s"),
    ];
    let mut node = site.node("one", &[&keys[..], own].concat());
    let directory = tempfile::TempDir::new().unwrap();
    let path = directory.path().join("eds.sock");
    node.listen_on(&[format!("unix:{}", path.display())]);
    node.run();
    proxy.set(Traffic::Rate(bytes_per_second));
    let socket = UnixDatagram::unbound().unwrap();
    let mut expected = Expected::default();
    let every = series_count / (HONEST * USERS);
    for number in 0..series_count {
        let mut lines = burst_line(number);
        if number % every == 0 {
            let (series, user) = (number / every % HONEST, number / every / HONEST);
            let at = SEED_MINUTE_NS + i64::try_from(number).unwrap();
            let series = format!("event_type=honest,product=p{series}");
            write!(lines, "\n{series} value=user{user} {at}").unwrap();
        }
        // Blocks while the node has no room.
        socket.send_to(lines.as_bytes(), &path).unwrap();
        expected.receive(lines.as_bytes());
    }
    let expected = expected.points();
    eventually("all points are sent", Duration::from_secs(900), || {
        let points = count([&node], "eds_points_sent_total");
        when(points >= expected.len() as u64, points)
    });
    compare(&expected, &site.points()).unwrap();
    for lost in ["eds_events_late_total", "eds_events_dropped_total"] {
        assert_eq!(count([&node], lost), 0, "{lost}");
    }
    site.assert_one_value_a_point();
}

/// Returns a line of a new series whose name has more than 800 bytes.
fn burst_line(number: usize) -> String {
    let mut line = "event_type=burst".to_owned();
    for tag in 0..4 {
        write!(line, ",s{tag}={number:0200}").unwrap();
    }
    let at = SEED_MINUTE_NS + i64::try_from(number).unwrap();
    write!(line, " value=user{number} {at}").unwrap();
    line
}

#[test]
fn long_names_are_published_over_one_megabyte_a_second() {
    publishes_exactly("sets", 1_000_000, 3200, &TIGHT);
}

#[test]
fn long_names_are_published_over_one_megabyte_a_second_from_logs() {
    publishes_exactly("log", 1_000_000, 3200, &TIGHT);
}

#[test]
fn long_names_are_published_over_eight_megabytes_a_second() {
    publishes_exactly("sets", 8_000_000, 16_000, &TIGHT);
}

#[test]
fn long_names_are_published_over_eight_megabytes_a_second_from_logs() {
    publishes_exactly("log", 8_000_000, 24_000, &TIGHT);
}

#[test]
#[ignore = "takes minutes"]
fn sixty_thousand_long_names_are_published_over_slow_links() {
    for rate in [8_000_000, 1_000_000] {
        for layout in ["sets", "log"] {
            publishes_exactly(layout, rate, 60_000, &[]);
        }
    }
}
