//! Tests, for each step of a change of the number of partitions, which nodes may start to record in a minute.

use std::num::NonZeroU16;

use event_data_service::diagnosis::{Cause, Diagnosis};
use event_data_service::store::Survey;
use event_data_service::store::redis::{ChangeError, partitions};

use crate::store_redis::prelude::*;

const FROM: &str = "21000101:10";
const BEFORE: &str = "21000101:9";
const AN_HOUR: Duration = Duration::from_secs(3600);

fn minute(name: &str) -> Minute {
    name.parse().unwrap()
}

fn node(server: &RedisServer, count: u16, before: Option<(u16, &str)>) -> RedisStore {
    node_by(tcp(server), count, before)
}

fn node_by(settings: Settings, count: u16, before: Option<(u16, &str)>) -> RedisStore {
    let before = before.map(|(count, from)| (count, minute(from)));
    store(&Settings {
        partitions: partitions("eds", NonZeroU16::new(count).unwrap(), before),
        ..settings
    })
}

async fn begin(node: &RedisStore, partitions: u16, name: &str) -> Result<(), StoreError> {
    // The series and the partition do not matter, only whether the node may record in this minute.
    let request =
        AdmitRequest { minute: minute(name), series: &["s=1"], series_max: 10, overflow: "o=1" };
    let all = event_data_service::event::Partitions::new(NonZeroU16::new(partitions).unwrap());
    for partition in all.iter() {
        node.admit(partition, &request).await?;
    }
    Ok(())
}

const CHANGE: [(&str, &str); 3] = [
    ("store.partitions", "3"),
    ("store.partitions_before", "2"),
    ("store.partitions_from", "2100-01-01T00:10:00Z"),
];
const NO_CHANGE: [(&str, &str); 3] =
    [("store.partitions", "2"), ("store.partitions_before", ""), ("store.partitions_from", "")];

fn refusal(result: Result<(), ChangeError>) -> String {
    match result {
        Err(ChangeError::Refused(words)) => words,
        other => panic!("{other:?}"),
    }
}

fn is_refused(result: &Result<(), StoreError>) -> bool {
    matches!(result, Err(StoreError::Refused(_)))
}

#[tokio::test]
async fn suspended_node_opens_no_minute_after_a_change() {
    let server = RedisServer::start(&[]);
    // This node checks its settings once, before the change, and not again.
    let asleep = node(&server, 2, None);
    asleep.check().await.unwrap();
    let new = node(&server, 3, Some((2, FROM)));
    assert!(matches!(new.check().await, Err(StoreError::Refused(_))));
    new.share(&CHANGE, AN_HOUR).await.unwrap();
    begin(&asleep, 2, BEFORE).await.unwrap();
    assert!(is_refused(&begin(&asleep, 2, FROM).await));
    new.check().await.unwrap();
    begin(&new, 3, FROM).await.unwrap();
    // A node with the old settings may continue until the change, with a warning.
    let old = node(&server, 2, None);
    old.check().await.unwrap();
    let warnings = old.warnings();
    let names_the_time = |warning: &Diagnosis| warning.why.contains("from 2100-01-01T00:10:00Z on");
    assert!(warnings.iter().any(names_the_time), "{warnings:?}");
    assert!(is_refused(&begin(&old, 2, FROM).await));

    // The change can be reverted, but not once the first minute with the new number has begun.
    let words = refusal(old.share(&NO_CHANGE, AN_HOUR).await);
    assert!(words.contains("minute 21000101:10 already has events"), "{words}");
    begin(&new, 3, FROM).await.unwrap();
    server.query::<()>(&["FLUSHALL"]);
    let new = node(&server, 3, Some((2, FROM)));
    let old = node(&server, 2, None);
    old.check().await.unwrap();
    new.share(&CHANGE, AN_HOUR).await.unwrap();
    new.check().await.unwrap();
    old.share(&NO_CHANGE, AN_HOUR).await.unwrap();
    assert!(is_refused(&begin(&new, 3, FROM).await));
    old.check().await.unwrap();
    begin(&old, 2, FROM).await.unwrap();
}

/// In a cluster, the keys of the settings, the nodes and the fences are on different masters.
#[tokio::test]
async fn number_changes_on_a_cluster_with_live_nodes() {
    let cluster = RedisCluster::start();
    let node = || {
        let nodes = cluster.masters().iter().map(|master| master.address().into());
        at(Address::Cluster(nodes.collect()))
    };
    // The keys of all nodes share a slot, regardless of the names.
    for name in ["one", "two", "three"] {
        let named = Settings { node: name.to_owned(), ..node() };
        let named = node_by(named, 2, None);
        named.check().await.unwrap();
        assert!(!named.registry().report("{}").await.unwrap());
    }
    let near = node_by(node(), 3, Some((2, "20161204:1118")));
    let words = refusal(near.share(&CHANGE, AN_HOUR).await);
    assert!(words.contains("3 nodes are running"), "{words}");
    let old = node_by(node(), 2, None);
    old.check().await.unwrap();
    let new = node_by(node(), 3, Some((2, FROM)));
    new.share(&CHANGE, AN_HOUR).await.unwrap();
    begin(&old, 2, BEFORE).await.unwrap();
    assert!(is_refused(&begin(&old, 2, FROM).await));
    begin(&new, 3, FROM).await.unwrap();
}

#[tokio::test]
async fn change_needs_a_minute_without_events() {
    let server = RedisServer::start(&[]);
    let old = node(&server, 2, None);
    begin(&old, 2, FROM).await.unwrap();
    let new = node(&server, 3, Some((2, FROM)));
    let words = refusal(new.share(&CHANGE, AN_HOUR).await);
    assert!(words.contains("minute 21000101:10 already has events"), "{words}");
    begin(&old, 2, "21000101:11").await.unwrap();
    let settings: Vec<String> = server.query(&["HKEYS", "eds:settings"]);
    assert!(!settings.contains(&"dividing".to_owned()), "{settings:?}");

    // The change is refused while a node does not support it, and while nodes may have events of the new minutes.
    let near = node(&server, 3, Some((2, "20161204:1118")));
    let key = "{eds:nodes}:old";
    server.query::<()>(&["SET", key, "old#0123abcd"]);
    server.query::<()>(&["ZADD", "{eds:nodes}", "1", "old"]);
    let words = refusal(near.share(&CHANGE, AN_HOUR).await);
    assert!(words.contains("node old runs a version that does not support"), "{words}");
    server.query::<()>(&["SET", key, "old#0123abcd 0.1.0"]);
    let words = refusal(near.share(&CHANGE, AN_HOUR).await);
    assert!(words.contains("1 nodes are running") && words.contains("must be after"), "{words}");

    let with_more = [&CHANGE[..], &[("input.max_age", "2h")]].concat();
    let words = refusal(new.share(&with_more, AN_HOUR).await);
    assert!(words.contains("other settings cannot change in the same step"), "{words}");

    // A change must start from the current number, and not during another change.
    for wrong in [node(&server, 3, None), node(&server, 3, Some((4, FROM)))] {
        let words = refusal(wrong.share(&CHANGE, AN_HOUR).await);
        assert!(words.contains("Set store.partitions_before = 2"), "{words}");
    }
    let later = ("store.partitions_from", "2100-01-01T00:20:00Z");
    let new = node(&server, 3, Some((2, "21000101:20")));
    new.share(&[CHANGE[0], CHANGE[1], later], AN_HOUR).await.unwrap();
    let premature = node(&server, 5, Some((3, "21000101:30")));
    let words = refusal(premature.share(&CHANGE, AN_HOUR).await);
    assert!(words.contains("the last change is not finished"), "{words}");
}

#[tokio::test]
async fn change_ends_when_no_earlier_minute_is_left() {
    const LONG_AGO: &str = "20161204:1118";
    let server = RedisServer::start(&[]);
    let changed = node(&server, 3, Some((2, LONG_AGO)));
    changed.check().await.unwrap();
    begin(&changed, 3, FROM).await.unwrap();
    let finished = node(&server, 3, None);
    assert!(matches!(finished.check().await, Err(StoreError::Refused(_))));
    let finish = [("store.partitions_before", ""), ("store.partitions_from", "")];
    server.query::<u64>(&["SADD", "{eds:0}:outputs", "gone"]);
    for (put, take, words) in [
        (
            ["ZADD", "{eds:0}:minutes", "1", "20161204:1117"],
            ["DEL", "{eds:0}:minutes"],
            "minutes waiting: 1,",
        ),
        (
            ["ZADD", "{eds:0}:claims", "1", "20161204:1117"],
            ["DEL", "{eds:0}:claims"],
            "claimed: 1,",
        ),
        (
            ["ZADD", "{eds:0}:claims:gone", "1", "20161204:1117"],
            ["DEL", "{eds:0}:claims:gone"],
            "claimed: 1,",
        ),
        (
            ["HSET", "{eds:0}:quarantine:gone", "20161204:1117:a=b:c", "1:1|1|x"],
            ["DEL", "{eds:0}:quarantine:gone"],
            "quarantined: 1,",
        ),
    ] {
        server.query::<u64>(&put);
        let message = refusal(finished.share(&finish, AN_HOUR).await);
        assert!(message.contains(words), "{message}");
        server.query::<u64>(&take);
    }
    finished.share(&finish, AN_HOUR).await.unwrap();
    finished.check().await.unwrap();
    begin(&finished, 3, FROM).await.unwrap();
    // Nodes that have not been restarted can continue.
    changed.check().await.unwrap();
    let mut warned = changed.warnings().into_iter();
    assert!(warned.all(|warning| warning.cause != Cause::SettingsOutdated));
    begin(&changed, 3, FROM).await.unwrap();
    // Earlier events are refused, because no node would process their partitions.
    assert!(is_refused(&begin(&changed, 2, "20161204:1117").await));
    let soon = node(&server, 3, Some((2, FROM)));
    assert!(matches!(soon.check().await, Err(StoreError::Refused(_))));
}

#[tokio::test]
async fn interrupted_change_is_repeated_or_reverted() {
    let server = RedisServer::start(&[]);
    let old = node(&server, 2, None);
    old.check().await.unwrap();
    let new = node(&server, 3, Some((2, FROM)));
    new.share(&CHANGE, AN_HOUR).await.unwrap();
    // Restore the state in which the settings have not been written yet and the last fence is missing.
    let fences: Vec<String> = server.query(&["KEYS", "{eds:*}:division"]);
    assert!(fences.len() >= 3, "{fences:?}");
    let broken_off = || {
        server.query::<()>(&["DEL", &fences[0]]);
        let mut before = vec!["HSET", "eds:settings", "dividing", "x"];
        before.extend(
            NO_CHANGE.iter().flat_map(|(key, value)| [key.strip_prefix("store.").unwrap(), *value]),
        );
        server.query::<u64>(&before);
    };
    broken_off();
    old.check().await.unwrap();
    assert!(is_refused(&begin(&old, 2, FROM).await));
    begin(&old, 2, BEFORE).await.unwrap();
    old.share(&[], AN_HOUR).await.unwrap();
    begin(&old, 2, FROM).await.unwrap();

    for key in server.query::<Vec<String>>(&["KEYS", "*:counts"]) {
        server.query::<()>(&["DEL", &key]);
    }
    broken_off();
    new.share(&CHANGE, AN_HOUR).await.unwrap();
    let settings: Vec<String> = server.query(&["HKEYS", "eds:settings"]);
    assert!(!settings.contains(&"dividing".to_owned()), "{settings:?}");
    for fence in fences {
        let fence: String = server.query(&["GET", &fence]);
        assert!(fence.ends_with("|2|3"), "{fence}");
    }
}

/// Only the keys of partitions are leftovers. Neither the names of series nor foreign keys matter.
#[tokio::test]
async fn leftovers_are_found_among_foreign_keys() {
    let server = RedisServer::start(&[]);
    let node = node(&server, 1, None);
    node.check().await.unwrap();
    for key in [
        "{eds:x}:minutes",
        "{eds:7}:minutes:more",
        "{other:7}:minutes",
        "{eds:0}:20161204:1118:unique_user:a={eds:7}:minutes",
    ] {
        server.query::<u64>(&["ZADD", key, "1", "20161204:1118"]);
    }
    assert_eq!(node.leftovers(0).await.unwrap(), None);
    let numbers = (0..50).map(|number| number.to_string());
    for partition in numbers.chain(["rollup:removed".to_owned()]) {
        let key = format!("{{eds:{partition}}}:minutes");
        server.query::<u64>(&["ZADD", &key, "1", "20161204:1118"]);
    }
    let left = node.leftovers(0).await.unwrap().unwrap();
    assert!(
        left.why
            .contains("minutes waiting: 50, claimed: 0, counts quarantined: 0, in 50 partitions"),
        "{left}"
    );
}
