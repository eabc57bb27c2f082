//! Names of all kinds round-trip through InfluxDB unchanged, and its series keys are parsed as the same series.

use crate::prelude::*;

/// The parts that random names consist of. Most of them are hostile.
const PARTS: &[&str] = &[
    ",", "=", " ", "\"", "'", "\\", "\r", "\t", "\u{7f}", "\\n", "#", "{eds:0}", ":", "|", "%s",
    "é", "日本", "🦀", "e\u{301}", "\u{202e}", "a", "b", "1i", "true", "_", "value", "\u{0}", "*",
    "$", "`", ";", "--",
];
const LINES: i64 = 600;
const PATIENCE: Duration = Duration::from_secs(30);

type Found = BTreeMap<BTreeMap<String, String>, [u64; 2]>;

/// Returns `Ok` if both are equal, and otherwise some of the differences.
fn compare(found: &Found, expected: &Found) -> Result<(), String> {
    let only = |left: &Found, right: &Found| -> Vec<String> {
        let missing = left.iter().filter(|(tags, counts)| right.get(*tags) != Some(counts));
        missing.take(5).map(|entry| format!("{entry:?}")).collect()
    };
    let (more, less) = (only(found, expected), only(expected, found));
    when(found == expected, format!("{} series: found {more:#?}, expected {less:#?}", found.len()))
}

fn escaped(name: &str) -> String {
    name.replace(',', r"\,").replace('=', r"\=").replace(' ', r"\ ")
}

/// Whether line protocol can represent the name and all servers parse it the same way.
fn is_representable(name: &str) -> bool {
    let ambiguous = [r"\,", r"\=", r"\ "].iter().any(|pair| name.contains(pair));
    !name.is_empty() && !name.contains(char::is_control) && !name.ends_with('\\') && !ambiguous
}

fn name(random: &mut SmallRng) -> String {
    let parts = random.random_range(1..5);
    (0..parts).map(|_| PARTS[random.random_range(0..PARTS.len())]).collect()
}

/// Returns a random tag key. It never ends with a backslash, which would escape the equals sign.
fn key(random: &mut SmallRng) -> String {
    let name = name(random);
    if name.ends_with('\\') { name + "k" } else { name }
}

fn line(tags: &BTreeMap<String, String>, user: &str, timestamp: i64) -> String {
    let tags: Vec<_> =
        tags.iter().map(|(key, value)| format!("{}={}", escaped(key), escaped(value))).collect();
    let user = user.replace('\\', r"\\").replace('"', "\\\"");
    format!("{} value=\"{user}\" {timestamp}", tags.join(","))
}

fn send(node: &Node, lines: &[String]) {
    let mut sender = Sender::paced_by(node);
    for line in lines {
        sender.send_unrecorded(line);
    }
    sender.wait_received();
    node.wait_recorded();
}

fn found(site: &Site, minute_ns: i64) -> Found {
    let mut found = Found::new();
    for (place, measurement) in ["unique_user_event", "cumulative_user_event"].iter().enumerate() {
        let question =
            format!("SELECT value FROM {measurement} WHERE time = {minute_ns} GROUP BY *");
        for series in site.query(&question) {
            let tags = series["tags"].as_object().unwrap().iter();
            let tags = tags.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()));
            let tags: BTreeMap<_, _> = tags.filter(|(_, value)| !value.is_empty()).collect();
            // A query during the first write may not see the tags yet and merge many series into one.
            let [point] = &series["values"].as_array().unwrap()[..] else {
                continue;
            };
            found.entry(tags).or_default()[place] = point[1].as_u64().unwrap();
        }
    }
    found
}

#[test]
fn names_round_trip_through_influxdb() {
    let mut random = SmallRng::seed_from_u64(seed());
    let site = Site::start();
    // The series keys that InfluxDB prints begin with the measurement.
    let keys = [("flush.grace", "2s"), ("input.measurement_tag", "")];
    let node = site.start_node("one", &keys);
    let mut lines = Vec::new();
    let mut expected: BTreeMap<_, (BTreeSet<String>, u64)> = BTreeMap::new();
    let mut refused = 0;
    for at in 0..LINES {
        let tags: BTreeMap<String, String> =
            (0..random.random_range(1..4)).map(|_| (key(&mut random), name(&mut random))).collect();
        let user = name(&mut random);
        // Two events of the same user, so that the two counts differ.
        for at in [2 * at, 2 * at + 1] {
            let line = line(&tags, &user, SEED_MINUTE_NS + at);
            let names = || tags.iter().flat_map(|(key, value)| [key, value]);
            // Comments, indented or not, are not events.
            if !line.trim_ascii_start().starts_with('#') {
                let is_reserved = tags.contains_key("value");
                if names().all(|name| is_representable(name))
                    && !is_reserved
                    && !user.contains(char::is_control)
                {
                    let (users, events) = expected.entry(tags.clone()).or_default();
                    users.insert(user.clone());
                    *events += 1;
                } else {
                    refused += 1;
                }
            }
            lines.push(line);
        }
    }
    assert!(expected.len() > 60 && refused > 60);
    send(&node, &lines);
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_events_rejected_total"), refused);
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|(tags, (users, events))| (tags, [users.len() as u64, events]))
        .collect();
    eventually("InfluxDB has every name unchanged", PATIENCE, || {
        compare(&found(&site, SEED_MINUTE_NS), &expected)
    });

    // In reverse, a node parses the series keys that InfluxDB prints as the same series.
    let keys = site.query("SHOW SERIES FROM unique_user_event");
    let keys = keys[0]["values"].as_array().unwrap();
    assert_eq!(keys.len(), expected.len());
    let next = SEED_MINUTE_NS + MINUTE_NS;
    let lines: Vec<String> =
        keys.iter().map(|key| format!("{} value=u {next}", key[0].as_str().unwrap())).collect();
    send(&node, &lines);
    let expected: BTreeMap<_, _> = expected.into_keys().map(|tags| (tags, [1, 1])).collect();
    eventually("every key leads to the same series", PATIENCE, || {
        compare(&found(&site, next), &expected)
    });
    let metrics = node.metrics();
    assert_eq!(metrics.count("eds_events_rejected_total"), refused);
    assert_eq!(metrics.count("eds_points_quarantined_total"), 0);
    let measurements = site.query("SHOW MEASUREMENTS");
    let names = measurements[0]["values"].as_array().unwrap();
    assert_eq!(names.len(), 3, "expected two for counts and one for probes: {names:?}");
}
