//! Tests how an operator lists, requeues and discards quarantined counts.

use event_data_service::store::Quarantined;
use event_data_service::store::redis::RedisStore;

use crate::contract::prelude::*;

const MESSAGE: &str = "partial write: 100%s | \"é\" {}";

fn minute() -> Minute {
    Minute::from_epoch_minutes(SEED_MINUTE).unwrap()
}

async fn read(quarantine: &RedisStore, partition: Partition) -> Vec<Quarantined> {
    let mut all = Vec::new();
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        let page = quarantine.quarantined_page(partition, only(), at).await;
        let page = page.unwrap();
        all.extend(page.items);
        cursor = page.next;
    }
    all.sort();
    all.dedup();
    all
}

/// Records two events of one user per series, and quarantines the counts.
async fn fill(node: &Node, series: &[String]) -> Claim {
    let events: Vec<_> = series
        .iter()
        .flat_map(|series| [1, 2].map(|at| event(SEED_MINUTE, series, "x", at)))
        .collect();
    node.record(&events).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    let refused: Vec<_> = series.iter().map(|series| (&**series, MESSAGE)).collect();
    node.quarantine(&claim, &refused, true).await;
    claim
}

async fn fill_and_finish(node: &Node, series: &[String]) -> Partition {
    let claim = fill(node, series).await;
    assert!(node.acknowledge(&claim, &[]).await);
    claim.partition
}

fn counts(series: &[&str], unique: u64, cumulative: u64) -> Counts {
    let count_of = |series: &&str| ((SEED_MINUTE, (*series).to_owned()), (unique, cumulative));
    series.iter().map(count_of).collect()
}

pub(crate) async fn quarantine_is_read_in_pages(ground: &Ground) {
    let node = ground.node("a");
    let mut series = series_of_one_partition(1234);
    series.push("a=1:2|3".to_owned());
    series.retain(|name| {
        partitions().of(name, Minute::MIN)
            == partitions().of(&series_of_one_partition(1)[0], Minute::MIN)
    });
    let claim = fill(&node, &series).await;
    let quarantine = ground.quarantine();
    let now = chrono::Utc::now().timestamp();
    let found = read(&quarantine, claim.partition).await;
    series.sort();
    let names: Vec<_> = found.iter().map(|entry| entry.series.clone()).collect();
    assert_eq!(names, series);
    for entry in found {
        assert_eq!((entry.minute, entry.unique, entry.cumulative), (minute(), 1, 2));
        assert_eq!(entry.message, MESSAGE);
        assert!((now - 60..=now + 1).contains(&entry.since), "{}", entry.since);
    }
    for partition in partitions().iter().filter(|partition| *partition != claim.partition) {
        assert_eq!(read(&quarantine, partition).await, []);
    }
}

pub(crate) async fn requeued_counts_are_unchanged(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(3);
    let partition = fill_and_finish(&node, &series).await;
    let [first, second, third] = [0, 1, 2].map(|at| series[at].as_str());
    let quarantine = ground.quarantine();
    let unknown = quarantine.requeue(bucket(partition, SEED_MINUTE), only(), &["never=heard"]);
    assert_eq!(unknown.await.unwrap(), 0);
    assert_eq!(node.backlog().await, (0, 0, 3));
    if let Ground::Redis(server, _) = ground {
        // Even if the entry has been changed, the counts are read from the minute.
        let is_quarantine = |key: &String| key.ends_with(":quarantine:default");
        let key = server.keys().into_iter().find(is_quarantine).unwrap();
        let entry = format!("{}:{first}", minute());
        let _: i64 = server.query(&["HSET", &key, &entry, "9:99|1|x"]);
    }
    let wanted = [first, second, "never=heard"];
    assert_eq!(
        quarantine.requeue(bucket(partition, SEED_MINUTE), only(), &wanted).await.unwrap(),
        2
    );
    assert_eq!(node.backlog().await, (0, 1, 1));
    assert_eq!(
        quarantine.requeue(bucket(partition, SEED_MINUTE), only(), &wanted).await.unwrap(),
        0,
        "requeued twice"
    );
    // Unsent counts do not expire, no matter how long it takes until a node claims them.
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    node.record(&[event(SEED_MINUTE, first, "late", 3)]).await;
    let other = ground.node("b");
    let claims = other.claim(&AT_ONCE).await;
    assert_eq!(other.finish(&claims).await, counts(&[first, second], 1, 2));
    assert_eq!(node.backlog().await, (0, 0, 1));
    let left = read(&quarantine, partition).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].series, third);
}

pub(crate) async fn requeue_restores_lost_counts(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(1);
    let partition = fill_and_finish(&node, &series).await;
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    if let Ground::Redis(server, _) = ground {
        let is_counts = |key: &String| key.ends_with(":counts");
        assert!(!server.keys().iter().any(is_counts), "the counts are still there");
    }
    let quarantine = ground.quarantine();
    let names = [series[0].as_str()];
    assert_eq!(
        quarantine.requeue(bucket(partition, SEED_MINUTE), only(), &names).await.unwrap(),
        1
    );
    // Even long afterwards, a late event must not start the count of its series anew.
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    node.record(&[event(SEED_MINUTE, &series[0], "late", 3)]).await;
    assert_eq!(node.finish_all().await, counts(&names, 1, 2));
    assert_eq!(node.backlog().await, (0, 0, 0));
    if let Ground::Redis(server, _) = ground {
        for key in server.keys().iter().filter(|key| key.ends_with(":counts")) {
            assert!(server.query::<i64>(&["PTTL", key]) > 0, "{key} does not expire");
        }
    }
}

pub(crate) async fn requeue_keeps_a_claim_open(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    let claim = fill(&node, &series).await;
    let quarantine = ground.quarantine();
    let names = [series[1].as_str()];
    let again = quarantine.requeue(bucket(claim.partition, SEED_MINUTE), only(), &names);
    assert_eq!(again.await.unwrap(), 1);
    // No other node can claim the minute, and its holder cannot end the claim without acknowledging these counts.
    assert_eq!(ground.node("b").claim(&AT_ONCE).await, []);
    assert!(!node.acknowledge(&claim, &[]).await);
    let unsent = BTreeMap::from([(series[1].clone(), (1, 2))]);
    assert_eq!(node.unsent(&claim).await, unsent);
    assert!(node.acknowledge(&claim, &names).await);
    assert_eq!(node.backlog().await, (0, 0, 1));
}

pub(crate) async fn counts_can_be_quarantined_again(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(1);
    let partition = fill_and_finish(&node, &series).await;
    let quarantine = ground.quarantine();
    let names = [series[0].as_str()];
    assert_eq!(
        quarantine.requeue(bucket(partition, SEED_MINUTE), only(), &names).await.unwrap(),
        1
    );
    let claim = node.claim_one(&AT_ONCE).await;
    node.quarantine(&claim, &[(names[0], "no, again")], true).await;
    assert!(node.acknowledge(&claim, &[]).await);
    let kept = read(&quarantine, partition).await;
    assert_eq!(kept.len(), 1);
    assert_eq!((kept[0].unique, kept[0].cumulative), (1, 2));
    assert_eq!(kept[0].message, "no, again");
}

pub(crate) async fn discard_removes_only_listed_counts(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(3);
    let partition = fill_and_finish(&node, &series).await;
    let quarantine = ground.quarantine();
    let mut seen = read(&quarantine, partition).await;
    seen[1].message.push_str(", or so");
    assert_eq!(quarantine.discard(partition, only(), &seen).await.unwrap(), 2);
    let left = read(&quarantine, partition).await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].series, seen[1].series);
    assert_eq!(quarantine.discard(partition, only(), &left).await.unwrap(), 1);
    assert_eq!(quarantine.discard(partition, only(), &left).await.unwrap(), 0);
    assert_eq!(node.claim(&AT_ONCE).await, [], "there is nothing to send");
    assert_eq!(node.backlog().await, (0, 0, 0));
}
