//! No input can crash a node, make its memory grow without bound, or unbalance its ledger.

use influxdb_line_protocol::parse_lines;
use rand::Rng;
use testing::process::resident_kib;

use crate::prelude::*;

/// The environment variable that overrides [`DATAGRAMS`]. `.ci/nightly` sends millions.
const DATAGRAMS_VARIABLE: &str = "EDS_TEST_HOSTILE_DATAGRAMS";
const DATAGRAMS: u64 = 200_000;
/// The datagrams are small, so a socket buffer holds more of them than usual.
const DATAGRAMS_AHEAD_MAX: u64 = 400;
/// After the first fifth of the datagrams, everything with a bound has reached it.
const WARM_UP_SHARE: u64 = 5;
/// Allows for freed memory that the allocator keeps.
const GROWTH_KIB_MAX: u64 = 64 * 1024;

#[test]
fn random_and_mutated_datagrams_are_harmless() {
    let count = std::env::var(DATAGRAMS_VARIABLE)
        .map_or(DATAGRAMS, |count| count.parse().expect("a whole number"));
    let mut random = SmallRng::seed_from_u64(seed());
    let site = Site::start();
    let node = site.start_node(
        "target",
        &[
            ("input.max_age", "1h"),
            ("input.dedup_users", "10000"),
            ("input.max_series_per_minute", "1000"),
            ("log.level", "info"),
        ],
    );
    let mut sender = Sender::paced_by(&node);
    sender.datagrams_ahead_max = DATAGRAMS_AHEAD_MAX;

    let mut warm_kib = 0;
    for i in 0..count {
        if i == count / WARM_UP_SHARE {
            sender.wait_received();
            warm_kib = resident_kib(node.pid());
        }
        sender.send_unrecorded(hostile_datagram(&mut random));
    }
    sender.wait_received();
    let metrics = node.metrics();
    let received = metrics.count("eds_datagrams_received_total");
    assert_eq!(received + metrics.count("eds_kernel_drops_total"), sender.sent());

    node.wait_recorded();
    let metrics = node.metrics();
    for (kind, name) in
        [("good", "eds_events_recorded_total"), ("bad", "eds_events_rejected_total")]
    {
        let events = metrics.count(name);
        assert!(events > count / 20, "only {events} {kind} events, too few for this test");
    }
    let end_kib = resident_kib(node.pid());
    eprintln!("{warm_kib} KiB resident after a part of the datagrams, {end_kib} KiB at the end");
    assert!(end_kib < warm_kib + GROWTH_KIB_MAX, "grew from {warm_kib} to {end_kib} KiB");

    // Only minutes that have ended: lines without a timestamp belong to the current one.
    eventually("the ended minutes are written", SOON, || {
        let metrics = node.metrics();
        let claimed = metrics.count("eds_backlog_unsent");
        when(metrics.count("eds_points_sent_total") > 1000 && claimed == 0, claimed)
    });
    // InfluxDB accepts all points, and another parser also reads them as line protocol.
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_points_quarantined_total"), 0);
    assert_eq!(metrics.count("eds_points_discarded_total"), 0);
    for write in site.writes.writes() {
        let body = String::from_utf8(write.body).expect("points are UTF-8");
        for point in parse_lines(&body) {
            let point = point.unwrap_or_else(|error| panic!("{error}: {body}"));
            let measurement = point.series.measurement.as_str();
            assert!(["unique_user_event", "cumulative_user_event"].contains(&measurement));
        }
    }
}

#[test]
fn kernel_drops_are_counted_exactly() {
    const DATAGRAMS: u64 = 2000;
    let node = Node::start("stopped", &[("input.receive_buffer", "64KiB")]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in 1..=3 {
        node.signal("STOP");
        for datagram in load(0..1, 15 * DATAGRAMS, 50, 500).datagrams() {
            socket.send_to(&datagram, node.udp()).unwrap();
        }
        node.signal("CONT");
        eventually("every datagram is received or counted as dropped", SOON, || {
            let metrics = node.metrics();
            let received = metrics.count("eds_datagrams_received_total");
            let dropped = metrics.count("eds_kernel_drops_total");
            let seen = format!("{received} received, {dropped} dropped");
            assert!(received + dropped <= round * DATAGRAMS, "{seen}");
            when(received + dropped == round * DATAGRAMS && dropped > 0, seen)
        });
    }
    node.metrics().assert_ledger_adds_up();
}

/// Returns noise, mutated lines, or now and then valid lines.
pub(crate) fn hostile_datagram(random: &mut SmallRng) -> Vec<u8> {
    let length_max = if random.random_ratio(1, 1000) { 60_000 } else { 120 };
    match random.random_range(0..10) {
        0 => {
            let mut noise = vec![0; random.random_range(0..=length_max)];
            random.fill_bytes(&mut noise);
            noise
        }
        1 => {
            const MEANINGFUL: &[u8] = b"  ,,==\\\"\n\r\t#01.-+eaivalue\0\xff\xc3\xa9";
            (0..random.random_range(0..=length_max))
                .map(|_| MEANINGFUL[random.random_range(0..MEANINGFUL.len())])
                .collect()
        }
        2 | 3 => good_lines(random),
        _ => {
            let mut lines = good_lines(random);
            for _ in 0..random.random_range(1..6) {
                mutate(&mut lines, random);
            }
            lines
        }
    }
}

fn good_lines(random: &mut SmallRng) -> Vec<u8> {
    let now_ns = std::time::UNIX_EPOCH.elapsed().expect("the clock is after 1970").as_nanos();
    let lines: Vec<_> = (0..random.random_range(1..4))
        .map(|_| {
            let at = now_ns - random.random_range(60_000_000_000..180_000_000_000);
            let [series, user] = [random.random_range(0..20), random.random_range(0..500)];
            match random.random_range(0..4) {
                0 => format!("events,event_type=t{series} value=\"user {user}\",b=1i {at}"),
                1 => format!("b\\ c={series},a=\\,{series} value=user{user}"),
                _ => format!("event_type=t{series},product=p value=user{user} {at}"),
            }
        })
        .collect();
    lines.join("\n").into_bytes()
}

fn mutate(bytes: &mut Vec<u8>, random: &mut SmallRng) {
    if bytes.is_empty() {
        return;
    }
    let at = random.random_range(0..bytes.len());
    let to = random.random_range(at..bytes.len());
    match random.random_range(0..6) {
        0 => bytes[at] ^= 1 << random.random_range(0..8),
        1 => bytes[at] = random.random(),
        2 => bytes.insert(at, b" ,=\\\"\n\0\x7f"[random.random_range(0..8)]),
        3 => drop(bytes.drain(at..to)),
        4 => bytes.extend_from_within(at..to),
        _ => bytes.truncate(at),
    }
}
