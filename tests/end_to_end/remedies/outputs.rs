//! Remedies for findings about outputs.

use super::{Remedy, send, site, wait_gone};
use crate::prelude::*;
use crate::quarantine::{make_room, poison};
use crate::queries::five_minutes_ago_ns;
use crate::status::{status, wait_healthy};

#[test]
fn output_server_that_is_down_is_started() {
    let mut site = site();
    let node = site.start_node("one", &[]);
    for (minute, (mode, says)) in (0..).zip([
        (Mode::Refuse, "start the server"),
        (Mode::Answer(503), "check its log"),
        (Mode::Answer(500), "check its log"),
    ]) {
        site.writes.set(mode);
        send(&node, five_minutes_ago_ns() + minute * MINUTE_NS, 10);
        let remedy = Remedy::of(&node, "output-down", &["output default"]);
        remedy.says(&[says]);
        let is_started = remedy.text.contains("start the server");
        assert_eq!(is_started, says == "start the server", "{remedy:?}");
        site.writes.set(Mode::Pass);
        wait_healthy(&node);
    }
}

#[test]
fn missing_database_is_created() {
    let site = site();
    let node = site.start_node("one", &[("output.database", "missing")]);
    let remedy = Remedy::of(&node, "output-down", &["404"]);
    remedy.says(&["create the database, or check output.database"]);
    site.command("CREATE DATABASE missing");
    wait_healthy(&node);
}

#[test]
fn wrong_password_of_the_database_is_corrected() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(InfluxServer::start_with_auth());
    runtime.block_on(server.query("", &format!("CREATE DATABASE {DATABASE}")));
    let site = site();
    let mut node = site.node("one", &[("output.url", &server.url()), ("output.username", "admin")]);
    let file = site.redis.directory().join("password");
    std::fs::write(&file, "wrong").unwrap();
    node.set("output.password_file", &file.display().to_string());
    node.run();
    let remedy = Remedy::of(&node, "output-down", &["401"]);
    remedy.says(&["output.username and output.password_file"]);
    std::fs::write(&file, testing::influxdb::ADMIN_PASSWORD).unwrap();
    node.kill();
    node.run();
    wait_healthy(&node);
}

/// Starts a node with two outputs, the first of which refuses one count.
fn quarantined() -> (Site, Node, Sender) {
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let site = Site::with(redis, InfluxServer::start_with_tag_limit(4));
    let mut node = site.node("one", &[]);
    node.set_outputs(&[
        &[("name", "main"), ("url", &site.writes.url()), ("api", "v1"), ("database", DATABASE)],
        &[("name", "second"), ("url", "stdout:")],
    ]);
    node.run();
    let mut sender = Sender::paced_by(&node);
    poison(&site, &node, &mut sender);
    (site, node, sender)
}

#[test]
fn quarantined_counts_are_sent_by_the_printed_command() {
    let (site, node, sender) = quarantined();
    let remedy = Remedy::of(&node, "quarantine", &["output main", "1 counts"]);
    assert_eq!(status(&node)["outputs"][0]["quarantined"], 1);
    remedy.run("eds quarantine list", &node);
    let expected = make_room(&site, &sender);
    remedy.run("eds quarantine retry", &node);
    site.wait_exact(&expected, SOON);
    wait_gone(&node, "quarantine");
}

/// How many counts the quarantine of a partition can hold.
const ROOM: usize = 10_000;

#[test]
fn full_quarantine_is_emptied_by_the_printed_command() {
    let redis = RedisServer::start(&["--appendonly", "yes"]);
    let site = Site::with(redis, InfluxServer::start_with_tag_limit(4));
    let node = site.start_node("one", &[("store.partitions", "1")]);
    let tag = eventually("the partition has keys", SOON, || {
        let keys = site.redis.keys();
        let tag = keys.iter().find_map(|key| key.strip_suffix(":stamps").map(str::to_owned));
        tag.ok_or(format!("{keys:?}"))
    });
    let mut connection = site.redis.connection();
    let mut fill = redis::pipe();
    fill.sadd(format!("{tag}:outputs"), "default");
    let quarantine = format!("{tag}:quarantine:default");
    for number in 0..ROOM {
        let field = format!("20161204:1118:event_type=e{number}");
        fill.hset(&quarantine, field, "1:1|1480876707|refused");
    }
    fill.exec(&mut connection).unwrap();
    Remedy::of(&node, "quarantine-full", &["100%"]);
    // A fifth value of a tag is refused, and the quarantine has no room for its counts.
    let mut sender = Sender::paced_by(&node);
    let mut send = |event: i64, minute: i64| {
        let at = five_minutes_ago_ns() + minute * MINUTE_NS;
        sender.send(format!("event_type=k{event} value=u {at}"));
    };
    (0..4).for_each(|event| send(event, 0));
    node.wait_count("eds_points_sent_total", |sent| sent == 8);
    (0..5).for_each(|event| send(event, 1));
    let remedy = Remedy::of(&node, "discarded", &["discarded counts"]);
    remedy.run("eds quarantine list", &node);
    remedy.run("eds quarantine drop", &node);
    wait_gone(&node, "quarantine-full");
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "discarded");
}

#[test]
fn unsent_counts_of_a_removed_output_are_dropped_by_the_printed_command() {
    let site = site();
    let mut second = testing::http_proxy::HttpProxy::start(None);
    let main =
        [("name", "main"), ("url", &*site.writes.url()), ("api", "v1"), ("database", DATABASE)]
            .map(|(key, value)| (key, value.to_owned()));
    let main = main.each_ref().map(|(key, value)| (*key, value.as_str()));
    let gone = [("name", "second"), ("url", &*second.url()), ("api", "v1"), ("database", DATABASE)];
    second.set(Mode::Refuse);
    let keys = [("flush.grace", "1s"), ("flush.max_hold", "2s"), ("input.linger_max", "200ms")];
    let mut node = site.node("one", &keys);
    node.set_outputs(&[&main, &gone]);
    node.run();
    send(&node, five_minutes_ago_ns(), 3);
    node.wait_count("eds_backlog_unsent", |unsent| unsent > 0);
    node.wait_count("eds_points_sent_total", |sent| sent == 6);
    // Remove the output as described in docs/upgrades.md.
    node.terminate();
    node.set_outputs(&[&main]);
    node.apply_settings();
    node.run();
    let remedy = Remedy::of(&node, "unsent", &["output second"]);
    remedy.run("eds outputs drop second", &node);
    wait_gone(&node, "unsent");
}
