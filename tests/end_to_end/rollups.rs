//! Windows of rollups: the users of hours and days, of all series or of groups of them, are exact.

use crate::prelude::*;

/// The rollups of the tests, each with its suffix. The day of Berlin begins at 23:00 UTC.
const ROLLUPS: [&[(&str, &str)]; 3] = [
    &HOURLY,
    &[
        ("name", "products"),
        ("every", "1day"),
        ("time_zone", "Europe/Berlin"),
        ("by", "[\"product\"]"),
    ],
    &[
        ("name", "pages"),
        ("every", "1m"),
        ("without", "[\"product\"]"),
        ("drop", "[\"event_type=t3\"]"),
    ],
];
const HOURLY: [(&str, &str); 2] = [("name", "hourly"), ("every", "1h")];
const HOUR_NS: i64 = 60 * MINUTE_NS;
const MINUTES: i64 = 100;

/// An event: the minute since the seed minute, the numbers of its type, product and user, and its nanosecond.
type Event = (i64, u64, u64, u64, i64);

fn events(minutes: std::ops::Range<i64>) -> impl Iterator<Item = Event> {
    minutes.flat_map(|minute| {
        (0..60).map(move |number: u64| {
            let user = (number * number + 7 * minute.unsigned_abs()) % 50;
            (minute, number % 4, number % 3, user, i64::try_from(number).unwrap())
        })
    })
}

fn line(&(minute, kind, product, user, at): &Event) -> String {
    let at = SEED_MINUTE_NS + minute * MINUTE_NS + at;
    format!("event_type=t{kind},product=p{product} value=u{user} {at}")
}

/// Returns a sender that also computes the points of these rollups.
fn sender_with<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    rollups: &[&[(&str, &str)]],
) -> Sender {
    let rollups = rollups.iter().map(|keys| {
        let keys = keys.iter().map(|(key, value)| match *key {
            "name" => (*value).to_owned(),
            _ => format!("{key}={}", value.replace(['[', ']', '"'], "")),
        });
        keys.collect::<Vec<_>>().join(" ")
    });
    let rollups: Vec<_> = rollups.collect();
    let mut sender = Sender::to_all(nodes);
    sender.expected = Expected::with_rollups(rollups.iter().map(|rollup| &**rollup));
    sender
}

/// Waits until the node has written exactly these points to standard output.
#[track_caller]
fn wait_stdout(node: &Node, expected: &Points) {
    eventually("the points are on standard output", SOON, || {
        let stdout = node.stdout();
        let whole_lines = &stdout[..stdout.rfind('\n').map_or(0, |end| end + 1)];
        compare(expected, &read_back::written(whole_lines.as_bytes()))
    });
}

#[test]
fn windows_are_exact_in_memory() {
    let keys = [("store.url", "memory:"), ("output.url", "stdout:"), ("flush.grace", "1s")];
    let mut node = Node::new("alone", &keys);
    node.set_sections("rollup", &ROLLUPS);
    node.run();
    let mut sender = sender_with([&node], &ROLLUPS);
    sender.send_all(events(0..MINUTES).map(|event| line(&event)));
    wait_stdout(&node, &sender.expected.points());
}

#[test]
fn windows_are_exact_in_sets_when_nodes_are_killed() {
    windows_are_exact_when_nodes_are_killed("sets");
}

#[test]
fn windows_are_exact_in_logs_when_nodes_are_killed() {
    windows_are_exact_when_nodes_are_killed("log");
}

fn windows_are_exact_when_nodes_are_killed(layout: &str) {
    let site = Site::start();
    let keys = [("store.partitions", "4"), ("store.layout", layout), ("flush.lease", "3s")];
    let mut nodes = ["one", "two"].map(|name| site.node(name, &keys));
    for node in &mut nodes {
        node.set_sections("rollup", &ROLLUPS);
        node.run();
    }
    let mut sender = sender_with(&nodes, &ROLLUPS);
    sender.send_all(events(0..MINUTES).map(|event| line(&event)));
    let all = events(0..MINUTES).count() as u64;
    for node in &nodes {
        node.wait_count("eds_events_recorded_total", |recorded| recorded == all);
    }
    for turn in 0..6 {
        nodes[turn % 2].kill();
        nodes[turn % 2].run();
    }
    let points = || {
        let writes = site.writes.writes().into_iter().filter(|write| write.taken);
        writes.flat_map(|write| read_back::written(&write.body)).collect()
    };
    let expected = sender.expected.points();
    eventually("the points are written", 3 * SOON, || compare(&expected, &points()));
    site.assert_one_value_a_point();
    site.wait_redis_clean();
}

/// A window with more users than the limit is estimated, and its point says so.
#[test]
fn users_beyond_the_limit_are_estimated() {
    let keys = [("store.url", "memory:"), ("output.url", "stdout:"), ("flush.grace", "1s")];
    let mut node = Node::new("alone", &keys);
    node.set_sections("rollup", &[&[("name", "small"), ("every", "1h"), ("users_max", "1000")]]);
    node.run();
    let mut sender = Sender::to_all([&node]);
    let line = |user| format!("a=1 value=u{user} {}", SEED_MINUTE_NS + user);
    sender.send_all((0..900).map(line));
    let line = |user| format!("a=2 value=u{user} {}", SEED_MINUTE_NS + user);
    sender.send_all((0..5000).map(line));
    let hour = SEED_MINUTE_NS / HOUR_NS * HOUR_NS;
    let found = eventually("the windows are on standard output", SOON, || {
        let stdout = node.stdout();
        let lines: Vec<_> = stdout
            .lines()
            .filter(|line| line.contains("user_event_1h,"))
            .map(str::to_owned)
            .collect();
        when(lines.len() == 4, stdout).map(|()| lines)
    });
    assert_contains(
        &found.join("\n"),
        [
            &*format!("unique_user_event_1h,a=1 value=900,error=0 {hour}"),
            &*format!("cumulative_user_event_1h,a=2 value=5000 {hour}"),
        ],
    );
    let estimate = found.iter().find_map(|line| {
        line.strip_prefix("unique_user_event_1h,a=2 value=")?.split_once(",error=0.0081 ")
    });
    let (estimate, _) = estimate.unwrap_or_else(|| panic!("{found:?}"));
    assert!(estimate.parse::<u64>().unwrap().abs_diff(5000) < 250, "{estimate}");
}

/// Returns a site whose clock shows ten minutes past an hour.
fn site_past_the_hour() -> Site {
    let site = Site::start_at_second(10);
    let past = site.clock().now_ns().rem_euclid(HOUR_NS) / 1_000_000_000;
    site.clock().advance((600 - past).rem_euclid(3600));
    site
}

/// Sends ten events of the previous minute, from this user on, and waits until the minute is published and added to windows.
fn publish(site: &Site, node: &Node, first_user: u64) {
    let minute = (site.clock().now_ns() / MINUTE_NS - 1) * MINUTE_NS;
    let mut sender = Sender::to_all([node]);
    let users = i64::try_from(first_user).unwrap()..;
    sender.send_all(users.take(10).map(|user| format!("a=1 value=u{user} {}", minute + user)));
    eventually("the minute is published", SOON, || {
        let points = site.points();
        when(points.keys().any(|point| point.minute_start_ns == minute), format!("{points:?}"))
    });
    let unsent =
        || site.redis.keys().into_iter().filter(|key| key.contains(":unsent:")).collect::<Vec<_>>();
    wait_for("all outputs have the minute", unsent, Vec::is_empty);
}

/// Moves the clock while no node runs, because nodes wait after a jump of the clock.
pub(crate) fn skip(clock: &Clock, node: &mut Node, seconds: i64) {
    assert!(node.terminate().success());
    clock.advance(seconds);
    node.run();
}

/// Returns the number of users in each hour, and whether the point is marked as incomplete.
fn hours(site: &Site) -> BTreeMap<i64, (u64, bool)> {
    let mut hours = BTreeMap::new();
    for write in site.writes.writes().iter().filter(|write| write.taken) {
        let body = String::from_utf8_lossy(&write.body);
        for line in body.lines() {
            let Some(rest) = line.strip_prefix("unique_user_event_1h,a=1 value=") else { continue };
            let (fields, time) = rest.split_once(' ').unwrap();
            let users = fields.split(',').next().unwrap().parse().unwrap();
            hours.insert(time.parse().unwrap(), (users, fields.contains("complete=false")));
        }
    }
    hours
}

#[test]
fn window_that_was_open_when_redis_forgot_is_marked() {
    let site = site_past_the_hour();
    let mut node = site.node("one", &[("store.partitions", "2")]);
    node.set_sections("rollup", &[&HOURLY]);
    node.run();
    let hour = site.clock().now_ns() / HOUR_NS * HOUR_NS;
    publish(&site, &node, 0);
    site.redis.query::<()>(&["FLUSHALL"]);
    wait_for("the node notices", || node.log(), |log| log.contains("the store lost acknowledged"));
    skip(site.clock(), &mut node, 60);
    publish(&site, &node, 100);
    skip(site.clock(), &mut node, 3600);
    publish(&site, &node, 200);
    skip(site.clock(), &mut node, 3600);
    let expected = BTreeMap::from([(hour, (10, true)), (hour + HOUR_NS, (10, false))]);
    wait_for("both windows are written", || hours(&site), |found| *found == expected);
    let lost = || node.metrics().count_of("eds_losses_unacknowledged", &[("reason", "windows")]);
    wait_for("the loss is recorded", lost, |lost| *lost == 1);
}

/// A node with a spool directory keeps what it has added to open windows, even if it is killed.
#[test]
fn window_that_redis_forgot_is_restored_from_the_spool_directory() {
    let site = site_past_the_hour();
    let spool = tempfile::tempdir().unwrap();
    let spool_dir = spool.path().to_str().unwrap();
    let mut node = site.node("one", &[("store.partitions", "2"), ("input.spool_dir", spool_dir)]);
    node.set_sections("rollup", &[&HOURLY]);
    node.run();
    let hour = site.clock().now_ns() / HOUR_NS * HOUR_NS;
    publish(&site, &node, 0);
    skip(site.clock(), &mut node, 60);
    publish(&site, &node, 5);
    node.kill();
    site.redis.query::<()>(&["FLUSHALL"]);
    node.run();
    wait_for("the window is restored", || node.log(), |log| log.contains("restored=2"));
    // The other partition has had no events, which its witness knows after the window.
    skip(site.clock(), &mut node, 3600);
    publish(&site, &node, 200);
    site.redis.query::<()>(&["FLUSHALL"]);
    wait_for("the window is restored", || node.log(), |log| log.contains("restored=1"));
    skip(site.clock(), &mut node, 3600);
    let expected = BTreeMap::from([(hour, (15, false)), (hour + HOUR_NS, (10, false))]);
    wait_for("both windows are written", || hours(&site), |found| *found == expected);
    let kept = || std::fs::read_dir(spool.path().join("windows")).unwrap().count();
    publish(&site, &node, 300);
    wait_for("only the file of the open window is left", kept, |count| *count == 1);
}

#[test]
fn open_windows_are_provisional_and_sealed_ones_final() {
    let site = site_past_the_hour();
    let mut node = site.node("one", &[("store.partitions", "2")]);
    node.set_sections("rollup", &[&HOURLY]);
    node.run();
    let hour = site.clock().now_ns() / HOUR_NS * HOUR_NS / 1_000_000_000;
    publish(&site, &node, 0);
    let shown = |node: &Node, hour: i64| {
        let (path, to) = ("/api/v1/windows?rollup=hourly", hour + 3600);
        let answer = node.json(&format!("{path}&from={hour}&to={to}&a=1"));
        answer["counts"].as_array().unwrap().clone()
    };
    let numbers = |count: &Value| {
        [&count["unique"], &count["cumulative"], &count["provisional"], &count["error"]]
            .map(Value::clone)
    };
    let wait = |node: &Node, hour, expected: [Value; 4]| {
        let has = |counts: &Vec<Value>| counts.first().map(numbers).as_ref() == Some(&expected);
        let counts = wait_for("the window has these counts", || shown(node, hour), has);
        assert_eq!(counts.len(), 1, "{counts:?}");
        assert_eq!(counts[0]["complete"], true);
    };
    wait(&node, hour, [10.into(), 10.into(), true.into(), 0.0.into()]);
    let status = node.json("/api/v1/status")["rollups"][0].clone();
    assert_eq!((&status["name"], &status["suffix"]), (&"hourly".into(), &"_1h".into()));
    let open = &status["open"][0];
    // Ten users of about eight bytes each, and their group.
    assert!(
        (80..200).contains(&open["bytes"].as_u64().unwrap()) && open["waits_for"] == "its end",
        "{status}"
    );
    let measured = || {
        let metrics = node.metrics();
        ["open", "bytes"]
            .map(|kind| metrics.count_of(&format!("eds_windows_{kind}"), &[("rollup", "hourly")]))
    };
    wait_for("the window is measured", measured, |found| {
        found[0] == 1 && open["bytes"] == found[1]
    });
    skip(site.clock(), &mut node, 60);
    // Half of these users are the same as in the previous minute.
    publish(&site, &node, 5);
    wait(&node, hour, [15.into(), 20.into(), true.into(), 0.0.into()]);
    let series = node.json("/api/v1/series?rollup=hourly&window=1h");
    assert_eq!(series["series"][0]["series"], "a=1", "{series}");
    skip(site.clock(), &mut node, 3600);
    publish(&site, &node, 0);
    wait(&node, hour, [15.into(), 20.into(), false.into(), 0.0.into()]);
    wait(&node, hour + 3600, [10.into(), 10.into(), true.into(), 0.0.into()]);
    let top = node.json("/api/v1/top?rollup=hourly&by=unique&window=2h");
    assert_eq!(top["items"][0]["unique_window_max"], 15, "{top}");
    // The hour is kept for longer than its minutes, once its counts have been acknowledged.
    let is_count = |key: &String| key.contains("rollup:hourly") && key.ends_with(":counts");
    let kept_ms = || {
        let keys = site.redis.keys().into_iter().filter(is_count);
        keys.map(|key| site.redis.query::<i64>(&["PTTL", &key])).max()
    };
    wait_for("the hour is kept", kept_ms, |kept| kept.is_some_and(|ms| ms > 30 * 3_600_000));
}

#[test]
fn added_rollup_begins_with_the_next_whole_window() {
    let site = site_past_the_hour();
    let mut node = site.start_node("one", &[("store.partitions", "2")]);
    let hour = site.clock().now_ns() / HOUR_NS * HOUR_NS;
    publish(&site, &node, 0);
    node.set_sections("rollup", &[&HOURLY]);
    let (code, stdout) = node.command_text(&["settings", "apply"]);
    assert!(code == Some(0) && stdout.contains("rollups: \"\" → \"hourly every=1h"), "{stdout}");
    skip(site.clock(), &mut node, 60);
    publish(&site, &node, 100);
    skip(site.clock(), &mut node, 3600);
    publish(&site, &node, 200);
    skip(site.clock(), &mut node, 3600);
    let expected = BTreeMap::from([(hour + HOUR_NS, (10, false))]);
    wait_for("the window is written", || hours(&site), |found| *found == expected);
}

#[test]
fn day_on_which_daylight_saving_time_begins_has_23_hours() {
    // 2026-03-28T23:00:00Z.
    day_is_exact(1_774_738_800_000_000_000, 23);
}

#[test]
fn day_on_which_daylight_saving_time_ends_has_25_hours() {
    // 2026-10-24T22:00:00Z.
    day_is_exact(1_792_879_200_000_000_000, 25);
}

/// Counts events around both ends of a day in Berlin, which is a Sunday, and around the change of its clocks at 01:00 UTC.
fn day_is_exact(start_ns: i64, hours: i64) {
    const DAILY: [(&str, &str); 3] =
        [("name", "daily"), ("every", "1day"), ("time_zone", "Europe/Berlin")];
    const WEEKLY: [(&str, &str); 3] =
        [("name", "weekly"), ("every", "7days"), ("time_zone", "Europe/Berlin")];
    let rollups: [&[(&str, &str)]; 3] = [&HOURLY, &DAILY, &WEEKLY];
    let (end, change) = (hours * 60, 25 * 60 - start_ns / MINUTE_NS % (24 * 60));
    let minutes =
        [-2, -1, 0, 1, change - 60, change - 1, change, change + 59, change + 60, end - 1, end];
    // In every minute, one user is new, and another is in all minutes.
    let line = |minute: &i64| {
        let at = start_ns + minute * MINUTE_NS;
        format!("a=1 value=u{minute} {at}\na=1 value=all {at}")
    };
    let datagram = |minutes: &[i64]| minutes.iter().map(line).collect::<Vec<_>>().join("\n");
    let in_day = minutes.iter().filter(|minute| (0..end).contains(*minute)).count() as u64;
    let end_ns = start_ns + end * MINUTE_NS;
    let now_ns = Clock::ahead_by(0).now_ns();
    let clock_at = |at_ns: i64| Clock::ahead_by((at_ns - now_ns) / 1000);

    // With few partitions, because each closes all minutes of the week.
    let few = ("store.partitions", "2");

    // All at once, nine days later.
    let mut alone = Node::new("alone", &[("store.url", "memory:"), ("output.url", "stdout:"), few]);
    alone.set_clock(clock_at(end_ns + 9 * 24 * HOUR_NS));
    alone.set_sections("rollup", &rollups);
    alone.run();
    let mut sender = sender_with([&alone], &rollups);
    sender.send_all([datagram(&minutes)]);
    let expected = sender.expected.points();
    let days = expected.iter().filter(|(point, _)| point.measurement == "unique_user_event_1d");
    let days: Vec<_> = days.map(|(point, users)| (point.minute_start_ns, *users)).collect();
    let others = [(start_ns - 24 * HOUR_NS, 3), (start_ns, in_day + 1), (end_ns, 2)];
    assert_eq!(days, others);
    wait_stdout(&alone, &expected);

    // While the day lasts: after the change, and shortly before its end.
    let clock = clock_at(start_ns + (change + 61) * MINUTE_NS);
    let redis = RedisServer::start_with_clock(&clock, &[]);
    let mut node = Node::new("one", &[("store.url", &redis.url()), ("output.url", "stdout:"), few]);
    node.share_clock(&clock);
    node.set_sections("rollup", &rollups);
    node.run();
    let (first, last) = minutes.split_at(minutes.len() - 2);
    Sender::to_all([&node]).send_all([datagram(first)]);
    skip(&clock, &mut node, (end - change - 61) * 60 - 20);
    Sender::to_all([&node]).send_all([datagram(last)]);
    skip(&clock, &mut node, 9 * 24 * 3600);
    wait_stdout(&node, &expected);
}
