//! Tests that claims lapse, are taken over and renewed, and that operations of a former holder have no effect.

use super::ground::token_number;
use crate::contract::prelude::*;

const BRIEF: Duration = Duration::from_millis(100);

const FOR_A_MOMENT: ClaimRequest = ClaimRequest { lease: BRIEF, ..AT_ONCE };

async fn assert_lost(node: &Node, claim: &Claim, series: &str) {
    let store = &node.0;
    let lease = AT_ONCE.lease;
    let lost = |error: StoreError| assert!(matches!(error, StoreError::ClaimLost), "{error}");
    lost(node.try_compact(claim, 10).await.unwrap_err());
    lost(store.acknowledge(claim, &[series], lease).await.unwrap_err());
    lost(store.acknowledge(claim, &[], lease).await.unwrap_err());
    lost(store.quarantine(claim, &[(series, "no")]).await.unwrap_err());
    let extended = store.extend(&[claim], Duration::ZERO).await;
    assert_eq!(extended.unwrap(), 0);
}

/// Seals with a short lease, so that the returned claim to send lapses soon.
async fn seal_for_a_moment(node: &Node, claim: &Claim) -> Claim {
    let outputs = std::slice::from_ref(only());
    let request = SealRequest { series_max: 100, lease: BRIEF, outputs, ..SealRequest::default() };
    let done = node.0.compact(claim, &request).await.unwrap();
    assert_eq!((done.left, done.sending.len()), (0, 1));
    done.sending[0].clone()
}

pub(crate) async fn former_holder_of_a_lapsed_claim_changes_nothing(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let events = [event(SEED_MINUTE, "s=1", "x", 1), event(SEED_MINUTE, "s=1", "x", 2)];
    a.record(&events).await;
    let old = a.claim_one(&FOR_A_MOMENT).await;
    let new = b.claim_one(&AT_ONCE).await;
    assert!(new.taken_over);
    assert_eq!(new.minute, old.minute);
    assert!(token_number(&new) > token_number(&old), "{old:?} {new:?}");

    // The former holder's claim is lost while there are sets to compact, while there are counts to send, and at the end.
    assert_lost(&a, &old, "s=1").await;
    assert_eq!(b.backlog().await, (0, 1, 0));
    let sent_by_b = seal_for_a_moment(&b, &new).await;
    assert!(token_number(&sent_by_b) > token_number(&new));
    assert_lost(&a, &old, "s=1").await;
    assert_lost(&b, &new, "s=1").await;
    let sent_by_a = a.claim_one(&AT_ONCE).await;
    assert!(sent_by_a.taken_over && sent_by_a.output.as_ref() == Some(only()));
    assert!(token_number(&sent_by_a) > token_number(&sent_by_b));
    assert_lost(&b, &sent_by_b, "s=1").await;
    assert_eq!(b.claim(&AT_ONCE).await, [], "the new lease was shortened");
    let claims = std::slice::from_ref(&sent_by_a);
    assert_eq!(a.finish(claims).await, model(&events));
    for claim in [&old, &new, &sent_by_b, &sent_by_a] {
        assert_lost(&a, claim, "s=1").await;
    }
    assert_eq!(b.backlog().await, (0, 0, 0));
}

pub(crate) async fn lapsed_claims_are_taken_over_in_bounded_portions(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    for minute in 0..7 {
        a.record(&[event(SEED_MINUTE + minute, "s=1", "x", 1)]).await;
    }
    assert_eq!(a.claim(&FOR_A_MOMENT).await.len(), 7);
    let request = ClaimRequest { lapsed_max: 3, ..AT_ONCE };
    let began = Instant::now();
    let mut minutes = Vec::new();
    while minutes.len() < 7 {
        assert!(began.elapsed() < SOON, "only {minutes:?}");
        let claims = b.claim(&request).await;
        assert!(claims.len() <= 3 && claims.iter().all(|claim| claim.taken_over));
        minutes.extend(claims.iter().map(|claim| claim.minute.epoch_minutes() - SEED_MINUTE));
    }
    minutes.sort_unstable();
    assert_eq!(minutes, [0, 1, 2, 3, 4, 5, 6]);
}

pub(crate) async fn extend_renews_or_shortens_a_lease(ground: &Ground) {
    for sends in [false, true] {
        extending(&ground.afresh(), sends).await;
    }
}

async fn extending(ground: &Ground, sends: bool) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(1).remove(0);
    for minute in [0, 1] {
        a.record(&[event(SEED_MINUTE + minute, &series, "x", 1)]).await;
    }
    let mut claims = a.claim(&FOR_A_MOMENT).await;
    if sends {
        for claim in &mut claims {
            *claim = seal_for_a_moment(&a, claim).await;
        }
    }
    let [first, second] = &claims[..] else { panic!("{claims:?}") };
    let extend = |claims: Vec<Claim>, lease| {
        let a = a.clone();
        async move {
            let claims: Vec<_> = claims.iter().collect();
            a.0.extend(&claims, lease).await.unwrap()
        }
    };
    let foreign = Claim { token: "a|1".to_owned(), ..first.clone() };
    assert_eq!(extend(claims.clone(), AT_ONCE.lease).await, 2);
    tokio::time::sleep(2 * BRIEF).await;
    assert_eq!(b.claim(&AT_ONCE).await, [], "renewed");
    assert_eq!(extend(vec![foreign.clone()], Duration::ZERO).await, 0);
    assert_eq!(b.claim(&AT_ONCE).await, [], "extended with a claim that is not held");

    assert_eq!(extend(vec![foreign, second.clone()], Duration::ZERO).await, 1);
    assert_eq!(b.claim_one(&AT_ONCE).await.minute, second.minute);
    assert_eq!(b.claim(&AT_ONCE).await, [], "the other claim is still held");
    assert_eq!(a.finish(std::slice::from_ref(first)).await.len(), 1);
}

pub(crate) async fn compact_and_acknowledge_renew_the_lease(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let events: Vec<_> = series_of_one_partition(2)
        .iter()
        .map(|series| event(SEED_MINUTE, series, "x", 1))
        .collect();
    a.record(&events).await;
    let claim = a.claim_one(&FOR_A_MOMENT).await;
    let compacted = a.try_compact(&claim, 1).await.unwrap();
    assert_eq!((compacted.sealed, compacted.left), (1, 1));
    tokio::time::sleep(2 * BRIEF).await;
    assert_eq!(b.claim(&AT_ONCE).await, [], "compacting renews the lease");

    let claim = seal_for_a_moment(&a, &claim).await;
    let first = [events[0].series.as_str()];
    assert!(!a.acknowledge(&claim, &first).await);
    tokio::time::sleep(2 * BRIEF).await;
    assert_eq!(b.claim(&AT_ONCE).await, [], "acknowledging renews the lease");
    let lapsed = a.0.acknowledge(&claim, &[], Duration::ZERO).await;
    assert!(!lapsed.unwrap());
    let claim = b.claim_one(&AT_ONCE).await;
    assert!(b.acknowledge(&claim, &[events[1].series.as_str()]).await);
}
