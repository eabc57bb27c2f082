//! Tests what a witness restores, and how it reports a rollback.

use std::time::Duration;

use super::*;

fn minute(number: i64) -> Minute {
    Minute::from_epoch_minutes(number).unwrap()
}

/// The reply to the first check-in in a second. That second is its stamp.
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
fn closed_minutes_are_attested_once_per_generation() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.testimony(1), Some(Testimony::default()));
    assert_eq!(witness.attested(1, attested(7, 0), 0), None);
    assert_eq!(witness.testimony(1), None);
    witness.learn(&news(60_000, &[3, 4], Some(4)), 0, now, now);
    // The first one is older than all listed minutes.
    for number in [3, 4, 5] {
        witness.publishes(minute(number));
    }
    let testimony = witness.testimony(2).unwrap();
    assert_eq!((testimony.epoch, testimony.stamp), (7, 60));
    assert_eq!(testimony.since, Some(minute(4)));
    assert_eq!(testimony.closed, [4].map(minute).into());
    assert_eq!(testimony.announced, [5].map(minute).into());
    witness.learn(&news(61_000, &[5], Some(4)), 0, now, now);
    let testimony = witness.testimony(2).unwrap();
    assert_eq!(testimony.closed, [4, 5].map(minute).into());
    assert_eq!(testimony.announced, [].into());
}

#[test]
fn rollback_is_reported_with_the_lost_events() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for (second, recorded) in [(1, 10), (2, 30), (3, 60)] {
        let at = now + Duration::from_secs(second);
        let second = i64::try_from(second).unwrap();
        assert_eq!(witness.learn(&news(1000 * second, &[], None), recorded, at, at), 0);
    }
    let announced = News { announced: vec![minute(8), minute(9)], ..news(3000, &[8], None) };
    let at = now + Duration::from_secs(3);
    witness.learn(&announced, 60, at, at);
    witness.forgotten();
    assert!(witness.testimony(1).is_some());
    let rollback = witness.attested(1, attested(8, 2000), 75);
    let expected =
        Rollback { from_ms: 2000, to_ms: 3000, events: 45, unconfirmed: [minute(9)].into() };
    assert_eq!(rollback, Some(expected));
    assert_eq!(witness.attested(2, attested(8, 2000), 80), None, "the rollback is reported once");
}

#[test]
fn rollback_after_a_clock_change_is_reported_in_current_time() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    let at = |second| now + Duration::from_secs(second);
    let stamped = |stamp, now_ms| News { stamp, ..news(now_ms, &[], None) };
    witness.learn(&stamped(1, 7_200_000), 10, at(1), at(1));
    witness.learn(&stamped(2, 3_600_000), 30, at(2), at(2));
    witness.learn(&stamped(3, 3_605_000), 60, at(7), at(7));
    witness.forgotten();
    let answer = Attested { epoch: 8, stamp: 2, forgot_from: 1, forgot_from_ms: 7_200_000 };
    let rollback = witness.attested(1, answer, 60).unwrap();
    assert_eq!((rollback.from_ms, rollback.to_ms), (3_599_000, 3_605_000));
    assert_eq!(rollback.events, 50);
}

#[test]
fn late_events_are_reported_once_when_an_answer_is_lost() {
    let mut witness = Witness::default();
    let found = [4, 4, 9, 7, 10].map(|in_all| witness.found_late(in_all));
    // Late events from before a restart have already been reported, and a reply that was overtaken by another reply contains
    // nothing new.
    assert_eq!(found, [0, 0, 5, 0, 1]);
}

#[test]
fn clock_jump_is_detected() {
    let now = Instant::now();
    let mut witness = Witness::default();
    assert_eq!(witness.known(now).expected_ms, None);
    assert_eq!(witness.learn(&news(5000, &[], None), 0, now, now), 0);
    let at = now + Duration::from_secs(1);
    assert_eq!(witness.known(at).expected_ms, Some(6000));
    let jumped_ms = witness.learn(&news(96_000, &[], None), 0, at, at);
    assert_eq!(jumped_ms, 90_000);
    let at = now + Duration::from_secs(2);
    assert_eq!(witness.learn(&news(97_000, &[], None), 0, at, at), 0);
}

#[test]
fn notes_are_bounded_and_cover_the_whole_run() {
    let now = Instant::now();
    let mut witness = Witness::default();
    witness.attested(1, attested(7, 0), 0);
    for second in 1..100_000 {
        witness.learn(&news(1000 * second, &[], None), second.unsigned_abs(), now, now);
    }
    assert!(witness.notes.len() <= NOTES_MAX);
    let rollback = witness.attested(1, attested(8, 99_000_000), 99_999).unwrap();
    assert!((999..2000).contains(&rollback.events), "{rollback:?}");
}

/// Beyond this number, every other check-in in the older half is dropped.
#[test]
fn last_check_ins_are_kept_exactly() {
    let now = Instant::now();
    let count = i64::try_from(NOTES_MAX).unwrap();
    for (seconds, forgot_from, events) in [(count, 1, count - 1), (count + 1, count - 1, 2)] {
        let mut witness = Witness::default();
        witness.attested(1, attested(7, 0), 0);
        for second in 1..=seconds {
            witness.learn(&news(1000 * second, &[], None), second.unsigned_abs(), now, now);
        }
        let answer = attested(8, 1000 * forgot_from);
        let rollback = witness.attested(1, answer, seconds.unsigned_abs());
        assert_eq!(rollback.unwrap().events, events.unsigned_abs());
    }
}

/// Returns a reading of a clock that showed `ms`, was asked at `asked`, and replied at `answered` (all in ms).
fn shown(start: Instant, ms: i64, asked: u64, answered: u64) -> StoreClock {
    let at = |ms| start + Duration::from_millis(ms);
    StoreClock::shown(ms, at(asked), at(answered))
}

#[test]
fn late_answer_is_no_clock_jump_and_hides_none() {
    let start = Instant::now();
    let mut clock = shown(start, 100_000, 0, 2);
    // Either the clock was read at once and the reply took 9 s, or the request took 9 s.
    for (read_ms, asked) in [(101_000, 1000), (121_000, 12_000)] {
        assert_eq!(clock.update(shown(start, read_ms, asked, asked + 9000)), 0);
        let next = asked + 9500;
        let right_ms = 100_000 + i64::try_from(next).unwrap();
        assert_eq!(clock.update(shown(start, right_ms, next, next + 1)), 0);
    }
    // The clock jumped by 5 s during a reply that took 6 s; the next reading shows it.
    assert_eq!(clock.update(shown(start, 135_000, 30_000, 36_000)), 0);
    let jumped_ms = clock.update(shown(start, 142_000, 37_000, 37_001));
    assert!((5000..5010).contains(&jumped_ms), "{jumped_ms}");
}

#[test]
fn clock_is_followed_after_a_jump() {
    let start = Instant::now();
    let mut clock = shown(start, 5000, 0, 10);
    let later = start + Duration::from_secs(1);
    assert_eq!(clock.expected_ms(later), 6000 - 5);
    let jumped_ms = clock.update(shown(start, 96_000, 1000, 1010));
    assert!((90_000..90_021).contains(&jumped_ms), "{jumped_ms}");
    assert_eq!(clock.update(shown(start, 97_000, 2000, 2010)), 0);
    // Being set back is not a jump ahead, and the next reading is consistent again.
    assert_eq!(clock.update(shown(start, 8000, 3000, 3010)), 0);
    assert_eq!(clock.update(shown(start, 9000, 4000, 4010)), 0);
    assert!(clock.update(shown(start, 99_000, 5000, 5010)) > 88_000);
}

#[test]
fn drifting_clock_is_followed() {
    let start = Instant::now();
    let mut clock = shown(start, 0, 0, 1);
    for minute in 1..10_000_i64 {
        // The clock gains 5 ms per minute.
        let ms = 60_005 * minute;
        let asked = 60_000 * minute.unsigned_abs();
        assert_eq!(clock.update(shown(start, ms, asked, asked + 1)), 0);
    }
}
