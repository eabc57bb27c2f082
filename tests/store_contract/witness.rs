//! What is closed, who hears of it, and what is handed back to a store that forgot it.

use std::time::{Duration, Instant};

use event_data_service::event::{Minute, Partition};
use event_data_service::store::{
    Attested, Claim, ClaimRequest, Known, News, StoreError, Testimony,
};
use testing::eventually::SOON;

use super::ground::{
    AT_ONCE, Event, Ground, Node, RETENTION, SEED_MINUTE, event, model, only, partitions,
    series_of_one_partition,
};

fn partition() -> Partition {
    partitions().of(&series_of_one_partition(1)[0], Minute::MIN)
}

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

fn one(number: i64, user: &str) -> Event {
    event(number, &series_of_one_partition(1)[0], user, 1)
}

async fn publish(node: &Node, number: i64) {
    let events = [one(number, "x")];
    node.record(&events).await;
    assert_eq!(node.finish_all().await, model(&events));
}

async fn check_in(node: &Node, known: Known) -> Result<News, StoreError> {
    let lease = AT_ONCE.lease;
    node.0.check_in(partition(), &known, false, lease).await
}

async fn claim(node: &Node, known: Known) -> Result<Vec<Claim>, StoreError> {
    let request = ClaimRequest { known, ..AT_ONCE };
    node.0.claim(partition(), &request, &[]).await
}

async fn attest(node: &Node, testimony: &Testimony) -> Attested {
    node.0.attest(partition(), testimony).await.unwrap()
}

/// Seals what is there; answers how many series were sealed and how many events were late.
async fn seal(node: &Node, claim: &Claim) -> (u64, u64) {
    let done = node.try_compact(claim, 9).await.unwrap();
    assert_eq!((done.left, done.sending), (0, Vec::new()));
    (done.sealed, done.late)
}

pub(crate) async fn closed_minutes_are_told_once_in_the_order_of_closing(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    publish(&a, SEED_MINUTE + 1).await;
    publish(&a, SEED_MINUTE).await;
    let known = Known {
        epoch,
        ..Known::default()
    };
    let answer = check_in(&b, known).await.unwrap();
    assert_eq!(answer.closed, [SEED_MINUTE + 1, SEED_MINUTE].map(minute));
    let known = Known {
        sequence: answer.sequence,
        ..known
    };
    assert_eq!(check_in(&b, known).await.unwrap().closed, []);
    publish(&a, SEED_MINUTE + 2).await;
    let answer = check_in(&b, known).await.unwrap();
    assert_eq!(answer.closed, [minute(SEED_MINUTE + 2)]);
}

pub(crate) async fn whoever_checks_in_hears_whether_anything_may_be_claimed(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known {
        epoch,
        ..Known::default()
    };
    let is_due = async || check_in(&b, known).await.unwrap().is_due;
    assert!(!is_due().await, "nothing is there");
    let now = check_in(&b, known).await.unwrap().now_ms;
    a.record(&[one(now / 60_000 + 10, "x")]).await;
    assert!(!is_due().await, "a minute that is not over");
    a.record(&[one(SEED_MINUTE, "x")]).await;
    assert!(is_due().await, "one that is");
    let claims = claim(&a, known).await.unwrap();
    assert!(is_due().await, "a claim, which may lapse");
    let sending = a.seal_for(&claims[0], &[only().clone()]).await;
    assert!(is_due().await, "the same of an output");
    a.finish(&sending).await;
    assert!(!is_due().await, "all is done");
    a.report_lag(true, Duration::from_millis(100)).await;
    assert!(is_due().await, "a node that lags, which may die");
    let began = Instant::now();
    while is_due().await {
        assert!(
            began.elapsed() < SOON,
            "whoever claims removes what it said"
        );
        assert_eq!(claim(&b, known).await.unwrap(), []);
    }
}

/// As when a connection that is lost delivers it all the same.
pub(crate) async fn a_check_in_that_comes_after_a_newer_one_ends_no_report_of_lag(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known_first = Known {
        epoch,
        ..Known::default()
    };
    let stamp_ms = check_in(&a, known_first).await.unwrap().stamp_ms;
    a.record(&[one(SEED_MINUTE, "x")]).await;
    let known = Known {
        stamp_ms,
        ..known_first
    };
    let lags = a.0.check_in(partition(), &known, true, AT_ONCE.lease);
    let stamp_ms = lags.await.unwrap().stamp_ms;
    // Its answer, that the store lacks nothing, goes nowhere.
    let _ = check_in(&a, known_first).await;
    assert!(b.claim(&AT_ONCE).await.is_empty());
    let mut known = Known { stamp_ms, ..known };
    for _ in 0..2 {
        known.stamp_ms = check_in(&a, known).await.unwrap().stamp_ms;
    }
    assert_eq!(b.claim(&AT_ONCE).await.len(), 1);
}

pub(crate) async fn a_minute_that_is_handed_back_seals_nothing_new(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    a.record(&[one(SEED_MINUTE, "x"), one(SEED_MINUTE, "y")])
        .await;
    let testimony = Testimony {
        closed: [minute(SEED_MINUTE)].into(),
        ..Testimony::default()
    };
    let epoch = attest(&b, &testimony).await.epoch;
    assert_eq!(attest(&b, &testimony).await.epoch, epoch, "again");
    let claim = a.claim_one(&AT_ONCE).await;
    assert_eq!(seal(&a, &claim).await, (0, 2));
    assert_eq!(a.backlog().await, (0, 0, 0));
    let known = Known {
        epoch,
        ..Known::default()
    };
    assert_eq!(
        check_in(&a, known).await.unwrap().closed,
        [minute(SEED_MINUTE)]
    );
}

/// As after `input.max_age` was raised: events are taken again whose minute is forgotten.
pub(crate) async fn what_was_closed_stays_closed_when_its_counts_are_forgotten(ground: &Ground) {
    let node = ground.node("a");
    publish(&node, SEED_MINUTE).await;
    publish(&node, SEED_MINUTE + 10).await;
    tokio::time::sleep(RETENTION).await;
    for number in [SEED_MINUTE, SEED_MINUTE - 1000] {
        node.record(&[one(number, "z")]).await;
        let claim = node.claim_one(&AT_ONCE).await;
        assert_eq!(seal(&node, &claim).await, (0, 1));
    }
    // A minute that was never closed and is not as old is counted.
    publish(&node, SEED_MINUTE + 9).await;
}

pub(crate) async fn an_old_minute_with_events_is_not_passed_by_newer_ones(ground: &Ground) {
    let node = ground.node("a");
    let old = [one(SEED_MINUTE - 100, "x")];
    node.record(&old).await;
    let first = ClaimRequest {
        finished_max: 1,
        ..AT_ONCE
    };
    let held = node.claim_one(&first).await;
    publish(&node, SEED_MINUTE).await;
    assert_eq!(node.finish(&[held]).await, model(&old));
}

pub(crate) async fn a_store_that_lacks_what_a_node_has_seen_grants_nothing(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known {
        epoch,
        ..Known::default()
    };
    let stamp_ms = check_in(&a, known).await.unwrap().now_ms;
    a.record(&[one(SEED_MINUTE, "x")]).await;
    // As if the store were the one of an hour ago, or an empty one.
    let ahead = 3_600_000;
    let went_back = Known {
        stamp_ms: stamp_ms + ahead,
        ..known
    };
    let another = Known {
        epoch: epoch + 1,
        ..known
    };
    for known in [went_back, another] {
        let answers = [
            check_in(&a, known).await.err(),
            claim(&a, known).await.err(),
        ];
        for answer in answers {
            assert!(matches!(answer, Some(StoreError::Forgot)), "{answer:?}");
        }
    }
    let testimony = Testimony {
        epoch,
        stamp_ms: stamp_ms + ahead,
        ..Testimony::default()
    };
    let attested = attest(&a, &testimony).await;
    assert_ne!(attested.epoch, epoch);
    assert!((stamp_ms..stamp_ms + ahead).contains(&attested.forgot_from_ms));
    // Whoever comes later hears of it by the epoch, and from the same instant.
    assert!(matches!(check_in(&b, known).await, Err(StoreError::Forgot)));
    let later = Testimony {
        stamp_ms,
        ..testimony
    };
    assert_eq!(attest(&b, &later).await, attested);
    let known = Known {
        epoch: attested.epoch,
        ..Known::default()
    };
    assert_eq!(claim(&b, known).await.unwrap().len(), 1);
}

pub(crate) async fn a_clock_that_is_not_as_expected_closes_nothing(ground: &Ground) {
    let node = ground.node("a");
    let epoch = attest(&node, &Testimony::default()).await.epoch;
    node.record(&[one(SEED_MINUTE, "x")]).await;
    let known = Known {
        epoch,
        ..Known::default()
    };
    let now_ms = check_in(&node, known).await.unwrap().now_ms;
    for expected_ms in [now_ms - 90_000, now_ms + 90_000] {
        let known = Known {
            expected_ms: Some(expected_ms),
            ..known
        };
        assert_eq!(claim(&node, known).await.unwrap(), []);
    }
    let known = Known {
        expected_ms: Some(now_ms),
        ..known
    };
    assert_eq!(claim(&node, known).await.unwrap().len(), 1);
}
