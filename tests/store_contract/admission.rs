//! Tests that the admission of a series is decided once for all nodes.

use event_data_service::event::Batch;
use event_data_service::store::{Admission, SeriesUsers};
use rand::seq::SliceRandom;

use super::done::assert_only_counts;
use crate::contract::prelude::*;

const OVERFLOW: &str = "overflow=1";

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

/// Returns the partition of [`series_of_one_partition`].
fn partition() -> Partition {
    partitions().of(&series_of_one_partition(1)[0], Minute::MIN)
}

async fn ask(node: &Node, at: i64, series: &[&String], series_max: u64) -> Admitted {
    let series: Vec<&str> = series.iter().map(|series| series.as_str()).collect();
    let request =
        AdmitRequest { minute: minute(at), series: &series, series_max, overflow: OVERFLOW };
    node.0.admit(partition(), &request).await.unwrap()
}

async fn admit(node: &Node, series: &[&String], series_max: u64) -> Vec<bool> {
    let answer = ask(node, SEED_MINUTE, series, series_max).await;
    let admitted = |admission: &Admission| *admission != Admission::Refused;
    answer.series.iter().map(admitted).collect()
}

async fn gather(node: &Node, events: &[Event]) {
    let mut batch = Batch::default();
    for event in events {
        let minute = Minute::of_nanos(event.timestamp);
        assert!(batch.push(minute, &event.series, &event.user, event.timestamp));
    }
    let groups = batch.groups().iter().map(|group| {
        let users: BTreeSet<&str> = group.occurrences.iter().map(|o| batch.user(o)).collect();
        RecordRequest {
            minute: group.minute,
            series: OVERFLOW,
            overflowed_from: Some(&group.series),
            new_users: Some(users.into_iter().collect()),
            occurrences: &group.occurrences,
            batch: &batch,
        }
    });
    let recordings: Vec<_> = groups.collect();
    node.0.record(partition(), &records(&recordings)).await.unwrap();
}

pub(crate) async fn series_beyond_the_cap_are_rejected_for_good(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(5);
    let [s0, s1, s2, s3, s4] = [0, 1, 2, 3, 4].map(|at| &series[at]);
    assert_eq!(admit(&a, &[s0], 2).await, [true]);
    assert_eq!(admit(&b, &[s1, s2, s0], 2).await, [true, false, true]);
    assert_eq!(admit(&a, &[s2, s1, s3], 2).await, [false, true, false]);
    // A node with a higher cap does not change the decision.
    assert_eq!(admit(&b, &[s3, s4, s1, s2], 9).await, [false, false, true, false]);
}

/// Whatever the order of the requests, all nodes get the same answer, and exactly as many series as the cap are admitted.
pub(crate) async fn nodes_that_ask_at_the_same_time_agree(ground: &Ground) {
    const SERIES_MAX: usize = 25;
    let series = series_of_one_partition(60);
    let asking = ["a", "b", "c", "d"].map(|name| {
        let (node, mut series) = (ground.node(name), series.clone());
        tokio::spawn(async move {
            series.shuffle(&mut rand::rng());
            let mut admitted = BTreeMap::new();
            for chunk in series.chunks(7) {
                let chunk: Vec<&String> = chunk.iter().collect();
                let answers = admit(&node, &chunk, SERIES_MAX as u64).await;
                admitted.extend(chunk.into_iter().cloned().zip(answers));
            }
            admitted
        })
    });
    let mut all = Vec::new();
    for node in asking {
        all.push(node.await.unwrap());
    }
    assert!(all.iter().all(|admitted| *admitted == all[0]), "{all:?}");
    assert_eq!(all[0].values().filter(|admitted| **admitted).count(), SERIES_MAX);
}

/// Sealing does not change which series are admitted. An admitted series without events is not sealed with the others.
pub(crate) async fn admission_outlives_sealing(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(4);
    let [s0, s1, s2, s3] = [0, 1, 2, 3].map(|at| &series[at]);
    assert_eq!(admit(&a, &[s0, s1, s2], 3).await, [true; 3]);
    let first = [event(SEED_MINUTE, s0, "x", 1)];
    a.record(&first).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let sending = a.seal(&claim).await;

    assert_eq!(admit(&b, &[s3, s1], 3).await, [false, true]);
    let second = [event(SEED_MINUTE, s1, "x", 1), event(SEED_MINUTE, s1, "y", 1)];
    b.record(&second).await;
    // A series without events has no counts, neither in an open minute nor after sealing.
    let reading = ground.reading();
    let names = [s0.as_str(), s1, s2];
    let open = reading.open_counts(bucket(partition(), SEED_MINUTE), &names).await;
    assert_eq!(open.unwrap().len(), 1);
    let claim = a.claim_one(&AT_ONCE).await;
    let done = a.try_compact(&claim, 9).await.unwrap();
    assert_eq!((done.sealed, done.late, done.left), (1, 0, 0));
    let sealed = reading.sealed_page(bucket(partition(), SEED_MINUTE), 0).await;
    assert_eq!(sealed.unwrap().items.len(), 2);
    let all: Vec<_> = first.iter().chain(&second).cloned().collect();
    assert_eq!(a.finish(&[sending]).await, model(&all));
    assert_eq!(a.finish_all().await, BTreeMap::new());
    assert_only_counts(ground, &[SEED_MINUTE]);
    // This series has been sealed, so this event is late.
    a.record(&[event(SEED_MINUTE, s1, "z", 1)]).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let done = a.try_compact(&claim, 9).await.unwrap();
    assert_eq!((done.sealed, done.late), (0, 1));
}

pub(crate) async fn rejection_outlives_the_minute(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(2);
    let [s0, s1] = [0, 1].map(|at| &series[at]);
    // The node dies before it records the event of the refused series under the overflow series.
    assert_eq!(admit(&a, &[s0, s1], 1).await, [true, false]);
    let first = [event(SEED_MINUTE, s0, "x", 1)];
    a.record(&first).await;
    let claim = a.claim_one(&AT_ONCE).await;
    let claim = a.seal(&claim).await;
    let unsent = a.unsent(&claim).await;
    let of_s0 = BTreeMap::from([(s0.clone(), (1, 1))]);
    assert_eq!(unsent, of_s0, "the overflow series must not have counts");
    assert_eq!(admit(&b, &[s1, s0], 9).await, [false, true]);
    gather(&b, &[event(SEED_MINUTE, s1, "x", 1)]).await;
    let counted = [(s0.clone(), (1, 1)), (OVERFLOW.to_owned(), (1, 1))];
    let counted = counted.map(|(series, counts)| ((SEED_MINUTE, series), counts));
    let again = a.claim_one(&AT_ONCE).await;
    assert_eq!(a.try_compact(&again, 9).await.unwrap().sealed, 1);
    assert_eq!(a.finish(&[claim]).await, BTreeMap::from(counted));
    assert_eq!(a.finish_all().await, BTreeMap::new());
    assert_only_counts(ground, &[SEED_MINUTE]);
}

pub(crate) async fn unused_admission_expires(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    assert_eq!(admit(&node, &[&series[0], &series[1]], 1).await, [true, false]);
    assert_eq!(node.claim(&AT_ONCE).await, []);
    assert_eq!(node.backlog().await, (0, 0, 0));
    assert_only_counts(ground, &[SEED_MINUTE]);
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    node.report_lag(false, Duration::from_secs(1)).await;
    assert_eq!(admit(&node, &[&series[1]], 1).await, [true]);
}

pub(crate) async fn each_minute_has_its_own_cap(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    for at in [SEED_MINUTE, SEED_MINUTE + 1, SEED_MINUTE + 1440] {
        for (series, expected) in series.iter().zip([true, false]) {
            let answer = ask(&node, at, &[series], 1).await;
            assert_eq!(answer.series != [Admission::Refused], expected);
        }
    }
}

/// The same user and timestamp in two series are two events. Copies from a different node do not add events.
pub(crate) async fn gathered_events_of_different_series_stay_apart(ground: &Ground) {
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(3);
    let mut events = Vec::new();
    for series in &series {
        for (user, nanos) in [("x", 1), ("x", 2), ("y", 1), ("x_1", 1)] {
            events.push(event(SEED_MINUTE, series, user, nanos));
        }
    }
    gather(&a, &events).await;
    events.shuffle(&mut rand::rng());
    for chunk in events.chunks(5) {
        gather(&b, chunk).await;
    }
    let counted = BTreeMap::from([((SEED_MINUTE, OVERFLOW.to_owned()), (3, 12))]);
    assert_eq!(a.finish_all().await, counted);
    assert_only_counts(ground, &[SEED_MINUTE]);
}

pub(crate) async fn lost_counts_are_resent_after_readmission_of_their_series(ground: &Ground) {
    let node = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let events = [event(SEED_MINUTE, series, "x", 1)];
    assert_eq!(admit(&node, &[series], 1).await, [true]);
    node.record(&events).await;
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    node.quarantine(&claim, &[(series, "message")], true).await;
    assert!(node.acknowledge(&claim, &[]).await);
    tokio::time::sleep(RETENTION + Duration::from_secs(1)).await;
    assert_eq!(node.claim(&AT_ONCE).await, []);

    assert_eq!(admit(&node, &[series], 1).await, [true]);
    let again = ground.quarantine();
    let wanted = [series.as_str()];
    let again = again.requeue(bucket(partition(), SEED_MINUTE), only(), &wanted);
    assert_eq!(again.await.unwrap(), 1);
    let claim = node.claim_one(&AT_ONCE).await;
    assert_eq!(node.finish(&[claim]).await, model(&events));
}

pub(crate) async fn admission_returns_the_users_of_a_series(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    let [s0, s1] = [0, 1].map(|at| &series[at]);
    let users = async |series: &str, users: &[&str]| {
        let found = node.0.users(bucket(partition(), SEED_MINUTE), series, users);
        found.await.unwrap()
    };
    let nobody = SeriesUsers { count: 0, there: vec![false] };
    assert_eq!(users(s0, &["x"]).await, nobody);
    node.record(&[event(SEED_MINUTE, s0, "x", 1), event(SEED_MINUTE, s0, "y", 1)]).await;
    let two = SeriesUsers { count: 2, there: vec![true, false, true] };
    assert_eq!(users(s0, &["x", "z", "y"]).await, two);
    assert_eq!(users(s1, &["x"]).await, nobody);
    // The users of all nodes are included, even if nodes ask repeatedly.
    ground
        .node("b")
        .record(&[event(SEED_MINUTE, s0, "z", 1), event(SEED_MINUTE, s1, "x", 1)])
        .await;
    let three = SeriesUsers { count: 3, there: vec![true, true, true] };
    assert_eq!(users(s0, &["x", "z", "y"]).await, three);
    assert_eq!(users(s1, &["y"]).await.count, 1);
    // An admission returns the number of users, which the log layout does not know for a new series.
    let answer = ask(&node, SEED_MINUTE, &[s1, s0], 9).await;
    let known = |users| if ground.counts_at_once() { users } else { 0 };
    let series = [known(1), known(3)].map(|users| Admission::Admitted { users: Some(users) });
    assert_eq!((answer.overflow_users, &answer.series[..]), (Some(0), &series[..]));
    assert_eq!(answer.arrivals, 4);
}

pub(crate) async fn users_unknown_at_admission_can_be_counted(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(3);
    let [s0, s1, s2] = [0, 1, 2].map(|at| &series[at]);
    let answer = ask(&node, SEED_MINUTE, &[s0], 9).await;
    let nobody = Admission::Admitted { users: Some(0) };
    assert_eq!((answer.arrivals, answer.series), (0, vec![nobody]));
    let events = ["x", "y"].map(|user| event(SEED_MINUTE, s0, user, 1));
    node.record(&events).await;
    gather(&node, &[event(SEED_MINUTE, s2, "x", 1)]).await;
    // A node with a new connection gets the same answers.
    let again = ground.node("a");
    let answer = ask(&again, SEED_MINUTE, &[s0, s1, s2], 2).await;
    let users = if ground.counts_at_once() { Some(2) } else { None };
    let of_s0 = Admission::Admitted { users };
    assert_eq!(answer.series, [of_s0, nobody, Admission::Refused]);
    assert_eq!(answer.arrivals, 3);
    if !ground.counts_at_once() {
        let counts = again.0.counts(bucket(partition(), SEED_MINUTE)).await;
        let counts = counts.unwrap().into_iter().map(|item| (item.series, item.unique));
        let expected = [(OVERFLOW.to_owned(), 1), (s0.clone(), 2)];
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }
}

/// One node has a higher cap, for example while the cap is being raised.
pub(crate) async fn raising_the_cap_does_not_reopen_a_full_minute(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    let all: Vec<_> = series.iter().collect();
    assert_eq!(admit(&node, &all, 1).await, [true, false]);
    assert_eq!(admit(&node, &all, 9).await, [true, false]);
}

/// An admission sets the time to live of a minute. Counts that have not been sent must not expire.
pub(crate) async fn counts_of_a_late_series_wait_for_their_output(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(1);
    node.record(&[event(SEED_MINUTE, &series[0], "x", 1)]).await;
    assert_eq!(admit(&node, &[&series[0]], 9).await, [true]);
    let claim = node.claim_one(&AT_ONCE).await;
    let claim = node.seal(&claim).await;
    tokio::time::sleep(RETENTION + RETENTION / 8).await;
    let counts = BTreeMap::from([(series[0].clone(), (1, 1))]);
    assert_eq!(node.unsent(&claim).await, counts);
}

pub(crate) async fn used_admission_lasts_as_long_as_its_minute(ground: &Ground) {
    let node = ground.node("a");
    let series = series_of_one_partition(2);
    assert_eq!(admit(&node, &[&series[0]], 1).await, [true]);
    node.record(&[event(SEED_MINUTE, &series[0], "x", 1)]).await;
    tokio::time::sleep(RETENTION + RETENTION / 8).await;
    assert_eq!(admit(&node, &[&series[1]], 1).await, [false]);
}
