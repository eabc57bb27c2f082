//! What a real InfluxDB 1.x refuses, and that nothing else is lost by it.

use std::time::SystemTime;

use event_data_service::event::Minute;
use event_data_service::output::Output;

use super::influxdb_v1::points;
use super::support::influxdb::InfluxServer;
use super::{SEED_MINUTE, check_misconfigured, counts, many_counts, output, v1_settings};

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
