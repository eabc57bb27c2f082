//! Remedies for findings about nodes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use super::{Remedy, findings, own_status, send, site, wait_gone, wait_gone_from};
use crate::prelude::*;
use crate::queries::five_minutes_ago_ns;
use crate::status::{status, wait_first, wait_healthy};

#[test]
fn no_node_is_resolved_by_starting_one() {
    let site = site();
    let mut node = site.node("one", &[]);
    Remedy::of(&node, "no-node", &[]).says(&["start the nodes", "store.prefix"]);
    node.run();
    wait_healthy(&node);
}

#[test]
fn suspended_node_is_resumed() {
    let site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    node.signal("STOP");
    Remedy::of(&node, "node-silent", &["node one", "suspended"]).says(&["check its host"]);
    assert_eq!(status(&node)["is_anything_lost"]["answer"], "unknown");
    node.signal("CONT");
    wait_healthy(&node);
}

struct LogPipe {
    path: PathBuf,
    pipe: File,
}

impl LogPipe {
    fn of(node: &Node) -> Self {
        let path = node.config_path().with_file_name("stderr");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let mut options = File::options();
        let options = options.read(true).write(true);
        let pipe = options.custom_flags(libc::O_NONBLOCK).open(&path);
        let pipe = pipe.unwrap();
        Self { path, pipe }
    }

    fn fill(&mut self) {
        for bytes in [&[b'\n'; 4096][..], b"\n"] {
            while self.pipe.write(bytes).is_ok() {}
        }
    }

    fn empty(&mut self) {
        while self.pipe.read(&mut [0; 4096]).is_ok() {}
    }
}

impl Drop for LogPipe {
    fn drop(&mut self) {
        // Otherwise reading the log would block.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A thread that writes a log line blocks until the line is read.
#[test]
fn blocked_log_pipe_is_read_again() {
    let site = site();
    let mut node = site.node("one", &[]);
    let mut log = LogPipe::of(&node);
    node.run();
    wait_healthy(&node);
    log.fill();
    node.send(b"rejected");
    let remedy = Remedy::of(&node, "stalled", &["node one", "listener 0"]);
    remedy.says(&["check that its log output is being read", "restart it"]);
    log.empty();
    wait_gone(&node, "stalled");
}

/// Sends six minutes of events to `one` and some of them to `two`, which restarts at `restarts`. Waits until recorded.
fn send_minutes(
    one: &Node,
    two: &mut Node,
    reaches_two: impl Fn(i64, i64) -> bool,
    restarts: &[(i64, i64)],
) {
    let mut sender = Sender::paced_by(one);
    let wait_recorded = |one: &Node, two: &Node, sent: [u64; 2]| {
        eventually("all events are recorded", SOON, || {
            let count = |node: &Node| node.metrics().count("eds_events_recorded_total");
            let recorded = [one, two].map(count);
            when(recorded == sent, format!("{recorded:?} of {sent:?}"))
        });
    };
    // The number of events sent to each process.
    let mut sent = [0; 2];
    for minute in -1..5 {
        for event in 0..60 {
            if restarts.contains(&(minute, event)) {
                wait_recorded(one, two, sent);
                two.kill();
                two.run();
                sent[1] = 0;
            }
            let at = five_minutes_ago_ns() + (minute - 1) * MINUTE_NS + event * 1_000_000_000;
            let line = format!("event_type=e1,product=p value=user{event} {at}");
            let reaches_two = reaches_two(minute, event);
            sender.copies = reaches_two.then(|| two.udp()).into_iter().collect();
            sender.send(line.as_bytes());
            sent[0] += 1;
            sent[1] += u64::from(reaches_two);
        }
    }
    wait_recorded(one, two, sent);
}

#[test]
fn lossy_path_is_repaired() {
    let site = site();
    let (one, mut two) = (site.start_node("one", &[]), site.start_node("two", &[]));
    send_minutes(&one, &mut two, |_, event| event % 10 > 0, &[]);
    Remedy::of(&one, "node-loses", &["node two", "%"])
        .says(&["check the network", "/api/v1/coverage"]);
    // Send the missing events.
    let mut sender = Sender::paced_by(&two);
    for minute in -1..5 {
        for event in (0..60).step_by(10) {
            let at = five_minutes_ago_ns() + (minute - 1) * MINUTE_NS + event * 1_000_000_000;
            sender.send(format!("event_type=e1,product=p value=user{event} {at}"));
        }
    }
    wait_gone(&one, "node-loses");
}

#[test]
fn node_down_for_27_seconds_is_not_a_lossy_path() {
    let site = site();
    let (one, mut two) = (site.start_node("one", &[]), site.start_node("two", &[]));
    // Node two is down from second 20 to 47 of a minute, and restarts once more later.
    let is_down = |minute, event| minute == 2 && (20..47).contains(&event);
    send_minutes(&one, &mut two, |minute, event| !is_down(minute, event), &[(2, 47), (4, 30)]);
    let answered = eventually("the share of node two is known", SOON, || {
        let status = status(&one);
        let share = status["nodes"][1]["coverage"].as_f64();
        when(share.is_some(), status.clone()).map(|()| status)
    });
    assert!(findings(&answered, "node-loses").is_empty(), "{answered}");
}

#[test]
fn wrong_clock_of_a_node_is_set() {
    let site = site();
    let clock = Clock::ahead_by(300_000_000);
    let mut node = site.node("one", &[]);
    node.share_clock(&clock);
    node.run();
    Remedy::of(&node, "clock", &["node one", "300.", "ahead of"]).says(&["`chronyc tracking`"]);
    clock.advance(-300);
    wait_gone(&node, "clock");
}

#[test]
fn different_settings_are_applied_or_reverted() {
    let site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    // The caller's configuration differs from the applied settings.
    let mut second = site.node("two", &[("flush.grace", "3s")]);
    let remedy = Remedy::of(&second, "settings", &["flush.grace"]);
    let show = if remedy.text.contains("`eds settings show`") {
        "eds settings show"
    } else {
        "eds settings apply"
    };
    remedy.run(show, &second);
    // A running node differs from the settings applied since.
    second.apply_settings();
    let remedy = Remedy::of(&second, "node-settings", &["node one", "flush.grace"]);
    remedy.run("eds settings show", &node);
    let mut node = node;
    node.kill();
    node.set("flush.grace", "3s");
    node.run();
    wait_gone(&second, "node-settings");
    wait_gone(&second, "settings");
    second.set("flush.grace", "3s");
}

#[test]
fn duplicate_node_name_is_changed() {
    let site = site();
    let first = site.start_node("one", &[]);
    let mut second = site.start_node("one", &[]);
    Remedy::of(&first, "name-taken", &["node one"]).says(&["EDS_NODE"]);
    second.kill();
    second.set_environment("EDS_NODE", "two");
    second.run();
    wait_gone(&first, "name-taken");
}

#[test]
fn unreadable_report_disappears_after_the_upgrade() {
    let site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    let report = "old#1 0.0.9\n{\"uptime_seconds\": \"\\u001b[2J\", \"store\": \"\\u001b[31m\"}";
    let now: Vec<i64> = site.redis.query(&["TIME"]);
    let ms = (now[0] * 1000 + 5000).to_string();
    site.redis.query::<()>(&["SET", "{eds:nodes}:old", report]);
    site.redis.query::<()>(&["ZADD", "{eds:nodes}", &ms, "old"]);
    wait_first(&node, "version", &["0.0.9", "docs/upgrades.md"]);
    Remedy::of(&node, "version", &["0.0.9"]).says(&["finish the upgrade", "docs/upgrades.md"]);
    Remedy::of(&node, "report-unreadable", &["node old"])
        .says(&["the version of eds that wrote the report"]);
    let (_, table) = node.command_text(&["status"]);
    assert!(table.contains("report-unreadable") && !table.contains('\u{1b}'), "{table:?}");
    let mut upgraded = site.start_node("old", &[]);
    wait_gone(&node, "version");
    wait_gone(&node, "report-unreadable");
    upgraded.terminate();
}

fn flood(node: &Node) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    node.signal("STOP");
    for _ in 0..400 {
        socket.send_to(&[b'#'; 1000], node.udp()).unwrap();
    }
    node.signal("CONT");
    node.wait_count("eds_datagrams_received_total", |received| received > 0);
}

#[test]
fn small_receive_buffer_is_raised() {
    let site = site();
    let mut node = site.start_node("one", &[("input.receive_buffer", "64KiB")]);
    flood(&node);
    let remedy = Remedy::of(&node, "kernel-drops", &["node one", "by the kernel"]);
    remedy.says(&["input.receive_buffer", "net.core.rmem_max"]);
    node.kill();
    node.set("input.receive_buffer", "4MiB");
    node.run();
    flood(&node);
    node.wait_count("eds_datagrams_received_total", |received| received == 400);
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "kernel-drops");
}

#[test]
fn failing_socket_is_logged_and_replaced_by_a_restart() {
    let site = site();
    let mut node = site.node("one", &[]);
    node.hold_socket();
    node.run();
    node.shut_down_held_socket();
    Remedy::of(&node, "socket-fails", &["node one"]).says(&["check its log and restart it"]);
    assert!(node.log().contains("cannot read"), "{}", node.log());
    node.kill();
    node.let_go_of_socket();
    node.run();
    wait_gone(&node, "socket-fails");
}

#[test]
fn overflowing_queue_is_enlarged() {
    let site = site();
    let mut node = site.start_node("one", &[("input.queue_events", "1000")]);
    let overflow = |node: &Node| {
        site.redis.signal("STOP");
        send(node, five_minutes_ago_ns(), 3000);
    };
    overflow(&node);
    let own = |id, words: &[&str]| Remedy::of_the_node_itself(&node, id, words);
    own("queue-fills", &["its queue is"]).says(&["input.queue_events"]);
    own("node-lags", &["has not been able to record all events"]).says(&["fix the store"]);
    let remedy = own("node-drops", &["events dropped"]);
    remedy.says(&["input.queue_events"]);
    site.redis.signal("CONT");
    for id in ["queue-fills", "node-lags"] {
        wait_gone_from(|| own_status(&node), id);
    }
    node.kill();
    node.set("input.queue_events", "100000");
    node.run();
    overflow(&node);
    site.redis.signal("CONT");
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 3000);
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "node-drops");
}

#[test]
fn filling_spool_empties_when_the_store_is_back() {
    let site = site();
    let mut node = site.node("one", &[("input.queue_events", "1000"), ("input.spool_max", "1MiB")]);
    let spool = node.spool().display().to_string();
    node.set("input.spool_dir", &spool);
    node.run();
    wait_healthy(&node);
    site.redis.signal("STOP");
    let mut sender = Sender::paced_by(&node);
    let at = five_minutes_ago_ns();
    let lines = (0..7000)
        .map(|number| format!("event_type=e value=u{number}{} {}", "x".repeat(200), at + number));
    sender.send_all(lines);
    let remedy = Remedy::of_the_node_itself(&node, "spool-fills", &["its spool is"]);
    remedy.says(&["fix the store", "raise input.spool_max"]);
    site.redis.signal("CONT");
    wait_gone_from(|| own_status(&node), "spool-fills");
}

#[test]
fn series_overflow_ends_with_a_higher_limit() {
    let site = site();
    let keys = [("store.partitions", "1"), ("input.max_series_per_minute", "5")];
    let mut node = site.start_node("one", &keys);
    send(&node, five_minutes_ago_ns(), 10);
    let remedy = Remedy::of(&node, "overflow", &["overflow series"]);
    remedy.says(&["input.max_series_per_minute"]);
    node.set("input.max_series_per_minute", "1000");
    remedy.run("eds settings apply", &node);
    node.kill();
    node.run();
    send(&node, five_minutes_ago_ns() + MINUTE_NS, 10);
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 10);
    wait_gone(&node, "overflow");
}

#[test]
fn late_events_end_with_a_longer_grace() {
    let site = site();
    let mut node = site.start_node(
        "one",
        &[("flush.grace", "1s"), ("flush.max_hold", "2s"), ("input.linger_max", "200ms")],
    );
    let late = |node: &Node, at: i64| {
        send(node, at, 1);
        node.wait_count("eds_events_recorded_total", |recorded| recorded == 1);
    };
    let at = five_minutes_ago_ns();
    late(&node, at);
    eventually("the minute is published", SOON, || {
        when(site.points().len() == 2, format!("{:?}", site.points()))
    });
    send(&node, at, 2);
    let remedy = Remedy::of(&node, "late", &["late events"]);
    remedy.says(&["raise flush.grace"]);
    for (key, value) in [("flush.grace", "1h"), ("flush.max_hold", "2h")] {
        node.set(key, value);
    }
    remedy.run("eds settings apply", &node);
    node.kill();
    node.run();
    late(&node, at + MINUTE_NS);
    send(&node, at + MINUTE_NS, 2);
    node.wait_count("eds_events_recorded_total", |recorded| recorded == 3);
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "late");
}

#[test]
fn old_minutes_of_an_archive_are_published() {
    let site = site();
    let node = site.start_node("one", &[("store.partitions", "1")]);
    let mut sender = Sender::paced_by(&node);
    let before = five_minutes_ago_ns();
    let lines = (0..500).map(|ago| {
        let at = before - ago * MINUTE_NS;
        format!("event_type=e1,product=p value=u {at}")
    });
    sender.send_all(lines);
    let remedy = Remedy::of(&node, "old-minutes", &["have not been sealed"]);
    remedy.says(&["archive is being replayed"]);
    wait_gone(&node, "old-minutes");
}
