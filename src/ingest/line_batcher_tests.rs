//! Tests how lines become events in batches, and which lines are rejected.

use std::cell::Cell;
use std::num::NonZeroU16;
use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::diagnosis::{ByCause, LossCause};
use crate::node::Node;
use crate::spool::Keeper;
use crate::telemetry::Metrics;

const NOW: i64 = 1_480_876_710_000_000_000;

/// Creates a batcher with room for this many events in memory. Its recorders have already exited.
fn batcher(events: u64) -> LineBatcher {
    let settings = BatcherSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::from_secs(3600), Duration::from_secs(60)),
        partitions: Partitions::new(NonZeroU16::new(4).unwrap()),
        limits: QueueLimits { events, bytes: 1 << 20 },
    };
    let recorders = (0..4).map(|_| mpsc::channel(1).0).collect();
    LineBatcher::new(&settings, Arc::default(), Arc::default(), recorders)
}

/// Returns the index of the partition of a series.
fn index(batcher: &LineBatcher, series: &str) -> u32 {
    let partition = batcher.settings.partitions.of(series, Minute::of_nanos(NOW)).index();
    u32::try_from(partition).unwrap()
}

/// Returns when it is the turn of a series' partition.
fn turn(batcher: &LineBatcher, series: &str, most: Duration) -> Instant {
    batcher.began + most - most / TURNS * (index(batcher, series) % TURNS)
}

/// Adds a datagram, and returns the ledger's totals afterwards.
fn add(batcher: &mut LineBatcher, text: &str) -> LedgerTotals {
    batcher.add(text.into(), usize::MAX, NOW);
    batcher.commit();
    batcher.node.ledger.totals()
}

#[test]
fn bad_line_loses_only_itself() {
    let mut batcher = batcher(100);
    let text = "a=1 value=u 1480876707352348928\nbroken\na=1 value=v 1\n# note\na=2 value=w\n";
    let totals = add(&mut batcher, text);
    assert_eq!((totals.received, totals.queued), (4, 2));
    assert_eq!(totals.rejected[Rejection::UserMissing.index()], 1);
    assert_eq!(totals.rejected[Rejection::TooOld.index()], 1);
    assert_eq!(batcher.open_events(), (2, 0));
    let samples = batcher.take_samples();
    let samples: Vec<_> = samples.iter().map(|(reason, sample)| (*reason, &*sample.line)).collect();
    let expected = [(Rejection::UserMissing, "broken"), (Rejection::TooOld, "a=1 value=v 1")];
    assert_eq!(samples, expected);
    assert!(batcher.take_samples().is_empty());
}

#[test]
fn timestamp_of_another_precision_is_rejected_with_a_hint() {
    let mut batcher = batcher(100);
    for (number, reason) in [
        ("1480876707", Rejection::TimestampInSeconds),
        ("1480876707352", Rejection::TimestampInMilliseconds),
        ("1480876707352348", Rejection::TimestampInMicroseconds),
        ("1380876707352348928", Rejection::TooOld),
        ("1580876707352348928", Rejection::TooFarAhead),
        ("14808767", Rejection::TooOld),
    ] {
        add(&mut batcher, &format!("a=1 value=u {number}"));
        assert_eq!(batcher.take_samples().into_keys().next(), Some(reason), "{number}");
    }
    let message = Rejection::TimestampInMilliseconds.to_string();
    assert!(message.contains("input.timestamp_precision"), "{message}");
}

#[test]
fn lines_beyond_the_rate_of_their_source_are_rejected() {
    let mut batcher = batcher(100);
    let text = "a=1 value=u\n\nbroken\n# note\na=1 value=v\na=1 value=w";
    batcher.add(text.into(), 2, NOW);
    batcher.commit();
    let totals = batcher.node.ledger.totals();
    assert_eq!(totals.queued, 1);
    assert_eq!(totals.rejected[Rejection::UserMissing.index()], 1);
    assert_eq!(totals.rejected[Rejection::RateLimited.index()], 2);
}

#[test]
fn events_beyond_the_queue_are_dropped_and_counted() {
    let mut batcher = batcher(3);
    for _ in 0..2 {
        batcher.add("a=1 value=u\na=1 value=u\n".into(), usize::MAX, NOW);
    }
    let totals = add(&mut batcher, "a=1 value=u");
    assert_eq!((totals.received, totals.queued), (5, 3));
    assert_eq!(totals.dropped[LossCause::QueueFull as usize], 2);
    assert_eq!(batcher.open_events(), (3, 0));
}

#[test]
fn events_go_to_memory_when_the_disk_fails_and_memory_has_room() {
    let home = tempfile::TempDir::new().unwrap();
    let node = Arc::new(Node::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
    // The keeper is not running, so it never executes its orders.
    let (_keeper, spool) = Keeper::of_a_mib(home.path(), &node, &metrics);
    let mut batcher = batcher(1).with_spool(Some(spool));
    let line = format!("a=1 value={}", "u".repeat(200));
    let mut totals = LedgerTotals::default();
    while totals.dropped == ByCause::default() {
        totals = add(&mut batcher, &line);
    }
    assert!(totals.spooled > 10_000);
    // Does what a recorder does to the ledger after it has recorded an event.
    let room = batcher.node.ledger.totals();
    batcher.node.ledger.recorded(1, 0);
    batcher.node.ledger.released(usize::try_from(room.queued_bytes).unwrap());
    batcher.commit();
    let after = add(&mut batcher, &line);
    let added = (after.queued - (totals.queued - 1), after.spooled - totals.spooled);
    assert_eq!((added, after.dropped), ((1, 0), totals.dropped));
}

/// A batch grows until its recorder accepts it, and is never sent before its events are in the ledger.
#[test]
fn batch_is_handed_over_when_old_or_large() {
    let mut batcher = batcher(1_000_000);
    let (recorder, mut deliveries) = mpsc::channel(1);
    batcher.recorders.fill(recorder);
    let age = Duration::from_millis(50);
    let began = turn(&batcher, "a=1", age);
    let mut taken = || deliveries.try_recv().map_or(0, |delivery| delivery.batch.events());
    batcher.add("a=1 value=u".into(), usize::MAX, NOW);
    batcher.hand_over(age, began);
    assert_eq!((taken(), batcher.node.ledger.totals().queued), (0, 1), "young");
    batcher.hand_over(age, began + age);
    add(&mut batcher, "a=1 value=v");
    batcher.hand_over(age, began + age);
    batcher.hand_over(age, began + 2 * age);
    assert_eq!(batcher.open_events(), (1, 0), "busy");
    assert_eq!(taken(), 1);
    add(&mut batcher, &"a=1 value=w\n".repeat(20_000));
    batcher.hand_over(age, began + 2 * age);
    assert_eq!(taken(), 20_001);
    add(&mut batcher, &"a=1 value=x\n".repeat(20_000));
    batcher.hand_over(age, began + 2 * age);
    assert_eq!(taken(), 20_000, "large");
}

/// Batches linger because a command costs the store more than an event. Events of a minute that has ended must not linger
/// for long, because they could be recorded after the minute has been closed.
#[test]
fn a_batch_with_few_events_a_series_of_an_open_minute_lingers_longer() {
    const SECOND: i64 = 1_000_000_000;
    let linger = Linger { least: Duration::from_millis(50), most: Duration::from_secs(1) };
    let minute_end = Minute::of_nanos(NOW).end_millis() * 1_000_000;
    let many = "a=1 value=u\n".repeat(5000);
    let ahead_ms = Cell::new(0);
    let check = |lines: &str, events: u64, left: i64, expected: Duration| {
        let mut batcher = batcher(events);
        batcher.node.clock.set_store_ahead_ms(ahead_ms.get());
        let (recorder, mut deliveries) = mpsc::channel(1);
        batcher.recorders.fill(recorder);
        let began = turn(&batcher, "a=1", linger.most);
        let now = minute_end - left;
        batcher.add(lines.into(), usize::MAX, now);
        let mut age = Duration::ZERO;
        while age <= expected {
            assert!(deliveries.try_recv().is_err(), "{age:?}");
            batcher.hand_over_due(linger, began + age, now);
            age += linger.least;
        }
        assert!(deliveries.try_recv().is_ok(), "{expected:?}");
    };
    check("a=1 value=u", 1_000_000, 2 * SECOND, linger.most);
    check("a=1 value=u", 1_000_000, 1, linger.most);
    check(&many, 1_000_000, 2 * SECOND, linger.least);
    let index = |series: &str| index(&batcher(1), series);
    let mut names = (2..).map(|number| format!("a={number}"));
    let second = names.find(|name| index(name) == index("a=1")).unwrap();
    check(&format!("{many}{second} value=u"), 1_000_000, 2 * SECOND, linger.most);
    check(&many[..804], 200, 2 * SECOND, linger.least);
    let over = minute_end - 60 * SECOND - 1;
    check(&format!("a=1 value=u\na=1 value=u {over}"), 1_000_000, 2 * SECOND, linger.least);
    ahead_ms.set(2000);
    check("a=1 value=u", 1_000_000, 2 * SECOND, linger.least);
    check("a=1 value=u", 1_000_000, 2 * SECOND + 1_000_000, linger.most);
    ahead_ms.set(-2000);
    check(&format!("a=1 value=u {NOW}"), 1_000_000, -SECOND, linger.most);
}

/// If all partitions were sent at the same time, the store would get the events of the whole wait at once, answer late, and the
/// node would count as lagging.
#[test]
fn partitions_take_turns_and_no_event_waits_longer() {
    let most = Duration::from_secs(2);
    let linger = Linger { least: most / 40, most };
    let mut batcher = batcher(1_000_000);
    let names: Vec<_> = (0..4)
        .map(|place| {
            let mut names = (1..).map(|number| format!("a={number}"));
            names.find(|name| index(&batcher, name) == place).unwrap()
        })
        .collect();
    let (senders, mut deliveries): (Vec<_>, Vec<_>) = (0..4).map(|_| mpsc::channel(1)).unzip();
    batcher.recorders = senders;
    let began = batcher.began + linger.least / 2;
    let mut sent = vec![Vec::new(); 4];
    for sweep in 0..130 {
        for name in &names {
            batcher.add(format!("{name} value=u").as_str().into(), usize::MAX, NOW);
        }
        batcher.hand_over_due(linger, began + linger.least * sweep, NOW);
        for (sent, deliveries) in sent.iter_mut().zip(&mut deliveries) {
            sent.extend(deliveries.try_recv().map(|_| sweep));
        }
    }
    assert_eq!(sent, [[40, 80, 120], [20, 60, 100], [40, 80, 120], [20, 60, 100]].map(Vec::from));
}
