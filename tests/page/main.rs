//! Tests the content, the messages and the accessibility of the page in a real Chromium, with real nodes and a real Redis.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests panic on failure"
)]

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "the page needs a part of this")]
mod support;

mod away;
mod content;
mod pictures;
mod readers;
mod served;
mod sizes;

use testing::chromium::Chromium;
use testing::prelude::*;

use crate::support::load::Sender;
use crate::support::node::Node;

/// The number of users of each series. Each user has two events.
const USERS: [(&str, i64); 3] = [
    ("event_type=login,product=shop", 9),
    ("event_type=login,product=app", 7),
    ("event_type=checkout,product=shop", 4),
];

const HOURLY: [(&str, &str); 2] = [("name", "hourly"), ("every", "1h")];

struct Ground {
    node: Node,
    redis: RedisServer,
}

impl Ground {
    fn start(keys: &[(&str, &str)]) -> Self {
        Self::with_rollup(keys, &[])
    }

    /// Like [`Self::start`], but with a rollup with these keys, if there are any.
    fn with_rollup(keys: &[(&str, &str)], rollup: &[(&str, &str)]) -> Self {
        let redis = RedisServer::start(&[]);
        let url = redis.url();
        let mut all = vec![
            ("store.url", &*url),
            ("output.url", "stdout:"),
            ("store.partitions", "4"),
            ("flush.grace", "300ms"),
        ];
        all.extend(keys);
        let mut node = Node::new("one", &all);
        if !rollup.is_empty() {
            node.set_sections("rollup", &[rollup]);
        }
        node.run();
        Self { node, redis }
    }

    /// Like [`Self::with_rollup`], but with [`USERS`] in a closed minute.
    fn with_counts(rollup: &[(&str, &str)]) -> Self {
        let ground = Self::with_rollup(&[], rollup);
        let mut sender = Sender::paced_by(&ground.node);
        // In one datagram, so that the minute cannot be closed before all have arrived.
        let at = minutes_ago_ns(5);
        sender.send_unrecorded(USERS.map(|(series, users)| lines(series, users, at)).concat());
        sender.wait_received();
        wait_sealed(&ground.node, USERS.len());
        ground
    }

    fn page(&self) -> Chromium {
        let browser = Chromium::start();
        browser.resize(1280, 900);
        browser.open(&format!("http://{}/", self.node.http()));
        browser.wait(
            "the page shows status and counts",
            "!!document.querySelector('#pipeline .figure') && !!document.querySelector('#plot svg')",
            "document.body.textContent",
        );
        browser
    }
}

fn minutes_ago_ns(minutes: i64) -> i64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    (i64::try_from(now).unwrap() / 60 - minutes) * MINUTE_NS
}

/// Returns lines with two events for each user.
fn lines(series: &str, users: i64, minute_ns: i64) -> String {
    let events = (0..users).flat_map(|user| [0, 1_000_000].map(|at| (user, minute_ns + at + user)));
    events
        .map(|(user, at)| format!("{series} value=user{user} {at}\n"))
        .collect::<Vec<_>>()
        .concat()
}

/// Sends two events for each user.
fn send(sender: &mut Sender, series: &str, users: i64, minute_ns: i64) {
    sender.send_unrecorded(lines(series, users, minute_ns));
    sender.wait_received();
}

/// Waits until this many counts of the last minutes are final.
fn wait_sealed(node: &Node, counts: usize) {
    eventually("the counts are final", SOON, || {
        let sealed = node.json("/api/v1/minutes");
        let sealed = sealed["counts"].as_array().unwrap().len();
        when(sealed == counts, sealed)
    });
}

fn written(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}
