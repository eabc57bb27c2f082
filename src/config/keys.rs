//! The table of keys: the one place that knows which keys there are.
//!
//! What the file and the environment may hold, how a value is read, what `eds check` prints and which keys
//! `config/eds.toml` must explain all follow from [`KEYS`].

use super::kind::Kind;
use super::kind::Kind::{
    Address, Addresses, Choice, Duration, Instant, Integer, Name, OutputUrl, Path, SecretFile,
    SecretText, Size, StoreUrl, Tag, Text,
};

/// One key of the configuration.
#[derive(Debug)]
pub struct Key {
    /// The TOML table that holds the key; empty for a key at the top.
    pub section: &'static str,
    /// The key within its section.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The default, written as the environment would have it. Empty: nothing.
    pub default: &'static str,
    /// What the key is for, in one line.
    pub doc: &'static str,
}

impl Key {
    /// `flush.grace`, or `node` for a key at the top.
    #[must_use]
    pub fn path(&self) -> String {
        if self.section.is_empty() {
            self.name.to_owned()
        } else {
            format!("{}.{}", self.section, self.name)
        }
    }

    /// The variable that sets the key: `EDS_FLUSH__GRACE`, `EDS_NODE`.
    #[must_use]
    pub fn variable(&self) -> String {
        let name = self.name.to_ascii_uppercase();
        if self.section.is_empty() {
            format!("{VARIABLE_PREFIX}{name}")
        } else {
            format!(
                "{VARIABLE_PREFIX}{}__{name}",
                self.section.to_ascii_uppercase()
            )
        }
    }

    /// Whether [`Key::path`] is this one.
    #[must_use]
    pub fn is(&self, path: &str) -> bool {
        path.split_once('.').unwrap_or(("", path)) == (self.section, self.name)
    }

    /// The key with this [`Key::path`].
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.is(path))
    }
}

/// What the names of our environment variables begin with.
pub const VARIABLE_PREFIX: &str = "EDS_";

const fn key(
    section: &'static str,
    name: &'static str,
    kind: Kind,
    default: &'static str,
    doc: &'static str,
) -> Key {
    Key {
        section,
        name,
        kind,
        default,
        doc,
    }
}

const fn duration(min: &'static str, max: &'static str) -> Kind {
    Duration { min, max }
}

const fn size(min: &'static str, max: &'static str) -> Kind {
    Size { min, max }
}

const TIMEOUT: Kind = duration("10ms", "5m");
/// Long enough to gather the events of any archive, short enough for Redis to reckon with.
const AGE_MAX: &str = "100years";

/// Every key, in the order in which the sections and keys are explained.
#[rustfmt::skip]
pub static KEYS: &[Key] = &[
    key("", "node", Name { max: 64 }, "", "name of this node, unique in the cluster (default: the host name)"),

    key("input", "listen", Addresses, "127.0.0.1:8094", "UDP addresses to receive events on"),
    key("input", "user_field", Tag { optional: false }, "value", "the field that names the user"),
    key("input", "timestamp_precision", Choice { words: &["ns", "us", "ms", "s"], later: &[] }, "ns", "unit of the timestamps in the lines"),
    key("input", "measurement_tag", Tag { optional: true }, "measurement", "tag key to put a line's measurement under; empty: it is left out"),
    key("input", "receive_buffer", size("64KiB", "1GiB"), "8MiB", "the kernel's receive buffer, for each receiving thread"),
    key("input", "threads", Integer { min: 1, max: 64 }, "1", "receiving threads for each address"),
    key("input", "linger", duration("1ms", "10s"), "100ms", "the longest that an event waits to be recorded"),
    key("input", "queue_events", Integer { min: 1, max: 1_000_000_000 }, "1000000", "events that may wait; beyond it datagrams are dropped, and counted"),
    key("input", "queue_bytes", size("64KiB", "1TiB"), "256MiB", "memory for events that wait; beyond it datagrams are dropped, and counted"),
    key("input", "spool_dir", Path, "", "directory for events that find no room in the queue; empty: none"),
    key("input", "spool_max", size("1MiB", "1PiB"), "1GiB", "most bytes in it; beyond them events are dropped, and counted"),
    key("input", "max_age", duration("1m", AGE_MAX), "1h", "older events are refused; what was sent is remembered twice this long"),
    key("input", "max_future", duration("0s", AGE_MAX), "1m", "events further ahead of this node's clock are refused"),
    key("input", "max_datagram", size("512B", "64KiB"), "64KiB", "longest datagram; a longer one loses its last line"),
    key("input", "max_line", size("64B", "64KiB"), "8KiB", "longest line"),
    key("input", "max_series", size("16B", "64KiB"), "1KiB", "longest tag set of a line"),
    key("input", "max_tag", size("1B", "64KiB"), "256B", "longest tag key and longest tag value"),
    key("input", "max_user", size("1B", "64KiB"), "256B", "longest user"),
    key("input", "max_series_per_minute", Integer { min: 1, max: 1_000_000_000 }, "100000", "most series in one partition and minute, of all nodes; the others share one overflow series"),
    key("input", "max_users_per_series", Integer { min: 0, max: 1_000_000_000 }, "10000000", "most users of a series in one minute, of all nodes, nearly; 0: no limit"),
    key("input", "max_rate_per_source", Integer { min: 0, max: 10_000_000 }, "0", "most lines a second of one source address; 0: no limit"),
    key("input", "dedup_users", Integer { min: 0, max: 1_000_000_000 }, "1000000", "users known to be recorded, which are not sent to the store again; 0: none"),
    key("input", "drain_timeout", duration("0s", "10m"), "20s", "at shutdown, the longest to record what is queued, and to send what would end with the process"),

    key("store", "url", StoreUrl, "memory:", "where minutes are gathered: memory: redis[s]:// redis+unix:// redis+cluster:// redis+sentinel://"),
    key("store", "prefix", Name { max: 32 }, "eds", "what the names of all keys in Redis begin with"),
    key("store", "partitions", Integer { min: 1, max: 1024 }, "32", "parts that the series are divided into, the same on every node"),
    key("store", "partitions_before", Integer { min: 0, max: 1024 }, "0", "while that changes: the number before; 0: it does not change"),
    key("store", "partitions_from", Instant, "", "while that changes: the minute from which the new number holds (RFC 3339)"),
    key("store", "layout", Choice { words: &["sets"], later: &["packed", "hll"] }, "sets", "how users and events are kept in Redis"),
    key("store", "username", Text, "", "Redis ACL user; empty: the default user"),
    key("store", "password_file", SecretFile, "", "file with the Redis password"),
    key("store", "password", SecretText { file: "store.password_file" }, "", "the Redis password, from the environment only"),
    key("store", "ca_file", Path, "", "PEM file of the authorities that vouch for Redis (rediss:// only); empty: the system's"),
    key("store", "cert_file", Path, "", "PEM file of this client's certificate chain (rediss:// only)"),
    key("store", "key_file", Path, "", "PEM file of this client's private key (rediss:// only)"),
    key("store", "connect_timeout", TIMEOUT, "2s", "the longest to wait for a connection to Redis"),
    key("store", "response_timeout", TIMEOUT, "3s", "the longest to wait for an answer of Redis"),
    key("store", "replay_window", duration("0s", "10m"), "10s", "what was recorded this lately is recorded again after a failover"),
    key("store", "counts_max", Integer { min: 1, max: 1_000_000_000_000 }, "1000000", "most counts that are kept for queries after they are sent"),
    key("store", "memory_max", size("1MiB", "1TiB"), "1GiB", "most memory for open minutes (memory: only)"),

    key("flush", "interval", duration("10ms", "1m"), "1s", "how often finished minutes are looked for"),
    key("flush", "grace", duration("10ms", "1h"), "5s", "a minute that is over closes when nothing arrived for it this long"),
    key("flush", "max_hold", duration("10ms", "1day"), "60s", "and this long after its end, or its first event, in any case"),
    key("flush", "lease", duration("3s", "1h"), "30s", "how long a claimed minute is kept from the other nodes; renewed while work lasts"),

    key("output", "url", OutputUrl, "stdout:", "where the counts go: stdout: http:// https://"),
    key("output", "api", Choice { words: &["v1", "v2"], later: &[] }, "v2", "InfluxDB's write API: v2 (InfluxDB 2, 3) or v1 (InfluxDB 1, VictoriaMetrics)"),
    key("output", "org", Text, "", "organization (v2)"),
    key("output", "bucket", Text, "", "bucket (v2)"),
    key("output", "token_file", SecretFile, "", "file with the token (v2)"),
    key("output", "token", SecretText { file: "output.token_file" }, "", "the token (v2), from the environment only"),
    key("output", "database", Text, "", "database (v1)"),
    key("output", "username", Text, "", "user (v1)"),
    key("output", "password_file", SecretFile, "", "file with the user's password (v1)"),
    key("output", "password", SecretText { file: "output.password_file" }, "", "the user's password (v1), from the environment only"),
    key("output", "ca_file", Path, "", "PEM file of the authorities that vouch for the server (https:// only); empty: the system's"),
    key("output", "timeout", duration("100ms", "5m"), "10s", "the longest that one write may take"),
    key("output", "batch_lines", Integer { min: 2, max: 1_000_000 }, "5000", "most points in one write"),

    key("http", "listen", Address, "127.0.0.1:8095", "TCP address of health, metrics and queries; empty: none"),

    key("log", "level", Choice { words: &["error", "warn", "info", "debug", "trace"], later: &[] }, "info", "what is logged"),
    key("log", "format", Choice { words: &["text", "json", "journald"], later: &[] }, "text", "how it is logged"),
];
