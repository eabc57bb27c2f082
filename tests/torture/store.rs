//! The Redis servers (a server with a replica, a Cluster of three masters with replicas, or Sentinel) and their faults.

use testing::prelude::*;

use crate::fault::RedisFault;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Server,
    Forgetful,
    Cluster,
    Sentinel,
}

/// Every server has an append-only file, so that it keeps its data when it is restarted.
const LOGGED: [&str; 4] = ["--appendonly", "yes", "--repl-diskless-sync-delay", "0"];

pub(crate) struct Store {
    servers: Servers,
    clock: Clock,
    victim: usize,
    /// The number of faults so far, so that each fault has a different victim.
    turn: usize,
    /// The slot that is being moved, its source and its target.
    moving: Option<(u16, usize, usize)>,
}

enum Servers {
    /// The master, its replica, and for each node a proxy to the master.
    Pair(Vec<RedisServer>, Vec<TcpProxy>),
    Cluster(RedisCluster),
    Sentinel(RedisSentinel),
}

impl Store {
    pub(crate) fn start(kind: Kind, nodes: usize) -> Self {
        let clock = Clock::ahead_by(0);
        let servers = match kind {
            Kind::Server | Kind::Forgetful => {
                let server = |_| RedisServer::start_with_clock(&clock, &LOGGED);
                let pair: Vec<_> = (0..2).map(server).collect();
                let proxy = |_| TcpProxy::start(pair[0].address());
                let proxies = (0..nodes).map(proxy).collect();
                Servers::Pair(pair, proxies)
            }
            Kind::Cluster => {
                Servers::Cluster(RedisCluster::start_with_replicas_by(Some(&clock), &LOGGED))
            }
            Kind::Sentinel => {
                // Prevents a master that has been replaced while suspended from accepting writes when it resumes.
                let arguments = [&LOGGED[..], &["--min-replicas-to-write", "1"]].concat();
                Servers::Sentinel(RedisSentinel::start_by(Some(&clock), &arguments))
            }
        };
        let store = Self { servers, clock, victim: 0, turn: 0, moving: None };
        store.wait_in_step();
        store
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn url(&self, node: usize) -> String {
        match &self.servers {
            Servers::Pair(_, proxies) => proxies[node].url(),
            Servers::Cluster(cluster) => cluster.url(),
            Servers::Sentinel(sentinel) => sentinel.url(NAME),
        }
    }

    fn all(&self) -> &[RedisServer] {
        match &self.servers {
            Servers::Pair(pair, _) => pair,
            Servers::Cluster(cluster) => &cluster.nodes,
            Servers::Sentinel(sentinel) => &sentinel.servers,
        }
    }

    fn all_mut(&mut self) -> &mut [RedisServer] {
        match &mut self.servers {
            Servers::Pair(pair, _) => pair,
            Servers::Cluster(cluster) => &mut cluster.nodes,
            Servers::Sentinel(sentinel) => &mut sentinel.servers,
        }
    }

    fn master_places(&self) -> Vec<usize> {
        let places = 0..self.all().len();
        places.filter(|at| is_master(&self.all()[*at])).collect()
    }

    pub(crate) fn masters(&self) -> Vec<&RedisServer> {
        let places = self.master_places();
        places.into_iter().map(|at| &self.all()[at]).collect()
    }

    /// Changes the traffic between a node and Redis, if there are proxies.
    pub(crate) fn set_traffic(&self, node: usize, traffic: Traffic) {
        if let Servers::Pair(_, proxies) = &self.servers {
            proxies[node].set(traffic);
        }
    }

    pub(crate) fn begin(&mut self, fault: RedisFault) {
        match fault {
            RedisFault::Traffic(traffic) => return self.set_all_traffic(traffic),
            RedisFault::ClockSet(by) => return self.clock.advance(by),
            _ => {}
        }
        let masters = self.master_places();
        self.turn += 1;
        self.victim = masters[self.turn % masters.len()];
        let victim = self.victim;
        match fault {
            RedisFault::Asleep => self.all()[victim].signal("STOP"),
            RedisFault::Ended => self.all_mut()[victim].stop(),
            RedisFault::Killed | RedisFault::Replaced => self.all_mut()[victim].kill(),
            RedisFault::Full => self.limit_memory("1"),
            RedisFault::WentBack => self.copy_log(),
            RedisFault::SlotMoved => self.begin_move(),
            RedisFault::Traffic(_) | RedisFault::ClockSet(_) => unreachable!("handled above"),
        }
    }

    pub(crate) fn end(&mut self, fault: RedisFault) {
        let victim = self.victim;
        match fault {
            RedisFault::Asleep => self.all()[victim].signal("CONT"),
            RedisFault::Ended | RedisFault::Killed => self.all_mut()[victim].restart(),
            RedisFault::Replaced => self.replace_master(),
            RedisFault::Full => self.limit_memory("0"),
            RedisFault::WentBack => self.go_back(),
            RedisFault::SlotMoved => self.end_move(),
            RedisFault::Traffic(_) => self.set_all_traffic(Traffic::Open),
            RedisFault::ClockSet(by) => self.clock.advance(-by),
        }
    }

    fn set_all_traffic(&self, traffic: Traffic) {
        if let Servers::Pair(_, proxies) = &self.servers {
            for proxy in proxies {
                proxy.set(traffic);
            }
        }
    }

    fn limit_memory(&self, bytes: &str) {
        for server in self.all() {
            server.query::<()>(&["CONFIG", "SET", "maxmemory", bytes]);
        }
    }

    fn log_and_copy(&self) -> [PathBuf; 2] {
        let directory = self.all()[self.victim].directory();
        ["appendonlydir", "copy"].map(|name| directory.join(name))
    }

    fn copy_log(&self) {
        let server = &self.all()[self.victim];
        eventually("the append-only file is complete", SOON, || {
            let info: String = server.query(&["INFO", "persistence"]);
            let whole = ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"];
            when(whole.iter().all(|line| info.contains(line)), info)
        });
        server.signal("STOP");
        let mut command = Command::new("cp");
        let done = command.arg("-r").args(self.log_and_copy()).status();
        assert!(done.expect("cp can be run").success(), "cp failed");
        server.signal("CONT");
    }

    fn go_back(&mut self) {
        let [log, copy] = self.log_and_copy();
        let victim = self.victim;
        let server = &mut self.all_mut()[victim];
        server.kill();
        std::fs::remove_dir_all(&log).expect("a log");
        std::fs::rename(copy, log).expect("a copy");
        server.restart();
    }

    fn replace_master(&mut self) {
        let Servers::Pair(pair, proxies) = &mut self.servers else {
            unreachable!("Cluster and Sentinel elect a new master themselves");
        };
        pair[1].query::<()>(&["REPLICAOF", "NO", "ONE"]);
        pair.swap(0, 1);
        for proxy in proxies {
            proxy.lead_to(pair[0].address());
        }
        pair[1].restart();
    }

    fn begin_move(&mut self) {
        let Servers::Cluster(cluster) = &self.servers else {
            unreachable!("only a cluster has slots");
        };
        let slot = cluster.slot_of(&format!("{{eds:{}}}", self.turn % 8));
        let masters = self.master_places();
        let from = cluster.owner_of(slot, &masters);
        let to = masters.into_iter().find(|at| *at != from);
        let to = to.expect("three masters");
        cluster.begin_move(slot, from, to, 4);
        self.moving = Some((slot, from, to));
    }

    fn end_move(&mut self) {
        let (slot, from, to) = self.moving.take().expect("a slot is being moved");
        let masters = self.master_places();
        if let Servers::Cluster(cluster) = &self.servers {
            let others = masters.into_iter().filter(|at| ![from, to].contains(at));
            cluster.end_move_among(slot, from, to, others);
        }
    }

    pub(crate) fn wait_in_step(&self) {
        if let Servers::Pair(pair, _) = &self.servers {
            let at = pair[0].address();
            let (host, port) = (at.ip().to_string(), at.port().to_string());
            pair[1].query::<()>(&["REPLICAOF", &host, &port]);
        }
        let masters = match &self.servers {
            Servers::Cluster(_) => 3,
            Servers::Pair(..) | Servers::Sentinel(_) => 1,
        };
        eventually("every replica is in step", 3 * SOON, || {
            let infos: Vec<String> = self.all().iter().map(replication).collect();
            let count = |line: &str| infos.iter().filter(|info| info.contains(line)).count();
            let in_step = count("role:master") == masters
                && count("master_link_status:up") == infos.len() - masters;
            let agreed = match &self.servers {
                Servers::Pair(pair, _) => {
                    let offsets = [&infos[0], &infos[1]].map(|info| offset(info));
                    is_master(&pair[0]) && offsets[0] == offsets[1]
                }
                Servers::Cluster(cluster) => cluster.is_whole(),
                Servers::Sentinel(sentinel) => sentinel.named_master().is_some_and(is_master),
            };
            when(in_step && agreed, infos.join("\n"))
        });
    }
}

fn replication(server: &RedisServer) -> String {
    let info = server.try_query(&["INFO", "replication"]);
    info.unwrap_or_else(|error| error.to_string())
}

fn is_master(server: &RedisServer) -> bool {
    replication(server).contains("role:master")
}

fn offset(info: &str) -> Option<&str> {
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix("master_repl_offset:"))
}
