//! Makes the store and the outputs that the configuration names, and divides the descriptors of the process. Connects to
//! nothing.
//!
//! A connection that anybody may open never takes the descriptor of a socket, of a segment on disk, of Redis or of the
//! output. systemd sets the limit (`LimitNOFILE=` in `eds.service`); a process cannot raise it beyond that.

use std::io;
use std::sync::{Arc, Mutex};

use anyhow::Context;
use coordination::Arbiter;
use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use redis_link::Address;

use super::self_metrics::SelfMetrics;
use crate::config::{self, Config, RelayConfig, Store, Target};
use crate::diagnosis::Cause;
use crate::event::Partitions;
use crate::flush::Destination;
use crate::http::{CONNECTIONS_ENOUGH, CONNECTIONS_MAX, QuerySources};
use crate::output::Output;
use crate::output::influxdb::{InfluxDb, LineWriter};
use crate::output::stdout::Lines;
use crate::store::memory::MemoryStore;
use crate::store::redis::{RedisStore, Settings};
use crate::store::{CountReader, NodeStore};
use crate::telemetry::open_files_max;

/// The standard streams, the runtime, signals, the log, the listening socket, an output: some 12. The rest is for the
/// look-up of a name, the files of a reload, and whatever a library opens for a moment.
const BASE: usize = 32;
/// The lock, the directory, a segment that is written and those that are read.
const SPOOL: usize = 8;
/// What each further output writes at the same time, and one that is about to end.
const PER_OUTPUT: usize = 8;
/// To record, to drain, to read, to look at the whole, to share lists and to hear of them; twice, since a connection that broke may linger while
/// the next is made.
const PER_SERVER: usize = 12;
/// The masters that a Redis Cluster may have beside those that are named.
const UNNAMED_MASTERS: usize = 16;
/// However small the limit is, /healthz must answer.
const CONNECTIONS_MIN: usize = 4;

/// The store, and what queries are answered from.
pub(super) fn store(config: &Config) -> anyhow::Result<(Arc<dyn NodeStore>, QuerySources)> {
    let sources = |reading: Arc<dyn CountReader>, arbiter: Arc<dyn Arbiter>| QuerySources {
        reading,
        partitions: config.partitions.clone(),
        retention: config.retention,
        arbiter,
    };
    match &config.store {
        Store::Memory { bytes_max, counts_max } => {
            let store = MemoryStore::new(
                &config.node,
                &config.partitions,
                config.retention,
                *bytes_max,
                *counts_max,
            );
            let store = Arc::new(store);
            let arbiter = Arc::new(MemoryArbiter::default());
            Ok((store.clone(), sources(store, arbiter)))
        }
        Store::Redis(settings) => {
            let store = Arc::new(redis_store(settings)?.alike_in(config.alike()));
            let arbiter = RedisArbiter::new(settings.redis.clone(), &settings.prefix)?;
            Ok((store.clone(), sources(store, Arc::new(arbiter))))
        }
    }
}

fn redis_store(settings: &Settings) -> anyhow::Result<RedisStore> {
    let store = RedisStore::new(settings);
    store.context("store.url, store.ca_file, store.cert_file or store.key_file")
}

/// The store for operators, and its partitions; `None` where that is this process' memory. Agrees with the nodes in how the
/// sets are kept, and in no more.
pub(super) fn operated(config: &Config) -> anyhow::Result<Option<(RedisStore, Partitions)>> {
    match &config.store {
        Store::Memory { .. } => Ok(None),
        Store::Redis(settings) => Ok(Some((redis_store(settings)?, config.partitions.clone()))),
    }
}

/// The outputs.
pub(super) fn outputs(config: &Config) -> anyhow::Result<Vec<Destination>> {
    let named = |output: &config::Output| {
        let to: Arc<dyn Output> = match &output.target {
            Target::Stdout => Arc::new(Lines(Arc::new(Mutex::new(io::stdout())))),
            Target::InfluxDb(settings) => {
                Arc::new(InfluxDb::new(settings)?.with_probe_measurement(&output.probe_measurement))
            }
        };
        Ok(Destination {
            name: output.name.clone(),
            output: to,
            write_counts_max: output.write_counts_max,
        })
    };
    config.outputs.iter().map(named).collect()
}

/// What writes the metrics of this node to outputs.
pub(super) fn self_metrics(config: &Config) -> anyhow::Result<Vec<SelfMetrics>> {
    let mut writers = Vec::new();
    for output in &config.outputs {
        if let (Some(every), Target::InfluxDb(settings)) = (output.self_metrics, &output.target) {
            writers.push(SelfMetrics {
                output: output.name.clone(),
                writer: LineWriter::new(settings, "ns")?,
                every,
            });
        }
    }
    Ok(writers)
}

/// The most HTTP connections that leave enough for all else of a node. Says so when these are few.
pub(super) fn left_for_http(config: &Config) -> usize {
    left_beside(needed(config))
}

/// The same for a relay.
pub(super) fn left_for_http_of_relay(config: &RelayConfig) -> usize {
    let settings = &config.settings;
    let servers = config.store.as_ref().map_or(0, |it| servers(&it.redis));
    let to_servers = servers * PER_SERVER + PER_OUTPUT;
    left_beside(BASE + settings.listen.len() * settings.threads + settings.to.len() + to_servers)
}

fn left_beside(needed: usize) -> usize {
    let Some(limit) = open_files_max() else {
        return CONNECTIONS_MAX;
    };
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let left = limit.saturating_sub(needed).min(CONNECTIONS_MAX);
    if left < CONNECTIONS_ENOUGH {
        tracing::warn!(
            limit,
            needed,
            connections = left.max(CONNECTIONS_MIN),
            "{} to {} at least",
            Cause::FewDescriptors,
            needed + CONNECTIONS_ENOUGH
        );
    }
    left.max(CONNECTIONS_MIN)
}

/// The servers of Redis that there are connections to.
fn servers(redis: &redis_link::Settings) -> usize {
    match &redis.address {
        Address::Cluster { nodes } => nodes.len() + UNNAMED_MASTERS,
        Address::Sentinel { sentinels, .. } => sentinels.len() + 1,
        Address::Tcp { .. } | Address::Unix(_) => 1,
    }
}

fn needed(config: &Config) -> usize {
    let servers = match &config.store {
        Store::Memory { .. } => 0,
        Store::Redis(settings) => servers(&settings.redis),
    };
    let service = &config.service;
    let spool = service.spool.as_ref().map_or(0, |_| SPOOL);
    let further_outputs = config.outputs.len().saturating_sub(1);
    BASE + service.listen.len() * service.threads
        + spool
        + servers * PER_SERVER
        + further_outputs * PER_OUTPUT
}
