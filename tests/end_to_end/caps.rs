//! Events of users beyond the limit are rejected and counted, and every total stays exact.

use crate::prelude::*;

/// A node forgets the users of a series when it reconnects, and Redis does not count users in logs right away.
#[test]
fn user_limit_holds_in_logs_across_reconnects() {
    const USERS_MAX: usize = 1000;
    let site = Site::start();
    let keys = [
        ("store.layout", "log"),
        ("store.partitions", "1"),
        ("store.replay_window", "0s"),
        ("input.max_users_per_series", "1000"),
        ("flush.grace", "2s"),
    ];
    // While another node lags, no minute counts as idle.
    let lagging = "{eds:0}:lagging";
    let until = i64::MAX >> 22;
    site.redis.query::<()>(&["HSET", lagging, "other#1", &until.to_string()]);
    let node = site.start_node("one", &keys);
    let mut sender = Sender::paced_by(&node);
    let mut send = |users: std::ops::Range<usize>| {
        for user in users {
            let line = format!("s=1 value=u{user} {}", SEED_MINUTE_NS + 1);
            if user < USERS_MAX {
                sender.send(line);
            } else {
                sender.send_unrecorded(line);
            }
        }
        sender.wait_received();
        node.wait_recorded();
    };
    send(0..1200);
    for round in 0..3 {
        let lost = || node.log().matches("lost the connection to Redis").count();
        let before = lost();
        site.redis.query::<()>(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("the connection loss is noticed", SOON, || when(lost() > before, node.log()));
        let first = 1200 + 100 * round;
        send(first..first + 100);
    }
    let reason = [("reason", "too_many_users")];
    let rejected = node.metrics().count_of("eds_events_rejected_total", &reason);
    assert_eq!(rejected, 500);
    site.redis.query::<()>(&["DEL", lagging]);
    site.wait_exact(&sender.expected.points(), Duration::from_secs(30));
    site.wait_redis_clean();
}
