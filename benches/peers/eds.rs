//! Measures `eds run` with each store. Nodes receive a load within one minute, and run until its counts have been written.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use rustix::thread::CpuSet;
use testing::clock::Clock;
use testing::eventually::{eventually, when};
use testing::load::MINUTE_NS;
use testing::ports::free_port;
use testing::redis::RedisServer;
use testing::redis_cluster::RedisCluster;

use super::Figures;
use super::flow::{Flow, Protocol, Sent};
use super::program::kernel_drops;
use crate::measure::{float, on_cpus, peak_memory_mb, process_cpu, quantile};
use crate::node::{self, Node, eds};

/// The default settings of a node. They must be set, because the test support uses different defaults.
const AS_INSTALLED: [(&str, &str); 5] = [
    ("input.max_age", "1h"),
    ("flush.interval", "1s"),
    ("flush.grace", "5s"),
    ("flush.lease", "30s"),
    ("log.level", "warn"),
];
/// The time to allow for the startup of each node before the first event is sent.
const START: Duration = Duration::from_millis(1_500);
/// The time from the last event to the end of the minute.
const END: Duration = Duration::from_millis(500);
/// The earliest time after the end of a minute at which a node may seal the minute: the grace period minus one round.
const NOT_BEFORE: Duration = Duration::from_secs(4);
const POLL: Duration = Duration::from_millis(100);
/// All events have been recorded once no event has been recorded for this long: `input.linger_max` plus a margin.
pub(crate) const SETTLED: Duration = Duration::from_millis(2_300);
/// The time between two looks at the number of recorded events. A look takes 0.4 ms of each node's CPU time.
const LOOK: Duration = Duration::from_millis(430);
/// Maximum time to wait for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The store of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Memory,
    /// Redis with this layout.
    Redis(&'static str),
}

impl Store {
    /// Returns the reason if this build of `eds` does not support the store; otherwise, `None`.
    pub(crate) fn is_missing(self) -> Option<String> {
        let Self::Redis(layout) = self else {
            return None;
        };
        let mut node = Node::new("check", &AS_INSTALLED);
        node.set("store.layout", layout);
        node.write_config();
        let checked = eds().args(["check", "--config"]).arg(node.config_path()).output();
        let is_known = checked.is_ok_and(|checked| checked.status.success());
        (!is_known).then(|| format!("this build does not know store.layout = {layout:?}"))
    }
}

/// Keys of the configuration and their values.
pub(crate) type Keys = &'static [(&'static str, &'static str)];

/// Nodes and their servers, with a clock set by the benchmark.
pub(crate) struct Cluster {
    pub(crate) clock: Clock,
    layout: Option<&'static str>,
    url: String,
    pub(crate) rollups: &'static [Keys],
    /// Settings that differ from the defaults.
    pub(crate) settings: Keys,
    /// The address on which the node receives events by HTTP; `None` without HTTP.
    requests: Option<SocketAddr>,
    /// The binary of the nodes, or `None` for that of this build.
    pub(crate) binary: Option<PathBuf>,
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) nodes: Vec<Node>,
    /// The time that the nodes run before the first event is sent.
    pub(crate) rest: Duration,
    /// The CPUs that send datagrams, if not those of this thread.
    pub(crate) senders: Option<CpuSet>,
}

impl Cluster {
    /// Starts the servers of a store, without nodes.
    pub(crate) fn of(store: Store, masters: usize) -> Self {
        let clock = Clock::ahead_by(0);
        let mut url = "memory:".to_owned();
        let mut servers = Vec::new();
        let layout = match store {
            Store::Memory => None,
            Store::Redis(layout) => Some(layout),
        };
        if layout.is_some() && masters > 1 {
            let cluster = RedisCluster::start_with_clock(&clock);
            url = cluster.url();
            servers = cluster.nodes;
        } else if layout.is_some() {
            let server = RedisServer::start_with_clock(&clock, &[]);
            url = server.url();
            servers.push(server);
        }
        Self {
            clock,
            layout,
            url,
            rollups: &[],
            settings: &[],
            requests: None,
            binary: None,
            servers,
            nodes: Vec::new(),
            rest: Duration::ZERO,
            senders: None,
        }
    }

    /// Starts one more node.
    pub(crate) fn start_node(&mut self) {
        let name = format!("node-{}", self.nodes.len());
        let mut node = Node::new(&name, &AS_INSTALLED);
        node.set("store.url", &self.url);
        if let Some(layout) = self.layout {
            node.set("store.layout", layout);
        }
        for (key, value) in self.clock.environment() {
            node.set_environment(&key, &value);
        }
        for (key, value) in self.settings {
            node.set(key, value);
        }
        if !self.rollups.is_empty() {
            node.set_sections("rollup", self.rollups);
        }
        if let Some(requests) = self.requests {
            node.set("input.http.listen", &requests.to_string());
        }
        node.set_binary(self.binary.as_deref());
        node.run();
        self.nodes.push(node);
    }

    /// Sets the clock so that a load that begins after `start` ends shortly before the end of a minute, but not of an hour.
    /// Returns when the load begins, as an instant and as a timestamp in nanoseconds.
    fn set_clock(&self, start: Duration, flow: &Flow) -> anyhow::Result<(Instant, i64)> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let now = i64::try_from(now.as_nanos())?;
        let last = now + i64::try_from((start + flow.lasts() + END).as_nanos())?;
        let mut ahead = MINUTE_NS - last.rem_euclid(MINUTE_NS);
        if (last + ahead) % (60 * MINUTE_NS) == 0 {
            ahead += MINUTE_NS;
        }
        self.clock.set(ahead / 1_000);
        let begins = now + ahead + i64::try_from(start.as_nanos())?;
        Ok((Instant::now() + start, begins))
    }

    /// Starts nodes, and sends each node its share of a load. Returns the cost and the end of the minute.
    pub(crate) fn feed(&mut self, flow: &Flow, nodes: usize) -> anyhow::Result<(Fed, Instant)> {
        ensure!(flow.lasts() + END < Duration::from_secs(60), "a load longer than a minute");
        let start = START * u32::try_from(nodes + 1)? + self.rest;
        let (begins, begins_nanos) = self.set_clock(start, flow)?;
        let address = || SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        self.requests = (flow.clients > 0).then(address);
        for _ in 0..nodes {
            self.start_node();
        }
        let late = "the nodes did not start in time";
        thread::sleep(begins.checked_duration_since(Instant::now()).context(late)?);
        let (before, began) = (self.cpu()?, Instant::now());
        let (bytes, traffic) = (self.redis_bytes()?, self.traffic()?);
        let to: Vec<SocketAddr> = self.nodes.iter().map(Node::udp).collect();
        let sent = if let Some(requests) = self.requests {
            flow.request(requests, begins_nanos)?
        } else {
            let send = || flow.send(&to, Protocol::Events, begins_nanos);
            self.senders.map_or_else(send, |cpus| on_cpus(&cpus, send))?
        };
        let backlog = self.nodes.iter().map(|node| node.metrics().count("eds_events_queued"));
        let backlog = backlog.sum();
        settle(&self.nodes);
        let after = self.cpu()?;
        let received = self.traffic()?;
        let fed = Fed {
            sent,
            seconds: began.elapsed().as_secs_f64(),
            traffic: [0, 1, 2].map(|at| received[at] - traffic[at]),
            backlog,
            cpu: after.0 - before.0,
            redis_cpu: after.1 - before.1,
            redis_bytes: self.redis_bytes()? - bytes,
            datagrams_dropped: to
                .iter()
                .map(|to| kernel_drops(to.port()))
                .sum::<Option<_>>()
                .unwrap_or_default(),
        };
        Ok((fed, begins + flow.lasts() + END))
    }

    /// Waits for up to [`PATIENCE`] until the written counts include these events. Returns the number of events and users
    /// counted.
    pub(crate) fn wait_counted(&self, events: u64) -> (u64, u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut counted = (0, 0);
            for point in self.nodes.iter().map(Node::stdout).collect::<String>().lines() {
                let value = point.split("value=").nth(1);
                let value = value.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
                let sum =
                    if point.starts_with("cumulative") { &mut counted.0 } else { &mut counted.1 };
                *sum += value.unwrap_or_default();
            }
            if counted.0 >= events || Instant::now() > deadline {
                return counted;
            }
            thread::sleep(POLL);
        }
    }

    /// Waits until all minutes but the current one have been sealed and added to the windows of all rollups.
    pub(crate) fn wait_added(&self) {
        eventually("the minutes are added to their windows", PATIENCE, || {
            let keys = self.servers.iter().flat_map(RedisServer::keys);
            let mut keys = keys.filter(|key| !key.contains("{eds:rollup:"));
            let is_left = |key: &String| {
                [":minutes", ":claims", ":claims:rollup"].iter().any(|end| key.ends_with(end))
            };
            keys.find(is_left).map_or(Ok(()), Err)
        });
    }

    /// Waits until the servers have freed the memory of deleted keys, which takes some of their CPU time.
    fn wait_freed(&self) {
        eventually("Redis has freed all deleted keys", PATIENCE, || {
            let left = self.info("lazyfree_pending_objects");
            when(matches!(left, Ok(..0.5)), format!("{left:?}"))
        });
    }

    /// Returns the CPU seconds used so far by all nodes, and by all servers.
    pub(crate) fn cpu(&self) -> anyhow::Result<(f64, f64)> {
        let nodes = self.nodes.iter().map(|node| process_cpu(node.pid()));
        let servers = self.servers.iter().map(|server| process_cpu(server.pid()));
        Ok((nodes.sum::<Result<_, _>>()?, servers.sum::<Result<_, _>>()?))
    }

    /// Returns a number from `INFO`, summed over the servers.
    pub(crate) fn info(&self, field: &str) -> anyhow::Result<f64> {
        let of_server = |server: &RedisServer| -> anyhow::Result<f64> {
            let info: String = server.query(&["INFO", "everything"]);
            let mut lines = info.lines();
            let value = lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            Ok(value.context("no such field in INFO")?.parse()?)
        };
        self.servers.iter().map(of_server).sum()
    }

    /// Returns the number of commands and of bytes that all servers have received so far, and of bytes that they have sent.
    pub(crate) fn traffic(&self) -> anyhow::Result<[f64; 3]> {
        Ok([
            self.info("total_commands_processed")?,
            self.info("total_net_input_bytes")?,
            self.info("total_net_output_bytes")?,
        ])
    }

    fn redis_bytes(&self) -> anyhow::Result<f64> {
        self.info("used_memory")
    }
}

/// Waits until nodes record no more events, and returns how many they have recorded.
pub(crate) fn settle(nodes: &[Node]) -> u64 {
    let mut last = (0, Instant::now());
    while last.1.elapsed() < SETTLED {
        let recorded = node::count(nodes, "eds_events_recorded_total");
        if recorded > last.0 {
            last = (recorded, Instant::now());
        }
        thread::sleep(LOOK);
    }
    last.0
}

/// The cost of receiving and recording a load, in CPU seconds and bytes of Redis, and the losses.
#[derive(Debug)]
pub(crate) struct Fed {
    pub(crate) sent: Sent,
    /// The time it took to send and record the load.
    pub(crate) seconds: f64,
    /// The [traffic](Cluster::traffic) in that time.
    pub(crate) traffic: [f64; 3],
    /// The number of events queued on the nodes right after the last event was sent.
    pub(crate) backlog: u64,
    pub(crate) cpu: f64,
    pub(crate) redis_cpu: f64,
    redis_bytes: f64,
    pub(crate) datagrams_dropped: u64,
}

/// Counts a load with one node, and returns the cost and the losses.
pub(crate) fn count(store: Store, flow: &Flow) -> anyhow::Result<Figures> {
    count_with(Cluster::of(store, 1), flow, 1)
}

/// Counts a load with this many nodes, and returns the cost and the losses.
pub(crate) fn count_with(
    mut cluster: Cluster,
    flow: &Flow,
    nodes: usize,
) -> anyhow::Result<Figures> {
    let (fed, end) = cluster.feed(flow, nodes)?;
    // Leave out the time between recording and sealing, in which the nodes are idle.
    thread::sleep((end + NOT_BEFORE).saturating_duration_since(Instant::now()));
    let before = cluster.cpu()?;
    let recorded = node::count(&cluster.nodes, "eds_events_recorded_total");
    let (events, users) = cluster.wait_counted(recorded);
    if !cluster.rollups.is_empty() {
        cluster.wait_added();
    }
    cluster.wait_freed();
    let after = cluster.cpu()?;
    let memory = cluster.nodes.iter().map(|node| peak_memory_mb(node.pid()));
    let memory = memory.collect::<Result<Vec<_>, _>>()?;
    Ok(Figures {
        cpu: fed.cpu + after.0 - before.0,
        redis_cpu: fed.redis_cpu + after.1 - before.1,
        sender_cpu: fed.sent.cpu,
        waits_ms: [0.5, 0.99].map(|share| quantile(&fed.sent.waits_ms, share)),
        datagrams_dropped: fed.datagrams_dropped,
        events_lost: f64::from(flow.events) - float(events),
        users: float(users),
        redis_bytes: if cluster.servers.is_empty() { f64::NAN } else { fed.redis_bytes },
        memory_mb: memory.into_iter().fold(0.0, f64::max),
    })
}
