//! Reads all points in a database.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use crate::eventually::eventually;
use crate::http::{answer, get};
pub use crate::points::written;
use crate::points::{Point, Points};

const NANOS_PER_MILLI: i64 = 1_000_000;

/// The maximum time for which InfluxDB may mix up series, which is about the duration of a write.
const MIXED_UP: Duration = Duration::from_secs(10);

/// Returns all points in a database of InfluxDB 1.x.
///
/// Retries if a point has several values: InfluxDB determines the tags for `GROUP BY *` before it reads the points. If the
/// first write with a tag happens in between, its points are read without that tag, so that many series look like one.
pub fn influxdb(server: SocketAddr, database: &str) -> Points {
    influxdb_with(server, database, "")
}

/// Like [`influxdb`], but returns the points of the measurements with this suffix.
pub fn influxdb_with(server: SocketAddr, database: &str, suffix: &str) -> Points {
    let names =
        ["unique_user_event", "cumulative_user_event"].map(|name| format!("{name}{suffix}"));
    let read = || read_influxdb(server, database, &names);
    eventually("InfluxDB keeps its series apart", MIXED_UP, read)
}

fn read_influxdb(
    server: SocketAddr,
    database: &str,
    measurements: &[String],
) -> Result<Points, String> {
    let mut points = Points::new();
    for measurement in measurements {
        let influxql = format!("SELECT value FROM {measurement} GROUP BY *");
        let query = [("db", database), ("epoch", "ns"), ("q", &influxql)];
        let answer =
            answer(get(server, "/query").query(&query)).expect("InfluxDB replies to a query");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let answer: Value = serde_json::from_str(&answer.body).expect("InfluxDB replies in JSON");
        for series in answer["results"][0]["series"].as_array().into_iter().flatten() {
            for row in series["values"].as_array().expect("a series has rows") {
                let minute_start_ns = row[0].as_i64().expect("a row starts with its time");
                insert(&mut points, minute_start_ns, &series["tags"], measurement, &row[1])?;
            }
        }
    }
    Ok(points)
}

/// Returns all points in VictoriaMetrics.
pub fn victoria_metrics(server: SocketAddr) -> Points {
    answer(get(server, "/internal/force_flush")).expect("VictoriaMetrics flushes its points");
    let query = [("match[]", r#"{__name__=~".*_user_event_value"}"#), ("start", "0")];
    let export = get(server, "/api/v1/export").query(&query);
    let answer = answer(export).expect("VictoriaMetrics replies to an export");
    assert_eq!(answer.status, 200, "{}", answer.body);

    let mut points = Points::new();
    for line in answer.body.lines() {
        let mut series: Value = serde_json::from_str(line).expect("an export has JSON lines");
        let mut tags = series["metric"].take();
        let name = tags.as_object_mut().and_then(|tags| {
            tags.remove("db");
            tags.remove("__name__")
        });
        let name = name.as_ref().and_then(Value::as_str).expect("a metric has a name");
        let measurement =
            name.strip_suffix("_value").expect("the metric name ends with the field name");
        let times = series["timestamps"].as_array().expect("an export has timestamps");
        let values = series["values"].as_array().expect("an export has values");
        for (time, value) in times.iter().zip(values) {
            let minute_start_ns =
                time.as_i64().expect("the time is in milliseconds") * NANOS_PER_MILLI;
            insert(&mut points, minute_start_ns, &tags, measurement, value)
                .expect("VictoriaMetrics keeps series apart");
        }
    }
    points
}

/// Returns all points in Prometheus except window points.
pub fn prometheus(server: SocketAddr) -> Points {
    let query = [("query", r#"{__name__=~"(unique|cumulative)_user_event"}[20y]"#)];
    let answer = answer(get(server, "/api/v1/query").query(&query));
    let answer = answer.expect("Prometheus replies to a query");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let mut answer: Value = serde_json::from_str(&answer.body).expect("Prometheus replies in JSON");
    let mut points = Points::new();
    for series in answer["data"]["result"].as_array_mut().into_iter().flatten() {
        let mut tags = series["metric"].take();
        let name = tags.as_object_mut().and_then(|tags| tags.remove("__name__"));
        let name = name.as_ref().and_then(Value::as_str).expect("a metric has a name");
        for sample in series["values"].as_array().expect("a series has samples") {
            let seconds = sample[0].as_i64().expect("a minute starts with a whole second");
            let value = sample[1].as_str().and_then(|value| value.parse::<f64>().ok());
            insert(&mut points, seconds * 1_000_000_000, &tags, name, &value.into())
                .expect("Prometheus keeps series apart");
        }
    }
    points
}

fn insert(
    points: &mut Points,
    minute_start_ns: i64,
    tags: &Value,
    measurement: &str,
    value: &Value,
) -> Result<(), String> {
    let tags = tags.as_object().expect("a series has tags");
    let tags = tags.iter().map(|(key, value)| {
        let value = value.as_str().expect("a tag is a string");
        (key, value)
    });
    // For a tag that only other series have, InfluxDB returns an empty value.
    let there = tags.filter(|(_, value)| !value.is_empty());
    let tags: Vec<_> = there.map(|(key, value)| format!("{key}={value}")).collect();
    let point =
        Point { minute_start_ns, series: tags.join(","), measurement: measurement.to_owned() };
    let count = value.as_f64().expect("a point is a number");
    assert!(count >= 0.0 && count.fract() == 0.0, "{point:?} is {count}");
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "just checked")]
    let count = count as u64;
    match points.insert(point.clone(), count) {
        Some(before) if before != count => {
            Err(format!("two values for {point:?}: {before} and {count}"))
        }
        _ => Ok(()),
    }
}
