//! Tests the outputs with real servers, and with scripted servers for responses that real servers rarely send.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may fail anywhere"
)]

mod answers;
mod influxdb_v1;
mod otlp;
mod publishing;
mod refusals;
mod remote_write;
mod requests;
mod tls;
mod v2;

use std::time::Duration;

use event_data_service::event::{Minute, Partition};
use event_data_service::output::influxdb::InfluxDb;
use event_data_service::output::server::{Api, Settings};
use event_data_service::output::{SealedCounts, WriteError};
use redis_link::Secret;

/// A password or token that must not appear in any text that might be logged.
const SECRET: &str = "hunter2";
const TIMEOUT: Duration = Duration::from_secs(10);
const SEED_MINUTE: Minute = Minute::of_nanos(1_480_876_707_352_348_928);
const SEED_MINUTE_NANOS: i64 = 1_480_876_680_000_000_000;

fn counts(minute: Minute, series: &str, unique: u64, cumulative: u64) -> SealedCounts {
    let partition = Partition::default();
    let period = minute.into();
    let series = series.to_owned();
    let quality = event_data_service::event::Quality::default();
    SealedCounts { partition, minute, period, series, unique, cumulative, quality }
}

/// Returns this many counts in the seed minute, for the series `n=0`, `n=1`, …
fn many_counts(number: usize) -> Vec<SealedCounts> {
    (0..number).map(|n| counts(SEED_MINUTE, &format!("n={n}"), 1, 2)).collect()
}

fn settings(url: &str, api: Api) -> Settings {
    Settings { url: url.parse().unwrap(), api, timeout: TIMEOUT, ca: None, gzip: false }
}

fn v1_settings(url: &str, database: &str) -> Settings {
    settings(url, Api::V1 { database: database.to_owned(), username: None, password: None })
}

fn v1_settings_as(url: &str, database: &str, username: &str, password: &str) -> Settings {
    let api = Api::V1 {
        database: database.to_owned(),
        username: Some(username.to_owned()),
        password: Some(Secret::new(password)),
    };
    settings(url, api)
}

fn v2_settings(url: &str) -> Settings {
    let token = Some(Secret::new(SECRET));
    settings(url, Api::V2 { org: "an org".to_owned(), bucket: "b&b".to_owned(), token })
}

/// Returns the output after asserting that its `Debug` representation shows no secrets.
fn output(settings: &Settings) -> InfluxDb {
    use event_data_service::output::Output as _;
    let output = InfluxDb::new(settings, "eds_probe").unwrap();
    for shown in [format!("{output:?}"), format!("{settings:?}"), output.describe()] {
        assert!(!shown.contains(SECRET), "{shown}");
    }
    output
}

#[track_caller]
fn check_unavailable(error: &WriteError) {
    assert!(matches!(error, WriteError::Unavailable { .. }), "{error:?}");
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
}

#[track_caller]
fn check_misconfigured(error: &WriteError, key: &str) {
    let names_key =
        matches!(error, WriteError::Misconfigured(diagnosis) if diagnosis.remedy.contains(key));
    assert!(names_key, "{error:?}");
    assert!(!format!("{error} {error:?}").contains(SECRET), "{error:?}");
}
