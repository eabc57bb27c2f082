//! Measures the windows of a day with two million users: three nodes, each of which receives every event, and the masters of a
//! Redis Cluster. The clock moves from hour to hour, and the end of the day passes in real time.

use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::ensure;
use loadgen::Event;
use testing::load::MINUTE_NS;
use testing::points::{Expected, Points, compare, written};

use super::eds::{Cluster, Store};
use super::rollups;
use crate::measure::{float, peak_memory_mb};
use crate::node::Node;
use crate::report::{Report, Table, column, yes_or_no};
use crate::sender::Sender;

const HOUR_NS: i64 = 60 * MINUTE_NS;
const DAY_NS: i64 = 24 * HOUR_NS;
const NODES: usize = 3;
const MASTERS: usize = 3;
const EVENTS_PER_HOUR: u32 = 250_000;
const USERS: u32 = 2_000_000;
const PRODUCTS: u32 = 10;
const KINDS: u32 = 5;
/// The number of events per datagram.
const LINES: usize = 15;
/// The events of an hour have timestamps in these minutes. The nodes start in the minute after that.
const MINUTES: std::ops::Range<i64> = 1..56;
const POLL: Duration = Duration::from_millis(100);
/// Part of the keys of the lists of windows whose last minute is the last one of a day.
const LAST_LISTS: &str = ":1439:log:";
/// Maximum time from the end of the day to its last point.
const PATIENCE: Duration = Duration::from_secs(300);

pub(crate) fn run(report: &mut Report) -> anyhow::Result<()> {
    let began = Instant::now();
    let hours = if report.is_quick() { 2 } else { 24 };
    let mut cluster = Cluster::of(Store::Redis("sets"), MASTERS);
    cluster.rollups = &rollups::ALL;
    let now_ns = cluster.clock.now_ns();
    let day_end = (now_ns / DAY_NS + 2) * DAY_NS;
    let mut expected =
        Expected::with_rollups(["hourly", "daily every=1day", "products every=1day by=product"]);
    let mut node_mb = 0_f64;
    for hour in 0..hours {
        let hour_start = day_end - (i64::from(hours - hour)) * HOUR_NS;
        // Nodes delay closing after a jump of the clock, so it moves while they are stopped.
        for node in &mut cluster.nodes {
            node_mb = node_mb.max(peak_memory_mb(node.pid())?);
            ensure!(node.terminate().success(), "a node lost events:\n{}", node.log());
        }
        // The time since the last hour has passed on the system clock as well.
        let system_ns = i64::try_from(UNIX_EPOCH.elapsed()?.as_nanos())?;
        cluster.clock.set((hour_start + MINUTES.end * MINUTE_NS - system_ns) / 1_000);
        if hour == 0 {
            (0..NODES).for_each(|_| cluster.start_node());
        } else {
            cluster.nodes.iter_mut().for_each(Node::launch);
            cluster.nodes.iter_mut().for_each(Node::wait_ready);
        }
        let mut sender = Sender::to_all(&cluster.nodes);
        sender.expected = expected;
        sender.send_all(datagrams(hour * EVENTS_PER_HOUR, hour_start + MINUTES.start * MINUTE_NS));
        expected = sender.expected;
        cluster.nodes.iter().for_each(Node::wait_recorded);
    }
    cluster.wait_added();
    let is_open = cluster.clock.now_ns() < day_end;
    let bytes = rollups::ALL.map(|keys| list_bytes(&cluster, keys[0].1));
    let expected = expected.points();
    let suffixes = ["_1h", "_1d", "_products"];
    let expected = suffixes.map(|suffix| of_suffix(&expected, suffix));
    let mut seconds = [f64::NAN; 3];
    let deadline = Instant::now() + PATIENCE;
    while seconds.iter().any(|seconds| seconds.is_nan()) && Instant::now() < deadline {
        thread::sleep(POLL);
        let stdout = cluster.nodes.iter().map(Node::stdout).collect::<String>();
        let since_end =
            Duration::from_nanos((cluster.clock.now_ns() - day_end).try_into().unwrap_or_default());
        for ((seconds, suffix), expected) in seconds.iter_mut().zip(suffixes).zip(&expected) {
            let points = stdout.matches(&format!("_user_event{suffix},")).count();
            if seconds.is_nan() && points >= expected.len() {
                *seconds = since_end.as_secs_f64();
            }
        }
    }
    let found = points(&cluster);
    ensure_all_counted(&cluster)?;
    let title = format!(
        "A day of {} events and {} users on {NODES} nodes and {MASTERS} masters of a Redis Cluster, `sets`",
        hours * EVENTS_PER_HOUR,
        USERS.min(hours * EVENTS_PER_HOUR),
    );
    let columns = [
        column("points", 0),
        column("users of the open window", 0),
        column("bytes in Redis per user", 1),
        column("seconds from its end to its points", 1),
        yes_or_no("exact"),
    ];
    let mut table = Table::new("day", &title, &columns);
    for (place, name) in ["1 hour", "1 day", "1 day, by product"].into_iter().enumerate() {
        let expected = &expected[place];
        let newest = expected.keys().map(|point| point.minute_start_ns).max();
        let users = expected.iter().filter(|(point, _)| {
            Some(point.minute_start_ns) == newest && point.measurement.starts_with("unique")
        });
        let users = float(users.map(|(_, users)| users).sum());
        let exact = compare(expected, &of_suffix(&found, suffixes[place]));
        if let Err(differences) = &exact {
            println!("{name}: {differences}");
        }
        let per_user = if is_open { bytes[place] / users } else { f64::NAN };
        table.row(
            name,
            [
                float(expected.len() as u64),
                users,
                per_user,
                seconds[place],
                f64::from(exact.is_ok()),
            ],
        );
    }
    report.add(table);
    let node_mb = (cluster.nodes.iter())
        .try_fold(node_mb, |most, node| anyhow::Ok(most.max(peak_memory_mb(node.pid())?)))?;
    let columns =
        ["peak MB of Redis", "peak MB of a node", "minutes to run"].map(|name| column(name, 0));
    let mut table = Table::new("day-memory", "Memory during the day", &columns);
    let redis_mb = cluster.info("used_memory_peak")? / 1e6;
    table.row("all", [redis_mb, node_mb, began.elapsed().as_secs_f64() / 60.0]);
    report.add(table);
    Ok(())
}

/// Returns the datagrams of an hour. Events from `first` on have the users in turn, so a day of eight hours has all users.
fn datagrams(first: u32, start_nanos: i64) -> impl Iterator<Item = Vec<u8>> {
    let step_nanos = (MINUTES.end - MINUTES.start) * MINUTE_NS / i64::from(EVENTS_PER_HOUR);
    let events = (0..EVENTS_PER_HOUR).map(move |number| {
        let user = (first + number) % USERS;
        Event {
            // A user has different events each time.
            kind: (user / PRODUCTS + (first + number) / USERS) % KINDS,
            product: user % PRODUCTS,
            user,
            nanos: start_nanos + i64::from(number) * step_nanos,
        }
    });
    let mut events = events.peekable();
    std::iter::from_fn(move || {
        events.peek()?;
        let mut datagram = Vec::new();
        for event in events.by_ref().take(LINES) {
            event.write_line(&mut datagram);
            datagram.push(b'\n');
        }
        datagram.pop();
        Some(datagram)
    })
}

/// Fails if a node has not counted events, because the machine was busy with something else.
fn ensure_all_counted(cluster: &Cluster) -> anyhow::Result<()> {
    let names = ["eds_events_late_total", "eds_events_rejected_total"];
    for (node, name) in cluster.nodes.iter().flat_map(|node| names.map(|name| (node, name))) {
        ensure!(node.metrics().count(name) == 0, "{name} is not 0");
    }
    Ok(())
}

/// Returns the memory of the open window of a rollup.
fn list_bytes(cluster: &Cluster, rollup: &str) -> f64 {
    let prefix = format!("{{eds:rollup:{rollup}}}:");
    let of_server = |server: &testing::redis::RedisServer| -> u64 {
        let keys = server.keys().into_iter();
        let lists = keys.filter(|key| key.starts_with(&prefix) && key.contains(LAST_LISTS));
        lists.map(|key| server.query::<u64>(&["MEMORY", "USAGE", &key, "SAMPLES", "0"])).sum()
    };
    float(cluster.servers.iter().map(of_server).sum())
}

fn points(cluster: &Cluster) -> Points {
    let lines = cluster.nodes.iter().map(Node::stdout).collect::<String>();
    written(&lines.as_bytes()[..lines.rfind('\n').map_or(0, |end| end + 1)])
}

fn of_suffix(points: &Points, suffix: &str) -> Points {
    let points = points.iter().filter(|(point, _)| point.measurement.ends_with(suffix));
    points.map(|(point, value)| (point.clone(), *value)).collect()
}
