//! Refused counts, and no others, are quarantined with the message of the database, and sent unchanged after the fix.

use crate::prelude::*;

/// How many values of a tag the database accepts. [`KNOWN`] uses all of them.
const VALUES_MAX: usize = 4;
const KNOWN: [&str; VALUES_MAX] = ["login", "logout", "search", "passing"];

pub(crate) fn site(redis: RedisServer) -> Site {
    Site::with(redis, InfluxServer::start_with_tag_limit(VALUES_MAX))
}

pub(crate) fn quarantine(node: &Node, arguments: &[&str]) -> Output {
    node.command(&[&["quarantine"], arguments].concat())
}

#[track_caller]
pub(crate) fn answer(node: &Node, arguments: &[&str]) -> String {
    let output = quarantine(node, arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn send(sender: &mut Sender, event_type: &str, minute: i64) {
    for user in 0..3 {
        for event in 0..2 {
            let at = SEED_MINUTE_NS + minute * MINUTE_NS + event;
            sender.send(format!("event_type={event_type},product=shop value=user{user} {at}"));
        }
    }
}

fn without(mut points: Points, event_type: &str) -> Points {
    let tag = format!("event_type={event_type},");
    points.retain(|point, _| !point.series.contains(&tag));
    points
}

/// Fills the database up to its limit, and sends a minute in which one series exceeds it.
pub(crate) fn poison(site: &Site, node: &Node, sender: &mut Sender) {
    for event_type in KNOWN {
        send(sender, event_type, 0);
    }
    site.wait_exact(&sender.expected.points(), SOON);
    for event_type in KNOWN {
        send(sender, event_type, 1);
    }
    send(sender, "poison", 1);
    site.wait_exact(&without(sender.expected.points(), "poison"), SOON);
    node.wait_count("eds_points_quarantined_total", |quarantined| quarantined == 2);
}

/// Makes room in the database. Returns the points that it must hold after a retry.
pub(crate) fn make_room(site: &Site, sender: &Sender) -> Points {
    site.command(
        "DROP SERIES FROM unique_user_event, cumulative_user_event WHERE event_type = 'passing'",
    );
    without(sender.expected.points(), "passing")
}

#[test]
fn refused_counts_are_quarantined_alone_and_sent_after_the_fix() {
    let site = site(RedisServer::start(&[]));
    let node = site.start_node("one", &[]);
    let mut sender = Sender::paced_by(&node);
    poison(&site, &node, &mut sender);

    let table = answer(&node, &["list"]);
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert_contains(
        lines[1],
        ["20161204:1119", "event_type=poison,product=shop", "max-values-per-tag"],
    );
    let listed = answer(&node, &["list", "--json"]);
    let listed: Value = serde_json::from_str(&listed).expect("one object on one line");
    assert_eq!(listed["unique"], 3);
    assert_eq!(listed["cumulative"], 6);
    let selection = ["--minute", "20161204:1119", "--series", "event_type=poison,product=shop"];
    let shown = answer(&node, &[&["show"], &selection[..]].concat());
    let message = listed["message"].as_str().expect("the server's message");
    assert!(message.contains("event_type") && shown.contains(message), "{shown}");

    // A retry before the fix quarantines the series again and affects nothing else.
    answer(&node, &[&["retry"], &selection[..]].concat());
    node.wait_count("eds_points_quarantined_total", |quarantined| quarantined == 4);
    site.wait_exact(&without(sender.expected.points(), "poison"), SOON);

    let expected = make_room(&site, &sender);
    let answered = answer(&node, &["retry", "--all"]);
    assert!(answered.contains("event_type=poison"), "{answered}");
    site.wait_exact(&expected, SOON);
    assert_eq!(answer(&node, &["list"]), "");
    site.assert_clean();
}

#[test]
fn dropped_counts_are_printed_and_removed() {
    let site = site(RedisServer::start(&[]));
    let node = site.start_node("one", &[]);
    let mut sender = Sender::paced_by(&node);
    poison(&site, &node, &mut sender);
    let refused = quarantine(&node, &["drop", "--minute", "20161204:1118"]);
    assert_eq!(refused.status.code(), Some(1), "nothing of that minute is quarantined");
    let dropped = answer(&node, &["drop", "--minute", "20161204:1119"]);
    assert_contains(&dropped, ["event_type=poison,product=shop", "max-values-per-tag"]);
    assert_eq!(answer(&node, &["list"]), "");
    site.wait_redis_clean();
}

#[test]
fn exit_code_distinguishes_misuse_from_failure() {
    let mut node = Node::new("one", &[("store.url", "memory:")]);
    let output = quarantine(&node, &["list"]);
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.contains("store.url") && words.contains("memory:"), "{words}");

    node.set("store.url", &format!("redis://127.0.0.1:{}", free_port()));
    for misused in [
        vec!["retry"],
        vec!["drop"],
        vec!["drop", "--all", "--minute", "20161204:1118"],
        vec!["list", "--minute", "yesterday"],
        vec![],
    ] {
        assert_eq!(quarantine(&node, &misused).status.code(), Some(2), "{misused:?}");
    }
    for selecting in [vec!["drop"], vec!["retry"], vec!["drop", "--all", "--series", "a=1"]] {
        let words = String::from_utf8(quarantine(&node, &selecting).stderr).unwrap();
        assert_contains(&words, ["--all", "--minute", "--series", "Example: "]);
    }
    for failing in [vec!["list"], vec!["retry", "--all"], vec!["drop", "--all"]] {
        let output = quarantine(&node, &failing);
        assert_eq!(output.status.code(), Some(1), "{failing:?}");
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(words.contains("store is unavailable"), "{words}");
    }
}
