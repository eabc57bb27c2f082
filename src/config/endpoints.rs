//! The checked `[store]` and `[output]`: servers, and how to speak to them.

use std::path::PathBuf;
use std::time::Duration;

use crate::secret::{Pem, Secret};

/// `[store]`: the shared memory of the open minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Where it is.
    pub url: StoreUrl,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// Parts that the series are divided into, 1 to 1024.
    pub partitions: u16,
    /// While that changes: the number before, 1 to 1024, and the minute since the epoch from which the new one holds.
    pub partitions_before: Option<(u16, i64)>,
    /// How users and events are kept.
    pub layout: Layout,
    /// What was recorded this lately is recorded again when Redis may have forgotten it; 0: nothing.
    pub replay_window: Duration,
    /// The most counts that are kept after they are sent.
    pub counts_max: u64,
}

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory {
        /// Most memory for open minutes, in bytes.
        memory_max: u64,
    },
    /// Redis: one server, a cluster, or a server with sentinels.
    Redis(Box<Redis>),
}

/// Redis, and how to speak to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redis {
    /// Where it is.
    pub address: RedisAddress,
    /// Number of the database.
    pub database: u32,
    /// The ACL user; `None`: the default user. Never without a password.
    pub username: Option<String>,
    /// The password; `None`: no AUTH at all.
    pub password: Option<Secret>,
    /// The longest to wait for a connection.
    pub connect_timeout: Duration,
    /// The longest to wait for an answer.
    pub response_timeout: Duration,
}

/// Where Redis is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisAddress {
    /// TCP in the clear.
    Tcp {
        /// Name or IP address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS.
    Tls {
        /// Name or IP address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
        /// How.
        tls: Tls,
    },
    /// A Unix socket, by its path.
    Unix(PathBuf),
    /// A Redis Cluster.
    Cluster {
        /// Names or IP addresses and ports of some of its nodes, by which all are found.
        nodes: Vec<(String, u16)>,
        /// `None`: in the clear.
        tls: Option<Tls>,
    },
    /// A server with replicas that Redis Sentinel watches.
    Sentinel {
        /// Names or IP addresses and ports of the sentinels.
        sentinels: Vec<(String, u16)>,
        /// The name by which they know the master.
        name: String,
        /// `None`: in the clear.
        tls: Option<Tls>,
    },
}

/// How TLS is spoken. The server's certificate is always checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The authorities that vouch for the server; `None`: the system's.
    pub ca: Option<Pem>,
    /// What this client shows of itself.
    pub identity: Option<Identity>,
}

/// A client's certificate chain and its private key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The chain.
    pub certificate: Pem,
    /// The private key.
    pub key: Pem,
}

/// How users and events are kept in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// As members of sets, in full.
    Sets,
}

/// `[output]`: where the counts go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Where they go.
    pub url: OutputUrl,
    /// The longest that one write may take.
    pub timeout: Duration,
    /// Most points in one write. At least 2, for a series is two points.
    pub batch_lines: usize,
}

/// Where the counts go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputUrl {
    /// Line protocol on standard output.
    Stdout,
    /// `InfluxDB`, or what speaks like it.
    InfluxDb(Box<InfluxDb>),
}

/// An `InfluxDB` server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfluxDb {
    /// Scheme, host, port and path, without a slash at the end, without user and password.
    pub base_url: String,
    /// Which API to write to, and as whom.
    pub api: Api,
    /// The authorities that vouch for the server; `None`: the system's. Only with `https`.
    pub ca: Option<Pem>,
}

/// `InfluxDB`'s two write APIs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Api {
    /// `/api/v2/write`.
    V2 {
        /// Organization.
        org: String,
        /// Bucket.
        bucket: String,
        /// Token. `None` only for plain `http` to this host.
        token: Option<Secret>,
    },
    /// `/write`.
    V1 {
        /// Database.
        database: String,
        /// User. Never without a password.
        username: Option<String>,
        /// Password. Never without a user.
        password: Option<Secret>,
    },
}
