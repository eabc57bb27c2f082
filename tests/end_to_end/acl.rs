//! The permissions in `config/redis-acl.conf` are sufficient for a node, and it uses all of them.

use crate::prelude::*;
use crate::quarantine::{answer, make_room, poison, site};

const PASSWORD: &str = "change-me";

/// Returns the ACL rules of a user in the file. `user` is the name followed by a space.
pub(crate) fn rights_of(user: &str) -> impl Iterator<Item = &'static str> {
    let file = include_str!("../../config/redis-acl.conf");
    let mut lines = file.lines();
    let line = lines.find_map(|line| line.strip_prefix("user ")?.strip_prefix(user));
    line.expect("the file has the user").trim().split(' ')
}

fn carried_out(redis: &RedisServer) -> BTreeSet<String> {
    let stats: String = redis.query(&["INFO", "commandstats"]);
    stats
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(":calls="))
        .filter(|(_, calls)| !calls.starts_with("0,"))
        .map(|(name, _)| name.to_owned())
        .collect()
}

/// Queries every path, and one of them again while another node holds the lock for computing counts.
fn look(redis: &RedisServer, node: &Node) {
    for path in ["minutes", "live", "series", "top", "top?list=1"] {
        let answer = node.get(&format!("/api/v1/{path}")).expect("the node responds");
        assert!([200, 410].contains(&answer.status), "{}", answer.body);
    }
    let mut connection = redis.connection();
    let mut run = |words: &[&str]| {
        let command = redis::Cmd::new().arg(words).to_owned();
        command.exec(&mut connection).expect("the command succeeds");
    };
    run(&["SELECT", "1"]);
    run(&["RPUSH", "{eds:mutex:look}:holders", "1 9000000000000000 9000000000000000 another "]);
    let answer = node.get("/api/v1/series").expect("the node responds");
    assert_eq!(answer.status, 503, "{}", answer.body);
    run(&["DEL", "{eds:mutex:look}:holders"]);
    wait_for("the node waits its turn", || carried_out(redis), |done| done.contains("psubscribe"));
}

#[test]
fn shipped_acl_is_sufficient_and_minimal() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/redis-acl.conf");
    let carried_out: BTreeSet<_> =
        ["sets", "log"].iter().flat_map(|layout| used(&file, layout)).collect();
    let granted = rights_of("eds ").filter_map(|word| word.strip_prefix('+'));
    let unused: Vec<_> = granted.filter(|command| !carried_out.contains(*command)).collect();
    assert!(unused.is_empty(), "granted but never used: {unused:?}");
}

/// Returns the commands that a node uses with this layout, and asserts that Redis denies none of them.
fn used(file: &Path, layout: &str) -> BTreeSet<String> {
    let include = file.display().to_string();
    let redis = RedisServer::start_asked_by_admin(&["--include", &include]);
    let mut site = site(redis);
    let mut node = site.node("one", &[("store.username", "eds"), ("flush.grace", "1s")]);
    node.set("store.url", &format!("{}/1", site.redis.url()));
    node.set("store.layout", layout);
    node.set_sections(
        "rollup",
        &[&[("name", "minutely"), ("every", "1m"), ("keep", "[\"event_type=login\"]")]],
    );
    // Close enough to the number of users sent that the node asks the store about users.
    node.set("input.max_users_per_series", "100");
    node.set_environment("EDS_STORE__PASSWORD", PASSWORD);
    node.run();
    let mut sender = Sender::paced_by(&node);

    // Two minutes, whose refused counts are quarantined, listed and sent again.
    poison(&site, &node, &mut sender);
    assert_eq!(answer(&node, &["list"]).lines().count(), 2);
    let mut expected = make_room(&site, &sender);
    answer(&node, &["retry", "--all"]);
    site.wait_exact(&expected, SOON);

    let late = format!("event_type=login,product=shop value=late {}", SEED_MINUTE_NS + 9);
    sender.send_unrecorded(late.as_bytes());
    node.wait_count("eds_events_late_total", |late| late == 1);

    // The output goes down and is probed until it is back, while some minutes fill and others close.
    site.writes.set(Mode::Answer(503));
    let mut expectation = Sender::paced_by(&node);
    for datagram in load(2..6, 2000, 1, 50).datagrams() {
        let datagram = String::from_utf8(datagram).expect("UTF-8");
        let known = datagram
            .replace("event_type=type-0,product=product-0", "event_type=login,product=shop");
        expectation.send(known.as_bytes());
    }
    node.wait_count("eds_write_failures_total", |failures| failures >= 3);
    site.writes.set(Mode::Pass);
    expected.extend(expectation.expected.points());
    site.wait_exact(&expected, SOON);

    for event_type in ["search", "poison2"] {
        let at = SEED_MINUTE_NS + 7 * MINUTE_NS;
        expectation.send(format!("event_type={event_type},product=shop value=ann {at}"));
    }
    node.wait_count("eds_points_quarantined_total", |quarantined| quarantined == 4);
    answer(&node, &["drop", "--all"]);
    look(&site.redis, &node);
    assert!(node.terminate().success());
    node.set("input.max_series_per_minute", "90000");
    assert_eq!(node.command_text(&["settings", "apply"]).0, Some(0));

    let refused: Vec<BTreeMap<String, String>> = site.redis.query(&["ACL", "LOG"]);
    assert!(refused.is_empty(), "denied by Redis: {refused:?}");
    carried_out(&site.redis)
}
