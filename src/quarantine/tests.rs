//! Tests the `eds quarantine` commands.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::event::Batch;
use crate::store::redis::{self, Layout, RedisStore};
use crate::store::{ClaimRequest, Draining, Known, RecordRequest, Recording, Records, SealRequest};

use testing::lua_redis::LuaRedis;

const MESSAGE: &str =
    "partial write: max-values-per-tag limit exceeded (2/2): measurement=\"a\" tag=\"b\" dropped=1";

fn partitions() -> Partitions {
    Partitions::new(NonZeroU16::new(4).unwrap())
}

/// Returns a store in which each of these series has a quarantined count in two different minutes.
async fn store(series: &[&str]) -> RedisStore {
    let redis = Arc::new(LuaRedis::new(Box::new(|| 1_480_900_000_000_000), None));
    let settings = redis::Settings {
        redis: redis.settings(),
        prefix: "eds".to_owned(),
        partitions: partitions(),
        layout: Layout::Sets,
        retention: Duration::from_secs(60),
        counts_max: 1000,
        node: "n".to_owned(),
    };
    let store = RedisStore::new(&settings).unwrap();
    for series in series {
        let partition = partitions().of(series, Minute::MIN);
        for minute in [24_681_278, 24_681_279] {
            let mut batch = Batch::default();
            let minute = Minute::from_epoch_minutes(minute).unwrap();
            assert!(batch.push(minute, series, "u", minute.start_nanos()));
            let recordings: Vec<_> = batch
                .groups()
                .iter()
                .map(|group| RecordRequest {
                    new_users: Some(vec!["u"]),
                    ..RecordRequest::new(&batch, group)
                })
                .collect();
            let records = Records { generation: 0, requests: &recordings, seen: &[] };
            store.record(partition, &records).await.unwrap();
        }
    }
    let request = ClaimRequest {
        generation: 0,
        grace: Duration::ZERO,
        max_hold: Duration::ZERO,
        lease: Duration::from_secs(9),
        lapsed_max: 9,
        finished_max: 9,
        old_max: 9,
        known: Known::default(),
    };
    for partition in partitions().iter() {
        for claim in store.claim(partition, &request, &[]).await.unwrap() {
            let lease = request.lease;
            let outputs = &[OutputName::default()];
            let request = SealRequest { series_max: 99, lease, outputs, ..SealRequest::default() };
            let mut done = store.compact(&claim, &request).await.unwrap();
            let claim = done.sending.remove(0);
            for unsent in store.unsent(&claim, 0).await.unwrap().items {
                store.quarantine(&claim, &[(&unsent.series, MESSAGE)]).await.unwrap();
            }
            assert!(store.acknowledge(&claim, &[], lease).await.unwrap());
        }
    }
    store
}

/// Runs an action, and returns its result, output and notes.
async fn act(store: &RedisStore, action: Action) -> (Result<(), QuarantineError>, String, String) {
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let output = OutputName::default();
    let mut command = Command {
        store,
        partitions: partitions(),
        output: &output,
        out: &mut out,
        notes: &mut notes,
    };
    let result = command.run(&action).await;
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (result, text(out), text(notes))
}

fn list(limit: Option<usize>, json: bool) -> Action {
    let selection = Selection { json, ..Selection::default() };
    Action::List(List { selection, limit })
}

fn change(minute: &[&str], series: &[&str]) -> Change {
    let selection = Selection { json: true, ..selection(minute, series) };
    Change { selection, all: minute.is_empty() && series.is_empty() }
}

fn selection(minute: &[&str], series: &[&str]) -> Selection {
    Selection {
        minute: minute.iter().map(|text| text.parse().unwrap()).collect(),
        series: series.iter().map(ToString::to_string).collect(),
        json: false,
    }
}

#[tokio::test]
async fn table_has_one_line_per_entry_in_order() {
    let store = store(&["b=\u{1b}[31m", "a=1"]).await;
    let (result, out, notes) = act(&store, list(None, false)).await;
    result.unwrap();
    let expected = "\
minute         series       unique  cumulative  since                 message
20161204:1118  a=1               1           1  2016-12-05T01:06:40Z  partial write: max-values-per-tag limit exceeded (2/2): meas…
20161204:1118  b=\u{fffd}[31m           1           1  2016-12-05T01:06:40Z  partial write: max-values-per-tag limit exceeded (2/2): meas…
20161204:1119  a=1               1           1  2016-12-05T01:06:40Z  partial write: max-values-per-tag limit exceeded (2/2): meas…
20161204:1119  b=\u{fffd}[31m           1           1  2016-12-05T01:06:40Z  partial write: max-values-per-tag limit exceeded (2/2): meas…
";
    assert_eq!(out, expected);
    assert_eq!(notes, "");

    let (_, out, notes) = act(&store, list(Some(1), false)).await;
    assert_eq!(out.lines().count(), 2);
    assert!(out.contains("20161204:1118  a=1"), "{out}");
    assert!(notes.starts_with("1 of 4 counts shown"), "{notes}");
}

#[tokio::test]
async fn json_has_one_complete_object_per_line() {
    let store = store(&["a=1"]).await;
    let (_, out, _) = act(&store, list(None, true)).await;
    let first: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    let expected = serde_json::json!({
        "minute": "20161204:1118",
        "begins": "2016-12-04T18:38:00Z",
        "series": "a=1",
        "unique": 1,
        "cumulative": 1,
        "since": "2016-12-05T01:06:40Z",
        "message": MESSAGE,
    });
    assert_eq!(first, expected);
}

#[tokio::test]
async fn empty_quarantine_succeeds_and_empty_selection_fails() {
    let store = store(&[]).await;
    let (result, out, notes) = act(&store, list(None, false)).await;
    result.unwrap();
    assert_eq!((out.as_str(), notes.as_str()), ("", "nothing is quarantined\n"));
    for action in [Action::Retry, Action::Drop] {
        let (result, ..) = act(&store, action(change(&[], &[]))).await;
        result.unwrap();
        let (result, ..) = act(&store, action(change(&[], &["a=1"]))).await;
        assert!(matches!(result, Err(QuarantineError::NothingSelected)));
    }
}

#[tokio::test]
async fn only_selected_counts_are_shown_and_changed() {
    let store = store(&["a=1", "b=2"]).await;
    let show = Action::Show(selection(&["20161204:1119"], &["b=2"]));
    let (result, out, _) = act(&store, show).await;
    result.unwrap();
    assert_eq!(out.matches("series      b=2").count(), 1, "{out}");
    assert!(out.contains(MESSAGE) && !out.contains("a=1"), "{out}");

    let (result, out, notes) = act(&store, Action::Drop(change(&["20161204:1118"], &[]))).await;
    result.unwrap();
    assert_eq!((out.lines().count(), notes.as_str()), (2, "2 dropped\n"));
    let (result, out, notes) = act(&store, Action::Retry(change(&[], &["a=1"]))).await;
    result.unwrap();
    assert_eq!(out.lines().count(), 1, "{out}");
    assert!(notes.starts_with("1 requeued"), "{notes}");
    let (_, out, _) = act(&store, list(None, true)).await;
    assert_eq!(out.lines().count(), 1);
    assert!(out.contains("b=2") && out.contains("20161204:1119"), "{out}");
}

/// A writer that fails as if the disk were full.
struct Full;

impl Write for Full {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::StorageFull.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn counts_that_cannot_be_printed_are_not_dropped() {
    let store = store(&["a=1"]).await;
    let action = Action::Drop(change(&[], &[]));
    let output = OutputName::default();
    let mut sink = io::sink();
    let mut command = Command {
        store: &store,
        partitions: partitions(),
        output: &output,
        out: &mut Full,
        notes: &mut sink,
    };
    let result = command.run(&action).await;
    assert!(matches!(result, Err(QuarantineError::Io(_))));
    let (_, out, _) = act(&store, list(None, true)).await;
    assert_eq!(out.lines().count(), 2);
}
