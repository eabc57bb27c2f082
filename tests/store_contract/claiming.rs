//! Tests when minutes are claimed, and in which order.

use crate::contract::prelude::*;

/// The error of a difference between two clock readings in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

pub(crate) async fn unfinished_minute_is_not_claimed(ground: &Ground) {
    let node = ground.node("a");
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap();
    // This minute does not end for at least another minute, so not during a slow test.
    let next = Minute::of_nanos(now).epoch_minutes() + 2;
    node.record(&[event(next, "s=1", "x", 0)]).await;
    let request = ClaimRequest { max_hold: Duration::ZERO, ..AT_ONCE };
    for _ in 0..3 {
        assert_eq!(node.claim(&request).await, []);
    }
    assert_eq!(node.backlog().await, (1, 0, 0));
}

pub(crate) async fn partition_has_work_until_every_output_has_its_counts(ground: &Ground) {
    let node = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let outputs = ["one", "two"].map(|name| name.parse::<OutputName>().unwrap());
    let all: Vec<_> = partitions().iter().collect();
    let work = async |outputs: &[OutputName]| node.0.have_work(&all, outputs).await.unwrap();
    assert_eq!(work(&outputs).await, [false; 4]);
    assert!(node.0.have_work(&[], &outputs).await.unwrap().is_empty());
    node.record(&[event(SEED_MINUTE, series, "x", 0)]).await;
    let here = partitions().of(series, Minute::MIN);
    let only_here: Vec<_> = all.iter().map(|partition| *partition == here).collect();
    assert_eq!(work(&outputs).await, only_here, "the minute is waiting");
    let claim = node.claim_one(&AT_ONCE).await;
    assert_eq!(work(&[]).await, only_here, "the minute is claimed for sealing");
    for claim in node.seal_for(&claim, &outputs).await {
        let own = claim.output.clone().unwrap();
        assert_eq!(work(&outputs).await, only_here, "an output lacks the minute");
        assert_eq!(work(std::slice::from_ref(&own)).await, only_here);
        assert!(node.acknowledge(&claim, &[series]).await);
        assert_eq!(work(&[own]).await, [false; 4]);
    }
    assert_eq!(work(&outputs).await, [false; 4]);
}

pub(crate) async fn backlog_reports_the_oldest_unfinished_minute(ground: &Ground) {
    let node = ground.node("a");
    assert_eq!(node.oldest().await, None);
    // The minutes 20161204:999, 20161204:1118 and 20161205:3.
    let minutes = [SEED_MINUTE - 119, SEED_MINUTE, SEED_MINUTE + 325];
    let series = &series_of_one_partition(1)[0];
    for minute in minutes.iter().rev() {
        node.record(&[event(*minute, series, "x", 0)]).await;
        assert_eq!(node.oldest().await, Some(*minute), "the oldest minute is waiting");
    }
    let mut claims = node.claim(&AT_ONCE).await;
    claims.sort_by_key(|claim| claim.minute);
    assert_eq!(node.backlog().await, (0, 3, 0));
    // Extend the claim on the earliest minute, so that it lapses last.
    let first = &claims[0];
    let store = &node.0;
    let extended = store.extend(&[first], 2 * AT_ONCE.lease).await;
    assert_eq!(extended.unwrap(), 1);
    for (claim, minute) in claims.iter().zip(minutes) {
        assert_eq!(node.oldest().await, Some(minute), "the oldest minute is claimed");
        node.finish(std::slice::from_ref(claim)).await;
    }
    assert_eq!(node.oldest().await, None);
}

pub(crate) async fn idle_minute_is_claimed_after_the_grace_period(ground: &Ground) {
    let node = ground.node("a");
    let request = ClaimRequest { grace: Duration::from_millis(300), ..AT_ONCE };
    let events = [event(SEED_MINUTE, "s=1", "x", 1)];
    let mut looked = Instant::now();
    for _ in 0..10 {
        looked = Instant::now();
        // Even a copy shows that the minute may still receive events.
        node.record(&events).await;
        assert_eq!(node.claim(&request).await, [], "events have just arrived");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
    let claim = node.claim_one(&request).await;
    assert!(looked.elapsed() + ROUNDING >= request.grace);
    assert_eq!(claim.minute.epoch_minutes(), SEED_MINUTE);
    assert!(!claim.taken_over);
    assert_eq!(node.finish(&[claim]).await, model(&events));
}

pub(crate) async fn busy_minute_is_claimed_after_max_hold(ground: &Ground) {
    let node = ground.node("a");
    let request = ClaimRequest {
        grace: Duration::from_secs(3600),
        max_hold: Duration::from_millis(400),
        ..AT_ONCE
    };
    let began = Instant::now();
    let mut looks = 0;
    let claims = loop {
        node.record(&[event(SEED_MINUTE, "s=1", "x", looks)]).await;
        looks += 1;
        let claims = node.claim(&request).await;
        if !claims.is_empty() {
            break claims;
        }
        assert!(began.elapsed() < SOON, "never claimed");
    };
    assert!(looks > 1, "max_hold is counted from the first claim request");
    assert!(began.elapsed() + ROUNDING >= request.max_hold);
    assert_eq!(claims.len(), 1);
}

pub(crate) async fn lowest_minute_is_claimed_first(ground: &Ground) {
    let node = ground.node("a");
    // Minutes are claimed in numeric order, 999 before 1000, regardless of the order in which they were recorded.
    let day = SEED_MINUTE - SEED_MINUTE % 1440;
    let minutes = [day + 1000, day + 7, day + 999, day + 1440, day + 1001];
    for minute in minutes {
        node.record(&[event(minute, "s=1", "x", 0)]).await;
    }
    let request = ClaimRequest { finished_max: 2, ..AT_ONCE };
    let mut order = Vec::new();
    for portion in [2, 2, 1] {
        let claims = node.claim(&request).await;
        assert_eq!(claims.len(), portion);
        order.extend(claims.iter().map(|claim| claim.minute.epoch_minutes() - day));
    }
    assert_eq!(order, [7, 999, 1000, 1001, 1440]);
    assert_eq!(node.claim(&request).await, []);
}

pub(crate) async fn recent_minute_is_claimed_before_old_minutes(ground: &Ground) {
    let node = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let now = chrono::Utc::now().timestamp_nanos_opt().unwrap();
    let present = Minute::of_nanos(now).epoch_minutes();
    let [ended, ahead] = [present - 1, present + 2];
    let old = (0..300).map(|minutes| event(SEED_MINUTE + minutes, series, "x", 0));
    // Hosts whose clocks are ahead send events of minutes that have not ended.
    let others = (0..50).map(|minutes| event(ahead + minutes, series, "x", 0));
    node.record(&old.chain(others).collect::<Vec<_>>()).await;
    node.record(&[event(ended, series, "x", 0)]).await;
    let request = ClaimRequest { finished_max: 16, old_max: 3, ..AT_ONCE };
    let minutes = |claims: &[Claim]| -> Vec<i64> {
        let minutes = claims.iter().map(|claim| claim.minute.epoch_minutes());
        minutes.collect()
    };
    let claims = node.claim(&request).await;
    assert_eq!(minutes(&claims)[..3], [ended, SEED_MINUTE, SEED_MINUTE + 1]);
    assert_eq!(claims.len(), 4);
    let none_old = ClaimRequest { old_max: 0, ..request };
    assert_eq!(node.claim(&none_old).await, []);
}

pub(crate) async fn busy_old_minutes_do_not_block_other_minutes(ground: &Ground) {
    let node = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let request = ClaimRequest { grace: Duration::from_millis(500), ..AT_ONCE };
    let last = SEED_MINUTE + 600;
    let filling: Vec<_> =
        (0..300).map(|minutes| event(SEED_MINUTE + minutes, series, "x", 0)).collect();
    node.record(&[event(last, series, "x", 0)]).await;
    let began = Instant::now();
    loop {
        // Even a copy shows that the minute may still receive events.
        node.record(&filling).await;
        let claims = node.claim(&request).await;
        if claims.iter().any(|claim| claim.minute.epoch_minutes() == last) {
            break;
        }
        assert!(began.elapsed() < SOON, "the last minute is not claimed");
    }
}

pub(crate) async fn busy_minute_does_not_block_a_later_minute(ground: &Ground) {
    let node = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let request = ClaimRequest { grace: Duration::from_millis(150), ..AT_ONCE };
    let later = [1, 2].map(|minutes| event(SEED_MINUTE + minutes, series, "x", 0));
    node.record(&later).await;
    let began = Instant::now();
    let mut claimed = Vec::new();
    for at in 0.. {
        node.record(&[event(SEED_MINUTE, series, "x", at)]).await;
        let claims = node.claim(&request).await;
        claimed.extend(claims.iter().map(|c| c.minute.epoch_minutes() - SEED_MINUTE));
        if claimed.len() == 2 {
            break;
        }
        assert!(began.elapsed() < SOON, "only claimed {claimed:?}");
    }
    assert_eq!(claimed, [1, 2]);
    assert_eq!(node.backlog().await, (1, 2, 0));
    assert_eq!(node.claim_one(&request).await.minute.epoch_minutes(), SEED_MINUTE);
}

pub(crate) async fn claimed_minute_is_not_claimed_again(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let mut events = vec![event(SEED_MINUTE, "s=1", "x", 1)];
    a.record(&events).await;
    let claim = a.claim_one(&AT_ONCE).await;
    assert_eq!(b.claim(&AT_ONCE).await, []);

    // A later event adds the minute again, and the holder of the claim counts the event.
    events.push(event(SEED_MINUTE, "s=1", "y", 2));
    b.record(&events).await;
    assert_eq!(b.claim(&AT_ONCE).await, []);
    assert_eq!(b.backlog().await, (0, 1, 0));
    assert_eq!(a.finish(&[claim]).await, model(&events));
    assert_eq!(b.claim(&AT_ONCE).await, []);
}

/// A worker sends this request while it must not close any minute.
pub(crate) async fn finished_max_of_zero_claims_no_finished_minute(ground: &Ground) {
    let node = ground.node("a");
    let lapsing = ClaimRequest { lease: Duration::ZERO, ..AT_ONCE };
    let none_finished = ClaimRequest { finished_max: 0, ..AT_ONCE };
    node.record(&[event(SEED_MINUTE, "s=1", "x", 0)]).await;
    node.claim_one(&lapsing).await;
    node.record(&[event(SEED_MINUTE + 1, "s=1", "x", 0)]).await;
    let claim = node.claim_one(&none_finished).await;
    assert!(claim.taken_over && claim.minute.epoch_minutes() == SEED_MINUTE);
    assert_eq!(node.claim(&none_finished).await, []);
    assert_eq!(node.backlog().await, (1, 1, 0));
}

pub(crate) async fn idle_minutes_stay_open_while_a_node_lags(ground: &Ground) {
    let (lagging, other) = (ground.node("a"), ground.node("b"));
    let events = [event(SEED_MINUTE, "s=1", "x", 1)];
    other.record(&events).await;
    lagging.report_lag(true, AT_ONCE.lease).await;
    for node in [&lagging, &other] {
        assert_eq!(node.claim(&AT_ONCE).await, [], "claimed while a node lags");
    }
    other.report_lag(false, AT_ONCE.lease).await;
    assert_eq!(other.claim(&AT_ONCE).await, [], "one node has ended the lag of another");
    lagging.report_lag(false, AT_ONCE.lease).await;
    assert_eq!(other.claim(&AT_ONCE).await.len(), 1);
}

pub(crate) async fn report_of_lag_expires_with_its_lease(ground: &Ground) {
    let (lagging, other) = (ground.node("a"), ground.node("b"));
    let span = Duration::from_millis(300);
    other.record(&[event(SEED_MINUTE, "s=1", "x", 1)]).await;
    let began = Instant::now();
    lagging.report_lag(true, span).await;
    other.claim_one(&AT_ONCE).await;
    assert!(began.elapsed() + ROUNDING >= span);
}

pub(crate) async fn lagging_node_holds_a_minute_for_at_most_max_hold(ground: &Ground) {
    let node = ground.node("a");
    let request = ClaimRequest { max_hold: Duration::from_millis(300), ..AT_ONCE };
    node.report_lag(true, request.lease).await;
    node.record(&[event(SEED_MINUTE, "s=1", "x", 1)]).await;
    let began = Instant::now();
    assert_eq!(node.claim(&request).await, []);
    node.claim_one(&request).await;
    assert!(began.elapsed() + ROUNDING >= request.max_hold);
}
