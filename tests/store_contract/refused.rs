//! Tests counts that the output has rejected.

use std::collections::BTreeMap;

use crate::contract::prelude::*;

const ROOM: usize = 10_000;

pub(crate) async fn quarantined_counts_keep_the_servers_message(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    for series in &series {
        node.record(&[event(SEED_MINUTE, series, "x", 1), event(SEED_MINUTE, series, "x", 2)])
            .await;
    }
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    let message = "field type conflict: \"value\" | 100%s {} 'é'";
    for _ in 0..2 {
        node.quarantine(&claim, &[(&series[0], message)], true).await;
    }
    let unsent = BTreeMap::from([(series[1].clone(), (1, 2))]);
    assert_eq!(node.unsent(&claim).await, unsent);
    assert_eq!(node.backlog().await, (0, 1, 1));
    assert!(node.acknowledge(&claim, &[&series[1]]).await);
    assert_eq!(node.backlog().await, (0, 0, 1));

    if let Ground::Redis(server, _) = ground {
        let is_quarantine = |key: &String| key.ends_with(":quarantine:default");
        let key = server.keys().into_iter().find(is_quarantine).unwrap();
        let kept: BTreeMap<String, String> = server.query(&["HGETALL", &key]);
        let minute = Minute::from_epoch_minutes(SEED_MINUTE).unwrap();
        let entry = &kept[&format!("{minute}:{}", series[0])];
        let (counts, rest) = entry.split_once('|').unwrap();
        let (_seconds, kept_message) = rest.split_once('|').unwrap();
        assert_eq!((counts, kept_message), ("1:2", message));
        assert_eq!(server.query::<i64>(&["TTL", &key]), -1, "quarantined counts must not expire");
    }
}

pub(crate) async fn quarantine_is_bounded(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(ROOM + 2);
    let events: Vec<_> = series.iter().map(|series| event(SEED_MINUTE, series, "x", 1)).collect();
    node.record(&events).await;
    let claim = node.claim_one(&AT_ONCE).await;
    while node.try_compact(&claim, 200).await.unwrap().left > 200 {}
    let claim = node.seal(&claim).await;

    let refused: Vec<_> = series[..=ROOM].iter().map(|name| (&**name, "no")).collect();
    for refused in refused[..ROOM].chunks(1000) {
        node.quarantine(&claim, refused, true).await;
    }
    node.quarantine(&claim, &refused[ROOM..], false).await;
    let mixed = [refused[0], refused[ROOM], refused[1]];
    let kept = node.0.quarantine(&claim, &mixed).await.unwrap();
    assert_eq!(kept, [true, false, true], "two of the counts are already quarantined");
    assert_eq!(node.backlog().await, (0, 1, ROOM as u64));
    let unsent: Vec<_> = node.unsent(&claim).await.into_keys().collect();
    assert_eq!(unsent, series[ROOM + 1..], "the count without room is not sent again");
}
