//! The table of keys: the one place that knows which keys there are, of a node and of a relay.
//!
//! A line of it is all that the sources, the reader, `eds check` and the tests of `config/eds.toml` need to know of a key.
//! Only the setting that it fills is named elsewhere, in `service.rs`, `store.rs`, `output.rs` or `relay.rs`.

use tracing::Level;

use super::kind::{
    Address, Addresses, Choice, File, Form, HostNames, Instant, Kind, Name, OutputLabel, OutputUrl,
    SecretText, StoreUrl, Tag, Text,
};
use super::range::{Count, CountOrNone, Permissions, Size, Span};
use super::relay_kind::{EventRules, Hosts, RestUrl};
use crate::event::Precision;
use crate::store::redis::Layout;

/// What reads a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// `eds run`, and the commands for the cluster of nodes.
    Node,
    /// `eds relay`
    Relay,
}

impl Program {
    /// The keys that it knows, in the order in which the sections and keys are explained.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        let known = KEYS.iter().copied();
        known.filter(move |key| key.programs.contains(&self))
    }
}

/// One key of the configuration.
#[derive(Debug)]
pub struct Key<K: ?Sized + 'static = dyn Kind> {
    /// `flush.grace`, or `node` for a key at the top.
    pub path: &'static str,
    /// The default, written as the environment would have it. Empty: nothing.
    pub default: &'static str,
    /// Whether all nodes that share one Redis must have the same value.
    pub alike: bool,
    /// What knows the key.
    pub programs: &'static [Program],
    /// What the key is for, in one line.
    pub doc: &'static str,
    /// What values it takes.
    pub kind: K,
}

impl<K: ?Sized> Key<K> {
    /// The TOML table that holds the key; empty for a key at the top.
    #[must_use]
    pub fn section(&self) -> &'static str {
        self.path.split_once('.').map_or("", |(section, _)| section)
    }

    /// The key within its section.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.path.split_once('.').map_or(self.path, |(_, name)| name)
    }

    /// The variable that sets the key: `EDS_FLUSH__GRACE`, `EDS_NODE`.
    #[must_use]
    pub fn variable(&self) -> String {
        let path = self.path.replace('.', "__");
        format!("{VARIABLE_PREFIX}{}", path.to_ascii_uppercase())
    }
}

impl Key {
    /// The key with this path.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path).copied()
    }

    /// Its default in this program. A relay stands beside a node on one host, so it listens elsewhere.
    #[must_use]
    pub fn default_in(&self, program: Program) -> &'static str {
        match (program, self.path) {
            (Program::Relay, "input.listen") => "127.0.0.1:8092",
            (Program::Relay, "http.listen") => "127.0.0.1:8093",
            _ => self.default,
        }
    }
}

/// What the names of our environment variables begin with.
pub const VARIABLE_PREFIX: &str = "EDS_";

/// Makes a static of each key, in a module for each section, and [`KEYS`] of them all.
macro_rules! keys {
    ($($module:ident $prefix:literal {
        $($scope:ident $name:ident: $kind:ident $(<$of:ty>)? $(($($bounds:tt)*))? $({$($field:tt)*})? = $default:literal, $doc:literal;)*
    })*) => {
        $(
            #[expect(non_upper_case_globals, reason = "a key has the name that it has in the file")]
            pub(super) mod $module {
                use super::*;
                $(
                    pub(in crate::config) static $name: Key<$kind $(<$of>)?> = Key {
                        path: concat!($prefix, stringify!($name)),
                        default: $default,
                        alike: $scope.0,
                        programs: $scope.1,
                        doc: $doc,
                        kind: $kind $(($($bounds)*))? $({$($field)*})?,
                    };
                )*
            }
        )*

        /// Every key of every program, in the order in which the sections and keys are explained.
        pub static KEYS: &[&Key] = &[$($(&$module::$name),*),*];
    };
}

/// Who has a key: whether all nodes must have the same value, and the programs that know it.
type Scope = (bool, &'static [Program]);

#[expect(non_upper_case_globals, reason = "words of the table")]
mod scope {
    use super::Program::{Node, Relay};
    use super::Scope;

    /// The same on all nodes.
    pub(super) const alike: Scope = (true, &[Node]);
    /// A node's own.
    pub(super) const own: Scope = (false, &[Node]);
    /// The same on all nodes, and their relays have it, too.
    pub(super) const common: Scope = (true, &[Node, Relay]);
    /// Each node and relay has its own.
    pub(super) const each: Scope = (false, &[Node, Relay]);
    /// A relay's own.
    pub(super) const relays: Scope = (false, &[Relay]);
}
use scope::{alike, common, each, own, relays};

/// How it is logged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people, on standard error.
    #[default]
    Text,
    /// One JSON object a line, on standard error.
    Json,
    /// To the journal, with fields.
    Journald,
}

// The first word of a line is its scope.
keys! {
    top "" {
        each node: Name(64) = "", "name of this node or relay, unique among the nodes or the relays (default: the host name)";
    }
    input "input." {
        each listen: Addresses = "127.0.0.1:8094", "where events come in: UDP addresses, and unix:/path for senders of this host";
        each socket_mode: Permissions = "0666", "permissions of the file of a Unix socket: who may write to it may send";
        common user_field: Tag { optional: false } = "value", "the field that names the user";
        common timestamp_precision: Choice<Precision>(&[("ns", Precision::Nanoseconds), ("us", Precision::Microseconds), ("ms", Precision::Milliseconds), ("s", Precision::Seconds)]) = "ns", "unit of the timestamps in the lines";
        common measurement_tag: Tag { optional: true } = "measurement", "tag key to put a line's measurement under; empty: it is left out";
        each receive_buffer: Size("64KiB", "1GiB") = "8MiB", "the kernel's receive buffer, for each receiving thread";
        each threads: Count<usize>(1, 64) = "1", "receiving threads for each address";
        own linger: Span("1ms", "10s") = "100ms", "the longest that an event waits to be recorded, of a minute that ends or in a large batch";
        own linger_max: Span("1ms", "10s") = "1s", "the longest that any other event waits; at most a quarter of flush.grace, and at least linger";
        own queue_events: Count<u64>(1, 1_000_000_000) = "1000000", "events that may wait; beyond it datagrams are dropped, and counted";
        own queue_bytes: Size("64KiB", "1TiB") = "256MiB", "memory for events that wait; beyond it datagrams are dropped, and counted";
        own spool_dir: File(Form::Path) = "", "directory for events that find no room in the queue; empty: none";
        own spool_max: Size("1MiB", "1PiB") = "1GiB", "most bytes in it; beyond them events are dropped, and counted";
        // Long enough to gather the events of any archive, short enough for Redis to reckon with.
        alike max_age: Span("1m", "100years") = "1h", "older events are refused; what was sent is kept twice this long";
        own max_future: Span("0s", "100years") = "1m", "events further ahead of this node's clock are refused";
        own max_datagram: Size("512B", "64KiB") = "64KiB", "longest datagram; a longer one loses its last line";
        own max_line: Size("64B", "64KiB") = "8KiB", "longest line";
        own max_series: Size("16B", "64KiB") = "1KiB", "longest tag set of a line";
        own max_tag: Size("1B", "64KiB") = "256B", "longest tag key and longest tag value";
        own max_user: Size("1B", "64KiB") = "256B", "longest user";
        alike max_series_per_minute: Count<usize>(1, 1_000_000_000) = "100000", "most series in one partition and minute, of all nodes; the others share one overflow series";
        alike max_users_per_series: Count<u64>(0, 1_000_000_000) = "10000000", "most users of a series in one minute, of all nodes, nearly; 0: no limit";
        own max_rate_per_source: Count<u32>(0, 10_000_000) = "0", "most lines a second of one source address; 0: no limit";
        own dedup_users: Count<usize>(0, 1_000_000_000) = "1000000", "users known to be recorded, which are not sent to the store again; 0: none";
        each drain_timeout: Span("0s", "10m") = "20s", "at shutdown, the longest to record what is queued, and to send what would end with the process";
    }
    store "store." {
        each url: StoreUrl = "memory:", "where minutes are gathered; a relay reports itself there, unless it is memory:";
        each prefix: Name(32) = "eds", "what the names of all keys in Redis begin with";
        alike partitions: Count<u16>(1, 1024) = "32", "parts that the series are divided into, the same on every node";
        alike partitions_before: CountOrNone(1024) = "0", "while that changes: the number before; 0: it does not change";
        alike partitions_from: Instant = "", "while that changes: the minute from which the new number holds (RFC 3339)";
        alike layout: Choice<Layout>(&[("sets", Layout::Sets), ("log", Layout::Log)]) = "sets", "how users and events are kept in Redis: as sets of names, or as logs of fingerprints";
        each username: Text = "", "Redis ACL user; empty: the default user";
        each password_file: File(Form::SecretFile) = "", "file with the Redis password";
        each password: SecretText = "", "the Redis password, from the environment only";
        each ca_file: File(Form::Path) = "", "PEM file of the authorities that vouch for Redis (rediss:// only); empty: the system's";
        each cert_file: File(Form::Path) = "", "PEM file of this client's certificate chain (rediss:// only)";
        each key_file: File(Form::Path) = "", "PEM file of this client's private key (rediss:// only)";
        each connect_timeout: Span("10ms", "5m") = "2s", "the longest to wait for a connection to Redis";
        each response_timeout: Span("10ms", "5m") = "3s", "the longest to wait for an answer of Redis";
        own replay_window: Span("0s", "10m") = "10s", "what was recorded this lately is recorded again after a failover";
        own counts_max: Count<u64>(1, 1_000_000_000_000) = "1000000", "most counts that are kept for queries after they are sent";
        own memory_max: Size("1MiB", "1TiB") = "1GiB", "most memory for open minutes and unsent counts (memory: only)";
    }
    flush "flush." {
        own interval: Span("10ms", "1m") = "1s", "how often finished minutes are looked for";
        alike grace: Span("10ms", "1h") = "5s", "a minute that is over closes when nothing arrived for it this long";
        alike max_hold: Span("10ms", "1day") = "60s", "and this long after its end, or its first event, in any case";
        own lease: Span("3s", "1h") = "30s", "how long a claimed minute is kept from the other nodes; renewed while work lasts";
    }
    output "output." {
        alike name: OutputLabel = "default", "what it is called; of several outputs each has a name of its own";
        alike url: OutputUrl = "stdout:", "where the counts go";
        alike api: Choice<u8>(&[("v1", 1), ("v2", 2)]) = "v2", "InfluxDB's write API: v2 (InfluxDB 2, 3) or v1 (InfluxDB 1, VictoriaMetrics)";
        alike org: Text = "", "organization (v2)";
        alike bucket: Text = "", "bucket (v2)";
        own token_file: File(Form::SecretFile) = "", "file with the token (v2)";
        own token: SecretText = "", "the token (v2), from the environment only";
        alike database: Text = "", "database (v1)";
        own username: Text = "", "user (v1)";
        own password_file: File(Form::SecretFile) = "", "file with the user's password (v1)";
        own password: SecretText = "", "the user's password (v1), from the environment only";
        own ca_file: File(Form::Path) = "", "PEM file of the authorities that vouch for the server (https:// only); empty: the system's";
        own timeout: Span("100ms", "5m") = "10s", "the longest that one write may take";
        own batch_lines: Count<usize>(2, 1_000_000) = "5000", "most points in one write";
        own probe_measurement: Name(64) = "eds_probe", "measurement of the point value=0 that tells whether the server takes points";
        own self_metrics: Span("0s", "1h") = "0s", "how often this node writes its own metrics there; 0s: never";
    }
    relay "relay." {
        relays to: Hosts = "", "the nodes, each as HOST:PORT: every event goes to all of them";
        relays events: EventRules = "", "which lines are events: MEASUREMENT, TAG= or TAG=VALUE; empty: those that a node counts";
        relays datagram_max: Size("64B", "65507B") = "1432B", "longest datagram that lines are packed into; a longer line goes alone";
        relays linger: Span("0s", "1s") = "2ms", "the longest that an event waits for others in its datagram";
        relays number: CountOrNone(999) = "0", "number of this relay among all, which its timestamps end in; 0: one by chance";
    }
    rest "rest." {
        relays url: RestUrl = "none:", "where all other lines go";
        relays username: Text = "", "user (?db= only)";
        relays password_file: File(Form::SecretFile) = "", "file with the user's password (?db= only)";
        relays password: SecretText = "", "the user's password (?db= only), from the environment only";
        relays token_file: File(Form::SecretFile) = "", "file with the token (?bucket= only)";
        relays token: SecretText = "", "the token (?bucket= only), from the environment only";
        relays ca_file: File(Form::Path) = "", "PEM file of the authorities that vouch for the server (https:// only); empty: the system's";
        relays timeout: Span("100ms", "5m") = "10s", "the longest that one write may take (http only)";
        relays queue_bytes: Size("64KiB", "1TiB") = "64MiB", "memory for lines that wait for the server (http only); those beyond are dropped, and counted";
    }
    http "http." {
        each listen: Address = "127.0.0.1:8095", "TCP address of the page, health, metrics and queries; empty: none";
        each hosts: HostNames = "", "names by which it may be asked, beside addresses, localhost and the host name";
    }
    log "log." {
        each level: Choice<Option<Level>>(&[("error", Some(Level::ERROR)), ("warn", Some(Level::WARN)), ("info", Some(Level::INFO)), ("debug", Some(Level::DEBUG)), ("trace", Some(Level::TRACE))]) = "info", "what is logged";
        each format: Choice<LogFormat>(&[("text", LogFormat::Text), ("json", LogFormat::Json), ("journald", LogFormat::Journald)]) = "text", "how it is logged";
    }
}
