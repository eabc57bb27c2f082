//! The points in a database, and the points that the database must contain.

use std::collections::BTreeMap;
use std::fmt::Write as _;

const DIFFERENCES_SHOWN: usize = 10;

/// Identifies a number in the database.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Point {
    /// The start of the minute, in nanoseconds since the epoch.
    pub minute_start_ns: i64,
    /// The canonical series, such as `event_type=http-5xx,product=productA`.
    pub series: String,
    /// The measurement: `unique_user_event` or `cumulative_user_event`.
    pub measurement: String,
}

/// All numbers in a database.
pub type Points = BTreeMap<Point, u64>;

/// Computes the points that are expected for the lines that reached at least one node. Uses [`loadgen`], which shares no
/// code with the service, and parses only the simple lines that the tests send, without escapes and quotes.
#[derive(Debug, Default)]
pub struct Expected(loadgen::Expected);

impl Expected {
    /// Returns no events, whose windows of these rollups are also expected.
    pub fn with_rollups<'a>(rollups: impl IntoIterator<Item = &'a str>) -> Self {
        let rollups = rollups.into_iter().map(|rollup| rollup.parse().expect("a rollup"));
        Self(loadgen::Expected::with_rollups(rollups.collect()))
    }

    /// Adds a datagram that reached a node. Adding a copy of a datagram changes nothing.
    #[track_caller]
    pub fn receive(&mut self, datagram: &[u8]) {
        for line in datagram.split(|byte| *byte == b'\n') {
            let added = self.0.add(line);
            added.unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(line)));
        }
        self.0.confirm();
    }

    /// Returns the points that the database must contain.
    pub fn points(&self) -> Points {
        let lines = self.0.clone().lines();
        written(lines.unwrap_or_else(|error| panic!("{error}")).as_bytes())
    }
}

/// Parses the body of a write, which is line protocol without escapes, and returns its points.
pub fn written(body: &[u8]) -> Points {
    let mut points = Points::new();
    let body = std::str::from_utf8(body).expect("line protocol is UTF-8");
    for line in body.lines().filter(|line| !line.is_empty()) {
        let parts: Vec<_> = line.split(' ').collect();
        let [key, field, time] = parts[..] else { panic!("not a point: {line:?}") };
        let (measurement, series) = key.split_once(',').expect("a point has tags");
        // The point of a window has further fields.
        let value = field.split(',').next().and_then(|field| field.strip_prefix("value="));
        let value = value.expect("the first field is `value`");
        let point = Point {
            minute_start_ns: time.parse().expect("a point has a time"),
            series: series.to_owned(),
            measurement: measurement.to_owned(),
        };
        let value = value.trim_end_matches(['i', 'u']).parse().expect("a whole number");
        points.insert(point, value);
    }
    points
}

/// Compares the points. If they differ, returns a report with the number of differences and the first of them.
pub fn compare(expected: &Points, found: &Points) -> Result<(), String> {
    let missing = expected.iter().filter(|(point, _)| !found.contains_key(point));
    let wrong = expected
        .iter()
        .filter(|(point, count)| found.get(point).is_some_and(|found| found != *count));
    let unexpected = found.iter().filter(|(point, _)| !expected.contains_key(point));

    let mut report = String::new();
    for (difference, points) in [
        ("missing", missing.collect::<Vec<_>>()),
        ("wrong", wrong.collect()),
        ("unexpected", unexpected.collect()),
    ] {
        if points.is_empty() {
            continue;
        }
        let _ = writeln!(report, "{} of {} points {difference}:", points.len(), expected.len());
        for (point, _) in points.into_iter().take(DIFFERENCES_SHOWN) {
            let (expected, found) = (expected.get(point), found.get(point));
            let _ = writeln!(report, "  {point:?}: expected {expected:?}, found {found:?}");
        }
    }
    if report.is_empty() { Ok(()) } else { Err(report) }
}
