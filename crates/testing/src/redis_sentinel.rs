//! A real Redis with two replicas, watched by three sentinels, on free ports; all end with their owner.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use crate::clock::Clock;
use crate::eventually::{SOON, eventually, when};
use crate::ports::Server;
use crate::redis::{RedisServer, program};

/// The name by which the sentinels know the master.
pub const NAME: &str = "counts";

const REPLICAS: usize = 2;
const SENTINELS: usize = 3;
/// They find each other by messages through the master, every two seconds.
const ACQUAINTED: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct RedisSentinel {
    /// The master of the start, and its replicas.
    pub servers: Vec<RedisServer>,
    sentinels: Vec<Server>,
}

impl RedisSentinel {
    /// Starts replicas in sync with the master, and sentinels that know them and each other.
    pub fn start() -> Self {
        Self::start_by(None, &["--repl-diskless-sync-delay", "0"])
    }

    /// The same, each server with this clock, if any, and with these arguments.
    pub fn start_by(clock: Option<&Clock>, arguments: &[&str]) -> Self {
        let master = RedisServer::start_with(clock, arguments);
        let master_port = master.address().port();
        let port = master_port.to_string();
        // By a command, as sentinels do it: a server that was promoted and starts again must not be a replica by its arguments.
        let replica = |_| {
            let replica = RedisServer::start_with(clock, arguments);
            replica.query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
            replica
        };
        let servers: Vec<_> = [master].into_iter().chain((0..REPLICAS).map(replica)).collect();
        for replica in &servers[1..] {
            eventually("the replica has what its master has", SOON, || {
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
            eventually("the sentinels know all", ACQUAINTED, || {
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

    /// Where the sentinels are, and a name for them to find.
    pub fn url(&self, name: &str) -> String {
        let address = |sentinel: &Server| format!("127.0.0.1:{}", sentinel.port);
        let addresses: Vec<_> = self.sentinels.iter().map(address).collect();
        format!("redis+sentinel://{}/{name}", addresses.join(","))
    }

    /// Cuts the master off from its replicas; call [`Self::kill_master`] next.
    pub fn cut_replicas(&self) {
        for replica in &self.servers[1..] {
            replica.signal("STOP");
        }
        let killed: usize = self.servers[0].query(&["CLIENT", "KILL", "TYPE", "replica"]);
        assert_eq!(killed, REPLICAS, "the links of all replicas");
    }

    /// Kills the master, and lets the replicas go on if they were cut off.
    pub fn kill_master(&mut self) {
        self.servers[0].kill();
        for replica in &self.servers[1..] {
            replica.signal("CONT");
        }
    }

    /// The server that all sentinels name, if they agree.
    pub fn named_master(&self) -> Option<&RedisServer> {
        let mut named = self.sentinels.iter().map(named_by);
        let first = named.next()?;
        let agreed = named.all(|it| it == first);
        self.servers.iter().find(|it| agreed && it.address() == first)
    }

    /// Waits until a sentinel names another master than the first, and gives its address.
    #[track_caller]
    pub fn wait_promoted(&self) -> SocketAddr {
        eventually("another master is named", ACQUAINTED, || {
            let named = named_by(&self.sentinels[0]);
            let is_replica = self.servers[1..].iter().any(|it| it.address() == named);
            if is_replica { Ok(named) } else { Err(named) }
        })
    }
}

/// Whom a sentinel names.
fn named_by(sentinel: &Server) -> SocketAddr {
    let command = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME];
    let (_, port): (String, u16) = ask(sentinel, &command);
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

fn ask<T: redis::FromRedisValue>(sentinel: &Server, command: &[&str]) -> T {
    let url = format!("redis://127.0.0.1:{}", sentinel.port);
    let client = redis::Client::open(url).expect("a URL of Redis");
    let mut connection = client.get_connection().expect("a sentinel answers");
    let mut query = redis::Cmd::new();
    query.arg(command);
    query.query(&mut connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
