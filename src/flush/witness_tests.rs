//! What a witness hands back, and what it reports of a store that went back.

use std::time::Duration;

use super::*;

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

/// A check-in is stamped with the second in which it comes first.
fn news(now_ms: i64, closed: &[i64], since: Option<i64>) -> News {
    News {
        stamp: now_ms.unsigned_abs() / 1000,
        now_ms,
        closed: closed.iter().copied().map(minute).collect(),
        since: since.map(minute),
        ..News::default()
    }
}

fn attested(epoch: u64, forgot_from_ms: i64) -> Attested {
    Attested { epoch, stamp: 0, forgot_from: forgot_from_ms.unsigned_abs() / 1000, forgot_from_ms }
}

#[test]
fn what_is_heard_and_what_is_written_is_handed_back_once_for_each_generation() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.testimony(1), Some(Testimony::default()));
    assert_eq!(witness.attested(1, attested(7, 0), 0), None);
    assert_eq!(witness.testimony(1), None);
    witness.heard(&news(60_000, &[3, 4], Some(4)), 0, now, now);
    // The first is before all that is listed.
    for number in [3, 4, 5] {
        witness.publishes(minute(number));
    }
    let testimony = witness.testimony(2).unwrap();
    assert_eq!((testimony.epoch, testimony.stamp), (7, 60));
    assert_eq!(testimony.since, Some(minute(4)));
    assert_eq!(testimony.closed, [4].map(minute).into());
    assert_eq!(testimony.announced, [5].map(minute).into());
    witness.heard(&news(61_000, &[5], Some(4)), 0, now, now);
    let testimony = witness.testimony(2).unwrap();
    assert_eq!(testimony.closed, [4, 5].map(minute).into());
    assert_eq!(testimony.announced, [].into());
}

#[test]
fn a_store_that_went_back_is_told_with_the_events_that_it_lost() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for (second, recorded) in [(1, 10), (2, 30), (3, 60)] {
        let at = now + Duration::from_secs(second);
        let second = i64::try_from(second).unwrap();
        assert_eq!(witness.heard(&news(1000 * second, &[], None), recorded, at, at), 0);
    }
    let announced = News { announced: vec![minute(8), minute(9)], ..news(3000, &[8], None) };
    let at = now + Duration::from_secs(3);
    witness.heard(&announced, 60, at, at);
    witness.forgotten();
    assert!(witness.testimony(1).is_some());
    let rollback = witness.attested(1, attested(8, 2000), 75);
    let expected =
        Rollback { from_ms: 2000, to_ms: 3000, events: 45, unconfirmed: [minute(9)].into() };
    assert_eq!(rollback, Some(expected));
    assert_eq!(witness.attested(2, attested(8, 2000), 80), None, "it is reported once");
}

#[test]
fn a_rollback_after_the_clock_was_set_back_is_told_in_the_time_that_it_shows_now() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    let at = |second| now + Duration::from_secs(second);
    let stamped = |stamp, now_ms| News { stamp, ..news(now_ms, &[], None) };
    witness.heard(&stamped(1, 7_200_000), 10, at(1), at(1));
    witness.heard(&stamped(2, 3_600_000), 30, at(2), at(2));
    witness.heard(&stamped(3, 3_605_000), 60, at(7), at(7));
    witness.forgotten();
    let answer = Attested { epoch: 8, stamp: 2, forgot_from: 1, forgot_from_ms: 7_200_000 };
    let rollback = witness.attested(1, answer, 60).unwrap();
    assert_eq!((rollback.from_ms, rollback.to_ms), (3_599_000, 3_605_000));
    assert_eq!(rollback.events, 50);
}

#[test]
fn late_events_are_news_once_whatever_answer_is_lost() {
    let mut witness = Witness::default();
    let found = [4, 4, 9, 7, 10].map(|in_all| witness.found_late(in_all));
    // What it found in an earlier life is told already, and an answer that was overtaken has nothing new.
    assert_eq!(found, [0, 0, 5, 0, 1]);
}

#[test]
fn a_clock_that_jumps_is_noticed() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.known(now).expected_ms, None);
    assert_eq!(witness.heard(&news(5000, &[], None), 0, now, now), 0);
    let at = now + Duration::from_secs(1);
    assert_eq!(witness.known(at).expected_ms, Some(6000));
    let jumped_ms = witness.heard(&news(96_000, &[], None), 0, at, at);
    assert_eq!(jumped_ms, 90_000);
    let at = now + Duration::from_secs(2);
    assert_eq!(witness.heard(&news(97_000, &[], None), 0, at, at), 0);
}

#[test]
fn notes_are_bounded_and_reach_back_to_the_beginning() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for second in 1..100_000 {
        witness.heard(&news(1000 * second, &[], None), second.unsigned_abs(), now, now);
    }
    assert!(witness.notes.len() <= NOTES_MAX);
    let rollback = witness.attested(1, attested(8, 99_000_000), 99_999).unwrap();
    assert!((999..2000).contains(&rollback.events), "{rollback:?}");
}

/// Of the older half of more than these, every second one goes.
#[test]
fn the_last_check_ins_are_known_exactly() {
    let now = Instant::now();
    let count = i64::try_from(NOTES_MAX).unwrap();
    for (seconds, forgot_from, events) in [(count, 1, count - 1), (count + 1, count - 1, 2)] {
        let mut witness = Witness::default();
        witness.attested(1, attested(7, 0), 0);
        for second in 1..=seconds {
            witness.heard(&news(1000 * second, &[], None), second.unsigned_abs(), now, now);
        }
        let answer = attested(8, 1000 * forgot_from);
        let rollback = witness.attested(1, answer, seconds.unsigned_abs());
        assert_eq!(rollback.unwrap().events, events.unsigned_abs());
    }
}
