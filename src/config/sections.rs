//! The table of keys, with their types, defaults, allowed values and documentation. Each section is also a struct.
//!
//! The sources, `eds check`, the manual page and the tests of `config/eds.toml` use the rows of the table. `node.rs`,
//! `output.rs` and `relay.rs` build settings from the structs. A key without a type has no field, because it applies only if
//! a server is configured; `servers.rs` or `output.rs` then reads it by name.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chrono_tz::Tz;
use reqwest::Url;
use tracing::Level;

use super::kinds::{self, ApiName, LogFormat};
use super::servers;
use super::values::Program::{self, Node, Relay as RelayProgram};
use super::values::{Effective, Form, Key};
use crate::event::{Minute, Precision, TagFilter};
use crate::http::Tokens;
use crate::ingest::ListenAddress;
use crate::relay::{EventRule, PassthroughSettings};
use crate::store::OutputName;
use crate::store::redis::Layout;

impl Program {
    /// Returns the keys that the program uses, in the order in which they are documented.
    pub fn keys(self) -> impl Iterator<Item = &'static Key> {
        KEYS.iter().filter(move |key| key.programs.contains(&self))
    }
}

impl Key {
    /// Returns the key with this path, such as `flush.grace`; `None` if there is no such key.
    #[must_use]
    pub fn find(path: &str) -> Option<&'static Key> {
        KEYS.iter().find(|key| key.path == path)
    }
}

/// Whether a key is cluster-wide, and the programs that use it.
type Scope = (bool, &'static [Program]);

#[expect(non_upper_case_globals, reason = "words of the table")]
mod scope {
    use super::{Node, RelayProgram, Scope};

    pub(super) const alike: Scope = (true, &[Node]);
    pub(super) const own: Scope = (false, &[Node]);
    pub(super) const common: Scope = (true, &[Node, RelayProgram]);
    pub(super) const each: Scope = (false, &[Node, RelayProgram]);
    pub(super) const relays: Scope = (false, &[RelayProgram]);
}

/// Defines a struct for each section, and [`KEYS`] with all rows. A row consists of the scope, the name, the form, the type
/// and the parse function (unless the key has no field), the allowed values, the default, and the documentation.
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
                /// Reads the section. Reports each invalid value, and uses the default of its type instead.
                pub(in crate::config) fn read(values: &mut Effective) -> Self {
                    Self { $($($name: values.read::<$type>(concat!($prefix, stringify!($name)), $module::$kind),)?)* }
                }
            }
        )*

        /// The keys of all programs, in the order in which they are documented.
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
        each node: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "", "name of this node or relay, unique among nodes or among relays (default: the host name)";
    }
    #[derive(Debug, Clone)]
    Input "input." {
        each listen: List Vec<ListenAddress> = kinds::addresses, "127.0.0.1:8094", "addresses to receive events on: UDP addresses, and unix:/path for senders on this host";
        each socket_mode: Text u32 = kinds::mode("0000 to 0777"), "0666", "file permissions of a Unix socket; only users with write permission can send";
        common user_field: Text String = kinds::tag, "value", "field that contains the user";
        common timestamp_precision: Text Precision = kinds::word("one of: ns, us, ms, s"), "ns", "unit of the timestamps in lines";
        common measurement_tag: Text Option<String> = kinds::optional_tag, "measurement", "tag key that holds the measurement of a line; if empty, the measurement is ignored";
        common statsd: Switch bool = kinds::switch("true or false"), "false", "whether datagrams may contain statsd sets (name:user|s)";
        each receive_buffer: Text u64 = kinds::size("64KiB to 1GiB"), "16MiB", "size of the kernel receive buffer of each UDP address";
        each threads: Integer usize = kinds::count("1 to 64"), "1", "number of receiving threads per address";
        own linger: Span Duration = kinds::span("1ms to 10s"), "100ms", "maximum time before an event is recorded if its minute has ended or its batch is large";
        own linger_max: Span Duration = kinds::span("1ms to 10s"), "2s", "maximum time before all other events are recorded; at least linger, at most flush.grace / 2";
        own queue_events: Integer u64 = kinds::count("1 to 1000000000"), "1000000", "maximum number of queued events; further events are spooled, or dropped and counted";
        own queue_bytes: Text u64 = kinds::size("64KiB to 1TiB"), "256MiB", "maximum memory for queued events; further events are spooled, or dropped and counted";
        own spool_dir: Path Option<PathBuf> = kinds::directory, "", "directory for events that do not fit in the queue; if empty, such events are dropped and counted";
        own spool_max: Text u64 = kinds::size("1MiB to 1PiB"), "1GiB", "maximum size of the spool; further events are dropped and counted";
        // The maximum admits events from any archive, but is small enough for the arithmetic in the Redis scripts.
        alike max_age: Span Duration = kinds::span("1m to 100years"), "1h", "maximum age of events; older events are rejected. Counts are kept for twice as long";
        own max_future: Span Duration = kinds::span("0s to 100years"), "1m", "maximum time an event may be ahead of this node's clock; events further ahead are rejected";
        own max_datagram: Text usize = kinds::size("512B to 64KiB"), "64KiB", "maximum length of a datagram; a longer datagram loses its last line";
        own max_line: Text usize = kinds::size("64B to 64KiB"), "8KiB", "maximum length of a line";
        own max_series: Text usize = kinds::size("16B to 64KiB"), "1KiB", "maximum length of a line's tag set";
        own max_tag: Text usize = kinds::size("1B to 64KiB"), "256B", "maximum length of a tag key or tag value";
        own max_user: Text usize = kinds::size("1B to 64KiB"), "256B", "maximum length of a user";
        alike max_series_per_minute: Integer usize = kinds::count("1 to 1000000000"), "100000", "maximum number of series per partition per minute; all further series share an overflow series";
        alike max_users_per_series: Integer u64 = kinds::count("0 to 1000000000"), "10000000", "approximate, cluster-wide maximum number of users per series per minute; 0 means no limit";
        own max_rate_per_source: Integer u32 = kinds::count("0 to 10000000"), "0", "maximum number of lines per second from one source address; 0 means no limit";
        own dedup_users: Integer usize = kinds::count("0 to 1000000000"), "1000000", "number of recorded users to remember, so that they are not sent to the store again";
        each drain_timeout: Span Duration = kinds::span("0s to 10m"), "20s", "maximum time on shutdown to record queued events and to send data held only in memory";
    }
    HttpInput "input.http." {
        each listen: Text Option<SocketAddr> = kinds::address, "", "TCP address to receive events on by HTTP (/write, /api/v2/write); if empty, there is none";
        each tokens_file: SecretFile Option<Tokens> = kinds::tokens, "", "file with the tokens of clients; if empty, only a loopback address may be used";
        each cert_file: Path, "", "PEM file with the server's certificate chain; if empty, there is no TLS";
        each key_file: Path, "", "PEM file with the server's private key";
        each body_max: Text usize = kinds::size("1KiB to 1GiB"), "16MiB", "maximum size of a request body, also after decompression";
        each timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "maximum time until a request is answered; a client then repeats it";
        own linger: Span Duration = kinds::span("0s to 1s"), "0s", "time that a batch waits for the events of other requests";
        own stamp: Switch bool = kinds::switch("true or false"), "false", "whether to accept lines without a timestamp; repeated requests count their events twice";
    }
    Store "store." {
        each url: Url Option<redis_link::Settings> = servers::store_url("memory:, redis://host:6379, rediss://host:6379, redis+unix:///path, redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name"), "memory:", "URL of the store of unsent minutes; a relay also reports its state there, unless the URL is memory:";
        each prefix: Text String = kinds::name("1 to 32 of A-Z a-z 0-9 . _ -"), "eds", "prefix of all keys in Redis";
        alike partitions: Integer u16 = kinds::count("1 to 1024"), "16", "number of partitions into which series are divided";
        alike partitions_before: Integer u16 = kinds::count("0 to 1024"), "0", "previous number of partitions, while the number is being changed; 0 means no change";
        alike partitions_from: Time Option<Minute> = kinds::minute, "", "first minute with the new number of partitions, while the number is being changed (RFC 3339)";
        alike layout: Text Layout = kinds::word("one of: sets, log"), "sets", "how events are stored in Redis: as sets of names, or as logs of fingerprints";
        each username: Text, "", "Redis ACL user; if empty, the default user is used";
        each password_file: SecretFile, "", "file that contains the Redis password";
        each password: Secret, "", "Redis password; can be set only in the environment";
        each ca_file: Path, "", "PEM file with trusted CA certificates (rediss:// only); if empty, the system trust store is used";
        each cert_file: Path, "", "PEM file with the client's certificate chain (rediss:// only)";
        each key_file: Path, "", "PEM file with the client's private key (rediss:// only)";
        each connect_timeout: Span Duration = kinds::span("10ms to 5m"), "2s", "timeout for connecting to Redis";
        each response_timeout: Span Duration = kinds::span("10ms to 5m"), "3s", "timeout for a request to Redis";
        own replay_window: Span Duration = kinds::span("0s to 10m"), "10s", "how far back events are re-recorded after a failover";
        own counts_max: Integer u64 = kinds::count("1 to 1000000000000"), "1000000", "maximum number of sent counts kept for queries";
        own memory_max: Text u64 = kinds::size("1MiB to 1TiB"), "1GiB", "maximum memory for open minutes and unsent counts (memory: only)";
    }
    Flush "flush." {
        own interval: Span Duration = kinds::span("10ms to 1m"), "1s", "how often a node looks for minutes to close";
        alike grace: Span Duration = kinds::span("10ms to 1h"), "5s", "time without events after which a minute that has ended is closed";
        alike max_hold: Span Duration = kinds::span("10ms to 1day"), "60s", "maximum time a minute stays open after its end, or after its first event if that is later";
        own lease: Span Duration = kinds::span("3s to 1h"), "30s", "how long a node's claim on a minute lasts; the node renews the claim while it works";
        alike zeros: Span Duration = kinds::span("0s to 1h"), "0s", "how long a series without events gets points with value 0; 0s means not at all";
    }
    Output "output." {
        alike name: Text OutputName = kinds::output_name("1 to 32 of a-z 0-9 _ -"), "default", "name of the output, unique among the outputs";
        alike url: Url Option<Url> = servers::output_url("stdout:, http://host:8086 or https://host:8086"), "stdout:", "destination of the counts; remote-write and otlp: with the path of the write API";
        alike api: Text ApiName = kinds::word("one of: v1, v2, remote-write-v1, remote-write-v2, otlp"), "v2", "write API: v2 (InfluxDB 2), v1 (InfluxDB 1, VictoriaMetrics), or another protocol";
        alike org: Text, "", "organization (v2), or tenant in the header X-Scope-OrgID (remote-write, otlp)";
        alike bucket: Text, "", "bucket (v2)";
        own token_file: SecretFile, "", "file that contains the token (all APIs but v1)";
        own token: Secret, "", "token (all APIs but v1); can be set only in the environment";
        alike database: Text, "", "database (v1)";
        own username: Text, "", "user name (all APIs but v2)";
        own password_file: SecretFile, "", "file that contains the password (all APIs but v2)";
        own password: Secret, "", "password (all APIs but v2); can be set only in the environment";
        own ca_file: Path, "", "PEM file with trusted CA certificates (https:// only); if empty, the system trust store is used";
        own timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "timeout for a write";
        own gzip: Switch bool = kinds::switch("true or false"), "true", "whether to compress writes with gzip; remote-write always uses Snappy";
        own batch_lines: Integer usize = kinds::count("2 to 1000000"), "5000", "maximum number of points per write";
        own probe_measurement: Text String = kinds::name("1 to 64 of A-Z a-z 0-9 . _ -"), "eds_probe", "measurement of the point (value=0) used to test whether the server accepts points";
        own self_metrics: Span Duration = kinds::span("0s to 1h"), "0s", "how often this node writes its own metrics to the output; 0s means never";
    }
    Rollup "rollup." {
        alike name: Text OutputName = kinds::output_name("1 to 32 of a-z 0-9 _ -"), "default", "name of the rollup, unique among the rollups";
        alike every: Span Duration = kinds::span("1m to 7days"), "1h", "length of the windows: a divisor of a day, one day or seven days";
        alike time_zone: Text Option<Tz> = kinds::time_zone, "UTC", "time zone of windows of whole days";
        alike by: List Vec<String> = kinds::tags, "", "keys of the tags that distinguish groups; if empty, all tags do";
        alike without: List Vec<String> = kinds::tags, "", "keys of the tags that do not distinguish groups";
        alike keep: List Vec<TagFilter> = kinds::tag_filters, "", "series to count, as TAG=VALUE; if empty, all";
        alike drop: List Vec<TagFilter> = kinds::tag_filters, "", "series not to count, as TAG=VALUE";
        alike users_max: Integer u64 = kinds::count("1 to 1000000000"), "5000000", "maximum number of users per group and window; beyond it, the number is an estimate";
        alike groups_max: Integer usize = kinds::count("1 to 10000000"), "100000", "maximum number of groups per window; further groups are counted as one";
        alike memory_max: Text u64 = kinds::size("1MiB to 1TiB"), "1GiB", "maximum memory of a window; beyond it, the largest groups are estimated";
        alike suffix: Text Option<String> = kinds::optional_name("1 to 64 of A-Z a-z 0-9 . _ -"), "", "suffix of the measurements; if empty, an underscore and the length or, with groups, the name";
    }
    #[derive(Debug, Clone)]
    Relay "relay." {
        relays to: List Vec<String> = kinds::nodes, "", "nodes, each as HOST:PORT; every event is sent to all of them";
        relays events: List Vec<EventRule> = kinds::event_rules, "", "which lines are events: MEASUREMENT, TAG= or TAG=VALUE; if empty, all lines that a node would count";
        relays datagram_max: Text usize = kinds::size("64B to 65507B"), "1432B", "maximum length of a datagram with several lines; a longer line is sent on its own";
        relays linger: Span Duration = kinds::span("0s to 1s"), "16ms", "maximum time that datagrams wait to be packed together; more than 25ms acts like 25ms";
        relays http_to: List Vec<Url> = servers::node_urls, "", "nodes' HTTP inputs; each request is sent to one of them";
        relays ca_file: Path, "", "PEM file with trusted CA certificates for http_to; if empty, the system trust store is used";
        relays number: Integer u16 = kinds::count("0 to 999"), "0", "number of this relay, used as the last digits of added timestamps; 0 means a random number";
    }
    Passthrough "passthrough." {
        relays url: Url PassthroughSettings = servers::passthrough_url("none:, udp://host:port, http://host:8086?db=… or http://host:8086?org=…&bucket=…"), "none:", "destination of passthrough lines, which are all lines that are not events";
        relays username: Text, "", "user name (?db= only)";
        relays password_file: SecretFile, "", "file that contains the password (?db= only)";
        relays password: Secret, "", "password (?db= only); can be set only in the environment";
        relays token_file: SecretFile, "", "file that contains the token (?bucket= only)";
        relays token: Secret, "", "token (?bucket= only); can be set only in the environment";
        relays ca_file: Path, "", "PEM file with trusted CA certificates (https:// only); if empty, the system trust store is used";
        relays timeout: Span Duration = kinds::span("100ms to 5m"), "10s", "timeout for a write (http only)";
        relays queue_bytes: Text usize = kinds::size("64KiB to 1TiB"), "64MiB", "maximum memory for queued lines (http only); further lines are dropped and counted";
    }
    #[derive(Debug, Clone)]
    Http "http." {
        each listen: Text Option<SocketAddr> = kinds::address, "127.0.0.1:8095", "TCP address of the HTTP server (status page, health, metrics, queries); if empty, HTTP is disabled";
        each hosts: List Vec<String> = kinds::host_names, "", "host names accepted in HTTP requests, besides IP addresses, localhost and the name of this host";
        each public: Switch bool = kinds::switch("true or false"), "false", "whether other hosts may use HTTP without a token or client certificate";
        each tokens_file: SecretFile Option<Tokens> = kinds::tokens, "", "file with the tokens of HTTP clients; if empty, they need none";
        each cert_file: Path, "", "PEM file with the HTTP server's certificate chain; if empty, there is no TLS";
        each key_file: Path, "", "PEM file with the HTTP server's private key";
        each client_ca_file: Path, "", "PEM file with CA certificates; clients must then present a certificate signed by one of them";
    }
    #[derive(Debug)]
    Telemetry "telemetry." {
        each otlp_url: Url Option<Url> = servers::otlp_url("http://host:4318 or https://host:4318"), "", "OpenTelemetry collector for metrics and traces (OTLP over HTTP); if empty, there is none";
        each interval: Span Duration = kinds::span("1s to 1h"), "15s", "how often metrics and traces are sent";
        each token_file: SecretFile, "", "file that contains the collector's token (Bearer)";
        each token: Secret, "", "the collector's token (Bearer); can be set only in the environment";
        each ca_file: Path, "", "PEM file with trusted CA certificates (https:// only); if empty, the system trust store is used";
    }
    #[derive(Debug, Clone)]
    Log "log." {
        each level: Text Option<Level> = kinds::level("one of: error, warn, info, debug, trace"), "info", "minimum level of log messages";
        each format: Text LogFormat = kinds::word("one of: text, json, journald"), "text", "log format";
    }
}
