//! Tests the coverage of a minute, which is the number of events that each node has seen.

use event_data_service::event::Batch;
use event_data_service::store::Coverage;

use crate::contract::prelude::*;

const SERIES: &str = "s=1";

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

async fn record(node: &Node, totals: &[(i64, u64)]) {
    let mut batch = Batch::default();
    for &(number, _) in totals {
        let at = minute(number);
        assert!(batch.push(at, SERIES, "x", at.start_nanos()));
    }
    let recordings = batch.groups().iter().map(|group| RecordRequest {
        new_users: Some(vec!["x"]),
        ..RecordRequest::new(&batch, group)
    });
    let seen =
        totals.iter().map(|&(number, events)| Seen { minute: minute(number), events, renew: true });
    let (recordings, seen): (Vec<_>, Vec<_>) = (recordings.collect(), seen.collect());
    let partition = partitions().of(SERIES, Minute::MIN);
    let records = Records { generation: 0, requests: &recordings, seen: &seen };
    node.0.record(partition, &records).await.unwrap();
}

async fn told(ground: &Ground) -> Vec<Coverage> {
    let partition = partitions().of(SERIES, Minute::MIN);
    let minutes = [SEED_MINUTE, SEED_MINUTE + 1].map(minute);
    let reading = ground.reading();
    let coverage = reading.coverage(partition, &minutes).await.unwrap();
    let others = partitions().iter().filter(|other| *other != partition);
    for other in others {
        let none = [Coverage::new(), Coverage::new()];
        assert_eq!(reading.coverage(other, &minutes).await.unwrap(), none);
    }
    coverage
}

fn coverage<const N: usize>(nodes: [(&str, u64); N]) -> Coverage {
    nodes.map(|(node, events)| (node.to_owned(), events)).into()
}

pub(crate) async fn coverage_is_stored_per_node_and_idempotent(ground: &Ground) {
    // Two processes of node "a", one after the other, and one process of node "b".
    let [before, after, other] = ["a#1", "a#2", "b#1"].map(|name| ground.node(name));
    record(&before, &[(SEED_MINUTE, 5), (SEED_MINUTE + 1, 1)]).await;
    record(&before, &[(SEED_MINUTE, 5), (SEED_MINUTE + 1, 1)]).await;
    let expected = [coverage([("a", 5)]), coverage([("a", 1)])];
    assert_eq!(told(ground).await, expected);
    record(&before, &[(SEED_MINUTE, 7)]).await;
    record(&after, &[(SEED_MINUTE, 4)]).await;
    record(&other, &[(SEED_MINUTE, 3)]).await;
    record(&after, &[(SEED_MINUTE, 4)]).await;
    let expected = [coverage([("a", 11), ("b", 3)]), coverage([("a", 1)])];
    assert_eq!(told(ground).await, expected);
}

pub(crate) async fn coverage_outlives_the_minute_and_expires(ground: &Ground) {
    let node = ground.node("a#1");
    let began = Instant::now();
    record(&node, &[(SEED_MINUTE, 5)]).await;
    assert_eq!(node.finish_all().await.len(), 1);
    let kept = [coverage([("a", 5)]), Coverage::new()];
    // On a slow machine, the coverage may already have expired.
    let there = told(ground).await;
    assert!(there == kept || began.elapsed() >= RETENTION, "{there:?}");
    let deadline = began + RETENTION + SOON;
    while told(ground).await != [Coverage::new(), Coverage::new()] {
        assert!(Instant::now() < deadline, "the coverage does not expire");
        tokio::time::sleep(RETENTION / 20).await;
    }
    assert!(began.elapsed() >= RETENTION);
}
