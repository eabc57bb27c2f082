//! Tests that sets are compacted to counts exactly once.

use crate::contract::prelude::*;

pub(crate) async fn compaction_takes_several_steps(ground: &Ground) {
    let node = ground.node("a");
    let events: Vec<_> = series_of_one_partition(10)
        .iter()
        .map(|series| event(SEED_MINUTE, series, "x", 1))
        .collect();
    node.record(&events).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let mut sending = Vec::new();
    for (sealed, left) in [(4, 6), (4, 2), (2, 0)] {
        assert_eq!(sending, [], "nothing may be sent before everything is sealed");
        let done = node.try_compact(&claim, 4).await.unwrap();
        assert_eq!((done.sealed, done.late, done.left), (sealed, 0, left));
        sending = done.sending;
    }
    let ended = node.try_compact(&claim, 4).await;
    assert!(matches!(ended, Err(StoreError::ClaimLost)), "{ended:?}");
    assert_eq!(sending.len(), 1);
    assert_eq!(node.finish(&sending).await, model(&events));
}

pub(crate) async fn counts_are_sealed_once(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(2);
    let in_time = [event(SEED_MINUTE, &series[0], "x", 1), event(SEED_MINUTE, &series[0], "y", 2)];
    a.record(&in_time).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let claim = a.seal(&claim).await;
    let counts = BTreeMap::from([(series[0].clone(), (2, 2))]);
    assert_eq!(a.unsent(&claim).await, counts);

    // A copy, a new event of a counted user, and an event of a new user.
    let late = [
        in_time[0].clone(),
        event(SEED_MINUTE, &series[0], "x", 3),
        event(SEED_MINUTE, &series[0], "z", 4),
    ];
    let new_series = event(SEED_MINUTE, &series[1], "x", 1);
    b.record(&late).await;
    b.record(std::slice::from_ref(&new_series)).await;
    let again = b.claim_one(&AT_ONCE).await;
    let done = b.try_compact(&again, 9).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (1, 3, 0));
    assert_eq!(done.sending, [], "the holder of the claim to send finds the added counts");
    let mut events = in_time.to_vec();
    events.push(new_series);
    assert_eq!(a.finish(&[claim]).await, model(&events));
}

/// Two nodes record parts of each series. A third node takes over the minute after some series have been sealed.
pub(crate) async fn takeover_halfway_seals_the_same_counts(ground: &Ground) {
    let nodes = ["a", "b", "c"].map(|name| ground.node(name));
    let series = series_of_one_partition(7);
    let mut events = Vec::new();
    for (at, series) in (0..).zip(&series) {
        for user in 0..=at {
            events.push(event(SEED_MINUTE, series, &format!("user_{user}"), at));
        }
    }
    nodes[0].record(&events[..20]).await;
    nodes[1].record(&events[10..]).await;
    let claim = nodes[0].claim_one(&AT_ONCE).await;
    let done = nodes[0].try_compact(&claim, 3).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (3, 0, 4));
    lapse(&nodes[0], &claim).await;
    let claim = nodes[1].claim_one(&AT_ONCE).await;
    let done = nodes[1].try_compact(&claim, 2).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (2, 0, 2));
    lapse(&nodes[1], &claim).await;
    let claim = nodes[2].claim_one(&AT_ONCE).await;
    assert!(claim.taken_over);
    let done = nodes[2].try_compact(&claim, 100).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (2, 0, 0));
    assert_eq!(nodes[2].finish(&done.sending).await, model(&events));
}

pub(crate) async fn lapse(node: &Node, claim: &Claim) {
    let claims = [claim];
    let extended = node.0.extend(&claims, Duration::ZERO);
    assert_eq!(extended.await.unwrap(), 1);
}

/// Events that are recorded between two steps are either counted once or reported as late. New series are counted.
pub(crate) async fn events_during_sealing_are_counted_or_late(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(12);
    let mut recorded = 0;
    let mut record = async |node: &Node, series: &[String], at: i64| {
        let events = series.iter().map(|series| event(SEED_MINUTE, series, "x", at));
        node.record(&events.collect::<Vec<_>>()).await;
        recorded += series.len() as u64;
    };
    record(&a, &series[..8], 1).await;
    record(&b, &series[..8], 2).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let (mut sealed, mut late) = (0, 0);
    let mut sending = Vec::new();
    for step in 0..40 {
        let done = a.try_compact(&claim, 3).await.unwrap();
        sealed += done.sealed;
        late = done.late;
        sending = done.sending;
        match step {
            0 => record(&a, &series[..10], 3).await,
            1 => record(&b, &series[5..], 4).await,
            _ if done.left == 0 => break,
            _ => {}
        }
    }
    assert_eq!(sealed, 12);
    let counts = a.finish(&sending).await;
    assert_eq!(counts.len(), 12);
    let published: u64 = counts.values().map(|(_, cumulative)| cumulative).sum();
    assert_eq!(published + late, recorded, "each event is either in a count or late");
    assert!(counts.values().all(|(unique, _)| *unique == 1), "{counts:?}");
}

/// Counts of a finished minute do not expire while a late event is waiting, because all nodes may be down for a long time.
pub(crate) async fn late_event_finds_its_counts_at_any_time(ground: &Ground) {
    let node = ground.node("a");
    node.record(&[event(SEED_MINUTE, "s=1", "x", 1)]).await;
    node.finish_all().await;
    node.record(&[event(SEED_MINUTE, "s=1", "y", 2)]).await;
    tokio::time::sleep(RETENTION + RETENTION / 8).await;

    let claim = node.claim_one(&AT_ONCE).await;
    let done = node.try_compact(&claim, 9).await.unwrap();
    assert_eq!((done.sealed, done.late), (0, 1), "a sealed count must not change");
    assert_eq!((done.left, done.sending), (0, Vec::new()));
    assert_eq!(node.backlog().await, (0, 0, 0));
}

pub(crate) async fn unsent_counts_are_read_completely_in_pages(ground: &Ground) {
    let node = ground.node("a");
    let mut events = Vec::new();
    for (users, series) in series_of_one_partition(5000).iter().enumerate() {
        for user in 0..=users % 3 {
            events.push(event(SEED_MINUTE, series, &format!("u{user}"), 1));
            events.push(event(SEED_MINUTE, series, &format!("u{user}"), 2));
        }
    }
    node.record(&events).await;
    let claim = node.claim_one(&AT_ONCE).await;
    while node.try_compact(&claim, 200).await.unwrap().left > 200 {}
    let claim = node.seal(&claim).await;
    let first = node.0.unsent(&claim, 0).await.unwrap();
    assert!(first.next.is_some() && first.items.len() < 5000, "not read in pages");

    let unsent = node.unsent(&claim).await;
    let keyed = unsent.iter().map(|(series, counts)| ((SEED_MINUTE, series.clone()), *counts));
    assert_eq!(keyed.collect::<super::ground::Counts>(), model(&events));

    let all: Vec<_> = unsent.keys().map(String::as_str).collect();
    let (most, rest) = all.split_at(4500);
    assert!(!node.acknowledge(&claim, most).await);
    assert_eq!(node.unsent(&claim).await.len(), rest.len());
    assert!(node.acknowledge(&claim, rest).await);
}

/// Without an output, the counts are never sent, so no acknowledgement closes the minute.
pub(crate) async fn minute_without_outputs_is_closed_by_sealing(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    node.record(&[event(SEED_MINUTE, &series[0], "x", 1)]).await;
    let claim = node.claim_one(&AT_ONCE).await;
    assert_eq!(node.seal_for(&claim, &[]).await, []);
    node.record(&[event(SEED_MINUTE, &series[1], "x", 1)]).await;
    let again = node.claim_one(&AT_ONCE).await;
    let done = node.try_compact(&again, 9).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (0, 1, 0));
}
