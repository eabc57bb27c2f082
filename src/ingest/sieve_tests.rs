//! Tests of the sieve.

use std::num::NonZeroU16;
use std::time::Duration;

use super::*;
use crate::node::{Ledger, Node};
use crate::spool::Keeper;
use crate::telemetry::Metrics;

const NOW: i64 = 1_480_876_710_000_000_000;

fn sieve(events: u64) -> Sieve {
    let settings = SieveSettings {
        rules: LineRules::default(),
        window: Window::new(Duration::from_secs(3600), Duration::from_secs(60)),
        partitions: Partitions::new(NonZeroU16::new(4).unwrap()),
        limits: QueueLimits {
            events,
            bytes: 1 << 20,
        },
    };
    Sieve::new(&settings, Arc::default())
}

fn queued(sieve: &mut Sieve) -> usize {
    let partitions = sieve.partitions.clone();
    partitions
        .iter()
        .map(|partition| sieve.open(partition).events())
        .sum()
}

#[test]
fn one_bad_line_costs_one_line() {
    let mut sieve = sieve(100);
    let text = b"a=1 value=u 1480876707352348928\nbroken\na=1 value=v 1\n# note\na=2 value=w\n";
    sieve.datagram(text, false, NOW);
    let intake = sieve.take_intake();
    assert_eq!(intake.queued, 2);
    assert_eq!(intake.rejected[Rejection::UserMissing.index()], 1);
    assert_eq!(intake.rejected[Rejection::TooOld.index()], 1);
    assert_eq!(queued(&mut sieve), 2);
    let samples = sieve.take_samples();
    let samples: Vec<_> = samples.iter().map(|it| (it.reason, &*it.line)).collect();
    let expected = [
        (Rejection::UserMissing, "broken"),
        (Rejection::TooOld, "a=1 value=v 1"),
    ];
    assert_eq!(samples, expected);
    assert_eq!(sieve.take_samples(), []);
}

#[test]
fn a_stamp_that_would_fit_another_precision_is_told_so() {
    let mut sieve = sieve(100);
    for (number, reason) in [
        ("1480876707", Rejection::TimestampInSeconds),
        ("1480876707352", Rejection::TimestampInMilliseconds),
        ("1480876707352348", Rejection::TimestampInMicroseconds),
        ("1380876707352348928", Rejection::TooOld),
        ("1580876707352348928", Rejection::TooFarAhead),
        ("14808767", Rejection::TooOld),
    ] {
        sieve.datagram(format!("a=1 value=u {number}").as_bytes(), false, NOW);
        assert_eq!(sieve.take_samples()[0].reason, reason, "{number}");
    }
    let words = Rejection::TimestampInMilliseconds.to_string();
    assert!(words.contains("input.timestamp_precision"), "{words}");
}

#[test]
fn lines_beyond_the_rate_of_their_source_are_rejected() {
    let mut sieve = sieve(100);
    let text = b"a=1 value=u\n\nbroken\n# note\na=1 value=v\na=1 value=w";
    let datagram = Received {
        bytes: text,
        truncated: false,
        source: None,
    };
    sieve.datagram_within(2, datagram, NOW);
    let intake = sieve.take_intake();
    assert_eq!(intake.queued, 1);
    assert_eq!(intake.rejected[Rejection::UserMissing.index()], 1);
    assert_eq!(intake.rejected[Rejection::RateLimited.index()], 2);
}

#[test]
fn what_is_beyond_the_queue_is_dropped_and_counted() {
    let mut sieve = sieve(3);
    let ledger = Ledger::default();
    for _ in 0..2 {
        sieve.datagram(b"a=1 value=u\na=1 value=u\n", false, NOW);
    }
    let totals = ledger.take_in(&sieve.take_intake());
    sieve.told(totals);
    sieve.datagram(b"a=1 value=u", false, NOW);
    assert_eq!(sieve.take_intake().dropped, 1);
    assert_eq!(
        (totals.received, totals.queued, queued(&mut sieve)),
        (4, 3, 3)
    );
}

#[test]
fn what_the_disk_does_not_take_goes_to_memory_when_that_has_room_again() {
    let home = tempfile::TempDir::new().unwrap();
    let node = Arc::new(Node::default());
    let metrics = Arc::new(Metrics::new(Arc::clone(&node)));
    // A keeper that never gets to its orders.
    let (_keeper, spool) = Keeper::of_a_mib(home.path(), &node, &metrics);
    let mut sieve = sieve(1).with_spool(Some(spool));
    let line = format!("a=1 value={}", "u".repeat(200));
    while sieve.intake.dropped == 0 {
        sieve.datagram(line.as_bytes(), false, NOW);
    }
    assert!(sieve.intake.spooled > 10_000);
    // The recorders have made room.
    sieve.take_intake();
    sieve.told(LedgerTotals::default());
    sieve.datagram(line.as_bytes(), false, NOW);
    let intake = sieve.take_intake();
    assert_eq!((intake.queued, intake.spooled, intake.dropped), (1, 0, 0));
}
