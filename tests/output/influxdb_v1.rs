//! Tests writing to InfluxDB 1.x: the points are read back, and each mistake in the configuration has a distinct error.

use event_data_service::event::Minute;
use event_data_service::output::{Output, WriteError};
use testing::influxdb::{ADMIN, ADMIN_PASSWORD};
use testing::prelude::*;

use super::{
    SECRET, SEED_MINUTE, SEED_MINUTE_NANOS, check_misconfigured, check_unavailable, counts,
    many_counts, output, v1_settings, v1_settings_as,
};

pub(super) async fn points(
    server: &InfluxServer,
    measurement: &str,
) -> BTreeMap<(String, i64), u64> {
    let query = format!("SELECT value FROM {measurement} GROUP BY n");
    let mut found = BTreeMap::new();
    for series in server.query("eds", &query).await {
        let tag = series["tags"]["n"].as_str().unwrap().to_owned();
        for point in series["values"].as_array().unwrap() {
            let value = point[1].as_u64().unwrap();
            found.insert((tag.clone(), point[0].as_i64().unwrap()), value);
        }
    }
    found
}

#[tokio::test]
async fn values_and_timestamps_round_trip_and_rewrites_are_idempotent() {
    let server = InfluxServer::start();
    server.query("", "CREATE DATABASE eds").await;
    let next = Minute::from_epoch_minutes(SEED_MINUTE.epoch_minutes() + 1).unwrap();
    let mut batch = Vec::new();
    for n in 0..3000 {
        batch.push(counts(SEED_MINUTE, &format!("n={n}"), n + 1, 2 * n + 1));
    }
    batch.push(counts(next, "n=0", 1 << 53, 7));
    let output = output(&v1_settings(&server.url(), "eds"));
    for _ in 0..2 {
        output.write(&batch).await.unwrap();
    }
    for (measurement, value) in [("unique_user_event", 0), ("cumulative_user_event", 1)] {
        let expected = batch.iter().map(|counts| {
            let key = (counts.series[2..].to_owned(), counts.minute.start_nanos());
            (key, [counts.unique, counts.cumulative][value])
        });
        assert_eq!(points(&server, measurement).await, expected.collect());
    }
}

#[tokio::test]
async fn hostile_tags_round_trip() {
    let server = InfluxServer::start();
    server.query("", "CREATE DATABASE eds").await;
    let values = [
        "a,b",
        "a=b",
        "a b",
        " ",
        "\"a\"",
        "'",
        "ü→🦀",
        r"a\b",
        r"a\ b",
        r"a\,b",
        r"a\\b",
        "#",
        "a,b=c value=9 1",
        r"\a",
        "true",
        "1i",
        "http://[::1]/?a=b&c",
    ];
    let escape = |text: &str| text.replace(',', r"\,").replace('=', r"\=").replace(' ', r"\ ");
    let batch: Vec<_> = (1..)
        .zip(values)
        .map(|(n, value)| {
            counts(SEED_MINUTE, &format!("n={},z={}", escape(value), escape(value)), n, n)
        })
        .collect();
    let output = output(&v1_settings(&server.url(), "eds"));
    output.write(&batch).await.unwrap();
    let expected: BTreeMap<_, _> =
        (1..).zip(values).map(|(n, value)| ((value.to_owned(), SEED_MINUTE_NANOS), n)).collect();
    for measurement in ["unique_user_event", "cumulative_user_event"] {
        assert_eq!(points(&server, measurement).await, expected);
    }
    assert_eq!(
        server.query("eds", "SHOW MEASUREMENTS").await[0]["values"].as_array().unwrap().len(),
        2
    );
}

#[tokio::test]
async fn refused_connection_is_unavailable() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let error = output(&v1_settings(&url, "eds")).write(&many_counts(1)).await.unwrap_err();
    check_unavailable(&error);
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn unknown_database_and_wrong_path_are_distinguished() {
    let server = InfluxServer::start();
    let error =
        output(&v1_settings(&server.url(), "nope")).write(&many_counts(1)).await.unwrap_err();
    check_misconfigured(&error, "output.database");
    assert!(error.to_string().contains("database not found"), "{error}");
    let url = format!("{}/elsewhere", server.url());
    let error = output(&v1_settings(&url, "eds")).write(&many_counts(1)).await.unwrap_err();
    check_misconfigured(&error, "output.url");
}

#[tokio::test]
async fn user_needs_password_and_rights() {
    let server = InfluxServer::start_with_auth().await;
    server.query("", "CREATE DATABASE eds").await;
    server.query("", "CREATE USER reader WITH PASSWORD 'r'").await;
    let url = server.url();
    let write = async |settings| output(&settings).write(&many_counts(3)).await;

    let right = v1_settings_as(&url, "eds", ADMIN, ADMIN_PASSWORD);
    write(right).await.unwrap();
    assert_eq!(points(&server, "unique_user_event").await.len(), 3);

    let refusals: [(_, &str); 3] = [
        (v1_settings_as(&url, "eds", ADMIN, SECRET), "output.password_file"),
        (v1_settings(&url, "eds"), "output.username"),
        (v1_settings_as(&url, "eds", "reader", "r"), "output.database"),
    ];
    for (settings, key) in refusals {
        let error: WriteError = write(settings).await.unwrap_err();
        check_misconfigured(&error, key);
    }
}
