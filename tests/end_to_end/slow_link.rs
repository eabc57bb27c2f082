//! A burst of series with long names over a link to Redis that is slow for it: everything is published, exactly, once the link has
//! carried the load.

use std::fmt::Write as _;

use crate::prelude::*;

/// Series that others count on, with some users each.
const HONEST: usize = 64;
const USERS: usize = 5;
/// Longer than a loaded machine takes for a burst.
const LOADED: Duration = Duration::from_secs(120);

/// A link, and a burst that it takes several times the longest wait for an answer to carry.
struct Burst {
    layout: &'static str,
    /// The fewer there are, the larger are their transactions.
    partitions: &'static str,
    bytes_per_second: u32,
    series: usize,
    response_timeout: &'static str,
    replay_window: &'static str,
}

impl Burst {
    /// Sends the burst, with the events of the honest series all over it, and waits until all of it is published.
    fn assert_published_exactly(&self, within: Duration) {
        let site = Site::start();
        let proxy = TcpProxy::start(site.redis.address());
        let keys = [
            ("store.url", &*proxy.url()),
            ("store.layout", self.layout),
            ("store.partitions", self.partitions),
            ("store.response_timeout", self.response_timeout),
            ("store.replay_window", self.replay_window),
            ("flush.max_hold", "10m"),
            ("flush.grace", "1s"),
        ];
        let mut node = site.node("one", &keys);
        let directory = tempfile::TempDir::new().unwrap();
        let path = directory.path().join("eds.sock");
        node.listen_on(&[format!("unix:{}", path.display())]);
        node.run();
        proxy.set(Traffic::Rate(self.bytes_per_second));
        let socket = UnixDatagram::unbound().unwrap();
        let mut expected = Expected::default();
        let every = self.series / (HONEST * USERS);
        for number in 0..self.series {
            let mut lines = burst_line(number);
            if number % every == 0 {
                let (series, user) = (number / every % HONEST, number / every / HONEST);
                let at = SEED_MINUTE_NS + i64::try_from(number).unwrap();
                let series = format!("event_type=honest,product=p{series}");
                write!(lines, "\n{series} value=user{user} {at}").unwrap();
            }
            // It waits while the node has no room.
            socket.send_to(lines.as_bytes(), &path).unwrap();
            expected.receive(lines.as_bytes());
        }
        let sent = Instant::now();
        let expected = expected.points();
        eventually("all points are sent", within, || {
            let points = count([&node], "eds_points_sent_total");
            when(points >= expected.len() as u64, points)
        });
        let (layout, rate) = (self.layout, self.bytes_per_second);
        eprintln!("{layout}, {rate} bytes a second: {:?}", sent.elapsed());
        compare(&expected, &site.points()).unwrap();
        for lost in ["eds_events_late_total", "eds_events_dropped_total"] {
            assert_eq!(count([&node], lost), 0, "{lost}");
        }
        site.assert_one_value_a_point();
    }
}

/// A line of a new series, whose name has more than 800 bytes.
fn burst_line(number: usize) -> String {
    let mut line = "event_type=burst".to_owned();
    for tag in 0..4 {
        write!(line, ",s{tag}={number:0200}").unwrap();
    }
    let at = SEED_MINUTE_NS + i64::try_from(number).unwrap();
    write!(line, " value=user{number} {at}").unwrap();
    line
}

const SLOW: Burst = Burst {
    layout: "sets",
    partitions: "2",
    bytes_per_second: 1_000_000,
    series: 3200,
    response_timeout: "1500ms",
    replay_window: "2s",
};

#[test]
fn a_burst_of_long_names_is_published_over_a_link_of_one_megabyte_a_second() {
    SLOW.assert_published_exactly(LOADED);
}

#[test]
fn a_burst_of_long_names_is_published_over_a_link_of_one_megabyte_a_second_from_logs() {
    let burst = Burst { layout: "log", ..SLOW };
    burst.assert_published_exactly(LOADED);
}

#[test]
fn a_burst_of_long_names_is_published_over_a_link_of_eight_megabytes_a_second() {
    let burst = Burst { bytes_per_second: 8_000_000, series: 16_000, ..SLOW };
    burst.assert_published_exactly(LOADED);
}

#[test]
fn a_burst_of_long_names_is_published_over_a_link_of_eight_megabytes_a_second_from_logs() {
    let burst = Burst { layout: "log", bytes_per_second: 8_000_000, series: 24_000, ..SLOW };
    burst.assert_published_exactly(LOADED);
}

/// As it was reported: 60,000 series within seconds, with the default settings.
#[test]
#[ignore = "takes minutes"]
fn sixty_thousand_long_names_are_published_over_slow_links() {
    for (layout, bytes_per_second) in
        [("sets", 8_000_000), ("log", 8_000_000), ("sets", 1_000_000), ("log", 1_000_000)]
    {
        let burst = Burst {
            layout,
            partitions: "32",
            bytes_per_second,
            series: 60_000,
            response_timeout: "3s",
            replay_window: "10s",
        };
        burst.assert_published_exactly(Duration::from_secs(900));
    }
}
