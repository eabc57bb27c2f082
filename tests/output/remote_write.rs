//! Tests Prometheus remote write with Prometheus and `VictoriaMetrics`.

use event_data_service::event::Minute;
use event_data_service::output::server::{Login, RemoteWriteVersion};
use event_data_service::output::{Output, SealedCounts, WriteError, build};
use testing::http::{answer, get};
use testing::prelude::*;
use testing::scripted::{Deed, Scripted};

use super::{Api, SECRET, Secret, check_misconfigured, counts, many_counts, settings};

fn remote_write(url: &str, version: RemoteWriteVersion) -> Arc<dyn Output> {
    build(&settings(url, Api::RemoteWrite { version, login: None, tenant: None }), "eds_probe")
        .unwrap()
}

fn v1(url: &str) -> Arc<dyn Output> {
    remote_write(url, RemoteWriteVersion::V1)
}

/// Returns a recent minute, of which `ago` have passed since.
fn minute(ago: i64) -> Minute {
    let now = chrono::Utc::now().timestamp() / 60;
    Minute::from_epoch_minutes(now - ago).unwrap()
}

/// Two minutes of a series, and series whose tags are not valid label names.
fn batch() -> Vec<SealedCounts> {
    vec![
        counts(minute(30), "n=0", 1, 2),
        counts(minute(29), "n=0", 3, 4),
        counts(minute(30), r"n=a\ b\,c\=d", 5, 6),
        counts(minute(30), "n=ü\"→🦀", 7, 1 << 40),
        counts(minute(30), "__name__=x,http.code=500,n=1", 9, 10),
    ]
}

/// Waits until the server has exactly the points of [`batch`].
async fn check_stored(port: u16) {
    let expected: BTreeSet<_> = batch()
        .iter()
        .flat_map(|counts| {
            let seconds = counts.minute.epoch_minutes() * 60;
            let tags = counts.series.replace('\\', "");
            let value = |name: &str, value: u64| (name.to_owned(), tags.clone(), seconds, value);
            [
                value("unique_user_event", counts.unique),
                value("cumulative_user_event", counts.cumulative),
            ]
        })
        .collect();
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    tokio::task::spawn_blocking(move || {
        eventually("the server has the points", SOON, || {
            // Only VictoriaMetrics has this path, and shows points after a second otherwise.
            answer(get(server, "/internal/force_flush")).unwrap();
            let query = [("query", r#"{__name__=~".+_user_event"}[1h]"#)];
            let body = answer(get(server, "/api/v1/query").query(&query)).unwrap().body;
            let found = stored(&serde_json::from_str(&body).unwrap());
            when(found == expected, format!("{found:?} instead of {expected:?}"))
        });
    })
    .await
    .unwrap();
}

/// `(metric, tags, seconds, value)`
fn stored(answer: &Value) -> BTreeSet<(String, String, i64, u64)> {
    let mut stored = BTreeSet::new();
    for series in answer["data"]["result"].as_array().into_iter().flatten() {
        let labels = series["metric"].as_object().unwrap();
        let tag = |(name, value): (&String, &Value)| {
            // The forms that Prometheus defines for these names.
            let name = match name.as_str() {
                "U______name____" => "__name__",
                "U__http_2e_code" => "http.code",
                name => name,
            };
            format!("{name}={}", value.as_str().unwrap())
        };
        let mut tags: Vec<_> =
            labels.iter().filter(|(name, _)| *name != "__name__").map(tag).collect();
        tags.sort_unstable();
        for sample in series["values"].as_array().unwrap() {
            let value = sample[1].as_str().unwrap().parse().unwrap();
            let name = labels["__name__"].as_str().unwrap().to_owned();
            stored.insert((name, tags.join(","), sample[0].as_i64().unwrap(), value));
        }
    }
    stored
}

#[tokio::test]
async fn points_are_stored_once_by_prometheus() {
    let server = Prometheus::receiver();
    let output = v1(&server.write_url());
    output.probe(minute(0)).await.unwrap();
    // A repetition, also of a part and in another order, changes nothing.
    let mut batch = batch();
    output.write(&batch).await.unwrap();
    batch.reverse();
    output.write(&batch).await.unwrap();
    output.write(&batch[2..]).await.unwrap();
    check_stored(server.port()).await;
}

#[tokio::test]
async fn points_are_stored_once_by_victoria_metrics() {
    let server = VictoriaMetrics::start();
    let output = v1(&format!("{}/api/v1/write", server.url()));
    output.write(&batch()).await.unwrap();
    output.write(&batch()[2..]).await.unwrap();
    check_stored(server.port()).await;
}

#[tokio::test]
async fn settings_of_prometheus_are_named() {
    let receiver = ["--web.enable-remote-write-receiver"];
    let server = Prometheus::start("", &receiver);
    let output = v1(&server.write_url());
    output.write(&[counts(minute(5), "n=0", 1, 2)]).await.unwrap();
    let error = output.write(&[counts(minute(6), "n=0", 1, 2)]).await.unwrap_err();
    let WriteError::Rejected(found) = &error else { panic!("{error:?}") };
    assert!(found.remedy.contains("out_of_order_time_window"), "{error:?}");
    let error = output.probe(minute(0)).await.unwrap_err();
    assert!(error.found().remedy.contains("out_of_order_time_window"), "{error:?}");

    let server = Prometheus::start("", &[]);
    let error = v1(&server.write_url()).write(&many_counts(1)).await.unwrap_err();
    check_misconfigured(&error, receiver[0]);
}

/// Prometheus 2.42 decodes a request of version 2.0 as one of version 1.0 that is empty, and reports success.
#[tokio::test]
async fn version_2_is_not_acknowledged_by_a_server_that_does_not_know_it() {
    let server = Prometheus::receiver();
    let output = remote_write(&server.write_url(), RemoteWriteVersion::V2);
    let error = output.write(&batch()).await.unwrap_err();
    check_misconfigured(&error, "remote-write-v1");
}

#[tokio::test]
async fn version_2_is_acknowledged_if_all_points_were_written() {
    for (written, is_complete) in [("4", true), ("3", false), ("", false)] {
        let header = match written {
            "4" => "X-Prometheus-Remote-Write-Samples-Written: 4\r\n",
            "3" => "X-Prometheus-Remote-Write-Samples-Written: 3\r\n",
            _ => "",
        };
        let server = Scripted::start(move |_| Deed::Answer(204, header, "")).await;
        let url = format!("{}/write", server.url());
        let result = remote_write(&url, RemoteWriteVersion::V2).write(&many_counts(2)).await;
        assert_eq!(result.is_ok(), is_complete, "{written}: {result:?}");
        let head = server.requests().pop().unwrap().head;
        assert_contains(
            &head,
            [
                "POST /write HTTP/1.1",
                "content-type: application/x-protobuf;proto=io.prometheus.write.v2.Request",
                "content-encoding: snappy",
                "x-prometheus-remote-write-version: 2.0.0",
            ],
        );
    }
}

#[tokio::test]
async fn credentials_are_sent_and_not_shown() {
    let server = Scripted::start(|_| Deed::status(401)).await;
    let basic = Login::Basic("Aladdin".to_owned(), Secret::new("open sesame"));
    for (login, header) in [
        (Login::Bearer(Secret::new(SECRET)), format!("Bearer {SECRET}")),
        // The example from RFC 7617.
        (basic, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==".to_owned()),
    ] {
        let api = Api::RemoteWrite {
            version: RemoteWriteVersion::V1,
            login: Some(login),
            tenant: Some("a-tenant".to_owned()),
        };
        let output = build(&settings(&format!("{}/push", server.url()), api), "eds_probe").unwrap();
        let error = output.write(&many_counts(1)).await.unwrap_err();
        check_misconfigured(&error, "output.token_file");
        let head = server.requests().pop().unwrap().head;
        assert_contains(
            &head,
            [format!("authorization: {header}\r\n"), "x-scope-orgid: a-tenant\r\n".to_owned()],
        );
        assert!(!format!("{output:?}").contains(SECRET), "{output:?}");
    }
}
