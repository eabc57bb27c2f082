//! Rejected lines are logged in enough detail to find their sender, but never flood the log.

use crate::prelude::*;

#[track_caller]
fn send(socket: &UdpSocket, node: &Node, datagram: &[u8], received: u64) {
    socket.send_to(datagram, node.udp()).unwrap();
    node.wait_count("eds_events_received_total", |seen| seen == received);
}

fn lines(node: &Node, words: &str) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains(words));
    lines.map(ToOwned::to_owned).collect()
}

#[test]
fn late_events_are_logged_once_a_minute() {
    let keys = [("flush.grace", "300ms"), ("log.level", "info")];
    let mut node = Node::start("one", &keys);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut received = 0;
    let mut send = |node: &Node, minute: i64, user: &str| {
        received += 1;
        let at = SEED_MINUTE_NS + minute * MINUTE_NS;
        let line = format!("event_type=login value={user} {at}");
        send(&socket, node, line.as_bytes(), received);
    };
    let wait = |node: &Node, metric: &str, count: u64| {
        wait_for("the event is counted", || node.metrics().count(metric), |&seen| seen == count);
    };
    send(&node, 0, "ann");
    send(&node, 1, "ann");
    wait(&node, "eds_points_sent_total", 4);
    for (late, minute) in (1..).zip([0, 0, 1]) {
        send(&node, minute, &format!("late{late}"));
        wait(&node, "eds_events_late_total", late);
    }
    let message = "the counts for their minutes had been sealed";
    let first = lines(&node, message);
    assert_eq!(first.len(), 1, "{first:?}");
    assert_contains(&first[0], ["WARN", "events=1 ", "partitions=", "20161204:1118", "after="]);
    // The node logs the remaining late events when it stops.
    assert_eq!(node.terminate().code(), Some(0));
    let all = lines(&node, message);
    assert_eq!(all.len(), 2, "{all:?}");
    assert_contains(&all[1], ["events=2 ", "minutes=\"20161204:1118 to 20161204:1119\""]);
}
#[test]
fn each_rejection_reason_is_logged_with_a_line_and_its_source() {
    let keys = [("log.level", "info"), ("input.max_users_per_series", "1")];
    let mut node = Node::start("one", &keys);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = format!("source={}", socket.local_addr().unwrap());
    let long = format!("event_type={} value=u", "\u{1b}[31m".repeat(1000));
    let two_users = format!("a=1 value=u {SEED_MINUTE_NS}\na=1 value=v {SEED_MINUTE_NS}");
    let reasons = ["user_missing", "tag_too_long", "too_many_users"];
    for (round, received) in [(1, 6), (2, 12)] {
        let datagram = format!("broken\nbroken\nmore\n{long}\n{two_users}");
        send(&socket, &node, datagram.as_bytes(), received);
        eventually("all rejected lines are counted", SOON, || {
            let metrics = node.metrics();
            let rejected = reasons
                .map(|reason| metrics.count_of("eds_events_rejected_total", &[("reason", reason)]));
            when(rejected == [3, 1, 1].map(|count| count * round), format!("{rejected:?}"))
        });
    }
    for reason in reasons {
        eventually("a line is logged for each reason", SOON, || {
            let shown = lines(&node, &format!("reason=\"{reason}\""));
            let is_shown = shown.len() == 1 && shown[0].contains("WARN");
            when(is_shown, format!("{shown:?}"))
        });
    }
    let shown = lines(&node, "rejected ");
    assert_eq!(shown.len(), reasons.len(), "{shown:?}");
    for line in &shown {
        let known = line.contains(&source) || line.contains("too_many_users");
        assert!(known, "{line}");
        assert!(line.len() < 600 && !line.contains('\u{1b}'), "{line}");
    }
    assert_eq!(node.terminate().code(), Some(0));
}

#[test]
fn debug_logs_more_lines_and_trace_each_datagram() {
    let mut node = Node::start("one", &[("log.level", "trace")]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let source = format!("source={}", socket.local_addr().unwrap());
    for round in 1..=2 {
        let line = format!("broken{round}");
        send(&socket, &node, line.as_bytes(), round);
        eventually("the line and its datagram are logged", SOON, || {
            let shown = lines(&node, &line);
            let has = |level| {
                let mut shown = shown.iter();
                shown.any(|line: &String| line.contains(level) && line.contains(&source))
            };
            let level = if round == 1 { "WARN" } else { "DEBUG" };
            when(has("TRACE") && has(level), format!("{shown:?}"))
        });
    }
    node.set("log.level", "info");
    node.write_config();
    node.signal("HUP");
    node.wait_log("reloaded the log level");
    let before = node.log().len();
    send(&socket, &node, b"broken3", 3);
    assert!(!node.log()[before..].contains("broken3"), "{}", node.log());
}
