//! Runs a real Redis server with two replicas and three sentinels on free ports, until [`RedisSentinel`] is dropped.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::clock::Clock;
use crate::eventually::{SOON, eventually, when};
use crate::ports::Server;
use crate::redis::{RedisServer, program};

/// The name of the master in the configuration of the sentinels.
pub const NAME: &str = "counts";

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// The maximum time until the sentinels have found each other through the messages that each publishes every two seconds.
const ACQUAINTED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RedisSentinel {
    /// The server that is the master at the start, followed by its replicas.
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Server>,
}

impl RedisSentinel {
    /// Starts the servers and sentinels. Waits until the replicas are in sync with the master, and the sentinels know them
    /// and each other.
    pub fn start() -> Self {
        Self::start_by(None, &["--repl-diskless-sync-delay", "0"])
    }

    /// Like [`Self::start`], but each server uses this clock, if any, and gets these arguments.
    pub fn start_by(clock: Option<&Clock>, arguments: &[&str]) -> Self {
        let master = RedisServer::start_with(clock, arguments);
        let master_port = master.address().port();
        let port = master_port.to_string();
        // Uses a command, like sentinels, rather than an argument: a server that is restarted after a promotion must not be
        // a replica.
        let replica = |_| {
            let replica = RedisServer::start_with(clock, arguments);
            replica.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
            replica
        };
        let servers: Vec<_> = [master].into_iter().chain((0..REPLICAS).map(replica)).collect();
        for replica in &servers[1..] {
            eventually("the replica is in sync with its master", SOON, || {
                let info: String = replica.query(&["INFO", "replication"]);
                when(info.contains("master_link_status:up"), info)
            });
        }
        let sentinel = |_| {
            Server::start("a sentinel", |port, directory| {
                let config = directory.join("sentinel.conf");
                let text = format!(
                    "port {port}\nbind 127.0.0.1\ndir {}\n\
                     sentinel monitor {NAME} 127.0.0.1 {master_port} 2\n\
                     sentinel down-after-milliseconds {NAME} 1500\n\
                     sentinel failover-timeout {NAME} 6000\n",
                    directory.display()
                );
                fs::write(&config, text).unwrap();
                let mut command = Command::new(program());
                command.arg(config).arg("--sentinel");
                command
            })
        };
        let sentinels = (0..SENTINELS).map(sentinel).collect();
        let started = Self { servers, sentinels };
        for sentinel in &started.sentinels {
            eventually("the sentinels know each other and the replicas", ACQUAINTED, || {
                let state: Vec<String> = ask(sentinel, &["SENTINEL", "MASTER", NAME]);
                let is = |name: &str, count: usize| {
                    state.chunks(2).any(|pair| pair == [name, &count.to_string()])
                };
                let all = is("num-slaves", REPLICAS) && is("num-other-sentinels", SENTINELS - 1);
                when(all, format!("{state:?}"))
            });
        }
        started
    }

    /// Returns the URL with the addresses of the sentinels and this name of a master.
    pub fn url(&self, name: &str) -> String {
        let address = |sentinel: &Server| format!("127.0.0.1:{}", sentinel.port);
        let addresses: Vec<_> = self.sentinels.iter().map(address).collect();
        format!("redis+sentinel://{}/{name}", addresses.join(","))
    }

    /// Suspends the replicas and cuts their connections to the master. Call [`Self::kill_master`] next.
    pub fn cut_replicas(&self) {
        for replica in &self.servers[1..] {
            replica.signal("STOP");
        }
        let killed: usize = self.servers[0].query(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(killed, REPLICAS, "killed replica connections");
    }

    /// Kills the master, and resumes the replicas if [`Self::cut_replicas`] suspended them.
    pub fn kill_master(&mut self) {
        self.servers[0].kill();
        for replica in &self.servers[1..] {
            replica.signal("CONT");
        }
    }

    /// Returns the server that all sentinels report as the master, or None if they do not agree.
    pub fn named_master(&self) -> Option<&RedisServer> {
        let mut named = self.sentinels.iter().map(named_by);
        let first = named.next()?;
        let agreed = named.all(|address| address == first);
        self.servers.iter().find(|server| agreed && server.address() == first)
    }

    /// Waits until a sentinel reports a different master than at the start, and returns the address of the new master.
    #[track_caller]
    pub fn wait_promoted(&self) -> SocketAddr {
        eventually("a different master is reported", ACQUAINTED, || {
            let named = named_by(&self.sentinels[0]);
            let is_replica = self.servers[1..].iter().any(|server| server.address() == named);
            if is_replica { Ok(named) } else { Err(named) }
        })
    }
}

/// Returns the address that a sentinel reports for the master.
fn named_by(sentinel: &Server) -> SocketAddr {
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let (_, port): (String, u16) = ask(sentinel, &command);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn ask<T: redis::FromRedisValue>(sentinel: &Server, command: &[&str]) -> T {
    let url = format!("redis://127.0.0.1:{}", sentinel.port);
    let client = redis::Client::open(url).expect("a valid Redis URL");
    let mut connection = client.get_connection().expect("the sentinel responds");
    let mut query = redis::Cmd::new();
    query.arg(command);
    query.query(&mut connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
