//! Runs a real Redis Cluster of three masters on free ports, optionally with a replica for each of them, until
//! [`RedisCluster`] is dropped.

use std::time::Duration;

use crate::clock::Clock;
use crate::eventually::{SOON, eventually, when};
use crate::ports::free_port;
use crate::redis::RedisServer;

/// The slots of each master.
const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// The maximum time until the cluster is complete. On a busy machine, it can take long until all servers know each other.
const WHOLE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RedisCluster {
    /// The masters, followed by their replicas in the same order.
    pub nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts masters without replicas, and waits until every node knows that all slots are served. A node that hangs is not
    /// considered failed for a minute.
    pub fn start() -> Self {
        Self::launch(SLOTS.len(), "60000", RedisServer::start)
    }

    /// Like [`Self::start`], but the servers use this clock.
    pub fn start_with_clock(clock: &Clock) -> Self {
        let start = |arguments: &[&str]| RedisServer::start_with_clock(clock, arguments);
        Self::launch(SLOTS.len(), "86400000", start)
    }

    /// Like [`Self::start`], but with a replica of each master, which takes over if the master has not responded for two
    /// seconds.
    pub fn start_with_replicas() -> Self {
        Self::start_with_replicas_by(None, &[])
    }

    /// Like [`Self::start_with_replicas`], but each server uses this clock, if any, and gets these additional arguments.
    pub fn start_with_replicas_by(clock: Option<&Clock>, arguments: &[&str]) -> Self {
        let start = |own: &[&str]| RedisServer::start_with(clock, &[own, arguments].concat());
        let cluster = Self::launch(2 * SLOTS.len(), "2000", start);
        let (masters, replicas) = cluster.nodes.split_at(SLOTS.len());
        for (master, replica) in masters.iter().zip(replicas) {
            let id: String = master.query(&["CLUSTER", "MYID"]);
            replica.query::<()>(&["CLUSTER", "REPLICATE", &id]);
        }
        for replica in replicas {
            eventually("the replica is in sync with its master", WHOLE, || {
                let info: String = replica.query(&["INFO", "replication"]);
                when(info.contains("master_link_status:up"), info)
            });
        }
        for node in &cluster.nodes {
            eventually("every node knows every replica", WHOLE, || {
                let nodes: String = node.query(&["CLUSTER", "NODES"]);
                when(nodes.matches("slave ").count() == replicas.len(), nodes)
            });
        }
        cluster
    }

    fn launch(count: usize, node_timeout_ms: &str, start: impl Fn(&[&str]) -> RedisServer) -> Self {
        let ports: Vec<_> = (0..count).map(|_| free_port().to_string()).collect();
        let node = |bus_port: &String| {
            // By default, the cluster bus uses the server's port plus 10000, which may not be a valid or free port.
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", bus_port];
            arguments.extend(["--cluster-config-file", "nodes.conf"]);
            arguments.extend(["--cluster-node-timeout", node_timeout_ms]);
            // Allows a replica to be promoted, however old its data is.
            arguments.extend(["--cluster-replica-validity-factor", "0"]);
            arguments.extend(["--repl-diskless-sync-delay", "0"]);
            start(&arguments)
        };
        let nodes: Vec<_> = ports.iter().map(node).collect();
        for (number, (node, (first, last))) in nodes.iter().zip(SLOTS).enumerate() {
            let (first, last) = (first.to_string(), last.to_string());
            let epoch = (number + 1).to_string();
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            node.query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        for (node, bus_port) in nodes.iter().zip(&ports).skip(1) {
            let port = node.address().port().to_string();
            nodes[0].query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, bus_port]);
        }
        for node in &nodes {
            eventually("the cluster is ready", WHOLE, || {
                let info: String = node.query(&["CLUSTER", "INFO"]);
                let known = format!("cluster_known_nodes:{count}");
                let is_whole =
                    ["cluster_state:ok", "cluster_slots_ok:16384", "cluster_size:3", &known]
                        .iter()
                        .all(|line| info.lines().any(|found| found == *line));
                when(is_whole, info)
            });
        }
        Self { nodes }
    }

    pub fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Returns the servers that were the masters at the start.
    pub fn masters(&self) -> &[RedisServer] {
        &self.nodes[..SLOTS.len()]
    }

    pub fn slot_of(&self, key: &str) -> u16 {
        self.nodes[0].query(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns which of these masters currently owns a slot.
    pub fn owner_of(&self, slot: u16, masters: &[usize]) -> usize {
        let has = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let ends = (first.parse::<u16>(), last.parse::<u16>());
            matches!(ends, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        };
        let owns = |index: &&usize| {
            let nodes: String = self.nodes[**index].query(&["CLUSTER", "NODES"]);
            let own = nodes.lines().find(|line| line.contains("myself"));
            own.is_some_and(|line| line.split(' ').skip(8).any(has))
        };
        *masters.iter().find(owns).expect("all slots are served")
    }

    /// Returns whether every server reports that all slots are served and that no server has failed.
    pub fn is_whole(&self) -> bool {
        self.nodes.iter().all(|node| {
            let info: String = node.query(&["CLUSTER", "INFO"]);
            let nodes: String = node.query(&["CLUSTER", "NODES"]);
            let whole = ["cluster_state:ok", "cluster_slots_ok:16384"];
            whole.iter().all(|line| info.contains(line)) && !nodes.contains("fail")
        })
    }

    /// Returns the index of the master that owned the slot of a key at the start.
    pub fn master_index(&self, key: &str) -> usize {
        let slot = self.slot_of(key);
        let index = SLOTS.iter().position(|(_, last)| slot <= *last);
        index.expect("all slots are served")
    }

    /// Returns the master that owned the slot of a key at the start.
    pub fn master_of(&self, key: &str) -> &RedisServer {
        &self.nodes[self.master_index(key)]
    }

    /// Suspends the replica of a master and cuts the connection between them. Call [`Self::kill_master`] next.
    ///
    /// After that, the replica still reads the data that the master had already sent, but receives no later data.
    pub fn cut_replica(&self, index: usize) {
        self.nodes[SLOTS.len() + index].signal("STOP");
        let killed: u64 = self.nodes[index].query(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(killed, 1, "killed replica connections");
    }

    /// Kills a master, and resumes its replica if [`Self::cut_replica`] suspended it.
    pub fn kill_master(&mut self, index: usize) {
        self.nodes[index].kill();
        self.nodes[SLOTS.len() + index].signal("CONT");
    }

    /// Waits until the replica of this master has become a master.
    #[track_caller]
    pub fn wait_promoted(&self, index: usize) {
        let replica = &self.nodes[SLOTS.len() + index];
        eventually("the replica is promoted", SOON, || {
            let info: String = replica.query(&["INFO", "replication"]);
            when(info.contains("role:master"), info)
        });
    }

    /// Starts to move a slot from one master to another, and moves up to this number of its keys.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize, keys: usize) {
        let slot = slot.to_string();
        let [source, target] = [from, to].map(|index| &self.nodes[index]);
        let [source_id, target_id] =
            [source, target].map(|node| node.query::<String>(&["CLUSTER", "MYID"]));
        target.query::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]);
        source.query::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]);
        self.move_keys(&slot, from, to, keys);
    }

    /// Moves the remaining keys of the slot, and announces the new owner to every master.
    pub fn end_move(&self, slot: u16, from: usize, to: usize) {
        self.end_move_among(slot, from, to, [3 - to - from]);
    }

    /// Like [`Self::end_move`], but announces the new owner to `to`, `from` and only these other masters.
    pub fn end_move_among(
        &self,
        slot: u16,
        from: usize,
        to: usize,
        others: impl IntoIterator<Item = usize>,
    ) {
        let slot = slot.to_string();
        while self.move_keys(&slot, from, to, 1000) > 0 {}
        let id: String = self.nodes[to].query(&["CLUSTER", "MYID"]);
        // The new owner is told first, so that the slot always has an owner.
        for index in [to, from].into_iter().chain(others) {
            self.nodes[index].query::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
        }
    }

    fn move_keys(&self, slot: &str, from: usize, to: usize, max: usize) -> usize {
        let max = max.to_string();
        let keys: Vec<String> = self.nodes[from].query(&["CLUSTER", "GETKEYSINSLOT", slot, &max]);
        if !keys.is_empty() {
            let port = self.nodes[to].address().port().to_string();
            let mut migrate = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "10000", "KEYS"];
            migrate.extend(keys.iter().map(String::as_str));
            self.nodes[from].query::<()>(&migrate);
        }
        keys.len()
    }
}
