//! The sections: one struct for each, which is its schema, its defaults and its documentation together.
//!
//! The sources, `eds check`, the manual page and the tests of `config/eds.toml` use only the row of a key. `node.rs`, `store.rs`,
//! `output.rs` and `relay.rs` build settings from the sections.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tracing::Level;

use super::key::Program::{self, Node, Relay as RelayProgram};
use super::key::{Form, Key};
use super::kinds::{self, LogFormat};
use super::urls::{self, RestUrl, Server};
use super::values::Effective;
use crate::event::{Minute, Precision};
use crate::ingest::ListenAddress;
use crate::relay::EventRule;
use crate::secret::Secret;
use crate::store::OutputName;
use crate::store::redis::Layout;

impl Program {
    /// Returns the keys of the program, in the order of the documentation.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.programs.contains(&self))
    }
}

impl Key {
    /// Returns the key with this path.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path)
    }
}

/// Whether a key is cluster-wide, and the programs that have it.
type Scope = (bool, &'static [Program]);

#[expect(non_upper_case_globals, reason = "words of the table")]
mod scope {
    use super::{Node, RelayProgram, Scope};

    /// The same on all nodes.
    pub(super) const alike: Scope = (true, &[Node]);
    /// Each node has its own.
    pub(super) const own: Scope = (false, &[Node]);
    /// The same on all nodes, and on their relays.
    pub(super) const common: Scope = (true, &[Node, RelayProgram]);
    /// Each node and relay has its own.
    pub(super) const each: Scope = (false, &[Node, RelayProgram]);
    /// Each relay has its own.
    pub(super) const relays: Scope = (false, &[RelayProgram]);
}

/// Makes a struct of each section, and [`KEYS`] of all rows. A row: scope, name, form in the file, type, the function that
/// parses the value, allowed values, default, documentation.
macro_rules! sections {
    ($($(#[$derive:meta])* $Section:ident $prefix:literal {
        $($scope:ident $name:ident: $form:ident $type:ty = $module:ident::$kind:ident $(($allowed:literal))?, $default:literal, $doc:literal;)*
    })*) => {
        $(
            $(#[$derive])*
            pub(crate) struct $Section {
                $(pub(crate) $name: $type,)*
            }

            impl $Section {
                /// Reads the section. Reports each wrong value, and puts the default of its type in its place.
                pub(in crate::config) fn read(values: &mut Effective) -> Self {
                    Self { $($name: values.read(concat!($prefix, stringify!($name)), $module::$kind),)* }
                }
            }
        )*

        /// The keys of all programs, in the order of the documentation.
        pub static KEYS: &[Key] = &[$($(Key {
            path: concat!($prefix, stringify!($name)),
            form: Form::$form,
            allowed: concat!($($allowed)?),
            default: $default,
            alike: scope::$scope.0,
            programs: scope::$scope.1,
            doc: $doc,
        },)*)*];
    };
}

sections! {
    Top "" {
        each node: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "", "name of this node or relay, unique among the nodes or the relays (default: the host name)";
    }
    #[derive(Debug, Clone)]
    Input "input." {
        each listen: List Vec<ListenAddress> = kinds::addresses, "127.0.0.1:8094", "where events come in: UDP addresses, and unix:/path for senders of this host";
        each socket_mode: Text u32 = kinds::mode("0000 to 0777"), "0666", "permissions of the file of a Unix socket: who may write to it may send";
        common user_field: Text String = kinds::tag, "value", "the field that names the user";
        common timestamp_precision: Text Precision = kinds::precision("one of: ns, us, ms, s"), "ns", "unit of the timestamps in the lines";
        common measurement_tag: Text Option<String> = kinds::optional_tag, "measurement", "tag key to put a line's measurement under; empty: it is left out";
        each receive_buffer: Text u64 = kinds::size("64KiB to 1GiB"), "8MiB", "the kernel's receive buffer, for each receiving thread";
        each threads: Integer usize = kinds::count("1 to 64"), "1", "receiving threads for each address";
        own linger: Span Duration = kinds::span("1ms to 10s"), "100ms", "the longest that an event waits to be recorded, of a minute that ends or in a large batch";
        own linger_max: Span Duration = kinds::span("1ms to 10s"), "1s", "the longest that any other event waits; at most a quarter of flush.grace, and at least linger";
        own queue_events: Integer u64 = kinds::count("1 to 1000000000"), "1000000", "events that may wait; beyond it datagrams are dropped, and counted";
        own queue_bytes: Text u64 = kinds::size("64KiB to 1TiB"), "256MiB", "memory for events that wait; beyond it datagrams are dropped, and counted";
        own spool_dir: Path Option<PathBuf> = kinds::directory, "", "directory for events that find no room in the queue; empty: none";
        own spool_max: Text u64 = kinds::size("1MiB to 1PiB"), "1GiB", "most bytes in it; beyond them events are dropped, and counted";
        // Enough for the events of any archive, and within the range of the arithmetic in Redis.
        alike max_age: Span Duration = kinds::span("1m to 100years"), "1h", "older events are refused; what was sent is kept twice this long";
        own max_future: Span Duration = kinds::span("0s to 100years"), "1m", "events further ahead of this node's clock are refused";
        own max_datagram: Text usize = kinds::size("512B to 64KiB"), "64KiB", "longest datagram; a longer one loses its last line";
        own max_line: Text usize = kinds::size("64B to 64KiB"), "8KiB", "longest line";
        own max_series: Text usize = kinds::size("16B to 64KiB"), "1KiB", "longest tag set of a line";
        own max_tag: Text usize = kinds::size("1B to 64KiB"), "256B", "longest tag key and longest tag value";
        own max_user: Text usize = kinds::size("1B to 64KiB"), "256B", "longest user";
        alike max_series_per_minute: Integer usize = kinds::count("1 to 1000000000"), "100000", "most series in one partition and minute, of all nodes; the others share one overflow series";
        alike max_users_per_series: Integer u64 = kinds::count("0 to 1000000000"), "10000000", "most users of a series in one minute, of all nodes, nearly; 0: no limit";
        own max_rate_per_source: Integer u32 = kinds::count("0 to 10000000"), "0", "most lines a second of one source address; 0: no limit";
        own dedup_users: Integer usize = kinds::count("0 to 1000000000"), "1000000", "users known to be recorded, which are not sent to the store again; 0: none";
        each drain_timeout: Span Duration = kinds::span("0s to 10m"), "20s", "at shutdown, the longest to record what is queued, and to send what would end with the process";
    }
    Store "store." {
        each url: Url Option<redis_link::Settings> = urls::store_url("memory:, redis://host:6379, rediss://host:6379, redis+unix:///path, redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name"), "memory:", "where minutes are gathered; a relay reports itself there, unless it is memory:";
        each prefix: Text String = kinds::name("1 to 32 of A-Z a-z 0-9 . _ -"), "eds", "what the names of all keys in Redis begin with";
        alike partitions: Integer u16 = kinds::count("1 to 1024"), "32", "parts that the series are divided into, the same on every node";
        alike partitions_before: Integer u16 = kinds::count("0 to 1024"), "0", "while that changes: the number before; 0: it does not change";
        alike partitions_from: Time Option<Minute> = kinds::minute, "", "while that changes: the minute from which the new number holds (RFC 3339)";
        alike layout: Text Layout = kinds::layout("one of: sets, log"), "sets", "how users and events are kept in Redis: as sets of names, or as logs of fingerprints";
        each username: Text Option<String> = kinds::text, "", "Redis ACL user; empty: the default user";
        each password_file: SecretFile Option<Secret> = kinds::secret_file, "", "file with the Redis password";
        each password: Secret Option<Secret> = kinds::secret, "", "the Redis password, from the environment only";
        each ca_file: Path Option<Vec<u8>> = kinds::pem, "", "PEM file of the authorities that vouch for Redis (rediss:// only); empty: the system's";
        each cert_file: Path Option<Vec<u8>> = kinds::pem, "", "PEM file of this client's certificate chain (rediss:// only)";
        each key_file: Path Option<Vec<u8>> = kinds::pem, "", "PEM file of this client's private key (rediss:// only)";
        each connect_timeout: Span Duration = kinds::span("10ms to 5m"), "2s", "the longest to wait for a connection to Redis";
        each response_timeout: Span Duration = kinds::span("10ms to 5m"), "3s", "the longest to wait for an answer of Redis";
        own replay_window: Span Duration = kinds::span("0s to 10m"), "10s", "what was recorded this lately is recorded again after a failover";
        own counts_max: Integer u64 = kinds::count("1 to 1000000000000"), "1000000", "most counts that are kept for queries after they are sent";
        own memory_max: Text u64 = kinds::size("1MiB to 1TiB"), "1GiB", "most memory for open minutes and unsent counts (memory: only)";
    }
    Flush "flush." {
        own interval: Span Duration = kinds::span("10ms to 1m"), "1s", "how often finished minutes are looked for";
        alike grace: Span Duration = kinds::span("10ms to 1h"), "5s", "a minute that is over closes when nothing arrived for it this long";
        alike max_hold: Span Duration = kinds::span("10ms to 1day"), "60s", "and this long after its end, or its first event, in any case";
        own lease: Span Duration = kinds::span("3s to 1h"), "30s", "how long a claimed minute is kept from the other nodes; renewed while work lasts";
    }
    Output "output." {
        alike name: Text OutputName = kinds::output_name("1 to 32 of a-z 0-9 _ -"), "default", "what it is called; of several outputs each has a name of its own";
        alike url: Url Option<Server> = urls::output_url("stdout:, http://host:8086 or https://host:8086"), "stdout:", "where the counts go";
        alike api: Text String = kinds::word("one of: v1, v2"), "v2", "InfluxDB's write API: v2 (InfluxDB 2, 3) or v1 (InfluxDB 1, VictoriaMetrics)";
        alike org: Text Option<String> = kinds::text, "", "organization (v2)";
        alike bucket: Text Option<String> = kinds::text, "", "bucket (v2)";
        own token_file: SecretFile Option<Secret> = kinds::secret_file, "", "file with the token (v2)";
        own token: Secret Option<Secret> = kinds::secret, "", "the token (v2), from the environment only";
        alike database: Text Option<String> = kinds::text, "", "database (v1)";
        own username: Text Option<String> = kinds::text, "", "user (v1)";
        own password_file: SecretFile Option<Secret> = kinds::secret_file, "", "file with the user's password (v1)";
        own password: Secret Option<Secret> = kinds::secret, "", "the user's password (v1), from the environment only";
        own ca_file: Path Option<Vec<u8>> = kinds::certificates, "", "PEM file of the authorities that vouch for the server (https:// only); empty: the system's";
        own timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "the longest that one write may take";
        own batch_lines: Integer usize = kinds::count("2 to 1000000"), "5000", "most points in one write";
        own probe_measurement: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "eds_probe", "measurement of the point value=0 that tells whether the server takes points";
        own self_metrics: Span Duration = kinds::span("0s to 1h"), "0s", "how often this node writes its own metrics there; 0s: never";
    }
    #[derive(Debug, Clone)]
    Relay "relay." {
        relays to: List Vec<String> = kinds::nodes, "", "the nodes, each as HOST:PORT: every event goes to all of them";
        relays events: List Vec<EventRule> = kinds::event_rules, "", "which lines are events: MEASUREMENT, TAG= or TAG=VALUE; empty: those that a node counts";
        relays datagram_max: Text usize = kinds::size("64B to 65507B"), "1432B", "longest datagram that lines are packed into; a longer line goes alone";
        relays linger: Span Duration = kinds::span("0s to 1s"), "2ms", "the longest that an event waits for others in its datagram";
        relays number: Integer u16 = kinds::count("0 to 999"), "0", "number of this relay among all, which its timestamps end in; 0: one by chance";
    }
    Rest "rest." {
        relays url: Url RestUrl = urls::rest_url("none:, udp://host:port, http://host:8086?db=… or http://host:8086?org=…&bucket=…"), "none:", "where all other lines go";
        relays username: Text Option<String> = kinds::text, "", "user (?db= only)";
        relays password_file: SecretFile Option<Secret> = kinds::secret_file, "", "file with the user's password (?db= only)";
        relays password: Secret Option<Secret> = kinds::secret, "", "the user's password (?db= only), from the environment only";
        relays token_file: SecretFile Option<Secret> = kinds::secret_file, "", "file with the token (?bucket= only)";
        relays token: Secret Option<Secret> = kinds::secret, "", "the token (?bucket= only), from the environment only";
        relays ca_file: Path Option<Vec<u8>> = kinds::certificates, "", "PEM file of the authorities that vouch for the server (https:// only); empty: the system's";
        relays timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "the longest that one write may take (http only)";
        relays queue_bytes: Text usize = kinds::size("64KiB to 1TiB"), "64MiB", "memory for lines that wait for the server (http only); those beyond are dropped, and counted";
    }
    #[derive(Debug, Clone)]
    Http "http." {
        each listen: Text Option<SocketAddr> = kinds::address, "127.0.0.1:8095", "TCP address of the page, health, metrics and queries; empty: none";
        each hosts: List Vec<String> = kinds::host_names, "", "names by which it may be asked, beside addresses, localhost and the host name";
    }
    #[derive(Debug, Clone)]
    Log "log." {
        each level: Text Option<Level> = kinds::level("one of: error, warn, info, debug, trace"), "info", "what is logged";
        each format: Text LogFormat = kinds::log_format("one of: text, json, journald"), "text", "how it is logged";
    }
}
