//! No events are lost when masters of a Redis Cluster die, hang, lose acknowledged writes, or move their slots.

use crate::failover::{
    BACK, Replicated, UnderLoad, assert_a_killed_master_costs_nothing, assert_exact,
    assert_recorded_again_behind_a_cut_link, send, site, two_nodes,
};
use crate::prelude::*;

/// Returns the hash tags of the partitions that these keys belong to, such as `{eds:3}`.
fn tags(keys: &[String]) -> BTreeSet<String> {
    let of_partitions = keys.iter().filter(|key| !key.starts_with("{eds:nodes}"));
    let tag = |key: &String| Some(format!("{}}}", key.strip_prefix('{')?.split('}').next()?));
    of_partitions.filter_map(tag).map(|tag| format!("{{{tag}")).collect()
}

/// Kills the master that holds the settings, whose loss affects the nodes most.
#[test]
fn master_killed_under_load_loses_no_event() {
    assert_a_killed_master_costs_nothing(&mut OneOf::start());
}

/// The old master wakes up still believing that it is the master, with commands waiting on its connections.
#[test]
fn master_replaced_while_it_hangs_loses_no_event() {
    let OneOf { cluster, index } = OneOf::start();
    let mut load = UnderLoad::start(&cluster.url(), 200_000);
    cluster.nodes[index].signal("STOP");
    load.assert_exact_in_spite_of(|| {
        cluster.wait_promoted(index);
        thread::sleep(Duration::from_secs(1));
        cluster.nodes[index].signal("CONT");
    });
}

#[test]
fn slots_moved_under_load_lose_no_event() {
    let cluster = RedisCluster::start();
    let mut load = UnderLoad::start(&cluster.url(), 150_000);
    load.assert_exact_in_spite_of(|| {
        let tags = tags(&cluster.nodes[0].keys());
        let slots: Vec<u16> =
            tags.iter().map(|tag| cluster.nodes[0].query(&["CLUSTER", "KEYSLOT", tag])).collect();
        let split: Vec<_> = slots.iter().copied().take(4).collect();
        for slot in &split {
            cluster.begin_move(*slot, 0, 1, 4);
        }
        let keys = |index: usize, slot: u16| {
            let slot = slot.to_string();
            cluster.nodes[index].query::<u64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot])
        };
        let on_both = split.iter().filter(|slot| keys(0, **slot) > 0 && keys(1, **slot) > 0);
        assert!(on_both.count() > 0);
        thread::sleep(Duration::from_secs(2));
        for slot in &split {
            cluster.end_move(*slot, 0, 1);
        }
        for slot in &slots[4..] {
            cluster.begin_move(*slot, 0, 2, 0);
            cluster.end_move(*slot, 0, 2);
        }
        cluster.begin_move(split[0], 1, 0, 2);
        cluster.end_move(split[0], 1, 0);
    });
}

/// A cluster, and the index of the master that a test cuts off or kills.
struct OneOf {
    cluster: RedisCluster,
    index: usize,
}

impl OneOf {
    fn start() -> Self {
        let cluster = RedisCluster::start_with_replicas();
        let index = cluster.master_index("eds:settings");
        Self { cluster, index }
    }
}

impl Replicated for OneOf {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn cut_link(&mut self) {
        self.cluster.cut_replica(self.index);
    }

    fn kill_master(&mut self) {
        self.cluster.kill_master(self.index);
    }

    fn wait_promoted(&self) {
        self.cluster.wait_promoted(self.index);
    }
}

#[test]
fn events_missing_on_a_promoted_replica_are_recorded_again() {
    assert_recorded_again_behind_a_cut_link(&mut OneOf::start());
}

#[test]
fn hanging_master_does_not_delay_other_partitions() {
    let cluster = RedisCluster::start();
    let site = site();
    let keys = [("flush.grace", "2s")];
    let nodes = two_nodes(&site, &cluster.url(), &keys);
    let mut sender = Sender::to_all(&nodes);
    let minute = |number: i64| testing::load::load(number..number + 1, 5000, 60, 500);
    // The names of the keys show which master holds a series.
    let mut master_of: BTreeMap<String, usize> = BTreeMap::new();
    let first: Vec<_> = minute(0).datagrams().collect();
    send(&mut sender, &first);
    eventually("all series are in Redis", SOON, || {
        for (index, master) in cluster.masters().iter().enumerate() {
            for key in master.keys() {
                if let Some((_, series)) = key.split_once(":unique_user:") {
                    master_of.insert(series.to_owned(), index);
                }
                if key.ends_with(":counts") {
                    let series: Vec<String> = master.query(&["HKEYS", &key]);
                    master_of.extend(series.into_iter().map(|series| (series, index)));
                }
            }
        }
        when(master_of.len() == 60, master_of.len())
    });
    site.wait_exact(&sender.expected.points(), BACK);

    let hanging = cluster.master_index("eds:settings");
    cluster.nodes[hanging].signal("STOP");
    let second: Vec<_> = minute(1).datagrams().collect();
    send(&mut sender, &second);
    let expected = sender.expected.points();
    let of_others = |points: &Points| -> Points {
        let others = points.iter().filter(|(point, _)| master_of[&point.series] != hanging);
        others.map(|(point, count)| (point.clone(), *count)).collect()
    };
    assert!(of_others(&expected).len() < expected.len());
    eventually("all series on the other masters are published", Duration::from_secs(45), || {
        compare(&of_others(&expected), &of_others(&site.points()))
    });
    assert!(count(&nodes, "eds_events_queued") > 0);
    cluster.nodes[hanging].signal("CONT");
    assert_exact(&site, &nodes, &sender);
}
