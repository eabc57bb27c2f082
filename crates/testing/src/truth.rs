//! What the counts must be: a second, simple computation over the lines that were sent, which shares no code with
//! the service. It understands the well-formed lines that the tests send: no escapes, tags already sorted.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;

const NANOS_PER_MINUTE: i64 = 60_000_000_000;
const DIFFERENCES_SHOWN: usize = 10;

/// Names one number in the database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The minute's first instant, in nanoseconds since the epoch.
    pub minute_start_ns: i64,
    /// `event_type=http-5xx,product=productA`.
    pub series: String,
    /// `unique_user_event` or `cumulative_user_event`.
    pub measurement: String,
}

/// Every number of a database.
pub type Points = BTreeMap<Point, u64>;

#[derive(Debug, Default)]
struct Seen {
    users: HashSet<String>,
    events: HashSet<(String, i64)>,
}

/// The lines that reached at least one node, gathered into sets.
#[derive(Debug, Default)]
pub struct Truth {
    seen: HashMap<(i64, String), Seen>,
}

impl Truth {
    /// Takes note of a datagram that reached a node. A copy changes nothing.
    pub fn receive(&mut self, datagram: &[u8]) {
        let text = std::str::from_utf8(datagram).expect("tests send UTF-8");
        for line in text.lines() {
            let [series, user, timestamp] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("tests send lines of three parts, not {line:?}");
            };
            let user = user
                .strip_prefix("value=")
                .expect("the user's field is `value`");
            let timestamp: i64 = timestamp.parse().expect("timestamps are in nanoseconds");
            let minute = timestamp.div_euclid(NANOS_PER_MINUTE) * NANOS_PER_MINUTE;
            let seen = self.seen.entry((minute, series.to_owned())).or_default();
            seen.users.insert(user.to_owned());
            seen.events.insert((user.to_owned(), timestamp));
        }
    }

    /// The numbers that the database must hold.
    pub fn points(&self) -> Points {
        let mut points = Points::new();
        for ((minute_start_ns, series), seen) in &self.seen {
            for (measurement, count) in [
                ("unique_user_event", seen.users.len()),
                ("cumulative_user_event", seen.events.len()),
            ] {
                let point = Point {
                    minute_start_ns: *minute_start_ns,
                    series: series.clone(),
                    measurement: measurement.to_owned(),
                };
                points.insert(point, count as u64);
            }
        }
        points
    }
}

/// `Ok` when both are the same; otherwise how many differ, and the first of them.
pub fn compare(expected: &Points, found: &Points) -> Result<(), String> {
    let missing = expected
        .iter()
        .filter(|(point, _)| !found.contains_key(point));
    let wrong = expected
        .iter()
        .filter(|(point, count)| found.get(point).is_some_and(|found| found != *count));
    let unexpected = found
        .iter()
        .filter(|(point, _)| !expected.contains_key(point));

    let mut report = String::new();
    for (what, points) in [
        ("missing", missing.collect::<Vec<_>>()),
        ("wrong", wrong.collect()),
        ("unexpected", unexpected.collect()),
    ] {
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(
            report,
            "{} of {} points {what}:",
            points.len(),
            expected.len()
        );
        for (point, _) in points.into_iter().take(DIFFERENCES_SHOWN) {
            let (expected, found) = (expected.get(point), found.get(point));
            let _ = writeln!(
                report,
                "  {point:?}: expected {expected:?}, found {found:?}"
            );
        }
    }
    if report.is_empty() {
        Ok(())
    } else {
        Err(report)
    }
}
