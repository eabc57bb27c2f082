//! Remedies for findings about Redis.

use super::{Remedy, findings, send, site, wait_gone};
use crate::acl::rights_of;
use crate::forgets::kill_writer_and_redis;
use crate::prelude::*;
use crate::queries::five_minutes_ago_ns;
use crate::status::{status, wait_first, wait_healthy};

#[test]
fn redis_that_is_down_is_started() {
    let mut site = site();
    let node = site.start_node("one", &[]);
    site.redis.stop();
    Remedy::of(&node, "redis-down", &["refused"]).says(&["start Redis", "store.url"]);
    site.redis.restart();
    wait_healthy(&node);
}

#[test]
fn missing_password_of_redis_is_set() {
    let wants = ["--appendonly", "yes", "--requirepass", "secret"];
    let site = Site::with_redis(RedisServer::start_asked_by_admin(&wants));
    for (password, cause) in [(None, "NOAUTH"), (Some("wrong"), "WRONGPASS")] {
        let mut node = site.node("one", &[]);
        if let Some(password) = password {
            node.set_environment("EDS_STORE__PASSWORD", password);
        }
        let remedy = Remedy::of(&node, "redis-down", &["rejected the credentials"]);
        remedy.says(&["set store.username and store.password_file"]);
        assert!(!remedy.text.contains("start"), "{cause}: {remedy:?}");
    }
    let mut node = site.node("one", &[]);
    let file = site.redis.directory().join("password");
    std::fs::write(&file, "secret").unwrap();
    node.set("store.username", "default");
    node.set("store.password_file", &file.display().to_string());
    node.run();
    wait_healthy(&node);
}

/// Returns a node that is not started yet, whose Redis user has these permissions.
fn node_with_rights(rights: &[&str]) -> (Site, Node) {
    let user = ["--user", "eds", "on", ">secret", "~*", "&*"];
    let arguments = [&["--appendonly", "yes"], &user[..], rights].concat();
    let site = Site::with_redis(RedisServer::start_asked_by_admin(&arguments));
    let mut node = site.node("one", &[("store.username", "eds")]);
    node.set_environment("EDS_STORE__PASSWORD", "secret");
    (site, node)
}

#[test]
fn missing_right_is_granted() {
    let (site, mut node) = node_with_rights(&["+@all", "-zadd"]);
    site.redis.query::<()>(&["ACL", "SETUSER", "eds", "-info"]);
    let remedy = Remedy::of(&node, "redis-read-only", &["a required permission"]);
    remedy.says(&["config/redis-acl.conf"]);
    let rights = rights_of("eds ").filter(|right| right.starts_with(['~', '&', '+', '-']));
    let grant = ["ACL", "SETUSER", "eds", "resetkeys", "resetchannels"].into_iter();
    site.redis.query::<()>(&grant.chain(rights).collect::<Vec<_>>());
    node.run();
    wait_healthy(&node);
}

#[test]
fn single_node_names_its_missing_right() {
    let (site, mut node) = node_with_rights(&["+@all"]);
    node.run();
    wait_healthy(&node);
    // Another user runs `eds status`, and sees no fault in Redis itself.
    let mut asker = site.node("asker", &[("store.username", "admin")]);
    asker.set_environment("EDS_STORE__PASSWORD", "admin");
    site.redis.query::<()>(&["ACL", "SETUSER", "eds", "-hgetall"]);
    let remedy = Remedy::of(&asker, "node-cannot-record", &["node one", "hgetall"]);
    remedy.says(&["resolve the reported error"]);
    site.redis.query::<()>(&["ACL", "SETUSER", "eds", "+hgetall"]);
    wait_gone(&asker, "node-cannot-record");
}

#[test]
fn replica_is_promoted() {
    let site = site();
    let node = site.start_node("one", &[]);
    let port = free_port().to_string();
    site.redis.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    wait_first(&node, "redis-read-only", &["replica", "set store.url to the master"]);
    let remedy = Remedy::of(&node, "redis-read-only", &["replica"]);
    remedy.run_at("REPLICAOF", &site.redis);
    wait_healthy(&node);
}

#[test]
fn master_without_replicas_is_allowed_to_write() {
    let site = site();
    let node = site.start_node("one", &[]);
    site.redis.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    wait_first(&node, "redis-read-only", &["min-replicas-to-write", "start a replica"]);
    let remedy = Remedy::of(&node, "redis-read-only", &["fewer replicas"]);
    remedy.run_at("CONFIG SET min-replicas-to-write", &site.redis);
    wait_healthy(&node);
}

#[test]
fn redis_that_cannot_save_gets_its_disk_back() {
    let saves = ["--save", "3600 1000000", "--enable-protected-configs", "yes"];
    let site = Site::with_redis(RedisServer::start(&saves));
    let node = site.start_node("one", &[]);
    let directory = site.redis.directory();
    std::fs::remove_dir_all(directory).unwrap();
    site.redis.query::<()>(&["SET", "changed", "1"]);
    let _ = site.redis.query::<String>(&["BGSAVE"]);
    let stops = |yes_or_no| {
        let option = ["CONFIG", "SET", "stop-writes-on-bgsave-error", yes_or_no];
        site.redis.query::<()>(&option);
    };
    stops("no");
    Remedy::of(&node, "redis-cannot-save", &[]).says(&["the disk and the Redis log"]);
    stops("yes");
    wait_first(&node, "redis-read-only", &["cannot write to its disk", "Redis log"]);
    eventually("the node is not ready", SOON, || {
        let answer = node.get("/readyz").unwrap();
        when(answer.status == 503, answer.body)
    });
    let remedy = Remedy::of(&node, "redis-read-only", &["cannot write to its disk"]);
    std::fs::create_dir(directory).unwrap();
    // The working directory of Redis was deleted, so it must be set again.
    let path = directory.display().to_string();
    site.redis.query::<()>(&["CONFIG", "SET", "dir", &path]);
    remedy.run_at("BGSAVE", &site.redis);
    wait_gone(&node, "redis-read-only");
    wait_gone(&node, "redis-cannot-save");
}

#[test]
fn loading_redis_becomes_ready() {
    let slow = ["--key-load-delay", "200000", "--loading-process-events-interval-bytes", "1024"];
    let mut site = Site::with_redis(RedisServer::start(&slow));
    let node = site.node("one", &[]);
    for key in 0..40 {
        site.redis.query::<()>(&["SET", &format!("k{key}"), &"x".repeat(5000)]);
    }
    site.redis.query::<()>(&["SAVE"]);
    site.redis.kill();
    site.redis.relaunch();
    let remedy = Remedy::of(&node, "redis-read-only", &["loading its data"]);
    remedy.says(&["wait until"]);
    assert!(findings(&status(&node), "redis-unfit").is_empty());
    wait_gone(&node, "redis-read-only");
}

#[test]
fn full_redis_gets_more_memory() {
    let site = site();
    let node = site.start_node("one", &[]);
    wait_healthy(&node);
    let limit = |bytes: u64| {
        let bytes = bytes.to_string();
        site.redis.query::<()>(&["CONFIG", "SET", "maxmemory", &bytes]);
    };
    limit(1);
    wait_first(&node, "redis-full", &["raise maxmemory"]);
    Remedy::of(&node, "redis-full", &[]).says(&["`CONFIG SET maxmemory BYTES`"]);
    eventually("the node reports that it cannot record", SOON, || {
        let status = status(&node);
        let error = status["nodes"][0]["store_error"].as_str().unwrap_or_default();
        when(error.contains("store is full"), status.clone())
    });
    let used = status(&node)["redis"]["servers"][0]["used_memory"].as_u64().unwrap();
    limit(used + used / 20);
    Remedy::of(&node, "redis-fills", &["% is in use"]).says(&["raise maxmemory"]);
    limit(1 << 40);
    wait_healthy(&node);
}

#[test]
fn evicting_redis_gets_another_policy() {
    let site = site();
    let node = site.start_node("one", &[]);
    site.redis.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    wait_first(&node, "redis-unfit", &["allkeys-lru", "noeviction"]);
    let remedy = Remedy::of(&node, "redis-unfit", &["allkeys-lru"]);
    remedy.run_at("CONFIG SET maxmemory-policy", &site.redis);
    wait_healthy(&node);
}

#[test]
fn redis_gets_an_append_only_file() {
    let site = Site::with_redis(RedisServer::start(&[]));
    let node = site.start_node("one", &[]);
    let words = ["no append-only file", "CONFIG SET appendonly yes"];
    let remedy = Remedy::of(&node, "redis-forgets", &words);
    let is_shown = || node.get("/readyz").unwrap().body.contains("appendonly yes");
    assert!(is_shown());
    remedy.run_at("CONFIG SET appendonly", &site.redis);
    wait_healthy(&node);
    eventually("the warning is gone", SOON, || when(!is_shown(), "it is still shown"));
    let log = node.log();
    let warned = |line: &&str| line.contains("WARN") && line.contains("appendonly yes");
    assert_eq!(log.lines().filter(warned).count(), 1, "{log}");
}

#[test]
fn rollback_remedy_sets_only_missing_options() {
    for (arguments, has_aof) in [(&["--appendonly", "yes"][..], true), (&[], false)] {
        let site = Site::with_redis(RedisServer::start(arguments));
        let keys = [
            ("store.replay_window", "0s"),
            ("store.partitions", "1"),
            ("flush.grace", "1h"),
            ("flush.max_hold", "2h"),
        ];
        let node = site.start_node("one", &keys);
        send(&node, five_minutes_ago_ns(), 10);
        node.wait_count("eds_events_recorded_total", |recorded| recorded == 10);
        site.redis.query::<()>(&["FLUSHALL"]);
        let remedy = Remedy::of(&node, "forgotten", &["events lost by Redis"]);
        assert_eq!(remedy.text.contains("appendonly"), !has_aof, "{remedy:?}");
        if has_aof {
            remedy.says(&["check the Redis log"]);
        } else {
            remedy.run_at("CONFIG SET appendonly", &site.redis);
        }
        remedy.run("eds loss acknowledge", &node);
        wait_gone(&node, "forgotten");
    }
}

#[test]
fn rollback_during_a_write_remedy_sets_missing_options() {
    let site = Site::with_redis(RedisServer::start(&[]));
    let (site, node, _) = kill_writer_and_redis(site, "sets");
    let remedy = Remedy::of(&node, "unconfirmed", &["node", "while they were being written"]);
    remedy.says(&["compare the points for these minutes"]);
    remedy.run_at("CONFIG SET appendonly", &site.redis);
    remedy.run("eds loss acknowledge", &node);
    wait_gone(&node, "unconfirmed");
}

#[test]
fn cluster_with_unserved_slots_is_repaired() {
    let site = site();
    let cluster = RedisCluster::start();
    let node = site.start_node("one", &[("store.url", &cluster.url())]);
    // A slot without keys.
    let slot = cluster.slot_of("nothing").to_string();
    for master in cluster.masters() {
        master.query::<()>(&["CLUSTER", "DELSLOTS", &slot]);
    }
    let remedy = Remedy::of(&node, "redis-read-only", &["ClusterDown"]);
    let first = cluster.masters()[0].address().to_string();
    for (step, expected) in [("check", "Not all 16384 slots"), ("fix", "Covering slot")] {
        let words = remedy.command(&format!("redis-cli --cluster {step}"));
        let line = words.join(" ").replace("ADDRESS", &first);
        let mut shell = Command::new("sh");
        let done = shell.args(["-c", &format!("yes yes | {line}")]).output();
        let done = String::from_utf8(done.unwrap().stdout).unwrap();
        assert!(done.contains(expected), "{done}");
    }
    wait_gone(&node, "redis-read-only");
}

#[test]
fn wrong_clock_of_redis_is_set() {
    let clock = Clock::ahead_by(60_000_000);
    let redis = RedisServer::start_with_clock(&clock, &["--appendonly", "yes"]);
    let site = Site::with_redis(redis);
    let node = site.start_node("one", &[]);
    Remedy::of(&node, "redis-clock", &["60"]).says(&["`chronyc tracking`"]);
    Remedy::of(&node, "clock", &["node one", "behind"]).says(&["`chronyc tracking`"]);
    clock.advance(-60);
    wait_gone(&node, "redis-clock");
    wait_gone(&node, "clock");
}

#[test]
fn memory_store_is_replaced_by_redis() {
    let site = site();
    let mut node: Node = site.node("one", &[("store.url", "memory:")]);
    node.run();
    Remedy::of_the_node_itself(&node, "memory-store", &[]).says(&["store.url"]);
    node.kill();
    node.set("store.url", &site.redis.url());
    node.run();
    wait_healthy(&node);
}
