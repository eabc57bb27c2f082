//! Builds the settings of a node from the values of the keys, and checks that related values are consistent.

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use humantime::format_duration;
use redis_link::{Address, Endpoint, Timeouts};

use super::access::read_access;
use super::output::{self, Output, Target};
use super::requests::{self, Requests};
use super::rollup;
use super::sections::{self, Flush, Http, Input, Log, Top};
use super::servers::{self, exposed_host, is_loopback};
use super::sources::host_name;
use super::telemetry::{self, Telemetry};
use super::values::{Effective, HTTP_FILES};
use crate::event::{LineLimits, LineRules, Partitions, Rollup, Window, is_reserved};
use crate::flush::FlushSettings;
use crate::http::Access;
use crate::ingest::{
    BatcherSettings, CapSettings, Linger, ListenAddress, QueueLimits, RecorderSettings,
};
use crate::spool::SpoolSettings;
use crate::store::redis::{self, Settings};

pub(crate) const OUTPUTS: &str = "outputs";

/// Closed minutes and their counts are kept for this multiple of `input.max_age`.
const RETENTION_AGES: u32 = 2;
/// The maximum time for the store's reply before a node counts as lagging, unless a quarter of `flush.grace` is shorter.
const LAGGING_AFTER_MAX: Duration = Duration::from_secs(1);
/// The minimum of `flush.lease` as a multiple of `flush.interval`, so that two renewals may fail before the lease expires.
const LEASE_INTERVALS_MIN: u32 = 3;
const STORE_LOOK: Duration = Duration::from_secs(1);

/// The validated configuration of a node: the settings for all of its parts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The configuration file that was read; `None` if `--config` is not set and the default file does not exist.
    pub(crate) file: Option<PathBuf>,
    pub(crate) node: String,
    pub(crate) store: Store,
    pub(crate) partitions: Partitions,
    pub(crate) retention: Duration,
    pub(crate) input: Input,
    pub(crate) batcher: BatcherSettings,
    pub(crate) spool: Option<SpoolSettings>,
    /// The time events wait in a batch before they are recorded, while the store keeps up.
    pub(crate) linger: Linger,
    pub(crate) recorder: RecorderSettings,
    pub(crate) flush: FlushSettings,
    pub(crate) outputs: Vec<Output>,
    pub(crate) http: Http,
    /// Who may use the HTTP server.
    pub(crate) access: Arc<Mutex<Access>>,
    /// `None` if events do not arrive by HTTP.
    pub(crate) requests: Option<Requests>,
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) log: Log,
    /// The cluster-wide settings except `store.url` and `store.prefix`, in a canonical form so that nodes can compare them.
    pub(crate) alike: Vec<(&'static str, String)>,
}

#[derive(Debug, Clone)]
pub(crate) enum Store {
    Memory {
        /// Maximum memory for open minutes and unsent counts, in bytes.
        bytes_max: u64,
        /// Maximum number of sent counts to keep.
        counts_max: u64,
    },
    Redis(Box<Settings>),
}

/// The keys that operator commands ignore, besides [`HTTP_FILES`]: the credentials of the outputs, and the spool directory.
const TO_SEND: [&str; 6] = [
    "output.token",
    "output.token_file",
    "output.username",
    "output.password",
    "output.password_file",
    "input.spool_dir",
];

/// Like [`build`], but for operator commands, which need neither the keys in [`TO_SEND`] nor the [`HTTP_FILES`].
pub(super) fn build_to_look(values: &mut Effective) -> Config {
    values.ignore(&HTTP_FILES);
    values.ignore(&["telemetry.otlp_url"]);
    for output in 0..values.outputs() {
        values.index = output;
        values.ignore(&TO_SEND);
    }
    build(values)
}

pub(super) fn build(values: &mut Effective) -> Config {
    let Top { node } = Top::read(values);
    let (input, mut http) = (Input::read(values), Http::read(values));
    let store = sections::Store::read(values);
    let Flush { interval, grace, max_hold, lease, zeros } = Flush::read(values);
    let window_hold = input.max_age.max(max_hold);
    values.together(
        &["flush.zeros"],
        zeros.as_secs() % 60 == 0 && zeros.subsec_nanos() == 0,
        "is not a whole number of minutes; use for example 5m",
    );
    let zeros = u32::try_from(zeros.as_secs() / 60).unwrap_or(0);
    let flush = FlushSettings { interval, grace, max_hold, window_hold, lease, zeros };
    check(values, &input, &store, &flush);
    let retention = input.max_age.saturating_mul(RETENTION_AGES);
    let window = Window::new(input.max_age, input.max_future);
    let replay_window = store.replay_window;
    let outputs = output::read(values);
    let rollups = rollup::read(values, &outputs);
    let alike_rollups: Vec<_> = rollups.iter().map(ToString::to_string).collect();
    let (store, partitions) = build_store(values, store, rollups, &node, retention);
    http.hosts.extend(host_name());
    let access = read_access(values, &mut http);
    let limits = LineLimits {
        line: input.max_line,
        series: input.max_series,
        tag: input.max_tag,
        user: input.max_user,
    };
    let mut alike_outputs: Vec<_> = outputs.iter().map(Output::alike).collect();
    alike_outputs.sort_unstable();
    Config {
        file: values.file.clone(),
        node,
        store,
        partitions: partitions.clone(),
        retention,
        batcher: BatcherSettings {
            rules: line_rules(&input, limits),
            window,
            partitions,
            limits: QueueLimits { events: input.queue_events, bytes: input.queue_bytes },
        },
        spool: (input.spool_dir.clone())
            .map(|directory| SpoolSettings { directory, bytes_max: input.spool_max }),
        // If the clock of Redis is not known, events wait longer than their minute, but must be recorded before it closes.
        linger: Linger {
            least: input.linger,
            most: input.linger_max.min(grace / 2).max(input.linger),
        },
        recorder: RecorderSettings {
            window,
            precision: input.timestamp_precision,
            caps: CapSettings {
                series_max: input.max_series_per_minute,
                users_max: input.max_users_per_series,
            },
            lagging_after: (grace / 4).min(LAGGING_AFTER_MAX),
            replay_window,
        },
        input,
        flush,
        outputs,
        http,
        access,
        requests: requests::read(values),
        telemetry: telemetry::read(values),
        log: Log::read(values),
        alike: (values.alike())
            .chain([(OUTPUTS, alike_outputs.join("; ")), ("rollups", alike_rollups.join("; "))])
            .collect(),
    }
}

pub(super) fn line_rules(input: &Input, limits: LineLimits) -> LineRules {
    LineRules {
        user_field: input.user_field.clone(),
        precision: input.timestamp_precision,
        statsd: input.statsd,
        measurement_tag: input.measurement_tag.clone(),
        limits,
    }
}

fn build_store(
    values: &mut Effective,
    keys: sections::Store,
    rollups: Vec<Rollup>,
    node: &str,
    retention: Duration,
) -> (Store, Partitions) {
    let before = Some(keys.partitions_before).filter(|before| *before > 0);
    values.together(
        &["store.partitions_before", "store.partitions_from"],
        before.is_some() == keys.partitions_from.is_some(),
        "must be set together with store.partitions_from; set both while the number of partitions is being changed, and remove \
         both afterwards",
    );
    values.together(
        &["store.partitions_before", "store.partitions"],
        before != Some(keys.partitions),
        "equals store.partitions, so nothing would change; set it to the previous number of partitions",
    );
    let count = NonZeroU16::new(keys.partitions).unwrap_or(NonZeroU16::MIN);
    // An in-memory store starts empty, so it has no minutes with the previous number of partitions.
    let before = before.zip(keys.partitions_from).filter(|_| keys.url.is_some());
    let partitions = redis::partitions(&keys.prefix, count, before).with_rollups(rollups);
    let (bytes_max, counts_max) = (keys.memory_max, keys.counts_max);
    let timeouts = Timeouts { connect: keys.connect_timeout, response: keys.response_timeout };
    let store = match servers::redis(values, keys.url, timeouts) {
        None => Store::Memory { bytes_max, counts_max },
        Some(redis) => Store::Redis(Box::new(Settings {
            redis,
            prefix: keys.prefix,
            partitions: partitions.clone(),
            layout: keys.layout,
            retention,
            counts_max,
            node: node.to_owned(),
        })),
    };
    (store, partitions)
}

fn check(values: &mut Effective, input: &Input, store: &sections::Store, flush: &FlushSettings) {
    let is_redis = store.url.is_some();
    let tag = input.measurement_tag.as_deref().unwrap_or_default();
    for (keys, holds, text) in [
        (
            &["input.measurement_tag"][..],
            !is_reserved(tag.as_bytes()),
            "is a reserved tag key; choose a different key",
        ),
        (
            &["flush.max_hold", "flush.grace"],
            flush.max_hold >= flush.grace,
            "is shorter than flush.grace, so no minute would ever become idle; raise it or lower flush.grace",
        ),
        (
            &["flush.lease", "flush.interval"],
            flush.lease >= flush.interval.saturating_mul(LEASE_INTERVALS_MIN),
            "is shorter than 3 × flush.interval, so claims could expire before they are renewed; raise it or lower \
             flush.interval",
        ),
        (
            &["input.linger", "flush.grace"],
            input.linger < flush.grace,
            "is not shorter than flush.grace, so events could be recorded after their minute has closed; lower it or raise \
             flush.grace",
        ),
        (
            &["flush.interval", "flush.grace"],
            !is_redis || flush.interval < flush.grace,
            "is not shorter than flush.grace, so minutes could be closed before a node reports its lag; lower it or raise \
             flush.grace",
        ),
        (
            &["store.replay_window", "store.response_timeout"],
            !is_redis
                || store.replay_window.is_zero()
                || store.replay_window >= store.response_timeout,
            "is shorter than store.response_timeout, so the events kept for a replay would be discarded before a failover is detected; \
             raise it, lower store.response_timeout, or set it to \"0s\" to disable replays",
        ),
    ] {
        values.together(keys, holds, text);
    }
    let datagram = ("input.max_datagram", input.max_datagram);
    let (line, series) =
        (("input.max_line", input.max_line), ("input.max_series", input.max_series));
    for (outer, inner) in [
        (datagram, line),
        (line, series),
        (series, ("input.max_tag", input.max_tag)),
        (line, ("input.max_user", input.max_user)),
    ] {
        let text = format!(
            "is {} bytes, which exceeds {} ({} bytes); lower it or raise {1}",
            inner.1, outer.0, outer.1
        );
        values.together(&[inner.0, outer.0], inner.1 <= outer.1, &text);
    }
}

impl Config {
    /// Returns warnings about settings that are valid but unwise. Each warning is a sentence that names the keys involved.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.exposed();
        if let Store::Redis(settings) = &self.store {
            warnings.extend(self.contradictions(settings.redis.timeouts));
        }
        warnings
    }

    fn contradictions(
        &self,
        Timeouts { connect, response }: Timeouts,
    ) -> impl Iterator<Item = String> {
        let FlushSettings { interval, grace, max_hold, lease, .. } = self.flush;
        let window = self.recorder.replay_window;
        let noticed = connect + response + STORE_LOOK;
        let kept = connect + 2 * response + interval;
        let drain = self.input.drain_timeout;
        let pairs = [
            (
                interval > grace / 2,
                "flush.interval ({}) is longer than half of flush.grace ({}), so if recording hangs, other nodes may close \
                 minutes before this node reports its lag",
                [interval, grace],
            ),
            (
                lease < kept,
                "flush.lease ({}) is shorter than flush.interval + store.connect_timeout + 2 × store.response_timeout ({}), so if \
                 Redis is slow, claims and lag reports expire, and other nodes send the same counts again",
                [lease, kept],
            ),
            (
                !window.is_zero() && window < noticed,
                "store.replay_window ({}) is shorter than the time it takes to detect that Redis is down (store.connect_timeout + \
                 store.response_timeout + 1s = {}), so a failover may lose events recorded during that time",
                [window, noticed],
            ),
            (
                response >= max_hold,
                "store.response_timeout ({}) is not shorter than flush.max_hold ({}), so if recording hangs, events \
                 may reach Redis after their minute has closed",
                [response, max_hold],
            ),
            (
                self.spool.is_none() && drain < response,
                "input.drain_timeout ({}) is shorter than store.response_timeout ({}), and input.spool_dir is not set, so a \
                 single slow response on shutdown can cause all queued events to be lost",
                [drain, response],
            ),
        ];
        let unwise = pairs.into_iter().filter(|(is_unwise, ..)| *is_unwise);
        unwise.map(|(_, text, spans)| {
            let fill =
                |text: String, span| text.replacen("{}", &format_duration(span).to_string(), 1);
            spans.into_iter().fold(text.to_owned(), fill)
        })
    }

    fn exposed(&self) -> Vec<String> {
        let mut warnings = Vec::from_iter(self.telemetry.as_ref().and_then(Telemetry::warning));
        if let Store::Redis(settings) = &self.store
            && settings.redis.tls.is_none()
            && let Some(host) = remote_host(&settings.redis.address)
        {
            let password = settings.redis.credentials.password.as_ref();
            let password = password.map_or("", |_| ", and read the password");
            warnings.push(format!(
                "store.url is not encrypted, so anyone on the network between this host and {host} can read and change all events \
                 and counts{password}; use rediss://"
            ));
        }
        for output in &self.outputs {
            if let Target::Server(settings) = &output.target
                && let Some(host) = exposed_host(&settings.url)
            {
                let suffix = match &self.outputs[..] {
                    [_] => String::new(),
                    _ => format!(" of {:?}", output.name.as_str()),
                };
                warnings.push(format!(
                    "output.url{suffix} is not encrypted, so anyone on the network between this host and {host} can read and change \
                     all counts, and read the credentials; use https://"
                ));
            }
        }
        let is_any = |address: &&ListenAddress| matches!(address, ListenAddress::Udp(at) if at.ip().is_unspecified());
        let anywhere: Vec<_> = self.input.listen.iter().filter(is_any).collect();
        if !anywhere.is_empty() {
            warnings.push(format!(
                "input.listen accepts events on every address of this host ({anywhere:?}), and UDP does not authenticate \
                 senders; listen on a single address, and use a firewall that admits only known senders"
            ));
        }
        warnings
    }
}

fn remote_host(address: &Address) -> Option<&str> {
    let endpoints = match address {
        Address::Server(endpoint) => std::slice::from_ref(endpoint),
        Address::Cluster(nodes) | Address::Sentinel(nodes, _) => nodes,
    };
    endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Tcp(host, _) => Some(host.as_str()).filter(|host| !is_loopback(host)),
        Endpoint::Unix(_) => None,
    })
}
