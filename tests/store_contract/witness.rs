//! Tests how nodes learn of closed minutes, and restore them in a store that has rolled back.

use event_data_service::store::{Attested, News};

use crate::contract::prelude::*;

fn partition() -> Partition {
    partitions().of(&series_of_one_partition(1)[0], Minute::MIN)
}

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

fn event_in(number: i64, user: &str) -> Event {
    event(number, &series_of_one_partition(1)[0], user, 1)
}

async fn publish(node: &Node, number: i64) {
    let events = [event_in(number, "x")];
    node.record(&events).await;
    assert_eq!(node.finish_all().await, model(&events));
}

async fn check_in(node: &Node, known: Known) -> Result<News, StoreError> {
    let lease = AT_ONCE.lease;
    let check_in = CheckIn { known, lags: false, lease, alive: ALIVE };
    node.0.check_in(partition(), &check_in).await
}

async fn claim(node: &Node, known: Known) -> Result<Vec<Claim>, StoreError> {
    let request = ClaimRequest { known, ..AT_ONCE };
    node.0.claim(partition(), &request, &[]).await
}

async fn attest(node: &Node, testimony: &Testimony) -> Attested {
    node.0.attest(partition(), testimony).await.unwrap()
}

/// How long nodes count as alive in most tests.
const ALIVE: Duration = Duration::from_secs(600);

async fn seal(node: &Node, claim: &Claim) -> (u64, u64) {
    let done = node.try_compact(claim, 9).await.unwrap();
    assert_eq!((done.left, done.sending), (0, Vec::new()));
    (done.sealed, done.late)
}

pub(crate) async fn closed_minutes_are_reported_once_in_order_of_closing(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    publish(&a, SEED_MINUTE + 1).await;
    publish(&a, SEED_MINUTE).await;
    let known = Known { epoch, ..Known::default() };
    let answer = check_in(&b, known).await.unwrap();
    assert_eq!(answer.closed, [SEED_MINUTE + 1, SEED_MINUTE].map(minute));
    let known = Known { sequence: answer.sequence, ..known };
    assert_eq!(check_in(&b, known).await.unwrap().closed, []);
    publish(&a, SEED_MINUTE + 2).await;
    let answer = check_in(&b, known).await.unwrap();
    assert_eq!(answer.closed, [minute(SEED_MINUTE + 2)]);
}

pub(crate) async fn check_in_returns_whether_a_claim_may_be_due(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    let is_due = async || check_in(&b, known).await.unwrap().is_due;
    assert!(!is_due().await, "there are no minutes");
    let now = check_in(&b, known).await.unwrap().now_ms;
    a.record(&[event_in(now / 60_000 + 10, "x")]).await;
    assert!(!is_due().await, "the minute has not ended");
    a.record(&[event_in(SEED_MINUTE, "x")]).await;
    assert!(is_due().await, "a minute has ended");
    let claims = claim(&a, known).await.unwrap();
    assert!(is_due().await, "a claim to seal may lapse");
    let sending = a.seal_for(&claims[0], &[only().clone()]).await;
    assert!(is_due().await, "a claim to send may lapse");
    a.finish(&sending).await;
    assert!(!is_due().await, "everything is done");
    a.report_lag(true, Duration::from_millis(100)).await;
    assert!(is_due().await, "a lagging node may die");
    let began = Instant::now();
    while is_due().await {
        assert!(began.elapsed() < SOON, "a claim request removes the report of a dead node");
        assert_eq!(claim(&b, known).await.unwrap(), []);
    }
}

/// A request may arrive late if its connection was lost.
pub(crate) async fn delayed_check_in_does_not_end_a_report_of_lag(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known_first = Known { epoch, ..Known::default() };
    let stamp = check_in(&a, known_first).await.unwrap().stamp;
    a.record(&[event_in(SEED_MINUTE, "x")]).await;
    let known = Known { stamp, ..known_first };
    let lags = CheckIn { known, lags: true, lease: AT_ONCE.lease, alive: ALIVE };
    let stamp = a.0.check_in(partition(), &lags).await.unwrap().stamp;
    // The reply, which says that the store is complete, is lost.
    let _ = check_in(&a, known_first).await;
    assert!(b.claim(&AT_ONCE).await.is_empty());
    let mut known = Known { stamp, ..known };
    for _ in 0..2 {
        known.stamp = check_in(&a, known).await.unwrap().stamp;
    }
    assert_eq!(b.claim(&AT_ONCE).await.len(), 1);
}

pub(crate) async fn attested_minute_seals_nothing_new(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    a.record(&[event_in(SEED_MINUTE, "x"), event_in(SEED_MINUTE, "y")]).await;
    let testimony = Testimony { closed: [minute(SEED_MINUTE)].into(), ..Testimony::default() };
    let epoch = attest(&b, &testimony).await.epoch;
    assert_eq!(attest(&b, &testimony).await.epoch, epoch, "again");
    let claim = a.claim_one(&AT_ONCE).await;
    assert_eq!(seal(&a, &claim).await, (0, 2));
    assert_eq!(a.backlog().await, (0, 0, 0));
    let known = Known { epoch, ..Known::default() };
    assert_eq!(check_in(&a, known).await.unwrap().closed, [minute(SEED_MINUTE)]);
}

/// A node that has attested, but not checked in yet, is not forgotten when the stamps of former nodes are dropped.
pub(crate) async fn any_number_of_nodes_can_start(ground: &Ground) {
    let first = ground.node("first");
    let epoch = attest(&first, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    for number in 0..100 {
        let node = ground.node(&format!("node{number}"));
        attest(&node, &Testimony::default()).await;
        check_in(&node, known).await.unwrap();
    }
    let last = ground.node("last");
    let attested = attest(&last, &Testimony::default()).await;
    for _ in 0..100 {
        check_in(&first, known).await.unwrap();
    }
    check_in(&last, Known { stamp: attested.stamp, ..known }).await.unwrap();
}

/// After `input.max_age` is raised, events are accepted although the counts of their minute have expired.
pub(crate) async fn closed_minute_stays_closed_after_its_counts_expire(ground: &Ground) {
    let node = ground.node("a");
    publish(&node, SEED_MINUTE).await;
    publish(&node, SEED_MINUTE + 10).await;
    tokio::time::sleep(RETENTION).await;
    for (late, number) in [(1, SEED_MINUTE), (2, SEED_MINUTE - 1000)] {
        node.record(&[event_in(number, "z")]).await;
        let claim = node.claim_one(&AT_ONCE).await;
        assert_eq!(seal(&node, &claim).await, (0, late));
    }
    // A minute that was never closed is counted.
    publish(&node, SEED_MINUTE + 9).await;
}

pub(crate) async fn newer_minutes_do_not_close_an_old_minute_with_events(ground: &Ground) {
    let node = ground.node("a");
    let old = [event_in(SEED_MINUTE - 100, "x")];
    node.record(&old).await;
    let first = ClaimRequest { finished_max: 1, ..AT_ONCE };
    let held = node.claim_one(&first).await;
    publish(&node, SEED_MINUTE).await;
    assert_eq!(node.finish(&[held]).await, model(&old));
}

pub(crate) async fn newer_minutes_do_not_close_an_old_unsent_minute(ground: &Ground) {
    let node = ground.node("a");
    node.record(&[event_in(SEED_MINUTE, "x")]).await;
    let newer = node.claim_one(&AT_ONCE).await;
    let waiting = [event_in(SEED_MINUTE - 100, "x")];
    node.record(&waiting).await;
    node.finish(&[newer]).await;
    assert_eq!(node.finish_all().await, model(&waiting));
}

pub(crate) async fn store_that_lost_data_grants_no_claims(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    let News { stamp, now_ms, .. } = check_in(&a, known).await.unwrap();
    a.record(&[event_in(SEED_MINUTE, "x")]).await;
    // The store has rolled back to an earlier state, or has been replaced.
    let went_back = Known { stamp: stamp + 1, ..known };
    let another = Known { epoch: epoch + 1, ..known };
    for known in [went_back, another] {
        let answers = [check_in(&a, known).await.err(), claim(&a, known).await.err()];
        for answer in answers {
            assert!(matches!(answer, Some(StoreError::Forgot)), "{answer:?}");
        }
    }
    let testimony = Testimony { epoch, stamp: stamp + 1, ..Testimony::default() };
    let attested = attest(&a, &testimony).await;
    assert_ne!(attested.epoch, epoch);
    assert_eq!((attested.forgot_from, attested.forgot_from_ms), (stamp, now_ms));
    // A node that checks in later notices the new epoch and learns of the same rollback.
    assert!(matches!(check_in(&b, known).await, Err(StoreError::Forgot)));
    let later = attest(&b, &testimony).await;
    let forgot = |answer: Attested| (answer.epoch, answer.forgot_from, answer.forgot_from_ms);
    assert_eq!(forgot(later), forgot(attested));
    let known = Known { epoch: attested.epoch, ..Known::default() };
    assert_eq!(claim(&b, known).await.unwrap().len(), 1);
}

pub(crate) async fn unexpected_clock_closes_nothing(ground: &Ground) {
    let node = ground.node("a");
    let epoch = attest(&node, &Testimony::default()).await.epoch;
    node.record(&[event_in(SEED_MINUTE, "x")]).await;
    let known = Known { epoch, ..Known::default() };
    let now_ms = check_in(&node, known).await.unwrap().now_ms;
    for expected_ms in [now_ms - 90_000, now_ms + 90_000] {
        let known = Known { expected_ms: Some(expected_ms), ..known };
        assert_eq!(claim(&node, known).await.unwrap(), []);
    }
    let known = Known { expected_ms: Some(now_ms), ..known };
    assert_eq!(claim(&node, known).await.unwrap().len(), 1);
}

pub(crate) async fn stamp_grows_with_every_check_in(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let attested = attest(&a, &Testimony::default()).await;
    let mut known = Known { epoch: attested.epoch, stamp: attested.stamp, ..Known::default() };
    for _ in 0..3 {
        check_in(&b, Known { stamp: 0, ..known }).await.unwrap();
        let stamp = check_in(&a, known).await.unwrap().stamp;
        assert!(stamp > known.stamp, "{stamp} after {}", known.stamp);
        known.stamp = stamp;
    }
}

async fn announce(node: &Node, known: Known, claim: &Claim) -> Announced {
    let states = node.0.announce(&known, &[claim]).await;
    let states = states.unwrap();
    assert_eq!(states.len(), 1);
    states[0]
}

pub(crate) async fn announcement_reaches_every_live_node(ground: &Ground) {
    let [a, b, dead, away] = ["a", "b", "dead", "away"].map(|name| ground.node(name));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    for node in [&a, &b] {
        check_in(node, known).await.unwrap();
    }
    let soon_dead = Duration::from_millis(100);
    let lease = AT_ONCE.lease;
    let last = CheckIn { known, lags: false, lease, alive: soon_dead };
    dead.0.check_in(partition(), &last).await.unwrap();
    attest(&away, &Testimony::default()).await;
    a.record(&[event_in(SEED_MINUTE, "x")]).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let claim = a.seal(&claim).await;
    assert_eq!(announce(&a, known, &claim).await, Announced::Unheard);
    // A new series is late, because the minute has been announced.
    b.record(&[event(SEED_MINUTE, &series_of_one_partition(2)[1], "y", 1)]).await;
    let again = b.claim_one(&AT_ONCE).await;
    assert_eq!(seal(&b, &again).await, (0, 1));
    // The other node learns of the announcement, and confirms it with its next check-in.
    let news = check_in(&b, known).await.unwrap();
    assert_eq!((news.announced, news.closed), (vec![claim.minute], vec![]));
    assert_eq!(announce(&a, known, &claim).await, Announced::Unheard);
    let heard = Known { sequence: news.sequence, ..known };
    assert_eq!(check_in(&b, heard).await.unwrap().announced, []);
    let began = Instant::now();
    while announce(&a, known, &claim).await == Announced::Unheard {
        assert!(began.elapsed() < SOON, "the dead node is still waited for");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let stale = Claim { token: "nobody|1".to_owned(), ..claim.clone() };
    assert_eq!(
        announce(&a, known, &stale).await,
        Announced::Heard,
        "a former holder would write the same counts"
    );
    // Once an output has the minute, nodes learn that it is closed.
    assert_eq!(a.finish(&[claim]).await.len(), 1);
    let news = check_in(&b, heard).await.unwrap();
    assert_eq!(news.closed, [minute(SEED_MINUTE)]);
    let news = check_in(&away, known).await.unwrap();
    assert_eq!((news.announced, news.closed.len()), (vec![], 1));
}

pub(crate) async fn lost_claim_announces_nothing(ground: &Ground) {
    let a = ground.node("a");
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    a.record(&[event_in(SEED_MINUTE, "x")]).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let claim = a.seal(&claim).await;
    let stale = Claim { token: "a|1".to_owned(), ..claim.clone() };
    assert_eq!(announce(&a, known, &stale).await, Announced::ClaimLost);
    let lacks = Known { stamp: 1000, ..known };
    let forgot = a.0.announce(&lacks, &[&claim]).await;
    assert!(matches!(forgot, Err(StoreError::Forgot)), "{forgot:?}");
    assert_eq!(check_in(&a, known).await.unwrap().announced, []);
    assert_eq!(announce(&a, known, &claim).await, Announced::Heard);
}

pub(crate) async fn attested_announcement_is_reported_as_announced(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let testimony = Testimony {
        closed: [minute(SEED_MINUTE)].into(),
        announced: [minute(SEED_MINUTE + 1)].into(),
        empty: [minute(SEED_MINUTE + 2)].into(),
        ..Testimony::default()
    };
    let epoch = attest(&a, &testimony).await.epoch;
    let known = Known { epoch, ..Known::default() };
    let news = check_in(&b, known).await.unwrap();
    assert_eq!(news.closed, [minute(SEED_MINUTE)]);
    assert_eq!(news.announced, [minute(SEED_MINUTE + 1)]);
    assert_eq!(news.empty, [minute(SEED_MINUTE + 2)]);
    for number in [SEED_MINUTE, SEED_MINUTE + 1, SEED_MINUTE + 2] {
        b.record(&[event_in(number, "x")]).await;
    }
    for claim in b.claim(&AT_ONCE).await {
        assert_eq!(b.try_compact(&claim, 9).await.unwrap().sealed, 0);
    }
}

/// The reply to a sealing step is lost, and so is the node's claim.
pub(crate) async fn late_events_are_reported_until_a_reply_arrives(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let epoch = attest(&a, &Testimony::default()).await.epoch;
    let known = Known { epoch, ..Known::default() };
    publish(&a, SEED_MINUTE).await;
    a.record(&[event_in(SEED_MINUTE, "y"), event_in(SEED_MINUTE, "z")]).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let _lost = a.try_compact(&claim, 9).await.unwrap();
    assert_eq!(check_in(&a, known).await.unwrap().late, 2);
    a.record(&[event_in(SEED_MINUTE, "w")]).await;
    let claim = a.claim_one(&AT_ONCE).await;
    assert_eq!(seal(&a, &claim).await, (0, 3));
    assert_eq!(check_in(&a, known).await.unwrap().late, 3);
    assert_eq!(check_in(&b, known).await.unwrap().late, 0, "another's");
}
