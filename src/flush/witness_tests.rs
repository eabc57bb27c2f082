//! What a witness hands back, and what it reports of a store that went back.

use std::time::Duration;

use super::*;

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

fn news(now_ms: i64, closed: &[i64], since: Option<i64>) -> News {
    News {
        stamp_ms: now_ms,
        now_ms,
        closed: closed.iter().copied().map(minute).collect(),
        since: since.map(minute),
        ..News::default()
    }
}

fn attested(epoch: u64, forgot_from_ms: i64) -> Attested {
    Attested {
        epoch,
        forgot_from_ms,
    }
}

#[test]
fn what_is_heard_and_what_is_written_is_handed_back_once_for_each_generation() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.testimony(1), Some(Testimony::default()));
    assert_eq!(witness.attested(1, attested(7, 0), 0), None);
    assert_eq!(witness.testimony(1), None);
    witness.heard(&news(60_000, &[3, 4], Some(4)), 0, now);
    assert!(witness.publishes(minute(5)));
    assert!(!witness.publishes(minute(5)));
    assert!(!witness.publishes(minute(3)), "it is before the first");
    let testimony = witness.testimony(2).unwrap();
    assert_eq!((testimony.epoch, testimony.stamp_ms), (7, 60_000));
    assert_eq!(testimony.since, Some(minute(4)));
    assert_eq!(testimony.closed, [4, 5].map(minute).into());
}

#[test]
fn a_store_that_went_back_is_told_with_the_events_that_it_lost() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for (second, recorded) in [(1, 10), (2, 30), (3, 60)] {
        let at = now + Duration::from_secs(second);
        let second = i64::try_from(second).unwrap();
        assert_eq!(
            witness.heard(&news(1000 * second, &[], None), recorded, at),
            0
        );
    }
    witness.forgotten();
    assert!(witness.testimony(1).is_some());
    let rollback = witness.attested(1, attested(8, 2000), 75);
    let expected = Rollback {
        from_ms: 2000,
        to_ms: 3000,
        events: 45,
    };
    assert_eq!(rollback, Some(expected));
    assert_eq!(
        witness.attested(2, attested(8, 2000), 80),
        None,
        "it is reported once"
    );
}

#[test]
fn a_clock_that_jumps_is_noticed() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.known(now).expected_ms, None);
    assert_eq!(witness.heard(&news(5000, &[], None), 0, now), 0);
    let later = now + Duration::from_secs(1);
    assert_eq!(witness.known(later).expected_ms, Some(6000));
    assert_eq!(witness.heard(&news(96_000, &[], None), 0, later), 90_000);
    let later = now + Duration::from_secs(2);
    assert_eq!(witness.heard(&news(97_000, &[], None), 0, later), 0);
}

#[test]
fn notes_are_bounded_and_reach_back_to_the_beginning() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for second in 1..100_000 {
        witness.heard(&news(1000 * second, &[], None), second.unsigned_abs(), now);
    }
    assert!(witness.notes.len() <= NOTES_MAX);
    let rollback = witness
        .attested(1, attested(8, 99_000_000), 99_999)
        .unwrap();
    assert!((999..2000).contains(&rollback.events), "{rollback:?}");
}
