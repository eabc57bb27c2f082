//! A Redis server, a Redis Cluster, or a master behind Sentinel, with a clock that the test controls.

use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use coordination::Name;
use coordination::redis::RedisArbiter;
use testing::clock::Clock;
use testing::ports::Server;
use testing::redis::{RedisServer, program};
use testing::redis_cluster::RedisCluster;

use crate::reference::Key;
use crate::site::TIMEOUTS;

const PREFIX: &str = "model";
/// The initial time of the clock, which is earlier than the start of any schedule.
const BEGIN_US: i64 = 1_699_999_000_000_000;
const TICK: Duration = Duration::from_millis(20);
const MASTER: &str = "locks";

enum Servers {
    One { server: RedisServer, _sentinel: Option<Server> },
    Cluster(RedisCluster),
}

/// An arbiter with a controlled clock.
pub(crate) struct Clocked {
    pub(crate) arbiter: Arc<RedisArbiter>,
    servers: Servers,
    clock: Clock,
}

impl Clocked {
    fn new(url: &str, servers: Servers, clock: Clock) -> Self {
        let arbiter = Arc::new(RedisArbiter::open(url, PREFIX, TIMEOUTS).unwrap());
        Self { arbiter, servers, clock }
    }

    pub(crate) fn server() -> Self {
        let clock = Clock::stopped_at(BEGIN_US);
        let server = RedisServer::start_with_clock(&clock, &[]);
        let url = server.url();
        let servers = Servers::One { _sentinel: None, server };
        Self::new(&url, servers, clock)
    }

    pub(crate) fn cluster() -> Self {
        let clock = Clock::stopped_at(BEGIN_US);
        // A cluster needs a running clock while it is being formed.
        let (done, is_done) = mpsc::channel::<()>();
        let ticking = &clock;
        let cluster = thread::scope(|scope| {
            scope.spawn(move || {
                let mut now_us = BEGIN_US;
                while is_done.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                    now_us += 100_000;
                    ticking.set(now_us);
                }
            });
            let cluster = RedisCluster::start_with_clock(&clock);
            drop(done);
            cluster
        });
        Self::new(&cluster.url(), Servers::Cluster(cluster), clock)
    }

    pub(crate) fn sentinel() -> Self {
        let clock = Clock::stopped_at(BEGIN_US);
        let server = RedisServer::start_with_clock(&clock, &[]);
        let monitor = format!("sentinel monitor {MASTER} 127.0.0.1 {} 1", server.address().port());
        let sentinel = Server::start("a sentinel", |port, directory| {
            let config = directory.join("sentinel.conf");
            fs::write(&config, format!("port {port}\nbind 127.0.0.1\n{monitor}\n")).unwrap();
            let mut command = Command::new(program());
            command.arg(config).arg("--sentinel");
            command
        });
        let url = format!("redis+sentinel://127.0.0.1:{}/{MASTER}", sentinel.port);
        let servers = Servers::One { server, _sentinel: Some(sentinel) };
        Self::new(&url, servers, clock)
    }

    pub(crate) fn set(&self, now_us: u64) {
        self.clock.set(now_us.cast_signed());
    }

    pub(crate) fn evict(&self, name: &Name, key: Key) {
        let key = format!("{{{PREFIX}:{}}}:{}", name.as_str(), format!("{key:?}").to_lowercase());
        let server = match &self.servers {
            Servers::One { server, .. } => server,
            Servers::Cluster(cluster) => cluster.master_of(&key),
        };
        server.query::<u32>(&["DEL", &key]);
    }
}
