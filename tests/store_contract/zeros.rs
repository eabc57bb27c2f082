//! Zeros: a series that has fallen silent gets counts of zero for a while, one value per minute.

use event_data_service::event::{Batch, overflow_series};
use event_data_service::store::Compaction;

use super::compacting::lapse;
use crate::contract::prelude::*;

/// For how many minutes a silent series gets zeros.
const ZEROS: u32 = 2;

async fn step(node: &Node, claim: &Claim) -> Compaction {
    let outputs = std::slice::from_ref(only());
    let request = SealRequest {
        series_max: 1000,
        lease: AT_ONCE.lease,
        outputs,
        zeros: ZEROS,
        ..SealRequest::default()
    };
    node.0.compact(claim, &request).await.unwrap()
}

/// Seals the only minute that can be claimed, and sends its counts. Returns the minute and the number of events by series.
async fn publish(node: &Node) -> (i64, BTreeMap<String, u64>) {
    let claim = node.claim_one(&AT_ONCE).await;
    let mut done = step(node, &claim).await;
    while done.left > 0 {
        done = step(node, &claim).await;
    }
    let counts = node.finish(&done.sending).await.into_iter();
    let counts = counts.map(|((_, series), (users, events))| {
        assert!(users == events, "each event of these tests has its own user");
        (series, events)
    });
    (claim.minute.epoch_minutes(), counts.collect())
}

fn counts<const N: usize>(counts: [(&String, u64); N]) -> BTreeMap<String, u64> {
    counts.map(|(series, events)| (series.clone(), events)).into()
}

pub(crate) async fn silent_series_gets_zeros_until_it_has_events_again(ground: &Ground) {
    let nodes = ["a", "b"].map(|name| ground.node(name));
    let [once, twice] = &series_of_one_partition(2)[..] else { panic!() };
    nodes[0].record(&[event(SEED_MINUTE, once, "x", 1), event(SEED_MINUTE, once, "y", 1)]).await;
    nodes[0].record(&[event(SEED_MINUTE, twice, "x", 1)]).await;
    for (turn, expected) in [
        counts([(once, 2), (twice, 1)]),
        counts([(once, 0), (twice, 0)]),
        counts([(once, 0), (twice, 1)]),
        counts([(twice, 0)]),
        counts([(twice, 0)]),
    ]
    .into_iter()
    .enumerate()
    {
        if turn == 2 {
            nodes[0].record(&[event(SEED_MINUTE + 2, twice, "x", 1)]).await;
        }
        let minute = SEED_MINUTE + i64::try_from(turn).unwrap();
        assert_eq!(publish(&nodes[turn % 2]).await, (minute, expected));
    }
    assert_eq!(nodes[0].claim(&AT_ONCE).await, []);
    assert_eq!(nodes[0].backlog().await, (0, 0, 0));
    // An event for one of these minutes is late, and does not change its zero.
    nodes[0].record(&[event(SEED_MINUTE + 1, once, "x", 1)]).await;
    let late = nodes[0].claim_one(&AT_ONCE).await;
    let done = step(&nodes[0], &late).await;
    assert_eq!((done.sealed, done.late, done.sending), (0, 1, Vec::new()));
    assert_eq!(nodes[0].claim(&AT_ONCE).await, []);
}

/// A node seals some of the zeros of a minute, and another node those that are left.
pub(crate) async fn takeover_halfway_seals_each_zero_once(ground: &Ground) {
    const SERIES: usize = 1200;
    let (a, b) = (ground.node("a"), ground.node("b"));
    let series = series_of_one_partition(SERIES);
    let events: Vec<_> = series.iter().map(|series| event(SEED_MINUTE, series, "x", 1)).collect();
    a.record(&events).await;
    assert_eq!(publish(&a).await.1.len(), SERIES);
    let mut claim = a.claim_one(&AT_ONCE).await;
    let mut done = step(&a, &claim).await;
    let mut sealed = done.sealed;
    if done.left > 0 {
        assert!((1..SERIES as u64).contains(&sealed), "{sealed}");
        // An event of a series that is silent so far, which either comes before its zero or is late.
        a.record(&[event(SEED_MINUTE + 1, &series[0], "x", 1)]).await;
        lapse(&a, &claim).await;
        claim = b.claim_one(&AT_ONCE).await;
    }
    while done.left > 0 {
        done = step(&b, &claim).await;
        sealed += done.sealed;
    }
    assert_eq!(sealed, SERIES as u64);
    let found = b.finish(&done.sending).await;
    assert_eq!(found.len(), SERIES);
    let events: u64 = found.values().map(|(_, events)| events).sum();
    assert!(events + done.late <= 1, "{events} {}", done.late);
}

/// The events of a series that looks silent may have been counted in the overflow series.
pub(crate) async fn overflow_series_gets_no_zeros_and_prevents_them(ground: &Ground) {
    let a = ground.node("a");
    let series = &series_of_one_partition(1)[0];
    let partition = partitions().of(series, Minute::MIN);
    let overflow = overflow_series(partition);
    a.record(&[event(SEED_MINUTE, series, "x", 1)]).await;
    assert_eq!(publish(&a).await, (SEED_MINUTE, counts([(series, 1)])));
    let minute = Minute::from_epoch_minutes(SEED_MINUTE + 1).unwrap();
    let full = AdmitRequest { minute, series: &["other"], series_max: 0, overflow: &overflow };
    a.0.admit(partition, &full).await.unwrap();
    let mut batch = Batch::default();
    assert!(batch.push(minute, &overflow, "x", minute.start_nanos()));
    let request = RecordRequest::new(&batch, &batch.groups()[0]);
    let request = RecordRequest { new_users: Some(vec!["x"]), ..request };
    a.0.record(partition, &records(&[request])).await.unwrap();
    assert_eq!(publish(&a).await, (SEED_MINUTE + 1, counts([(&overflow, 1)])));
    assert_eq!(publish(&a).await, (SEED_MINUTE + 2, counts([(series, 0)])));
    assert_eq!(a.claim(&AT_ONCE).await, []);
}

/// A minute that is sealed after the next one, as after an outage, does not change what has been published.
pub(crate) async fn closed_minute_gets_no_zeros(ground: &Ground) {
    let a = ground.node("a");
    let [one, two] = &series_of_one_partition(2)[..] else { panic!() };
    a.record(&[event(SEED_MINUTE, one, "x", 1), event(SEED_MINUTE, two, "x", 1)]).await;
    a.record(&[event(SEED_MINUTE + 1, two, "x", 1)]).await;
    let mut claims = a.claim(&AT_ONCE).await;
    claims.sort_by_key(|claim| claim.minute);
    for (claim, expected) in claims.iter().rev().zip([1, 2]) {
        let done = step(&a, claim).await;
        let counts = a.finish(&done.sending).await;
        assert_eq!(counts.len(), expected, "{counts:?}");
    }
    assert_eq!(publish(&a).await, (SEED_MINUTE + 2, counts([(one, 0), (two, 0)])));
    assert_eq!(publish(&a).await, (SEED_MINUTE + 3, counts([(two, 0)])));
    assert_eq!(a.claim(&AT_ONCE).await, []);
}
