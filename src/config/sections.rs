//! The checked configuration: types that cannot be wrong.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::secret::{Pem, Secret};

/// `[input]`: receiving and queueing events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// UDP addresses to receive on. At least one, none twice.
    pub listen: Vec<SocketAddr>,
    /// The field that names the user.
    pub user_field: String,
    /// Unit of the timestamps in the lines.
    pub timestamp_precision: Precision,
    /// The tag key that a line's measurement is put under; `None`: it is left out of the series.
    pub measurement_tag: Option<String>,
    /// The kernel's receive buffer of each receiving thread, in bytes.
    pub receive_buffer: u64,
    /// Receiving threads for each address. At least 1.
    pub threads: usize,
    /// The longest that an event waits to be recorded.
    pub linger: Duration,
    /// Events that may wait. At least 1.
    pub queue_events: usize,
    /// Memory for events that wait, in bytes.
    pub queue_bytes: u64,
    /// Older events are refused, and what was sent is remembered this long.
    pub max_age: Duration,
    /// Events further ahead of the clock are refused.
    pub max_future: Duration,
    /// Longest datagram, in bytes.
    pub max_datagram: usize,
    /// Longest line, in bytes. No longer than a datagram.
    pub max_line: usize,
    /// Longest series, in bytes. No longer than a line.
    pub max_series: usize,
    /// Longest tag key and longest tag value, in bytes each. No longer than a series.
    pub max_tag: usize,
    /// Longest user, in bytes. No longer than a line.
    pub max_user: usize,
    /// Most series in one partition and minute, counted in this node. At least 1.
    pub max_series_per_minute: usize,
    /// Users that this node remembers as recorded; 0: none.
    pub remember_users: usize,
    /// At shutdown, the longest to record what is queued.
    pub drain_timeout: Duration,
}

/// Unit of a timestamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// Nanoseconds.
    Nanoseconds,
    /// Microseconds.
    Microseconds,
    /// Milliseconds.
    Milliseconds,
    /// Seconds.
    Seconds,
}

impl Precision {
    /// Nanoseconds in one unit.
    #[must_use]
    pub const fn nanos(self) -> i64 {
        match self {
            Self::Nanoseconds => 1,
            Self::Microseconds => 1_000,
            Self::Milliseconds => 1_000_000,
            Self::Seconds => 1_000_000_000,
        }
    }
}

/// `[store]`: the shared memory of the open minutes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Store {
    /// Where it is.
    pub url: StoreUrl,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// Parts that the series are divided into, 1 to 1024.
    pub partitions: u16,
    /// How users and events are kept.
    pub layout: Layout,
}

/// Where the store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this process.
    Memory {
        /// Most memory for open minutes, in bytes.
        memory_max: u64,
    },
    /// One Redis server.
    Redis(Box<Redis>),
}

/// One Redis server, and how to speak to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Redis {
    /// Where it listens.
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

/// Where a Redis server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisAddress {
    /// TCP in the clear.
    Tcp {
        /// Name or IP address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
    },
    /// TLS. The server's certificate is always checked.
    Tls {
        /// Name or IP address, an IPv6 one without brackets.
        host: String,
        /// Port.
        port: u16,
        /// The authorities that vouch for the server; `None`: the system's.
        ca: Option<Pem>,
        /// What this client shows of itself.
        identity: Option<Identity>,
    },
    /// A Unix socket, by its path.
    Unix(PathBuf),
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

/// `[flush]`: when a minute is closed and who may send it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flush {
    /// How often finished minutes are looked for.
    pub interval: Duration,
    /// A minute that is over closes when nothing arrived for it this long.
    pub grace: Duration,
    /// And this long after its end, or its first event, in any case. At least `grace`.
    pub max_hold: Duration,
    /// How long a claimed minute is kept from the other nodes, unless it is renewed. At least 3 × `interval`.
    pub lease: Duration,
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

/// `[http]`: health and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Http {
    /// TCP address; `None`: no HTTP server.
    pub listen: Option<SocketAddr>,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// What is logged.
    pub level: LogLevel,
    /// How it is logged.
    pub format: LogFormat,
}

/// What is logged: this and all that is graver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Data is lost.
    Error,
    /// An operator should look; nothing is lost.
    Warn,
    /// Starts, stops and changes.
    Info,
    /// Every batch.
    Debug,
    /// Everything.
    Trace,
}

/// How it is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, on standard error.
    Text,
    /// One JSON object a line, on standard error.
    Json,
    /// To the journal, with fields.
    Journald,
}
