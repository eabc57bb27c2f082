//! Tests that each of several outputs gets every count independently, and that outputs can be added and removed.

use event_data_service::store::{Dropped, OutputBacklog};

use super::done::assert_only_counts;
use crate::contract::prelude::*;

fn both() -> [OutputName; 2] {
    ["one", "two"].map(|name| name.parse().unwrap())
}

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

fn events(number: i64, series: usize) -> Vec<Event> {
    let series = series_of_one_partition(series);
    let event = |series: &String| event(number, series, "x", 1);
    series.iter().map(event).collect()
}

/// Records this many series of a minute and seals them for these outputs. Returns the claims to send.
async fn seal(node: &Node, number: i64, series: usize, outputs: &[OutputName]) -> Vec<Claim> {
    node.record(&events(number, series)).await;
    let claim = node.claim_one(&AT_ONCE).await;
    node.seal_for(&claim, outputs).await
}

/// Acknowledges the unsent counts, which must end the claim, and returns them.
async fn send(node: &Node, claim: &Claim) -> BTreeMap<String, (u64, u64)> {
    let unsent = node.unsent(claim).await;
    let series: Vec<_> = unsent.keys().map(String::as_str).collect();
    assert!(node.acknowledge(claim, &series).await, "{claim:?}");
    unsent
}

/// Returns whether the counts of a minute have a time to live, or `None` if there are no counts or the store is not Redis.
fn expire(ground: &Ground, number: i64) -> Option<bool> {
    let Ground::Redis(server, _) = ground else {
        return None;
    };
    let name = format!(":{}:counts", minute(number));
    let keys = server.keys();
    let counts = keys.iter().find(|key| key.ends_with(&name))?;
    Some(server.query::<i64>(&["PTTL", counts]) > 0)
}

async fn seal_late(node: &Node, outputs: &[OutputName]) -> (u64, u64) {
    let claim = node.claim_one(&AT_ONCE).await;
    let request =
        SealRequest { series_max: 9, lease: AT_ONCE.lease, outputs, ..SealRequest::default() };
    let done = node.0.compact(&claim, &request).await;
    let done = done.unwrap();
    assert_eq!((done.left, done.sending), (0, Vec::new()));
    (done.sealed, done.late)
}

pub(crate) async fn each_output_gets_every_count_independently(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let [one, two] = both();
    let mut waiting = Vec::new();
    for number in SEED_MINUTE..SEED_MINUTE + 3 {
        let claims = seal(&a, number, 3, &both()).await;
        let targets: Vec<_> = claims.iter().map(|claim| claim.output.clone()).collect();
        assert_eq!(targets, both().map(Some));
        let [to_one, to_two] = <[Claim; 2]>::try_from(claims).unwrap();
        let sent = send(&a, &to_one).await;
        assert_eq!(sent, a.unsent(&to_two).await);
        assert_eq!(sent.len(), 3);
        assert!(!expire(ground, number).unwrap_or_default(), "output two lacks the counts");
        waiting.push((to_two, sent));
    }
    assert_eq!(a.lacks(&one).await.unsent, 0);
    let lacks = a.lacks(&two).await;
    assert_eq!((lacks.unsent, lacks.oldest), (3, Some(minute(SEED_MINUTE))));
    assert_eq!(b.claim_for(&AT_ONCE, &both()).await, [], "the claims are held");
    for (to_two, sent) in waiting {
        assert_eq!(send(&a, &to_two).await, sent);
        let number = to_two.minute.epoch_minutes();
        assert!(expire(ground, number).unwrap_or(true), "both outputs have the counts");
    }
    assert_only_counts(ground, &[SEED_MINUTE, SEED_MINUTE + 1, SEED_MINUTE + 2]);
}

pub(crate) async fn first_complete_output_closes_the_minute(ground: &Ground) {
    let node = ground.node("a");
    let all = events(SEED_MINUTE, 4);
    node.record(&all[..1]).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let claims = node.seal_for(&claim, &both()).await;
    // A new series is in time until one output has all counts of the minute.
    node.record(&all[1..2]).await;
    assert_eq!(seal_late(&node, &both()).await, (1, 0));
    assert_eq!(send(&node, &claims[1]).await.len(), 2);
    // Afterwards a new series is late, even for an output that has not received anything yet.
    node.record(&all[2..]).await;
    assert_eq!(seal_late(&node, &both()).await, (0, 2));
    assert_eq!(send(&node, &claims[0]).await.len(), 2);
    assert_only_counts(ground, &[SEED_MINUTE]);
}

pub(crate) async fn lapsed_claims_are_taken_over_for_requested_outputs(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let [one, two] = both();
    for number in SEED_MINUTE..SEED_MINUTE + 3 {
        let claims = seal(&a, number, 1, &both()).await;
        for claim in &claims {
            let claims = [claim];
            let lapsed = a.0.extend(&claims, Duration::ZERO);
            assert_eq!(lapsed.await.unwrap(), 1);
        }
    }
    assert_eq!(b.claim_for(&AT_ONCE, &[]).await, []);
    let claims = b.claim_for(&AT_ONCE, std::slice::from_ref(&two)).await;
    let is_of_two = |claim: &Claim| claim.taken_over && claim.output.as_ref() == Some(&two);
    assert!(claims.len() == 3 && claims.iter().all(is_of_two), "{claims:?}");
    let partition = claims[0].partition;
    let most = [(one.clone(), 2), (two, 2)];
    let claims = b.0.claim(partition, &AT_ONCE, &most).await.unwrap();
    let minutes: Vec<_> = claims.iter().map(|claim| (claim.output.clone(), claim.minute)).collect();
    let first = [0, 1].map(|number| (Some(one.clone()), minute(SEED_MINUTE + number)));
    assert_eq!(minutes, first);
}

pub(crate) async fn each_output_has_its_own_quarantine(ground: &Ground) {
    let node = ground.node("a");
    let quarantine = ground.quarantine();
    let [one, two] = both();
    let claims = seal(&node, SEED_MINUTE, 2, &both()).await;
    let series = series_of_one_partition(2);
    let [first, second] = [0, 1].map(|at| series[at].as_str());
    node.quarantine(&claims[1], &[(first, "no")], true).await;
    assert!(node.acknowledge(&claims[1], &[second]).await);
    assert_eq!(send(&node, &claims[0]).await.len(), 2, "this output rejects no counts");
    let partition = claims[0].partition;
    assert_eq!(node.lacks(&one).await.quarantined, 0);
    assert_eq!(node.lacks(&two).await.quarantined, 1);
    let of_one = quarantine.quarantined_page(partition, &one, 0).await;
    assert_eq!(of_one.unwrap().items, []);
    for (output, requeued) in [(&one, 0), (&two, 1)] {
        let wanted = [first];
        let again = quarantine.requeue(bucket(partition, SEED_MINUTE), output, &wanted);
        assert_eq!(again.await.unwrap(), requeued);
    }
    let again = node.claim_for(&AT_ONCE, &both()).await;
    assert_eq!((again.len(), &again[0].output), (1, &Some(two)));
    let counts = BTreeMap::from([(first.to_owned(), (1, 1))]);
    assert_eq!(send(&node, &again[0]).await, counts);
    assert_only_counts(ground, &[SEED_MINUTE]);
}

pub(crate) async fn new_output_starts_with_the_next_sealed_counts(ground: &Ground) {
    let node = ground.node("a");
    let before = seal(&node, SEED_MINUTE, 1, &both()[..1]).await;
    let after = seal(&node, SEED_MINUTE + 1, 1, &both()).await;
    assert_eq!((before.len(), after.len()), (1, 2));
    for claim in before.iter().chain(&after) {
        assert_eq!(send(&node, claim).await.len(), 1);
    }
    assert_eq!(node.claim_for(&AT_ONCE, &both()).await, []);
    assert_only_counts(ground, &[SEED_MINUTE, SEED_MINUTE + 1]);
}

/// An output is added or removed, and a node with the old settings dies while it is sealing.
pub(crate) async fn counts_of_another_output_are_sent_by_a_node_that_has_it(ground: &Ground) {
    let node = ground.node("a");
    let [one, two] = both();
    node.record(&events(SEED_MINUTE, 3)).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let lease = AT_ONCE.lease;
    let request = SealRequest { series_max: 1, lease, outputs: &both(), ..SealRequest::default() };
    let part = node.0.compact(&claim, &request).await.unwrap();
    assert_eq!((part.left, part.sending), (2, Vec::new()));
    let to_one = node.seal_for(&claim, std::slice::from_ref(&one)).await;
    assert_eq!((to_one.len(), &to_one[0].output), (1, &Some(one)));
    assert_eq!(send(&node, &to_one[0]).await.len(), 3);
    let to_two = node.claim_for(&AT_ONCE, &both()).await;
    assert_eq!((to_two.len(), &to_two[0].output), (1, &Some(two)));
    assert_eq!(send(&node, &to_two[0]).await.len(), 1);
    assert_only_counts(ground, &[SEED_MINUTE]);
}

pub(crate) async fn dropping_an_output_drops_only_its_counts(ground: &Ground) {
    let node = ground.node("a");
    let quarantine = ground.quarantine();
    let [one, two] = both();
    let refused = seal(&node, SEED_MINUTE, 2, &both()).await;
    let series = series_of_one_partition(2);
    node.quarantine(&refused[1], &[(&series[0], "no")], true).await;
    let only_two = seal(&node, SEED_MINUTE + 1, 2, &both()).await;
    send(&node, &only_two[0]).await;
    // This minute was sealed only for the removed output.
    let unpublished = seal(&node, SEED_MINUTE + 2, 2, std::slice::from_ref(&two)).await;
    let mut all = Dropped::default();
    for partition in partitions().iter() {
        let dropped = quarantine.drop_output(partition, &two).await.unwrap();
        all.minutes += dropped.minutes;
        all.counts += dropped.counts;
        all.quarantined += dropped.quarantined;
    }
    let expected = Dropped { minutes: 3, counts: 5, quarantined: 1 };
    assert_eq!(all, expected);
    assert_eq!(node.lacks(&two).await, OutputBacklog::default());
    for claim in [&refused[1], &only_two[1], &unpublished[0]] {
        let lost = node.0.acknowledge(claim, &[], AT_ONCE.lease).await;
        assert!(matches!(lost, Err(StoreError::ClaimLost)), "{lost:?}");
    }
    assert!(!expire(ground, SEED_MINUTE).unwrap_or_default());
    assert_eq!(node.lacks(&one).await.unsent, 1, "the other output still lacks the minute");
    assert_eq!(send(&node, &refused[0]).await.len(), 2);
    // Dropped counts are not counted again.
    node.record(&events(SEED_MINUTE + 2, 3)).await;
    assert_eq!(seal_late(&node, &[one]).await, (0, 3));
    assert_only_counts(ground, &[SEED_MINUTE, SEED_MINUTE + 1, SEED_MINUTE + 2]);
    let partition = refused[0].partition;
    let again = quarantine.drop_output(partition, &two).await.unwrap();
    assert_eq!(again, Dropped::default());
}
