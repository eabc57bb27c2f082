//! From the configuration to the settings of each part.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use coordination::Arbiter;
use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use redis_link::{Address, Credentials, Timeouts, Tls};

use super::{ServiceSettings, descriptors};
use crate::config::{self, Config, OutputUrl, RedisAddress, StoreUrl};
use crate::event::{LineLimits, LineRules, Minute, Partitions, Precision, Window};
use crate::flush::FlushSettings;
use crate::http::QuerySources;
use crate::ingest::{BatcherSettings, CapSettings, QueueLimits, RecorderSettings};
use crate::output::Output;
use crate::output::influxdb::{self, InfluxDb};
use crate::output::stdout::Lines;
use crate::spool::SpoolSettings;
use crate::store::memory::{MemoryStore, system_clock};
use crate::store::redis::{self, RedisStore, Settings};
use crate::store::{Reading, Store};

/// The longest that an answer of the store may take before the node counts as behind.
const LAGGING_AFTER_MAX: Duration = Duration::from_secs(1);
/// The counts of a minute are kept so many times as long as the oldest event that is accepted.
const RETENTION_AGES: u32 = 2;

fn partitions(config: &Config) -> anyhow::Result<Partitions> {
    let store = &config.store;
    let count = NonZeroU16::new(store.partitions).context("store.partitions is 0")?;
    let before = match (&store.url, store.partitions_before) {
        // It begins empty, so it has no minutes of before.
        (StoreUrl::Memory { .. }, _) | (_, None) => None,
        (StoreUrl::Redis(_), Some((before, from))) => {
            let from = Minute::from_epoch_minutes(from)
                .context("store.partitions_from is out of range")?;
            Some((before, from))
        }
    };
    Ok(redis::partitions(&store.prefix, count, before))
}

/// The store that the configuration names, and what queries are answered from. Does not connect.
pub(super) fn store(config: &Config) -> anyhow::Result<(Arc<dyn Store>, QuerySources)> {
    match &config.store.url {
        StoreUrl::Memory { memory_max } => {
            let store = MemoryStore::new(
                &config.node,
                &partitions(config)?,
                retention(config),
                *memory_max,
                system_clock(),
            );
            let store = Arc::new(store.keeping(config.store.counts_max));
            let arbiter = Arc::new(MemoryArbiter::default());
            Ok((store.clone(), sources(config, store, arbiter)?))
        }
        StoreUrl::Redis(redis) => {
            let store = Arc::new(redis_store(config, redis)?.alike_in(&config.alike()));
            let arbiter = arbiter(config, redis)?;
            Ok((store.clone(), sources(config, store, arbiter)?))
        }
    }
}

fn sources(
    config: &Config,
    reading: Arc<dyn Reading>,
    arbiter: Arc<dyn Arbiter>,
) -> anyhow::Result<QuerySources> {
    Ok(QuerySources {
        reading,
        partitions: partitions(config)?,
        retention: retention(config),
        arbiter,
    })
}

/// Who sees to it that all nodes compute a list once.
fn arbiter(config: &Config, redis: &config::Redis) -> anyhow::Result<Arc<dyn Arbiter>> {
    let arbiter = RedisArbiter::new(redis_link_settings(redis), &config.store.prefix);
    Ok(Arc::new(arbiter?))
}

fn redis_store(config: &Config, redis: &config::Redis) -> anyhow::Result<RedisStore> {
    let store = RedisStore::new(&redis_settings(config, redis)?);
    store.context("store.url, store.ca_file, store.cert_file or store.key_file")
}

fn redis_settings(config: &Config, redis: &config::Redis) -> anyhow::Result<Settings> {
    Ok(Settings {
        redis: redis_link_settings(redis),
        prefix: config.store.prefix.clone(),
        partitions: partitions(config)?,
        retention: retention(config),
        counts_max: config.store.counts_max,
        node: config.node.clone(),
    })
}

fn redis_link_settings(redis: &config::Redis) -> redis_link::Settings {
    let password = redis.password.as_ref();
    let (address, tls) = address(&redis.address);
    redis_link::Settings {
        address,
        tls: tls.map(certificates),
        database: redis.database,
        credentials: Credentials {
            username: redis.username.clone(),
            password: password.map(|password| password.expose().to_owned()),
        },
        timeouts: Timeouts {
            connect: redis.connect_timeout,
            response: redis.response_timeout,
        },
    }
}

fn retention(config: &Config) -> Duration {
    config.input.max_age.saturating_mul(RETENTION_AGES)
}

/// The store that the configuration names, for operators, and its partitions; `None` where that is this process'
/// memory. Agrees with the nodes in how the sets are kept, and in no more. Does not connect.
pub(super) fn operated(config: &Config) -> anyhow::Result<Option<(RedisStore, Partitions)>> {
    match &config.store.url {
        StoreUrl::Memory { .. } => Ok(None),
        StoreUrl::Redis(redis) => Ok(Some((redis_store(config, redis)?, partitions(config)?))),
    }
}

fn address(address: &RedisAddress) -> (Address, Option<config::Tls>) {
    match address.clone() {
        RedisAddress::Tcp { host, port } => (Address::Tcp { host, port }, None),
        RedisAddress::Unix(path) => (Address::Unix(path), None),
        RedisAddress::Tls { host, port, tls } => (Address::Tcp { host, port }, Some(tls)),
        RedisAddress::Cluster { nodes, tls } => (Address::Cluster { nodes }, tls),
        RedisAddress::Sentinel {
            sentinels,
            name,
            tls,
        } => (Address::Sentinel { sentinels, name }, tls),
    }
}

fn certificates(tls: config::Tls) -> Tls {
    let client = |identity: config::Identity| (identity.certificate.bytes, identity.key.bytes);
    Tls {
        ca: tls.ca.map(|pem| pem.bytes),
        client: tls.identity.map(client),
    }
}

/// The output that the configuration names. Does not connect.
pub(super) fn output(config: &Config) -> anyhow::Result<Arc<dyn Output>> {
    match &config.output.url {
        OutputUrl::Stdout => Ok(Arc::new(Lines::stdout())),
        OutputUrl::InfluxDb(server) => {
            let api = match &server.api {
                config::Api::V2 { org, bucket, token } => influxdb::Api::V2 {
                    org: org.clone(),
                    bucket: bucket.clone(),
                    token: token.clone(),
                },
                config::Api::V1 {
                    database,
                    username,
                    password,
                } => influxdb::Api::V1 {
                    database: database.clone(),
                    username: username.clone(),
                    password: password.clone(),
                },
            };
            let settings = influxdb::Settings {
                url: server.base_url.clone(),
                api,
                timeout: config.output.timeout,
                ca_file: server.ca.as_ref().map(|pem| pem.path.clone()),
            };
            Ok(Arc::new(InfluxDb::new(&settings)?))
        }
    }
}

/// How all other parts behave.
pub(super) fn settings(config: &Config) -> anyhow::Result<ServiceSettings> {
    let partitions = partitions(config)?;
    let input = &config.input;
    let window = Window::new(input.max_age, input.max_future);
    let precision = match input.timestamp_precision {
        config::Precision::Nanoseconds => Precision::Nanoseconds,
        config::Precision::Microseconds => Precision::Microseconds,
        config::Precision::Milliseconds => Precision::Milliseconds,
        config::Precision::Seconds => Precision::Seconds,
    };
    let rules = LineRules {
        user_field: input.user_field.clone(),
        precision,
        measurement_tag: input.measurement_tag.clone(),
        limits: LineLimits {
            line: input.max_line,
            series: input.max_series,
            tag: input.max_tag,
            user: input.max_user,
        },
    };
    let limits = QueueLimits {
        events: input.queue_events as u64,
        bytes: input.queue_bytes,
    };
    let spool = input.spool.as_ref().map(|spool| SpoolSettings {
        directory: spool.directory.clone(),
        bytes_max: spool.bytes_max,
    });
    let flush = &config.flush;
    Ok(ServiceSettings {
        listen: input.listen.clone(),
        receive_buffer: input.receive_buffer,
        threads: input.threads,
        rate_per_source: input.max_rate_per_source,
        datagram_max: input.max_datagram,
        batcher: BatcherSettings {
            rules,
            window,
            partitions,
            limits,
        },
        spool,
        linger: input.linger,
        recorder: RecorderSettings {
            window,
            caps: CapSettings {
                series_max: input.max_series_per_minute,
                users_max: input.max_users_per_series,
            },
            lagging_after: (flush.grace / 4).min(LAGGING_AFTER_MAX),
        },
        dedup_users: input.dedup_users,
        replay_window: config.store.replay_window,
        flush: FlushSettings {
            interval: flush.interval,
            grace: flush.grace,
            max_hold: flush.max_hold,
            lease: flush.lease,
            write_counts_max: (config.output.batch_lines / 2).max(1),
        },
        http: config.http.listen,
        http_connections: descriptors::left_for_http(config),
    })
}
