//! Tests the v2 API with `VictoriaMetrics`.

use event_data_service::event::Minute;
use event_data_service::output::{Output, SealedCounts, WriteError};
use testing::prelude::*;
use testing::tls::TlsForwarder;

use super::{
    SEED_MINUTE, SEED_MINUTE_NANOS, check_unavailable, counts, many_counts, output, v2_settings,
};

/// `(metric, tag n) → [(milliseconds, value)]`
type Stored = BTreeMap<(String, String), Vec<(i64, u64)>>;

fn stored(export: &[Value]) -> Stored {
    let mut stored = Stored::new();
    for series in export {
        let label = |name: &str| series["metric"][name].as_str().unwrap().to_owned();
        let times =
            series["timestamps"].as_array().unwrap().iter().map(|time| time.as_i64().unwrap());
        let values =
            series["values"].as_array().unwrap().iter().map(|value| value.as_u64().unwrap());
        let points = stored.entry((label("__name__"), label("n"))).or_default();
        points.extend(times.zip(values));
        points.sort_unstable();
    }
    stored
}

fn expected(batch: &[SealedCounts]) -> Stored {
    let mut expected = Stored::new();
    for counts in batch {
        let millis = counts.minute.start_nanos() / 1_000_000;
        for (metric, value) in [
            ("unique_user_event_value", counts.unique),
            ("cumulative_user_event_value", counts.cumulative),
        ] {
            let series = (metric.to_owned(), counts.series[2..].replace('\\', ""));
            expected.entry(series).or_default().push((millis, value));
        }
    }
    expected
}

fn batch() -> Vec<SealedCounts> {
    let next = Minute::from_epoch_minutes(SEED_MINUTE.epoch_minutes() + 1).unwrap();
    vec![
        counts(SEED_MINUTE, "n=0", 1, 2),
        counts(SEED_MINUTE, r"n=a\ b\,c\=d", 3, 4),
        counts(SEED_MINUTE, "n=ü\"→🦀", 5, 6),
        counts(next, "n=0", 7, 1_000_000),
    ]
}

#[tokio::test]
async fn values_and_timestamps_round_trip() {
    let server = VictoriaMetrics::start();
    let output = output(&v2_settings(&server.url()));
    output.write(&batch()).await.unwrap();
    assert_eq!(stored(&server.export(6).await), expected(&batch()));
    assert_eq!(SEED_MINUTE.start_nanos(), SEED_MINUTE_NANOS);
}

#[tokio::test]
async fn values_round_trip_over_tls() {
    let server = VictoriaMetrics::start();
    let tls = TlsForwarder::start(server.port(), &["127.0.0.1"]).await;
    let mut settings = v2_settings(&tls.url());
    settings.ca = std::fs::read(tls.ca_file()).ok();
    output(&settings).write(&batch()).await.unwrap();
    assert_eq!(stored(&server.export(6).await), expected(&batch()));
}

#[tokio::test]
async fn a_path_in_the_url_is_kept() {
    let server = VictoriaMetrics::start();
    // VictoriaMetrics also provides this API under /influx.
    let output_below = output(&v2_settings(&format!("{}/influx/", server.url())));
    output_below.write(&batch()).await.unwrap();
    assert_eq!(stored(&server.export(6).await), expected(&batch()));

    let elsewhere = output(&v2_settings(&format!("{}/elsewhere", server.url())));
    let error = elsewhere.write(&many_counts(100)).await.unwrap_err();
    let WriteError::Rejected(diagnosis) = &error else { panic!("{error:?}") };
    assert!(diagnosis.remedy.contains("output.url"), "{error:?}");
}

#[tokio::test]
async fn refused_connection_is_unavailable() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let error = output(&v2_settings(&url)).write(&many_counts(1)).await.unwrap_err();
    check_unavailable(&error);
    assert!(error.to_string().contains("refused"), "{error}");
}
