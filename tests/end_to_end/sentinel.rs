//! A master that sentinels watch may die: the nodes find the next one, and no event is lost.

use crate::failover::{
    Replicated, UnderLoad, assert_a_killed_master_costs_nothing,
    assert_recorded_again_behind_a_cut_link, site,
};
use crate::prelude::*;

#[test]
fn a_master_killed_under_load_is_replaced_at_no_cost() {
    let replayed = assert_a_killed_master_costs_nothing(&mut RedisSentinel::start());
    assert!(replayed > 0);
}

/// Sentinels wait for 8 s at least. Nodes that did not leave it would use it for longer than they could record its confirmed
/// events again.
#[test]
fn a_master_that_wakes_when_it_is_replaced_costs_nothing_with_min_replicas_to_write() {
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
fn what_the_replicas_lack_is_recorded_again() {
    assert_recorded_again_behind_a_cut_link(&mut RedisSentinel::start());
}

#[test]
fn a_name_that_no_sentinel_knows_is_refused_and_the_log_says_how_to_fix_it() {
    let redis = RedisSentinel::start();
    let node = site().node("refused", &[("store.url", &redis.url("nobody"))]);
    node.assert_refused(&["nobody", "store.url", "SENTINEL MASTERS"]);
}
