//! When a master watched by Sentinel dies, the nodes find the new master, and no events are lost.

use crate::failover::{
    Replicated, UnderLoad, assert_a_killed_master_costs_nothing,
    assert_recorded_again_behind_a_cut_link, site,
};
use crate::prelude::*;

#[test]
fn killed_master_is_replaced_by_sentinel_without_loss() {
    let replayed = assert_a_killed_master_costs_nothing(&mut RedisSentinel::start());
    assert!(replayed > 0);
}

/// A promotion takes at least 8 s. Nodes that kept using the old master that long would exceed the replay window.
#[test]
fn resumed_master_loses_no_event_with_min_replicas_to_write() {
    let redis = RedisSentinel::start_by(
        None,
        &["--repl-diskless-sync-delay", "0", "--min-replicas-to-write", "1"],
    );
    let keys = [("store.response_timeout", "5s"), ("store.replay_window", "5s")];
    let mut load = UnderLoad::start_with(&redis.url(NAME), 400_000, &keys);
    redis.servers[0].signal("STOP");
    load.assert_exact_in_spite_of(|| {
        redis.wait_promoted();
        redis.servers[0].signal("CONT");
    });
}

impl Replicated for RedisSentinel {
    fn url(&self) -> String {
        self.url(NAME)
    }

    fn cut_link(&mut self) {
        self.cut_replicas();
    }

    fn kill_master(&mut self) {
        self.kill_master();
    }

    fn wait_promoted(&self) {
        self.wait_promoted();
    }
}

#[test]
fn events_missing_on_the_replicas_are_recorded_again() {
    assert_recorded_again_behind_a_cut_link(&mut RedisSentinel::start());
}

#[test]
fn unknown_master_name_is_refused_with_a_remedy() {
    let redis = RedisSentinel::start();
    let node = site().node("refused", &[("store.url", &redis.url("nobody"))]);
    node.assert_refused(&["nobody", "store.url", "SENTINEL MASTERS"]);
}
