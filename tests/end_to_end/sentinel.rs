//! A master that sentinels watch may die: the nodes find the next one, and no event is lost.

use std::thread;
use std::time::Instant;

use testing::eventually::SOON;
use testing::redis_sentinel::{NAME, RedisSentinel};

use crate::failover::{
    BACK, Replicated, assert_all_recorded, assert_lost_behind_a_cut_link_without_a_window,
    assert_recorded_again_behind_a_cut_link, count, failover_events, load, send, site, two_nodes,
};
use crate::support::load::Sender;

#[test]
fn a_master_killed_under_load_is_replaced_at_no_cost() {
    let mut redis = RedisSentinel::start();
    let site = site();
    let nodes = two_nodes(&site, &redis.url(NAME), &[]);
    let mut sender = Sender::paced_by(&nodes[0]);
    let datagrams: Vec<_> = load(failover_events()).datagrams().collect();
    let (before, after) = datagrams.split_at(datagrams.len() / 4);
    send(&mut sender, &nodes, before);
    redis.kill_master();
    let killed = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            redis.wait_promoted();
            eprintln!("promoted {:?} after the kill", killed.elapsed());
        });
        send(&mut sender, &nodes, after);
    });
    sender.wait_received(&nodes[0]);
    let sent = Instant::now();
    site.wait_exact(&sender.truth.points(), BACK);
    eprintln!(
        "{} events exact {:?} after the last one, grace included",
        failover_events(),
        sent.elapsed()
    );
    assert!(count(&nodes, "eds_events_replayed_total") > 0);
    assert_all_recorded(&nodes);
    site.assert_one_value_a_point();
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
fn without_a_replay_window_what_the_replicas_lack_is_lost() {
    assert_lost_behind_a_cut_link_without_a_window(&mut RedisSentinel::start());
}

#[test]
fn a_name_that_no_sentinel_knows_is_refused_and_the_log_says_how_to_fix_it() {
    let redis = RedisSentinel::start();
    let mut node = site().node("refused", &[("store.url", &redis.url("nobody"))]);
    node.launch();
    let status = node.wait_for_exit(SOON);
    assert_eq!(status.code(), Some(1));
    let log = node.log();
    for word in ["nobody", "store.url", "SENTINEL MASTERS"] {
        assert!(log.contains(word), "{word:?} is not in the log:\n{log}");
    }
}
