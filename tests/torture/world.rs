//! The nodes and servers of a run. Begins and ends faults, and sums the ledgers of all processes.

use memchr::memmem;
use testing::prelude::*;

use crate::fault::{Fault, NodeFault};
use crate::site::{DATABASE, Site};
use crate::store::{Kind, Store};
use crate::support::node::Node;

const MINUTE: Duration = Duration::from_secs(60);
/// The grace period, longer than the sender's pauses within a minute, with a margin for slow machines.
pub(crate) const GRACE: Duration = Duration::from_secs(8);
/// The counters of the ledger: received events, the four counters whose sum they are, and others.
pub(crate) const LEDGER: [&str; 12] = [
    "eds_events_received_total",
    "eds_events_recorded_total",
    "eds_events_rejected_total",
    "eds_events_dropped_total",
    "eds_events_queued",
    "eds_events_late_total",
    "eds_kernel_drops_total",
    "eds_spool_written_total",
    "eds_spool_restored_total",
    "eds_events_replayed_total",
    "eds_events_forgotten_total",
    "eds_store_rollbacks_total",
];

pub(crate) struct World {
    pub(crate) sites: [Site; 2],
    pub(crate) store: Store,
    pub(crate) nodes: Vec<Node>,
    past: BTreeMap<&'static str, u64>,
}

/// The name of each node, and the offset of its clock in seconds.
const NODES: [(&str, i64); 3] = [("one", 0), ("two", 300), ("three", -300)];

impl World {
    pub(crate) fn start(kind: Kind, max_hold: Duration) -> Self {
        let database = || Site::with(RedisServer::down(&[]), InfluxServer::start());
        let sites = [database(), database()];
        let urls = sites.each_ref().map(|site| site.writes.url());
        let outputs = [("one", &*urls[0]), ("two", &*urls[1])].map(|(name, url)| {
            [("name", name), ("url", url), ("api", "v1"), ("database", DATABASE), ("timeout", "2s")]
        });
        let store = Store::start(kind, NODES.len());
        let mut nodes = Vec::new();
        for (index, (name, skew)) in NODES.into_iter().enumerate() {
            let keys = [
                ("store.url", store.url(index)),
                ("store.response_timeout", "2s".to_owned()),
                ("store.partitions", "8".to_owned()),
                ("flush.grace", format!("{}s", GRACE.as_secs())),
                ("flush.max_hold", format!("{}s", max_hold.as_secs())),
                ("log.level", "info".to_owned()),
            ];
            let keys = keys.each_ref().map(|(key, value)| (*key, value.as_str()));
            let mut node = sites[0].node(name, &keys);
            node.set_outputs(&[&outputs[0], &outputs[1]]);
            // Windows of thousands of archived minutes would take longer than the tests wait.
            let drop = ("drop", "[\"event_type=archived\"]");
            let products = [("name", "products"), ("every", "1m"), ("by", "[\"product\"]"), drop];
            let two = [("name", "two"), ("every", "2m"), drop];
            node.set_sections("rollup", &[&products, &two]);
            // The queue is small, so that most events go to disk during an outage.
            node.set("input.queue_events", "3000");
            node.set("input.max_future", "10m");
            node.set("input.spool_dir", &node.spool().display().to_string());
            node.skew(skew);
            node.launch();
            nodes.push(node);
        }
        let mut world = Self { sites, store, nodes, past: BTreeMap::new() };
        for node in &mut world.nodes {
            node.wait_ready();
        }
        world
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
            Fault::Node(node, NodeFault::Redis(traffic)) => self.store.set_traffic(node, traffic),
            Fault::Redis(fault) => self.store.begin(fault),
            Fault::Output(output, mode) => self.sites[output].writes.set(mode),
            Fault::Straggler | Fault::Archive => {}
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
            Fault::Node(node, NodeFault::Redis(_)) => self.store.set_traffic(node, Traffic::Open),
            Fault::Redis(fault) => self.store.end(fault),
            Fault::Output(output, _) => self.sites[output].writes.set(Mode::Pass),
            Fault::Straggler | Fault::Archive => {}
        }
    }

    /// Waits until every node is ready and has recorded all events, and until every replica has caught up.
    pub(crate) fn wait_calm(&mut self) {
        for node in &mut self.nodes {
            node.wait_ready();
        }
        eventually("every queue is empty", SOON * 3, || {
            for node in &self.nodes {
                let metrics = node.metrics();
                metrics.assert_ledger_adds_up();
                let [queued, lagging] =
                    ["eds_events_queued", "eds_partitions_lagging"].map(|name| metrics.count(name));
                if queued + lagging > 0 {
                    return Err(format!("{queued} events queued, {lagging} partitions lag"));
                }
            }
            Ok(())
        });
        self.store.wait_in_step();
    }

    pub(crate) fn points(&self) -> [Points; 2] {
        self.sites.each_ref().map(Site::points)
    }

    /// Returns the points of the windows.
    pub(crate) fn windows(&self) -> [Points; 2] {
        self.sites.each_ref().map(|site| {
            ["_products", "_two"].into_iter().flat_map(|suffix| site.windows(suffix)).collect()
        })
    }

    /// Returns the points of windows that were written with `complete=false`.
    pub(crate) fn incomplete(&self, database: usize) -> BTreeSet<Point> {
        let writes = self.sites[database].writes.writes().into_iter();
        let lines = writes.flat_map(|write| {
            let body = String::from_utf8_lossy(&write.body).into_owned();
            let marked = body.lines().filter(|line| line.contains(",complete=false "));
            marked.flat_map(|line| [line, "\n"]).collect::<String>().into_bytes()
        });
        read_back::written(&lines.collect::<Vec<_>>()).into_keys().collect()
    }

    pub(crate) fn rollbacks(&self) -> Vec<(u64, usize)> {
        self.nodes.iter().map(rollbacks).collect()
    }

    /// Waits until each of these nodes has reported a rollback since `before`. They must not have been restarted since.
    pub(crate) fn wait_reported(
        &self,
        before: &[(u64, usize)],
        lived: impl Iterator<Item = usize>,
    ) {
        for node in lived {
            eventually("a node reports that Redis rolled back", SOON, || {
                let (now, before) = (rollbacks(&self.nodes[node]), before[node]);
                let both = now.0 > before.0 && now.1 > before.1;
                when(both, format!("node {node}: {now:?} after {before:?}"))
            });
        }
    }

    pub(crate) fn forgotten(&self, node: usize) -> u64 {
        let metrics = self.nodes[node].metrics();
        metrics.count("eds_events_forgotten_total")
    }

    pub(crate) fn late(&self) -> u64 {
        self.ledger()["eds_events_late_total"]
    }

    /// Waits until every minute and every window is sealed and published. A clock that was set ahead delays this by at most the longest hold.
    pub(crate) fn wait_sealed(&self, max_hold: Duration) {
        for redis in self.store.masters() {
            Site::wait_clean_within(redis, max_hold.max(2 * MINUTE + GRACE) + 2 * SOON);
        }
    }

    pub(crate) fn unanswered(&self) -> usize {
        let writes = self.sites.iter().flat_map(|site| site.writes.writes());
        writes.filter(|write| write.taken && !write.confirmed).count()
    }

    /// Returns how long after its end each minute had been written to both databases. Unwritten minutes are left out.
    pub(crate) fn lateness(&self, over: &BTreeMap<i64, Instant>) -> BTreeMap<i64, Duration> {
        let writes = self.sites.each_ref().map(|site| site.writes.writes());
        let late = |(minute, over): (&i64, &Instant)| {
            // A line of the body ends with its timestamp.
            let time = format!(" {minute}");
            let has = |write: &&Received| {
                write.taken && memmem::find(&write.body, time.as_bytes()).is_some()
            };
            let first = |writes: &Vec<Received>| Some(writes.iter().find(has)?.at);
            let at = first(&writes[0])?.max(first(&writes[1])?);
            Some((*minute, at.duration_since(*over)))
        };
        over.iter().filter_map(late).collect()
    }

    fn remember(&mut self, node: usize) {
        let metrics = self.nodes[node].metrics();
        metrics.assert_ledger_adds_up();
        for name in LEDGER {
            *self.past.entry(name).or_default() += metrics.count(name);
        }
    }

    /// Returns the sum of the ledgers of all processes, using the last report of processes that have exited.
    pub(crate) fn ledger(&self) -> BTreeMap<&'static str, u64> {
        let mut ledger = self.past.clone();
        for node in &self.nodes {
            let metrics = node.metrics();
            metrics.assert_ledger_adds_up();
            for name in LEDGER {
                *ledger.entry(name).or_default() += metrics.count(name);
            }
        }
        ledger
    }
}

fn rollbacks(node: &Node) -> (u64, usize) {
    let log = node.log();
    let is_logged =
        |line: &&str| line.contains("ERROR") && line.contains("the store lost acknowledged");
    let logged = log.lines().filter(is_logged).count();
    (node.metrics().count("eds_store_rollbacks_total"), logged)
}
