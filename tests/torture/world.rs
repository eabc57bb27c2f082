//! The nodes and servers of a torture, each node with a way of its own to Redis; how faults begin and end; and the
//! ledgers of all lives.

use std::collections::BTreeMap;

use crate::fault::{Fault, NodeFault, RedisFault};
use crate::site::Site;
use crate::support::eventually::{SOON, eventually, when};
use crate::support::http_proxy::Mode;
use crate::support::influxdb::InfluxServer;
use crate::support::metrics::Metrics;
use crate::support::node::Node;
use crate::support::redis::RedisServer;
use crate::support::tcp_proxy::{TcpProxy, Way};

/// Longer than the sender ever rests within a minute of the events, with time for a slow machine.
const GRACE: &str = "8s";
/// What the ledger is of, in the order in which it is told. What is queued at the end was in the queue of a node when
/// it was killed or left events on disk; those on disk its next life received again.
pub(crate) const LEDGER: [&str; 9] = [
    "eds_events_received_total",
    "eds_events_recorded_total",
    "eds_events_rejected_total",
    "eds_events_dropped_total",
    "eds_events_queued",
    "eds_events_late_total",
    "eds_kernel_drops_total",
    "eds_spool_written_total",
    "eds_spool_restored_total",
];

/// See the module.
pub(crate) struct World {
    /// Its Redis is the master now.
    pub(crate) site: Site,
    replica: RedisServer,
    pub(crate) nodes: Vec<Node>,
    ways: Vec<TcpProxy>,
    /// What nodes had counted when their lives ended, by name.
    past: BTreeMap<&'static str, u64>,
}

fn redis() -> RedisServer {
    RedisServer::start(&["--appendonly", "yes", "--repl-diskless-sync-delay", "0"])
}

impl World {
    pub(crate) fn start() -> Self {
        let site = Site::with(redis(), InfluxServer::start());
        let replica = redis();
        let (mut nodes, mut ways) = (Vec::new(), Vec::new());
        // Two of the clocks are five minutes off.
        for (name, skew) in [
            ("one", None),
            ("two", Some("+300")),
            ("three", Some("-300")),
        ] {
            let way = TcpProxy::start(site.redis.address());
            let keys = [
                ("store.url", way.url()),
                ("store.response_timeout", "2s".to_owned()),
                ("store.partitions", "8".to_owned()),
                ("flush.grace", GRACE.to_owned()),
                ("flush.max_hold", "1h".to_owned()),
                ("log.level", "info".to_owned()),
            ];
            let keys = keys.each_ref().map(|(key, value)| (*key, value.as_str()));
            let mut node = site.node(name, &keys);
            // So few that an outage sends most to the disk.
            node.set("input.queue_events", "3000");
            node.set("input.spool_dir", &node.spool().display().to_string());
            if let Some(skew) = skew {
                node.skew(skew);
            }
            node.launch();
            nodes.push(node);
            ways.push(way);
        }
        let mut world = Self {
            site,
            replica,
            nodes,
            ways,
            past: BTreeMap::new(),
        };
        world.follow();
        for node in &mut world.nodes {
            node.wait_ready();
        }
        world
    }

    /// The replica follows the master, and has all that it has.
    fn follow(&self) {
        let master = self.site.redis.address();
        let (host, port) = (master.ip().to_string(), master.port().to_string());
        self.replica.query::<()>(&["REPLICAOF", &host, &port]);
        self.wait_in_step();
    }

    fn wait_in_step(&self) {
        eventually("the replica is in step", SOON, || {
            let of = |server: &RedisServer, key: &str| {
                let info: String = server.query(&["INFO", "replication"]);
                let value = info.lines().find_map(|line| line.strip_prefix(key));
                value.map(|value| value.trim().to_owned())
            };
            let link = of(&self.replica, "master_link_status:");
            let offsets = [
                of(&self.site.redis, "master_repl_offset:"),
                of(&self.replica, "master_repl_offset:"),
            ];
            let in_step = link.as_deref() == Some("up") && offsets[0] == offsets[1];
            when(in_step, format!("{link:?} {offsets:?}"))
        });
    }

    pub(crate) fn begin(&mut self, fault: Fault) {
        match fault {
            Fault::Node(node, NodeFault::Killed) => {
                self.remember(node);
                self.nodes[node].kill();
            }
            Fault::Node(node, NodeFault::Ended) => {
                self.remember(node);
                self.nodes[node].signal("TERM");
            }
            Fault::Node(node, NodeFault::Asleep) => self.nodes[node].signal("STOP"),
            Fault::Node(node, NodeFault::Redis(way)) => self.ways[node].set(way),
            Fault::Redis(RedisFault::Asleep) => self.site.redis.signal("STOP"),
            Fault::Redis(RedisFault::Ended) => self.site.redis.stop(),
            Fault::Redis(RedisFault::Killed | RedisFault::Replaced) => self.site.redis.kill(),
            Fault::Redis(RedisFault::Full) => self.limit_memory("1"),
            Fault::Redis(RedisFault::Ways(way)) => self.ways.iter().for_each(|it| it.set(way)),
            Fault::Output(mode) => self.site.writes.set(mode),
        }
    }

    pub(crate) fn end(&mut self, fault: Fault) {
        match fault {
            Fault::Node(node, NodeFault::Killed) => self.nodes[node].launch(),
            Fault::Node(node, NodeFault::Ended) => {
                self.nodes[node].wait_for_exit(SOON);
                self.nodes[node].launch();
            }
            Fault::Node(node, NodeFault::Asleep) => self.nodes[node].signal("CONT"),
            Fault::Node(node, NodeFault::Redis(_)) => self.ways[node].set(Way::Open),
            Fault::Redis(RedisFault::Asleep) => self.site.redis.signal("CONT"),
            Fault::Redis(RedisFault::Ended | RedisFault::Killed) => self.site.redis.restart(),
            Fault::Redis(RedisFault::Replaced) => self.replace_master(),
            Fault::Redis(RedisFault::Full) => self.limit_memory("0"),
            Fault::Redis(RedisFault::Ways(_)) => self.ways.iter().for_each(|it| it.set(Way::Open)),
            Fault::Output(_) => self.site.writes.set(Mode::Pass),
        }
    }

    fn limit_memory(&self, bytes: &str) {
        self.site
            .redis
            .query::<()>(&["CONFIG", "SET", "maxmemory", bytes]);
    }

    fn replace_master(&mut self) {
        self.replica.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        std::mem::swap(&mut self.replica, &mut self.site.redis);
        for way in &self.ways {
            way.lead_to(self.site.redis.address());
        }
        self.replica.restart();
    }

    /// Waits until every node is up and has recorded all that it received, and the replica is in step.
    pub(crate) fn wait_calm(&mut self) {
        for node in &mut self.nodes {
            node.wait_ready();
        }
        eventually("every queue is through", SOON * 3, || {
            for node in &self.nodes {
                let metrics = node.metrics();
                metrics.assert_ledger_adds_up();
                let [queued, behind] =
                    ["eds_events_queued", "eds_partitions_behind"].map(|name| metrics.count(name));
                if queued + behind > 0 {
                    return Err(format!(
                        "{queued} events queued, {behind} partitions behind"
                    ));
                }
            }
            Ok(())
        });
        self.follow();
    }

    /// What a node has counted up to now, before its life ends.
    fn remember(&mut self, node: usize) {
        let metrics = self.nodes[node].metrics();
        self.add(&metrics);
    }

    fn add(&mut self, metrics: &Metrics) {
        metrics.assert_ledger_adds_up();
        for name in LEDGER {
            *self.past.entry(name).or_default() += metrics.count(name);
        }
    }

    /// The ledgers of all nodes and all their lives; of a life that was ended by force, what it had told last.
    pub(crate) fn ledger(&mut self) -> Vec<(&'static str, u64)> {
        for node in 0..self.nodes.len() {
            self.remember(node);
        }
        LEDGER.iter().map(|name| (*name, self.past[name])).collect()
    }
}
