//! A clock that is five minutes off changes which events a node rejects for their age, and nothing else.

use crate::prelude::*;

const SECOND_NS: i64 = 1_000_000_000;

fn skewed(site: &Site, name: &str, seconds: i64) -> Node {
    let keys = [("input.max_age", "1h"), ("input.max_future", "1m"), ("flush.max_hold", "10m")];
    let mut node = site.node(name, &keys);
    node.set_clock(site.clock().ahead_of(seconds));
    node.run();
    node
}

/// Returns lines of events, one per millisecond, the latest of them `from_now_seconds` from now.
fn lines(clock: &Clock, from_now_seconds: i64, events: i64) -> Vec<String> {
    let at = clock.now_ns() + from_now_seconds * SECOND_NS;
    let line = |number: i64| {
        format!(
            "event_type=type{},product=b value=user{} {}",
            number % 20,
            number % 300,
            at - number * 1_000_000
        )
    };
    (0..events).map(line).collect()
}

fn rejected(node: &Node) -> [u64; 2] {
    let metrics = node.metrics();
    ["too_old", "too_far_ahead"]
        .map(|reason| metrics.count_of("eds_events_rejected_total", &[("reason", reason)]))
}

#[test]
fn node_clocks_five_minutes_off_affect_only_the_age_of_events() {
    const EVENTS: i64 = 1000;
    // Leaves some seconds of the current minute for events with the current time.
    let site = Site::start_at_second(35);
    let nodes =
        [skewed(&site, "right", 0), skewed(&site, "fast", 300), skewed(&site, "slow", -300)];
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut expected, mut random) = (Expected::default(), SmallRng::seed_from_u64(seed()));
    let mut so_far = [0; 3];
    let mut send = |line: &str, to: &[usize], counts: bool| {
        if counts {
            expected.receive(line.as_bytes());
        }
        for &to in to {
            so_far[to] += 1;
            socket.send_to(line.as_bytes(), nodes[to].udp()).unwrap();
            if so_far[to] % 64 == 0 {
                nodes[to]
                    .wait_count("eds_events_received_total", |received| received == so_far[to]);
            }
        }
    };

    // Events that every node accepts are sent to a random subset of the nodes.
    for line in lines(site.clock(), -15 * 60, 5 * EVENTS) {
        let to: Vec<_> = (0..3).filter(|_| random.random_bool(0.4)).collect();
        send(&line, &to, !to.is_empty());
    }
    // Seconds from now, and which nodes accept the events: they look older to the fast node and newer to the slow one.
    let judged = [
        (-57 * 60, [true, false, true]),
        (-63 * 60, [false, false, true]),
        (-2, [true, true, false]),
        (3 * 60, [false, true, false]),
        (7 * 60, [false, false, false]),
    ];
    // The minute three minutes ahead ends too late to wait for, so its counts stay in Redis.
    for (from_now, takes) in judged {
        for line in lines(site.clock(), from_now, EVENTS) {
            send(&line, &[0, 1, 2], takes.contains(&true) && from_now < 60);
        }
    }
    let events = u64::try_from(EVENTS).unwrap();
    for (node, (old, ahead)) in nodes.iter().zip([(1, 2), (2, 1), (0, 3)]) {
        eventually("the ages are judged by the node's own clock", SOON, || {
            when(rejected(node) == [old * events, ahead * events], format!("{:?}", rejected(node)))
        });
    }
    nodes.iter().for_each(Node::wait_recorded);

    let expected = expected.points();
    let is_ahead = |minute_start_ns: i64| minute_start_ns > site.clock().now_ns() + 70 * SECOND_NS;
    eventually("InfluxDB holds the exact counts", Duration::from_secs(100), || {
        let mut found = site.points();
        found.retain(|point, _| !is_ahead(point.minute_start_ns));
        testing::points::compare(&expected, &found)
    });
    // The fast node would have closed the last minute five minutes before its end.
    let (now, now_ns) = (Instant::now(), site.clock().now_ns());
    for write in site.writes.writes() {
        for point in read_back::written(&write.body).keys() {
            let over_ns = point.minute_start_ns + MINUTE_NS;
            let written_ns = now_ns - i64::try_from((now - write.at).as_nanos()).unwrap();
            assert!(written_ns >= over_ns, "{point:?} was written before its minute was over");
        }
    }
    assert_eq!(count(&nodes, "eds_events_late_total"), 0);
    site.assert_one_value_a_point();
}

/// While the clock of Redis is ahead, the current minute looks over and idle between events, but must not be closed.
#[test]
fn clock_jump_of_redis_closes_no_minute_early_and_delays_none() {
    // The rest of the minute is long enough for all events.
    let right = Clock::at_second(15);
    let jumping = right.ahead_of(0);
    let site = Site::with_redis(RedisServer::start_with_clock(&jumping, &[]));
    let mut node = site.node("one", &[("flush.grace", "2s")]);
    node.share_clock(&right);
    node.run();
    let mut sender = Sender::paced_by(&node);
    for number in 0..8 {
        if number == 2 {
            jumping.advance(90);
        }
        sender.send(format!("event_type=a value=user{number} {}", right.now_ns()));
        sender.wait_received();
        thread::sleep(Duration::from_secs(3));
    }
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_events_late_total"), 0);
    assert_eq!(site.points().len(), 0, "the minute was closed early");
    let offset = node.metrics().value("eds_clock_offset_seconds");
    assert!((89.0..91.0).contains(&offset), "{offset}");
    let warned = |line: &str| line.contains("WARN") && line.contains("offset_seconds");
    assert!(node.log().lines().any(warned), "{}", node.log());
    jumping.advance(-90);
    site.wait_exact(&sender.expected.points(), Duration::from_secs(120));
    assert_eq!(node.metrics().count("eds_events_late_total"), 0);
}
