//! A real Redis Cluster of three masters on free ports; it ends with its owner.

use redis::ConnectionInfo;

use super::eventually::{SOON, eventually, when};
use super::ports::free_port;
use super::redis::RedisServer;

/// The slots of each master.
const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

/// See the module.
#[derive(Debug)]
pub(crate) struct RedisCluster {
    pub(crate) nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// A cluster in which every node knows that all slots are served.
    pub(crate) fn start() -> Self {
        let ports: Vec<_> = SLOTS.iter().map(|_| free_port().to_string()).collect();
        let node = |bus_port: &String| {
            // The port of the bus is the other one plus 10000 by default, which may be no port.
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", bus_port];
            arguments.extend(["--cluster-config-file", "nodes.conf"]);
            RedisServer::start(&arguments)
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
            eventually("the cluster is whole", SOON, || {
                let info: String = node.query(&["CLUSTER", "INFO"]);
                let is_whole = [
                    "cluster_state:ok",
                    "cluster_slots_ok:16384",
                    "cluster_size:3",
                ]
                .iter()
                .all(|line| info.lines().any(|found| found == *line));
                when(is_whole, info)
            });
        }
        Self { nodes }
    }

    pub(crate) fn url(&self) -> String {
        let addresses: Vec<_> = self
            .nodes
            .iter()
            .map(|it| it.address().to_string())
            .collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    pub(crate) fn connection_infos(&self) -> Vec<ConnectionInfo> {
        let info = |node: &RedisServer| node.url().parse().expect("a URL of Redis");
        self.nodes.iter().map(info).collect()
    }

    /// The master that has a key.
    pub(crate) fn master_of(&self, key: &str) -> &RedisServer {
        let slot: u16 = self.nodes[0].query(&["CLUSTER", "KEYSLOT", key]);
        let index = SLOTS.iter().position(|(_, last)| slot <= *last);
        &self.nodes[index.expect("all slots are served")]
    }
}
