//! The settings of a node, and the checks of keys against each other.

use std::path::PathBuf;
use std::time::Duration;

use humantime::format_duration;
use redis_link::Timeouts;

use super::output::{self, Output, Target};
use super::sections::{self, Flush, Http, Input, Log, Top};
use super::sources::host_name;
use super::store::{self, Store};
use super::urls::{exposed_host, is_loopback};
use super::values::Effective;
use crate::event::{LineLimits, LineRules, Partitions, Window, is_reserved};
use crate::flush::FlushSettings;
use crate::ingest::{
    BatcherSettings, CapSettings, Linger, ListenAddress, QueueLimits, RecorderSettings,
};
use crate::spool::SpoolSettings;

/// The name of all outputs together among the cluster-wide settings.
pub(crate) const OUTPUTS: &str = "outputs";

/// Minute counts are kept for this multiple of the greatest accepted age.
const RETENTION_AGES: u32 = 2;
/// A node lags when the store takes longer than this to answer.
const LAGGING_AFTER_MAX: Duration = Duration::from_secs(1);
/// A lease is renewed once per interval, so two renewals may fail before it expires.
const LEASE_INTERVALS_MIN: u32 = 3;
/// The interval of the check that the store is the same.
const STORE_LOOK: Duration = Duration::from_secs(1);

/// A valid configuration: the settings of all parts.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file that was read; `None`: no flag names a file, and the default file does not exist.
    pub(crate) file: Option<PathBuf>,
    pub(crate) node: String,
    pub(crate) store: Store,
    /// How the series are spread over the store.
    pub(crate) partitions: Partitions,
    /// How long the counts of a minute are kept.
    pub(crate) retention: Duration,
    pub(crate) service: ServiceSettings,
    pub(crate) outputs: Vec<Output>,
    pub(crate) log: Log,
    /// Key and value of the cluster-wide settings. Values that mean the same are written the same. What names the store itself
    /// (`store.url`, `store.prefix`) is not among them: nodes that differ in it meet nowhere.
    pub(crate) alike: Vec<(&'static str, String)>,
}

/// The settings of a running node.
#[derive(Debug, Clone)]
pub struct ServiceSettings {
    pub(crate) input: Input,
    pub(crate) batcher: BatcherSettings,
    /// Takes the events that do not fit into memory; `None`: they are dropped.
    pub(crate) spool: Option<SpoolSettings>,
    /// The wait of an event before it is recorded, while the store keeps up.
    pub(crate) linger: Linger,
    pub(crate) recorder: RecorderSettings,
    /// The recorders record the events of this period again after a failover. They take at most as much memory as the queue.
    pub(crate) replay_window: Duration,
    pub(crate) flush: FlushSettings,
    pub(crate) http: Http,
}

/// The keys that an operator's command does not need: the secrets of the outputs, and the spool.
const TO_SEND: [&str; 6] = [
    "output.token",
    "output.token_file",
    "output.username",
    "output.password",
    "output.password_file",
    "input.spool_dir",
];

/// As [`build`], for an operator's command.
pub(super) fn build_to_look(values: &mut Effective) -> Config {
    for output in 0..values.outputs() {
        values.output = output;
        values.ignore(&TO_SEND);
    }
    build(values)
}

pub(super) fn build(values: &mut Effective) -> Config {
    let Top { node } = Top::read(values);
    store::ignore_unused(values);
    let (input, mut http) = (Input::read(values), Http::read(values));
    let store = sections::Store::read(values);
    let Flush { interval, grace, max_hold, lease } = Flush::read(values);
    let flush = FlushSettings { interval, grace, max_hold, lease };
    check(values, &input, &store, &flush);
    let retention = input.max_age.saturating_mul(RETENTION_AGES);
    let window = Window::new(input.max_age, input.max_future);
    let replay_window = store.replay_window;
    let (store, partitions) = store::build(values, store, &node, retention);
    let outputs = output::read(values);
    http.hosts.extend(host_name());
    let service = ServiceSettings {
        batcher: BatcherSettings {
            rules: LineRules {
                user_field: input.user_field.clone(),
                precision: input.timestamp_precision,
                measurement_tag: input.measurement_tag.clone(),
                limits: LineLimits {
                    line: input.max_line,
                    series: input.max_series,
                    tag: input.max_tag,
                    user: input.max_user,
                },
            },
            window,
            partitions: partitions.clone(),
            limits: QueueLimits { events: input.queue_events, bytes: input.queue_bytes },
        },
        spool: (input.spool_dir.clone())
            .map(|directory| SpoolSettings { directory, bytes_max: input.spool_max }),
        // Events must be recorded well before their minute is closed.
        linger: Linger {
            least: input.linger,
            most: input.linger_max.min(grace / 4).max(input.linger),
        },
        recorder: RecorderSettings {
            window,
            precision: input.timestamp_precision,
            caps: CapSettings {
                series_max: input.max_series_per_minute,
                users_max: input.max_users_per_series,
            },
            lagging_after: (grace / 4).min(LAGGING_AFTER_MAX),
        },
        input,
        replay_window,
        flush,
        http,
    };
    let mut alike_outputs: Vec<_> = outputs.iter().map(Output::alike).collect();
    alike_outputs.sort_unstable();
    Config {
        file: values.file.clone(),
        node,
        store,
        partitions,
        retention,
        service,
        outputs,
        log: Log::read(values),
        alike: values.alike().chain([(OUTPUTS, alike_outputs.join("; "))]).collect(),
    }
}

/// Refuses keys that contradict each other.
fn check(values: &mut Effective, input: &Input, store: &sections::Store, flush: &FlushSettings) {
    let is_redis = store.url.is_some();
    let tag = input.measurement_tag.as_deref().unwrap_or_default();
    for (keys, holds, text) in [
        (
            &["input.measurement_tag"][..],
            !is_reserved(tag.as_bytes()),
            "is a reserved tag key, as in every line; choose another one",
        ),
        (
            &["flush.max_hold", "flush.grace"],
            flush.max_hold >= flush.grace,
            "is shorter than flush.grace, so no minute would ever be idle long enough; raise this or lower that",
        ),
        (
            &["flush.lease", "flush.interval"],
            flush.lease >= flush.interval.saturating_mul(LEASE_INTERVALS_MIN),
            "is shorter than 3 × flush.interval, so it could lapse while its minute is being sent; raise this or lower that",
        ),
        (
            &["input.linger", "flush.grace"],
            input.linger < flush.grace,
            "is not shorter than flush.grace, so events that wait would come after their minute was closed; lower this or \
             raise that",
        ),
        (
            &["flush.interval", "flush.grace"],
            !is_redis || flush.interval < flush.grace,
            "is not shorter than flush.grace, but a node reports only so often that it lags, and the others would close \
             minutes before; lower this or raise that",
        ),
        (
            &["store.replay_window", "store.response_timeout"],
            !is_redis
                || store.replay_window.is_zero()
                || store.replay_window >= store.response_timeout,
            "is shorter than store.response_timeout, so what was recorded is forgotten before a missing answer shows a \
             failover; raise this or lower that, or write \"0s\"",
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
            "{} bytes never fit into {}, {} bytes; lower this or raise that",
            inner.1, outer.0, outer.1
        );
        values.together(&[inner.0, outer.0], inner.1 <= outer.1, &text);
    }
}

impl Config {
    /// Returns warnings about settings that are valid but unwise. Each is a sentence that names the keys.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = exposed(&self.service, &self.store, &self.outputs);
        if let Store::Redis(settings) = &self.store {
            warnings.extend(self.late(settings.redis.timeouts));
        }
        warnings
    }

    /// Returns warnings about durations that contradict each other when the store is slow or unavailable.
    fn late(&self, Timeouts { connect, response }: Timeouts) -> impl Iterator<Item = String> {
        let FlushSettings { interval, grace, max_hold, lease } = self.service.flush;
        let window = self.service.replay_window;
        let noticed = connect + response + STORE_LOOK;
        let kept = connect + 2 * response + interval;
        let spools = self.service.spool.is_some();
        let pairs = [
            (
                interval > grace / 2,
                "flush.interval ({}) is longer than half of flush.grace ({}): when recording hangs, the other nodes may close \
             a minute before they know that this one lags",
                [interval, grace],
            ),
            (
                lease < kept,
                "flush.lease ({}) is shorter than flush.interval, store.connect_timeout and twice store.response_timeout together \
             ({}): when Redis is slow, claims lapse and others send the same counts again, and that a node lags is \
             forgotten",
                [lease, kept],
            ),
            (
                !window.is_zero() && window < noticed,
                "store.replay_window ({}) is shorter than it may take to notice that Redis is gone (store.connect_timeout, \
             store.response_timeout and a second: {}): a failover may lose events of the time between",
                [window, noticed],
            ),
            (
                response >= max_hold,
                "store.response_timeout ({}) is not shorter than flush.max_hold ({}): events whose recording hangs come after \
             their minute was closed in any case",
                [response, max_hold],
            ),
            (
                !spools && self.service.input.drain_timeout < response,
                "input.drain_timeout ({}) is shorter than store.response_timeout ({}), and there is no input.spool_dir: one \
             answer that is late at a stop loses what is queued",
                [self.service.input.drain_timeout, response],
            ),
        ];
        let unwise = pairs.into_iter().filter(|(is_unwise, ..)| *is_unwise);
        unwise.map(|(_, text, spans)| {
            let fill =
                |text: String, span| text.replacen("{}", &format_duration(span).to_string(), 1);
            spans.into_iter().fold(text.to_owned(), fill)
        })
    }
}

/// Returns warnings about data that leaves this host unencrypted, and about listeners that accept data from any host.
fn exposed(service: &ServiceSettings, store: &Store, outputs: &[Output]) -> Vec<String> {
    let mut warnings = Vec::new();
    if let Store::Redis(settings) = store
        && let Some(host) = store.hosts_in_the_clear().into_iter().find(|host| !is_loopback(host))
    {
        let password = settings.redis.credentials.password.as_ref();
        let password = password.map_or("", |_| ", the password included");
        warnings.push(format!(
            "store.url is not encrypted: whoever is on the way to {host} can read and change all events and \
             counts{password}; use rediss://"
        ));
    }
    for output in outputs {
        let Target::InfluxDb(settings) = &output.target else {
            continue;
        };
        let Some(host) = exposed_host(&settings.url) else {
            continue;
        };
        let of = match outputs {
            [_] => String::new(),
            _ => format!(" of {:?}", output.name.as_str()),
        };
        warnings.push(format!(
            "output.url{of} is not encrypted: whoever is on the way to {host} can read and change all counts, the token or \
             password included where there is one; use https://"
        ));
    }
    let is_any = |address: &&ListenAddress| matches!(address, ListenAddress::Udp(at) if at.ip().is_unspecified());
    let anywhere: Vec<_> = service.input.listen.iter().filter(is_any).collect();
    if !anywhere.is_empty() {
        warnings.push(format!(
            "input.listen takes events at every address of this host ({anywhere:?}), and UDP knows no sender: name one \
             address, and let a firewall admit the senders only"
        ));
    }
    warnings
}
