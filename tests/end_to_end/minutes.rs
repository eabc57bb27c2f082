//! Minutes do not mix, do not close while they fill, and do not wait for each other.

use crate::prelude::*;

/// 2016-12-04T23:58:00Z.
const TWO_TO_MIDNIGHT_NS: i64 = SEED_MINUTE_NS + 320 * MINUTE_NS;
const DAY_NS: i64 = 1440 * MINUTE_NS;

#[test]
fn minutes_around_midnight_and_of_two_days_do_not_mix() {
    let site = Site::start();
    let node = site.start_node("one", &[("flush.grace", "3s"), ("store.partitions", "2")]);
    let mut sender = Sender::paced_by(&node);
    let around_midnight = (0..5).map(|minute| TWO_TO_MIDNIGHT_NS + minute * MINUTE_NS);
    let days = [-DAY_NS, 0, DAY_NS];
    let minutes: BTreeSet<i64> =
        around_midnight.flat_map(|minute| days.map(|day| minute + day)).collect();
    // The users differ in number, so that no two minutes have the same counts; some are in all minutes.
    for (i, minute) in minutes.iter().enumerate() {
        for user in 0..=i {
            let [first, last] = [*minute, minute + MINUTE_NS - 1];
            let line = |at| format!("event_type=a,product=b value=user{user} {at}");
            let datagram = [line(first), line(last)].join("\n");
            sender.send(datagram.as_bytes(), &node, &[]);
        }
    }
    eventually("every minute waits in Redis at the same time", SOON, || {
        let keys = site.redis.keys();
        let waiting = keys.iter().filter(|key| key.ends_with(":event_types")).count();
        when(waiting == minutes.len(), waiting)
    });
    let named: BTreeSet<String> = site
        .redis
        .keys()
        .iter()
        .filter_map(|key| Some(key.split_once("}:")?.1.strip_suffix(":event_types")?.to_owned()))
        .collect();
    for name in ["20161204:1438", "20161204:1439", "20161205:0", "20161205:1", "20161203:1439"] {
        assert!(named.contains(name), "{name} in {named:?}");
    }
    site.wait_exact(&sender.expected.points(), SOON);
    site.assert_clean();
}

/// A hundred nodes may poll one Redis.
#[test]
fn a_node_at_rest_asks_redis_little_and_an_event_ends_the_rest() {
    let site = Site::start();
    let keys = [("store.partitions", "32"), ("flush.grace", "3s"), ("flush.interval", "1s")];
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    sender.send(b"a=1 value=x 1480876707352348928", &node, &[]);
    site.wait_exact(&sender.expected.points(), SOON);
    let commands = || -> u64 {
        let stats: String = site.redis.query(&["INFO", "stats"]);
        let (_, count) = stats.split_once("total_commands_processed:").unwrap();
        count.lines().next().unwrap().trim().parse().unwrap()
    };
    // So long that all periodic work is in it.
    let over = Duration::from_secs(31);
    eventually("the node is at rest", 3 * over, || {
        let before = commands();
        thread::sleep(over);
        let rate = (commands() - before) / over.as_secs();
        let each = || site.redis.query::<String>(&["INFO", "commandstats"]);
        if rate <= 40 { Ok(()) } else { Err(format!("{rate} commands/s: {}", each())) }
    });
    sender.send(b"a=1 value=x 1480876767352348928", &node, &[]);
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn minutes_that_fill_slowly_close_when_they_are_full() {
    let site = Site::start();
    let node = site.start_node("one", &[("flush.grace", "3s")]);
    let mut sender = Sender::paced_by(&node);
    for datagram in load(0..3, 1500, 1, 500).datagrams() {
        sender.send(&datagram, &node, &[]);
        thread::sleep(Duration::from_millis(100));
    }
    let sent = Instant::now();
    site.wait_exact(&sender.expected.points(), SOON);
    let writes = site.writes.writes();
    assert!(writes.iter().all(|write| write.at > sent), "a minute was closed while it filled");
    assert_eq!(node.metrics().count("eds_events_late_total"), 0);
}

#[test]
fn an_old_minute_that_trickles_does_not_delay_the_newest() {
    let site = Site::start();
    let keys = [("flush.grace", "1s"), ("flush.max_hold", "1h"), ("store.partitions", "1")];
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    let mut delay_of_minute = |minute: i64| {
        let start_ns = SEED_MINUTE_NS + minute * MINUTE_NS;
        let datagram = format!("event_type=newest,product=b value=user {start_ns}");
        let sent = Instant::now();
        sender.send(datagram.as_bytes(), &node, &[]);
        eventually("the newest minute is written", SOON, || {
            let writes = site.writes.writes();
            let arrival = writes.iter().find(|write| {
                read_back::written(&write.body).keys().any(|it| it.minute_start_ns == start_ns)
            });
            arrival.map(|write| write.at - sent).ok_or("nothing")
        })
    };
    let alone: Vec<_> = (1..=3).map(&mut delay_of_minute).collect();

    let (trickle, is_done) = (UdpSocket::bind("127.0.0.1:0").unwrap(), AtomicBool::new(false));
    let with_trickle: Vec<_> = thread::scope(|scope| {
        let trickling = scope.spawn(|| {
            for at in SEED_MINUTE_NS.. {
                if is_done.load(Ordering::SeqCst) {
                    break;
                }
                let line = format!("event_type=old,product=b value=user {at}");
                trickle.send_to(line.as_bytes(), node.udp()).unwrap();
                thread::sleep(Duration::from_millis(100));
            }
        });
        let delays = (4..=6).map(&mut delay_of_minute).collect();
        is_done.store(true, Ordering::SeqCst);
        trickling.join().unwrap();
        delays
    });
    eprintln!("alone {alone:?}, with a trickle {with_trickle:?}");
    let old_is_written = site.writes.writes().iter().any(|write| {
        read_back::written(&write.body).keys().any(|it| it.minute_start_ns == SEED_MINUTE_NS)
    });
    assert!(!old_is_written, "the old minute was closed while it trickled");
    // The least of three: the machine may be busy for a moment.
    let least = |delays: &[Duration]| *delays.iter().min().unwrap();
    assert!(least(&with_trickle) < least(&alone) + Duration::from_secs(1));
}

#[test]
fn present_minute_is_published_in_time_while_an_archive_is_replayed() {
    publishes_the_present_minute_before_old_ones("sets");
}

#[test]
fn present_minute_is_published_in_time_while_an_archive_is_replayed_with_logs() {
    publishes_the_present_minute_before_old_ones("log");
}

/// Replays 6,000 minutes, each with one event, while the present minute has events, too.
fn publishes_the_present_minute_before_old_ones(layout: &str) {
    const OLD_MINUTES: i64 = 6000;
    let site = Site::start_at_second(50);
    let keys = [
        ("store.layout", layout),
        ("store.partitions", "2"),
        ("flush.interval", "1s"),
        ("flush.grace", "5s"),
    ];
    let mut nodes = ["a", "b"].map(|name| site.start_node(name, &keys));
    let mut sender = Sender::paced_by(&nodes[0]);
    let present = site.clock().now_ns().div_euclid(MINUTE_NS) * MINUTE_NS;
    let end = present + MINUTE_NS;
    let minutes: Vec<i64> = (0..OLD_MINUTES).collect();
    for (user, minutes) in minutes.chunks(20).enumerate() {
        let mut lines: Vec<_> = minutes
            .iter()
            .map(|minute| {
                let at = SEED_MINUTE_NS + minute * MINUTE_NS;
                format!("event_type=old,product=p{} value=user {at}", minute % 7)
            })
            .collect();
        if site.clock().now_ns() < end {
            lines.push(format!("event_type=present value=user{user} {present}"));
        }
        sender.send(lines.join("\n").as_bytes(), &nodes[0], &[nodes[1].udp()]);
    }

    let of = |event_type: &str| {
        format!("SELECT count(value) FROM cumulative_user_event WHERE event_type = '{event_type}'")
    };
    // Long, for a busy machine; scripts/torture asserts how late it may be.
    let within = Duration::from_secs(240);
    eventually("the present minute is published", within, || {
        when(!site.query(&of("present")).is_empty(), "not yet")
    });
    let late = Duration::from_nanos((site.clock().now_ns() - end).unsigned_abs());
    eprintln!("published {late:?} after its end");

    let old = || nodes[0].json("/api/v1/status")["partitions"]["old"].take();
    let waiting = old()["waiting"].as_u64();
    assert!(waiting > Some(1000), "old minutes came first: {waiting:?} are left");
    eventually("the end of the archive is estimated", SOON, || {
        let old = old();
        when(old["done_in_seconds"].as_u64() > Some(0), old)
    });

    for node in &mut nodes {
        assert!(node.terminate().success());
        node.set("flush.interval", "50ms");
        node.run();
    }
    site.wait_exact(&sender.expected.points(), within);
    site.assert_clean();
}

fn line(minute_ns: i64, user: u32) -> String {
    format!("event_type=a,product=b value=user{user} {minute_ns}")
}

#[test]
fn what_comes_after_a_minute_is_counted_as_late_and_never_written() {
    let site = Site::start();
    let node = site.start_node("one", &[("flush.grace", "500ms")]);
    let mut sender = Sender::paced_by(&node);
    sender.send(line(SEED_MINUTE_NS, 1).as_bytes(), &node, &[]);
    let expected = sender.expected.points();
    site.wait_exact(&expected, SOON);
    for late in 1..=3 {
        // A copy of a counted event is as late as a new event: they cannot be told apart any longer.
        sender.send(line(SEED_MINUTE_NS, late).as_bytes(), &node, &[]);
        node.wait_count("eds_events_late_total", |counted| counted == u64::from(late));
    }
    site.wait_redis_clean();
    site.wait_exact(&expected, Duration::ZERO);
    site.assert_one_value_a_point();
}

#[test]
fn a_minute_that_trickles_for_ever_is_closed_at_last() {
    let site = Site::start();
    let keys = [("flush.grace", "3s"), ("flush.max_hold", "4s"), ("store.partitions", "1")];
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    let began = Instant::now();
    let mut user = 0;
    eventually("the minute is written", SOON, || {
        user += 1;
        sender.send(line(SEED_MINUTE_NS, user).as_bytes(), &node, &[]);
        when(!site.writes.writes().is_empty(), "nothing")
    });
    assert!(began.elapsed() > Duration::from_secs(4), "{:?}", began.elapsed());
    eventually("what came later is late", SOON, || {
        user += 1;
        sender.send(line(SEED_MINUTE_NS, user).as_bytes(), &node, &[]);
        let late = node.metrics().count("eds_events_late_total");
        when(late > 0, late)
    });
    site.assert_one_value_a_point();
}

#[test]
fn the_present_minute_is_written_when_it_is_over_and_quiet() {
    let site = Site::start_at_second(45);
    let now = || site.clock().now().duration_since(UNIX_EPOCH).unwrap();
    let node = site.start_node("one", &[("flush.grace", "1s")]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let before = now().as_secs() / 60;
    socket.send_to(b"event_type=a,product=b value=user", node.udp()).unwrap();
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 1);
    let after = now().as_secs() / 60;

    let write = eventually("it is written", Duration::from_secs(90), || {
        site.writes.writes().into_iter().next().ok_or("nothing")
    });
    let points = read_back::written(&write.body);
    assert_eq!(points.values().collect::<Vec<_>>(), [&1, &1]);
    for point in points.keys() {
        let minute = u64::try_from(point.minute_start_ns / MINUTE_NS).unwrap();
        assert!((before..=after).contains(&minute));
        let over = Duration::from_secs((minute + 1) * 60);
        let since = write.at.elapsed();
        assert!(now() > over + Duration::from_secs(1) + since, "written {since:?} ago");
    }
}
