//! Changing the number of partitions of a running cluster.

use chrono::{DateTime, Utc};

use crate::prelude::*;
use crate::upgrade::EndsWith;

/// Settings for events that are stamped when they are sent.
const KEYS: [(&str, &str); 4] = [
    ("flush.grace", "4s"),
    ("flush.max_hold", "10m"),
    ("input.max_age", "1h"),
    ("input.max_future", "0s"),
];
/// The time from the command to the change.
const TIME_TO_RESTART: Duration = Duration::from_secs(20);
/// The second of a minute at which a test starts. It leaves time for the work before the command on a busy machine.
const AT_SECOND: i64 = 25;
const PAST_A_MINUTE: Duration = Duration::from_secs(120);

fn now(clock: &Clock) -> DateTime<Utc> {
    clock.now().into()
}

fn a_minute_after(now: DateTime<Utc>, time: Duration) -> DateTime<Utc> {
    let minutes = (now + time).timestamp().div_euclid(60) + 1;
    DateTime::from_timestamp(minutes * 60, 0).unwrap()
}

#[track_caller]
fn wait_until(clock: &Clock, at: DateTime<Utc>) {
    eventually("the time has come", PAST_A_MINUTE, || when(now(clock) > at, at));
}

/// Sends single events to all of these nodes, and pauses while there are none.
struct Load {
    ended: AtomicBool,
    to: Mutex<Vec<SocketAddr>>,
}

impl Load {
    fn run(&self, clock: &Clock) -> Expected {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut expected = Expected::default();
        let mut number = 0_u64;
        while !self.ended.load(Ordering::SeqCst) {
            let to = self.to.lock().unwrap();
            if to.is_empty() {
                drop(to);
                thread::sleep(Duration::from_millis(3));
                continue;
            }
            number += 1;
            let (series, user) = (number % 97, number % 53);
            let at = clock.now_ns();
            let line = format!("event_type=t{series},product=p value=u{user} {at}");
            for address in &*to {
                socket.send_to(line.as_bytes(), address).unwrap();
            }
            drop(to);
            expected.receive(line.as_bytes());
            thread::sleep(Duration::from_millis(3));
        }
        expected
    }
}

fn prepare(nodes: &mut [&mut Node], from: DateTime<Utc>) {
    for node in nodes {
        node.set("store.partitions", "40");
        node.set("store.partitions_before", "16");
        node.set("store.partitions_from", &from.to_rfc3339());
    }
}

#[test]
fn number_of_partitions_changes_in_a_running_cluster() {
    let site = Site::start_at_second(AT_SECOND);
    let clock = site.clock();
    let [mut one, mut two] = ["one", "two"].map(|name| site.start_node(name, &KEYS));
    let addresses = [one.udp(), two.udp()];
    let (one, two) = (&mut one, &mut two);
    let load = Load { ended: AtomicBool::new(false), to: Mutex::new(addresses.to_vec()) };
    let from = a_minute_after(now(clock), TIME_TO_RESTART);
    let expected = thread::scope(|scope| {
        let ends = EndsWith(&load.ended);
        let loading = scope.spawn(|| load.run(clock));
        one.set("store.partitions", "40");
        one.says(&["settings", "apply"], 1, "Set store.partitions_before = 16");
        prepare(
            &mut [&mut *one],
            a_minute_after(now(clock), Duration::ZERO) - Duration::from_secs(60),
        );
        one.says(&["settings", "apply"], 1, "change must be after");
        assert_eq!(one.get("/readyz").unwrap().status, 200);

        prepare(&mut [&mut *one, &mut *two], from);
        one.says(&["settings", "apply"], 0, "store.partitions: 16 → 40");
        for node in [&*one, &*two] {
            node.wait_answer("/readyz", 200, "use store.partitions = 40, but this node uses 16");
        }
        for node in [&mut *one, &mut *two] {
            assert_eq!(node.terminate().code(), Some(0));
            node.run();
        }
        assert!(now(clock) < from, "the test was too slow");
        wait_until(clock, from + Duration::from_secs(10));
        drop(ends);
        loading.join().unwrap()
    });
    let expected = expected.points();
    site.wait_exact(&expected, PAST_A_MINUTE);
    site.assert_one_value_a_point();
    for node in [one, two] {
        node.wait_count("eds_events_late_total", |late| late == 0);
    }
    site.wait_redis_clean();
}

#[test]
fn node_suspended_during_a_change_keeps_its_events_until_restarted() {
    let site = Site::start_at_second(AT_SECOND);
    let clock = site.clock();
    let [mut one, mut two] = ["one", "two"].map(|name| site.node(name, &KEYS));
    let spool = one.spool();
    one.set("input.spool_dir", spool.to_str().unwrap());
    for node in [&mut one, &mut two] {
        node.run();
    }
    let load = Load { ended: AtomicBool::new(false), to: Mutex::new(vec![one.udp(), two.udp()]) };
    let from = a_minute_after(now(clock), TIME_TO_RESTART);
    let expected = thread::scope(|scope| {
        let ends = EndsWith(&load.ended);
        let loading = scope.spawn(|| load.run(clock));
        one.signal("STOP");
        prepare(&mut [&mut one, &mut two], from);
        two.says(&["settings", "apply"], 0, "");
        // The kernel buffers little for a suspended node and nothing for a restarting one.
        let both = std::mem::take(&mut *load.to.lock().unwrap());
        assert_eq!(two.terminate().code(), Some(0));
        two.run();
        *load.to.lock().unwrap() = both;
        wait_until(clock, from + Duration::from_secs(1));
        one.signal("CONT");
        one.wait_answer("/readyz", 503, "restart it with the new configuration");
        // The kernel's buffer must have room, since no other node gets the next events.
        eventually("the node has read its socket buffer", SOON, || {
            let socket = udp_socket(one.udp()).expect("the node has a socket");
            when(socket.unread_bytes == 0, socket.unread_bytes)
        });
        *load.to.lock().unwrap() = vec![one.udp()];
        one.wait_count("eds_events_queued", |queued| queued > 500);
        drop(ends);
        let expected = loading.join().unwrap();
        eventually("the node has received all events", SOON, || {
            let received = one.metrics().count("eds_events_received_total");
            thread::sleep(Duration::from_millis(300));
            let after = one.metrics().count("eds_events_received_total");
            when(received == after, after)
        });
        expected
    });
    assert_eq!(one.terminate().code(), Some(0));
    one.run();
    site.wait_exact(&expected.points(), PAST_A_MINUTE);
    site.assert_one_value_a_point();
    site.wait_redis_clean();
}

#[test]
fn leftovers_of_another_number_of_partitions_are_reported_and_sent_after_a_revert() {
    let site = Site::start();
    let mut node = site.start_node(
        "one",
        &[("store.partitions", "64"), ("flush.grace", "1h"), ("flush.max_hold", "2h")],
    );
    let (mut expected, mut sender) = (Expected::default(), Sender::paced_by(&node));
    for number in 0..200 {
        let line = format!("event_type=t{number},product=p value=u {}", SEED_MINUTE_NS + number);
        expected.receive(line.as_bytes());
        sender.send(line.as_bytes());
    }
    assert_eq!(node.terminate().code(), Some(0));
    site.redis.query::<u64>(&["DEL", "eds:settings"]);
    for (key, value) in [("store.partitions", "4"), ("flush.grace", "300ms")] {
        node.set(key, value);
    }
    node.run();
    let words = "Redis has unsent data that was stored with a different number of partitions or a removed rollup, so no node sends it";
    eventually("the leftovers are reported", SOON, || {
        let answer = node.get("/readyz").unwrap();
        let says = answer.body.contains(words) && node.log().contains(words);
        when(answer.status == 200 && says, answer.body)
    });
    node.set("store.partitions", "64");
    node.set("store.partitions_before", "4");
    node.set(
        "store.partitions_from",
        &a_minute_after(SystemTime::now().into(), PAST_A_MINUTE).to_rfc3339(),
    );
    node.says(&["settings", "apply"], 0, "");
    assert_eq!(node.terminate().code(), Some(0));
    node.launch();
    site.wait_exact(&expected.points(), SOON);
    site.wait_redis_clean();
}
