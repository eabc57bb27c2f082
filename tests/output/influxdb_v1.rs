//! InfluxDB 1.x: what is written is read back; what it refuses is told apart.

use std::collections::BTreeMap;
use std::time::SystemTime;

use event_data_service::event::Minute;
use event_data_service::output::{Output, WriteError};

use super::support::influxdb::{ADMIN, ADMIN_PASSWORD, InfluxServer};
use super::support::ports::free_port;
use super::{
    SECRET, SEED_MINUTE, SEED_MINUTE_NANOS, check_misconfigured, check_unavailable, counts,
    many_counts, output, v1_settings, v1_settings_as,
};

/// The points of a measurement as `(series' tag n, time, value)`.
async fn points(server: &InfluxServer, measurement: &str) -> BTreeMap<(String, i64), u64> {
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
async fn values_and_timestamps_read_back_and_twice_is_once() {
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
        assert_eq!(output.write(&batch).await.unwrap().refused, []);
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
async fn hostile_tags_come_back_as_they_were_meant() {
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
    let escape = |text: &str| {
        text.replace(',', r"\,")
            .replace('=', r"\=")
            .replace(' ', r"\ ")
    };
    let batch: Vec<_> = (1..)
        .zip(values)
        .map(|(n, value)| {
            counts(
                SEED_MINUTE,
                &format!("n={},z={}", escape(value), escape(value)),
                n,
                n,
            )
        })
        .collect();
    let output = output(&v1_settings(&server.url(), "eds"));
    assert_eq!(output.write(&batch).await.unwrap().refused, []);
    let expected: BTreeMap<_, _> = (1..)
        .zip(values)
        .map(|(n, value)| ((value.to_owned(), SEED_MINUTE_NANOS), n))
        .collect();
    for measurement in ["unique_user_event", "cumulative_user_event"] {
        assert_eq!(points(&server, measurement).await, expected);
    }
    assert_eq!(
        server.query("eds", "SHOW MEASUREMENTS").await[0]["values"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[tokio::test]
async fn a_type_conflict_refuses_that_count_and_writes_the_rest() {
    let server = InfluxServer::start();
    server.query("", "CREATE DATABASE eds").await;
    // A field has one type in a shard, and a shard is a week: this spoils the week of 2016-11-28.
    server
        .write(
            "eds",
            "unique_user_event,n=x value=\"text\" 1480876680000000000",
        )
        .await;
    let other_week = Minute::from_epoch_minutes(SEED_MINUTE.epoch_minutes() + 30 * 1440).unwrap();
    let mut batch: Vec<_> = (0..20)
        .map(|n| counts(other_week, &format!("n={n}"), n, n))
        .collect();
    batch[7] = counts(SEED_MINUTE, "n=7", 7, 7);
    let written = output(&v1_settings(&server.url(), "eds"))
        .write(&batch)
        .await
        .unwrap();
    assert_eq!(written.refused.len(), 1);
    assert_eq!(written.refused[0].index, 7);
    assert!(
        written.refused[0].words.contains("field type conflict"),
        "{:?}",
        written.refused
    );
    let found = server
        .query("eds", "SELECT count(value) FROM cumulative_user_event")
        .await;
    assert_eq!(found[0]["values"][0][1], 20);
    let found = server
        .query(
            "eds",
            "SELECT count(value) FROM unique_user_event WHERE n != 'x'",
        )
        .await;
    assert_eq!(found[0]["values"][0][1], 19);
}

#[tokio::test]
async fn a_type_conflict_of_everything_sets_nothing_aside() {
    let server = InfluxServer::start();
    server.query("", "CREATE DATABASE eds").await;
    server
        .write(
            "eds",
            "unique_user_event,n=x value=\"text\" 1480876680000000000",
        )
        .await;
    let error = output(&v1_settings(&server.url(), "eds"))
        .write(&many_counts(500))
        .await
        .unwrap_err();
    check_misconfigured(&error, "type of its field");
    assert!(error.to_string().contains("field type conflict"), "{error}");
}

#[tokio::test]
async fn counts_beyond_retention_are_refused_once_newer_ones_are_accepted() {
    let server = InfluxServer::start();
    server
        .query("", "CREATE DATABASE eds WITH DURATION 1d")
        .await;
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let now = Minute::of_nanos(i64::try_from(now.as_nanos()).unwrap());
    let output = output(&v1_settings(&server.url(), "eds"));
    let mut batch = many_counts(100);
    check_misconfigured(&output.write(&batch).await.unwrap_err(), "limits");
    batch.push(counts(now, "n=now", 1, 1));
    let refused = output.write(&batch).await.unwrap().refused;
    assert_eq!(
        refused
            .iter()
            .map(|refused| refused.index)
            .collect::<Vec<_>>(),
        (0..100).collect::<Vec<_>>()
    );
    assert!(
        refused[0].words.contains("retention policy"),
        "{:?}",
        refused[0]
    );
    assert_eq!(points(&server, "unique_user_event").await.len(), 1);
}

/// InfluxDB answers as soon as it sees the length, and closes the connection while lines are still on their way.
#[tokio::test]
async fn a_body_over_the_limit_of_the_server_is_halved() {
    let server = InfluxServer::start_with_body_limit(20_000);
    server.query("", "CREATE DATABASE eds").await;
    let mut settings = v1_settings(&server.url(), "eds");
    settings.batch_lines = 50_000;
    let batch = many_counts(20_000);
    assert_eq!(output(&settings).write(&batch).await.unwrap().refused, []);
    for measurement in ["unique_user_event", "cumulative_user_event"] {
        assert_eq!(points(&server, measurement).await.len(), batch.len());
    }
}

#[tokio::test]
async fn nobody_there_is_unavailable() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let error = output(&v1_settings(&url, "eds"))
        .write(&many_counts(1))
        .await
        .unwrap_err();
    check_unavailable(&error);
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn an_unknown_database_and_a_wrong_path_are_told_apart() {
    let server = InfluxServer::start();
    let error = output(&v1_settings(&server.url(), "nope"))
        .write(&many_counts(1))
        .await
        .unwrap_err();
    check_misconfigured(&error, "output.database");
    assert!(error.to_string().contains("database not found"), "{error}");
    let url = format!("{}/elsewhere", server.url());
    let error = output(&v1_settings(&url, "eds"))
        .write(&many_counts(1))
        .await
        .unwrap_err();
    check_misconfigured(&error, "output.url");
}

#[tokio::test]
async fn a_user_writes_with_the_right_password_and_rights_only() {
    let server = InfluxServer::start_with_auth().await;
    server.query("", "CREATE DATABASE eds").await;
    server
        .query("", "CREATE USER reader WITH PASSWORD 'r'")
        .await;
    let url = server.url();
    let write = async |settings| output(&settings).write(&many_counts(3)).await;

    let right = v1_settings_as(&url, "eds", ADMIN, ADMIN_PASSWORD);
    assert_eq!(write(right).await.unwrap().refused, []);
    assert_eq!(points(&server, "unique_user_event").await.len(), 3);

    let refusals: [(_, &str); 3] = [
        (
            v1_settings_as(&url, "eds", ADMIN, SECRET),
            "output.password_file",
        ),
        (v1_settings(&url, "eds"), "output.username"),
        (
            v1_settings_as(&url, "eds", "reader", "r"),
            "output.database",
        ),
    ];
    for (settings, key) in refusals {
        let error: WriteError = write(settings).await.unwrap_err();
        check_misconfigured(&error, key);
    }
}
