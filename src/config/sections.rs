//! The sections: one struct for each, which is its schema, its defaults and its documentation together.
//!
//! The sources, `eds check`, the manual page and the tests of `config/eds.toml` use only the row of a key. `node.rs`, `output.rs`
//! and `relay.rs` build settings from the sections. Keys without a type have no field: `servers.rs` and `output.rs` read them
//! where there is a server.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use reqwest::Url;
use tracing::Level;

use super::kinds::{self, ApiVersion, LogFormat};
use super::servers;
use super::values::Program::{self, Node, Relay as RelayProgram};
use super::values::{Effective, Form, Key};
use crate::event::{Minute, Precision};
use crate::ingest::ListenAddress;
use crate::relay::{EventRule, PassthroughSettings};
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

    pub(super) const alike: Scope = (true, &[Node]);
    pub(super) const own: Scope = (false, &[Node]);
    /// The same on all nodes and their relays.
    pub(super) const common: Scope = (true, &[Node, RelayProgram]);
    pub(super) const each: Scope = (false, &[Node, RelayProgram]);
    pub(super) const relays: Scope = (false, &[RelayProgram]);
}

/// Makes a struct of each section, and [`KEYS`] of all rows. A row: scope, name, form in the file, type and the function that
/// parses the value (unless the key has no field), allowed values, default, documentation.
macro_rules! sections {
    ($($(#[$derive:meta])* $Section:ident $prefix:literal {
        $($scope:ident $name:ident: $form:ident $($type:ty = $module:ident::$kind:ident $(($allowed:literal))?)?, $default:literal, $doc:literal;)*
    })*) => {
        $(
            $(#[$derive])*
            pub(crate) struct $Section {
                $($(pub(crate) $name: $type,)?)*
            }

            impl $Section {
                /// Reads the section. Reports each wrong value, and puts the default of its type in its place.
                pub(in crate::config) fn read(values: &mut Effective) -> Self {
                    Self { $($($name: values.read::<$type>(concat!($prefix, stringify!($name)), $module::$kind),)?)* }
                }
            }
        )*

        /// The keys of all programs, in the order of the documentation.
        pub static KEYS: &[Key] = &[$($(Key {
            path: concat!($prefix, stringify!($name)),
            form: Form::$form,
            allowed: concat!($($($allowed)?)?),
            default: $default,
            alike: scope::$scope.0,
            programs: scope::$scope.1,
            doc: $doc,
        },)*)*];
    };
}

sections! {
    Top "" {
        each node: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "", "name of this node or relay, unique among nodes or relays (default: the host name)";
    }
    #[derive(Debug, Clone)]
    Input "input." {
        each listen: List Vec<ListenAddress> = kinds::addresses, "127.0.0.1:8094", "addresses to receive events on: UDP addresses, and unix:/path for senders on this host";
        each socket_mode: Text u32 = kinds::mode("0000 to 0777"), "0666", "permissions of the file of a Unix socket; only users with write permission can send";
        common user_field: Text String = kinds::tag, "value", "field that contains the user";
        common timestamp_precision: Text Precision = kinds::word("one of: ns, us, ms, s"), "ns", "unit of the timestamps in the lines";
        common measurement_tag: Text Option<String> = kinds::optional_tag, "measurement", "tag key for the measurement of a line; empty: the measurement is ignored";
        each receive_buffer: Text u64 = kinds::size("64KiB to 1GiB"), "8MiB", "kernel receive buffer of each receiving thread";
        each threads: Integer usize = kinds::count("1 to 64"), "1", "receiving threads for each address";
        own linger: Span Duration = kinds::span("1ms to 10s"), "100ms", "maximum wait of an event before it is recorded, if its minute ends or its batch is large";
        own linger_max: Span Duration = kinds::span("1ms to 10s"), "1s", "maximum wait of all other events; at least linger, at most a quarter of flush.grace";
        own queue_events: Integer u64 = kinds::count("1 to 1000000000"), "1000000", "maximum number of queued events; further datagrams are dropped and counted";
        own queue_bytes: Text u64 = kinds::size("64KiB to 1TiB"), "256MiB", "maximum memory of queued events; further datagrams are dropped and counted";
        own spool_dir: Path Option<PathBuf> = kinds::directory, "", "directory for events that do not fit into the queue; empty: none";
        own spool_max: Text u64 = kinds::size("1MiB to 1PiB"), "1GiB", "maximum size of the spool; further events are dropped and counted";
        // Enough for the events of any archive, and within the range of the arithmetic in Redis.
        alike max_age: Span Duration = kinds::span("1m to 100years"), "1h", "maximum age of events; older ones are rejected. Counts are kept for twice this time";
        own max_future: Span Duration = kinds::span("0s to 100years"), "1m", "events further ahead of this node's clock are rejected";
        own max_datagram: Text usize = kinds::size("512B to 64KiB"), "64KiB", "maximum length of a datagram; a longer one loses its last line";
        own max_line: Text usize = kinds::size("64B to 64KiB"), "8KiB", "maximum length of a line";
        own max_series: Text usize = kinds::size("16B to 64KiB"), "1KiB", "maximum length of the tag set of a line";
        own max_tag: Text usize = kinds::size("1B to 64KiB"), "256B", "maximum length of a tag key or tag value";
        own max_user: Text usize = kinds::size("1B to 64KiB"), "256B", "maximum length of a user";
        alike max_series_per_minute: Integer usize = kinds::count("1 to 1000000000"), "100000", "maximum number of series per partition and minute; others share an overflow series";
        alike max_users_per_series: Integer u64 = kinds::count("0 to 1000000000"), "10000000", "approximate maximum number of users per series and minute, of all nodes; 0: no limit";
        own max_rate_per_source: Integer u32 = kinds::count("0 to 10000000"), "0", "maximum number of lines per second from one source address; 0: no limit";
        own dedup_users: Integer usize = kinds::count("0 to 1000000000"), "1000000", "number of recorded users to remember, so that they are not sent to the store again";
        each drain_timeout: Span Duration = kinds::span("0s to 10m"), "20s", "maximum time at shutdown to record queued events and to send what the process alone holds";
    }
    Store "store." {
        each url: Url Option<redis_link::Settings> = servers::store_url("memory:, redis://host:6379, rediss://host:6379, redis+unix:///path, redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name"), "memory:", "store of the minutes; a relay reports its state to it, unless it is memory:";
        each prefix: Text String = kinds::name("1 to 32 of A-Z a-z 0-9 . _ -"), "eds", "prefix of all keys in Redis";
        alike partitions: Integer u16 = kinds::count("1 to 1024"), "32", "number of partitions of the series";
        alike partitions_before: Integer u16 = kinds::count("0 to 1024"), "0", "while the number of partitions changes: the previous number; 0: no change";
        alike partitions_from: Time Option<Minute> = kinds::minute, "", "while the number of partitions changes: the first minute with the new number (RFC 3339)";
        alike layout: Text Layout = kinds::word("one of: sets, log"), "sets", "representation of events in Redis: sets of names, or logs of fingerprints";
        each username: Text, "", "Redis ACL user; empty: the default user";
        each password_file: SecretFile, "", "file with the Redis password";
        each password: Secret, "", "Redis password, from the environment only";
        each ca_file: Path, "", "PEM file of certificate authorities for Redis (rediss:// only); empty: the system's";
        each cert_file: Path, "", "PEM file of the client's certificate chain (rediss:// only)";
        each key_file: Path, "", "PEM file of the client's private key (rediss:// only)";
        each connect_timeout: Span Duration = kinds::span("10ms to 5m"), "2s", "timeout of a connection attempt to Redis";
        each response_timeout: Span Duration = kinds::span("10ms to 5m"), "3s", "timeout of a request to Redis";
        own replay_window: Span Duration = kinds::span("0s to 10m"), "10s", "events of this period are recorded again after a failover";
        own counts_max: Integer u64 = kinds::count("1 to 1000000000000"), "1000000", "maximum number of sent counts that are kept for queries";
        own memory_max: Text u64 = kinds::size("1MiB to 1TiB"), "1GiB", "maximum memory of open minutes and unsent counts (memory: only)";
    }
    Flush "flush." {
        own interval: Span Duration = kinds::span("10ms to 1m"), "1s", "interval at which a node looks for minutes to close";
        alike grace: Span Duration = kinds::span("10ms to 1h"), "5s", "an ended minute is closed when no event arrived for this time";
        alike max_hold: Span Duration = kinds::span("10ms to 1day"), "60s", "maximum time that a minute stays open after its end or its first event";
        own lease: Span Duration = kinds::span("3s to 1h"), "30s", "duration of a claim of a minute; a node renews it while it works";
    }
    Output "output." {
        alike name: Text OutputName = kinds::output_name("1 to 32 of a-z 0-9 _ -"), "default", "name of the output, unique among the outputs";
        alike url: Url Option<Url> = servers::output_url("stdout:, http://host:8086 or https://host:8086"), "stdout:", "destination of the counts";
        alike api: Text ApiVersion = kinds::word("one of: v1, v2"), "v2", "InfluxDB write API: v2 (InfluxDB 2, 3) or v1 (InfluxDB 1, VictoriaMetrics)";
        alike org: Text, "", "organization (v2)";
        alike bucket: Text, "", "bucket (v2)";
        own token_file: SecretFile, "", "file with the token (v2)";
        own token: Secret, "", "token (v2), from the environment only";
        alike database: Text, "", "database (v1)";
        own username: Text, "", "user (v1)";
        own password_file: SecretFile, "", "file with the password (v1)";
        own password: Secret, "", "password (v1), from the environment only";
        own ca_file: Path, "", "PEM file of certificate authorities for the server (https:// only); empty: the system's";
        own timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "timeout of a write";
        own batch_lines: Integer usize = kinds::count("2 to 1000000"), "5000", "maximum number of points in one write";
        own probe_measurement: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "eds_probe", "measurement of the point value=0 that tests whether the server accepts points";
        own self_metrics: Span Duration = kinds::span("0s to 1h"), "0s", "interval at which this node writes its own metrics to the output; 0s: never";
    }
    #[derive(Debug, Clone)]
    Relay "relay." {
        relays to: List Vec<String> = kinds::nodes, "", "nodes, each as HOST:PORT; every event is sent to all of them";
        relays events: List Vec<EventRule> = kinds::event_rules, "", "lines that are events: MEASUREMENT, TAG= or TAG=VALUE; empty: all lines that a node counts";
        relays datagram_max: Text usize = kinds::size("64B to 65507B"), "1432B", "maximum length of a datagram with several lines; a longer line is sent alone";
        relays linger: Span Duration = kinds::span("0s to 1s"), "2ms", "maximum wait of an event for others in its datagram";
        relays number: Integer u16 = kinds::count("0 to 999"), "0", "number of this relay, the last digits of its timestamps; 0: a random number";
    }
    Passthrough "passthrough." {
        relays url: Url PassthroughSettings = servers::passthrough_url("none:, udp://host:port, http://host:8086?db=… or http://host:8086?org=…&bucket=…"), "none:", "destination of passthrough lines, which are all lines that are not events";
        relays username: Text, "", "user (?db= only)";
        relays password_file: SecretFile, "", "file with the password (?db= only)";
        relays password: Secret, "", "password (?db= only), from the environment only";
        relays token_file: SecretFile, "", "file with the token (?bucket= only)";
        relays token: Secret, "", "token (?bucket= only), from the environment only";
        relays ca_file: Path, "", "PEM file of certificate authorities for the server (https:// only); empty: the system's";
        relays timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "timeout of a write (http only)";
        relays queue_bytes: Text usize = kinds::size("64KiB to 1TiB"), "64MiB", "maximum memory of queued lines (http only); further lines are dropped and counted";
    }
    #[derive(Debug, Clone)]
    Http "http." {
        each listen: Text Option<SocketAddr> = kinds::address, "127.0.0.1:8095", "TCP address of the page, health, metrics and queries; empty: no HTTP server";
        each hosts: List Vec<String> = kinds::host_names, "", "accepted host names of requests besides addresses, localhost and the host name";
    }
    #[derive(Debug, Clone)]
    Log "log." {
        each level: Text Option<Level> = kinds::level("one of: error, warn, info, debug, trace"), "info", "minimum level of log messages";
        each format: Text LogFormat = kinds::word("one of: text, json, journald"), "text", "format of the log";
    }
}
