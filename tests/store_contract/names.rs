//! Tests that similar names of series, users and minutes are distinguished.

use crate::contract::prelude::*;

const MINUTES_PER_DAY: i64 = 1440;

/// Contains names that would become equal if they were joined without escaping.
pub(crate) async fn hostile_names_stay_apart(ground: &Ground) {
    let node = ground.node("a {node}|1:2 %s \"é\"");
    let names = [
        "a b=c d",
        "a=b,c=d",
        "a=b,c",
        "{eds:1}=x",
        "}{=}",
        "{}",
        "a=\"quoted\"",
        "a='q'\\",
        "a=|1|2",
        "a=:1:2",
        "a=counts",
        "event_types",
        "é=日本語🦀",
        "e\u{301}=日本語🦀",
        "%s=%d",
        "*=?[a-z]",
        "a=1_2",
        "a=1_2_3",
        "KEYS=1",
        "-inf=+inf",
    ];
    let mut events = Vec::new();
    for (i, series) in names.iter().enumerate() {
        // User and timestamp are joined with `_`, but user `a_1` at 2 is not user `a` at 1_2.
        for user in names.iter().skip(i % 3).copied().chain(["_", "a_1", "a", "007", "7"]) {
            for nanos in [1, 12, 2, 21] {
                events.push(event(SEED_MINUTE, series, user, nanos));
            }
        }
    }
    node.record(&events).await;
    node.record(&events).await;
    let claims = node.claim(&AT_ONCE).await;
    let other = ground.node("b");
    assert_eq!(other.finish(&claims).await, model(&events));
    assert_eq!(node.backlog().await, (0, 0, 0));
}

pub(crate) async fn same_minute_of_two_days_stays_apart(ground: &Ground) {
    let node = ground.node("a");
    let today = [event(SEED_MINUTE, "s=1", "x", 1)];
    let tomorrow = [
        event(SEED_MINUTE + MINUTES_PER_DAY, "s=1", "x", 1),
        event(SEED_MINUTE + MINUTES_PER_DAY, "s=1", "y", 1),
    ];
    let both = [&today[..], &tomorrow].concat();
    node.record(&both).await;
    assert_eq!(node.finish_all().await, model(&both));

    // Counts that are kept for one day do not make events of a different day late.
    let next_year = [event(SEED_MINUTE + 365 * MINUTES_PER_DAY, "s=1", "x", 1)];
    node.record(&next_year).await;
    assert_eq!(node.finish_all().await, model(&next_year));
}

pub(crate) async fn minutes_around_midnight_stay_apart(ground: &Ground) {
    let node = ground.node("a");
    let midnight = SEED_MINUTE - SEED_MINUTE % MINUTES_PER_DAY;
    let last_nano = 59_999_999_999;
    let events = [
        event(midnight - 1, "s=1", "x", last_nano),
        event(midnight, "s=1", "x", 0),
        event(midnight, "s=1", "y", 1),
        event(midnight + MINUTES_PER_DAY - 1, "s=1", "x", last_nano),
    ];
    node.record(&events).await;
    let claims = node.claim(&AT_ONCE).await;
    let names: Vec<_> = claims.iter().map(|claim| claim.minute.to_string()).collect();
    assert_eq!(names, ["20161203:1439", "20161204:0", "20161204:1439"]);
    assert_eq!(node.finish(&claims).await, model(&events));
}
