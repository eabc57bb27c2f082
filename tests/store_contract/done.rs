//! Tests how a claim ends, and which keys remain.

use std::collections::BTreeMap;

use crate::contract::prelude::*;

pub(crate) async fn claim_ends_with_the_last_series(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(3);
    let event_of = |series: &str| event(SEED_MINUTE, series, "x", 1);
    node.record(&[event_of(&series[0]), event_of(&series[1])]).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    assert!(!node.acknowledge(&claim, &[&series[0]]).await, "another count is unsent");
    assert!(!node.acknowledge(&claim, &[&series[0]]).await, "again");
    // A new series is still counted, because no output has all counts of the minute yet.
    node.record(&[event_of(&series[2])]).await;
    assert!(node.acknowledge(&claim, &[&series[1]]).await);
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    let unsent = BTreeMap::from([(series[2].clone(), (1, 1))]);
    assert_eq!(node.unsent(&claim).await, unsent);
    assert!(node.acknowledge(&claim, &[&series[2], "never=heard"]).await);
    let after = node.0.acknowledge(&claim, &[], AT_ONCE.lease).await;
    assert!(matches!(after, Err(StoreError::ClaimLost)), "{after:?}");
}

pub(crate) async fn only_counts_remain_at_the_end(ground: &Ground) {
    let node = ground.node("a");
    let events: Vec<_> =
        (0..40).map(|i| event(SEED_MINUTE + i % 2, &format!("s={}", i % 7), "x", i)).collect();
    node.record(&events).await;
    // This request inspects the minute before it is idle, so that every key of a partition is created.
    let filling = ClaimRequest { grace: RETENTION, ..AT_ONCE };
    assert_eq!(node.claim(&filling).await, []);
    assert_eq!(node.finish_all().await, model(&events));
    assert_eq!(node.backlog().await, (0, 0, 0));
    assert_only_counts(ground, &[SEED_MINUTE, SEED_MINUTE + 1]);
}

pub(crate) async fn claim_for_a_late_event_ends_without_sending(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    let events = [event(SEED_MINUTE, &series[0], "x", 1)];
    node.record(&events).await;
    assert_eq!(node.finish_all().await, model(&events));

    for late in 1..=2 {
        node.record(&[event(SEED_MINUTE, &series[0], "y", 2)]).await;
        let claim = node.claim_one(&AT_ONCE).await;
        assert!(!claim.taken_over);
        let done = node.try_compact(&claim, 9).await.unwrap();
        assert_eq!((done.sealed, done.late, done.left), (0, late, 0));
        assert_eq!(done.sending, []);
        assert_eq!(node.backlog().await, (0, 0, 0));
        assert_only_counts(ground, &[SEED_MINUTE]);
    }
    // A new series is late too, because the minute has been closed.
    node.record(&[event(SEED_MINUTE, &series[1], "y", 2)]).await;
    assert_eq!(node.finish_all().await, BTreeMap::new());
    assert_only_counts(ground, &[SEED_MINUTE]);
}

/// Asserts that Redis has only the settings, closed minutes, output names, and counts with a time to live.
pub(crate) fn assert_only_counts(ground: &Ground, minutes: &[i64]) {
    let Ground::Redis(server, _) = ground else {
        return;
    };
    let names = minutes.iter().map(|&minute| {
        let minute = Minute::from_epoch_minutes(minute).unwrap();
        format!(":{minute}:counts")
    });
    let names: Vec<_> = names.collect();
    for key in server.keys() {
        if key == "eds:settings" {
            continue;
        }
        let (tag, name) = key.split_at(key.find('}').expect("a hash tag") + 1);
        assert!(tag.starts_with("{eds:"), "{key}");
        if [":witness", ":closed", ":stamps", ":outputs"].contains(&name) {
            continue;
        }
        assert!(names.iter().any(|counts| counts == name), "{key} should not exist");
        let ttl_ms: i64 = server.query(&["PTTL", &key]);
        // A negative value means that the key has expired since it was listed.
        let most = i64::try_from(RETENTION.as_millis()).unwrap();
        assert!(ttl_ms == -2 || (0..=most).contains(&ttl_ms), "{key}: {ttl_ms} ms");
    }
}
