//! Minutes do not mix, do not close while they are filling, and do not wait for each other.

use std::{fs, io};

use crate::prelude::*;

/// Returns the number of times the threads of a process have gone to sleep so far.
fn sleeps(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let of_thread = |thread: io::Result<fs::DirEntry>| {
        let status = fs::read_to_string(thread.unwrap().path().join("status")).ok()?;
        let (_, sleeps) = status.split_once("\nvoluntary_ctxt_switches:")?;
        sleeps.lines().next()?.trim().parse::<u64>().ok()
    };
    threads.filter_map(of_thread).sum()
}

/// A hundred nodes may poll one Redis server.
#[test]
fn idle_node_sends_few_commands_and_sleeps_until_an_event_arrives() {
    let site = Site::start();
    let keys = [("store.partitions", "32"), ("flush.grace", "3s"), ("flush.interval", "1s")];
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    sender.send(b"a=1 value=x 1480876707352348928");
    site.wait_exact(&sender.expected.points(), SOON);
    let commands = || -> u64 {
        let stats: String = site.redis.query(&["INFO", "stats"]);
        let (_, count) = stats.split_once("total_commands_processed:").unwrap();
        count.lines().next().unwrap().trim().parse().unwrap()
    };
    // Long enough to include all periodic work.
    let over = Duration::from_secs(31);
    eventually("the node is idle", 3 * over, || {
        let before = (commands(), sleeps(node.pid()));
        thread::sleep(over);
        let rate = (commands() - before.0) / over.as_secs();
        let wakes = sleeps(node.pid()).saturating_sub(before.1) / over.as_secs();
        let each = || site.redis.query::<String>(&["INFO", "commandstats"]);
        if rate <= 40 && wakes <= 40 {
            Ok(())
        } else {
            Err(format!("{rate} commands/s, {wakes} wake-ups/s: {}", each()))
        }
    });
    sender.send(b"a=1 value=x 1480876767352348928");
    site.wait_exact(&sender.expected.points(), SOON);
}

#[test]
fn recent_minute_is_published_in_time_while_an_archive_is_replayed() {
    publishes_the_present_minute_before_old_ones("sets");
}

#[test]
fn recent_minute_is_published_in_time_while_an_archive_is_replayed_with_logs() {
    publishes_the_present_minute_before_old_ones("log");
}

/// Replays 6,000 minutes with one event each while the current minute also receives events.
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
    let mut sender = Sender::to_all(&nodes);
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
        sender.send(lines.join("\n").as_bytes());
    }

    let query = |event_type: &str| {
        format!("SELECT count(value) FROM cumulative_user_event WHERE event_type = '{event_type}'")
    };
    // Generous, for busy machines. `scripts/torture` asserts how late the minute may be.
    let within = Duration::from_secs(240);
    eventually("the current minute is published", within, || {
        when(!site.query(&query("present")).is_empty(), "not yet")
    });

    let old = || nodes[0].json("/api/v1/status")["partitions"]["old"].take();
    let waiting = old()["waiting"].as_u64();
    assert!(waiting > Some(1000), "old minutes were published first: {waiting:?} are left");
    wait_for("the end of the archive is estimated", old, |old| {
        old["done_in_seconds"].as_u64() > Some(0)
    });

    for node in &mut nodes {
        assert!(node.terminate().success());
        node.set("flush.interval", "50ms");
        node.run();
    }
    site.wait_exact(&sender.expected.points(), within);
    site.assert_clean();
}
