//! The checked sections that name no server: types that cannot be wrong.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

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
    /// The directory, and most bytes in it, for events that find no room in the queue; `None`: they are dropped.
    pub spool: Option<Spool>,
    /// Older events are refused, and what was sent is remembered twice this long.
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
    /// Most series in one partition and minute, of all nodes. At least 1.
    pub max_series_per_minute: usize,
    /// Most users of a series in one minute; 0: no limit.
    pub max_users_per_series: u64,
    /// Most lines a second of one source address; 0: no limit.
    pub max_rate_per_source: u32,
    /// Users known to be recorded, which are not sent to the store again; 0: none.
    pub dedup_users: usize,
    /// At shutdown, the longest to record what is queued.
    pub drain_timeout: Duration,
}

/// Where events go that find no room in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spool {
    /// The directory, of this node alone.
    pub directory: PathBuf,
    /// The most bytes of all files in it.
    pub bytes_max: u64,
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
