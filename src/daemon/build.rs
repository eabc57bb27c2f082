//! Builds the configured store and outputs, and divides the process's file descriptors (`LimitNOFILE=`) so that HTTP
//! connections, which any client may open, never starve the other parts.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use coordination::Arbiter;
use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;
use redis_link::Address;
use tokio::time::MissedTickBehavior;

use super::Misused;
use crate::config::{self, Config, Input, RelayConfig, Store, Target};
use crate::diagnosis::Cause;
use crate::event::Partitions;
use crate::flush::Destination;
use crate::http::{CONNECTIONS_ENOUGH, CONNECTIONS_MAX, QuerySources};
use crate::node::{Node, lock};
use crate::output::Output;
use crate::output::build;
use crate::output::line_protocol::Lines;
use crate::output::server::Writer;
use crate::status::Expected;
use crate::store::memory::MemoryStore;
use crate::store::redis::{RedisStore, Settings};
use crate::store::{CountReader, NodeStore, OutputName};
use crate::telemetry::{Format, Metrics, of_output, open_files_max, points};

/// File descriptors that every process needs: about 12 at startup, and a reserve for name resolution, reloads and libraries.
const BASE: usize = 32;
/// File descriptors for the spool: the lock, the directory, the segment being written and the segments being read.
const SPOOL: usize = 8;
/// File descriptors for each additional output: its concurrent writes, and a connection that is being closed.
const PER_OUTPUT: usize = 8;
/// File descriptors for each Redis server: six connections, doubled because a broken connection may stay open for a while.
const PER_SERVER: usize = 12;
/// How many masters a Redis Cluster may have in addition to the configured nodes.
const UNNAMED_MASTERS: usize = 16;
/// Minimum number of HTTP connections, so that `/healthz` responds however low the limit on file descriptors is.
const CONNECTIONS_MIN: usize = 4;

pub(super) const STORE_KEYS: &str = "store.url, store.ca_file, store.cert_file or store.key_file";

pub(super) fn store(config: &Config) -> anyhow::Result<(Arc<dyn NodeStore>, QuerySources)> {
    Ok(match &config.store {
        &Store::Memory { bytes_max, counts_max } => {
            let (node, partitions, retention) =
                (&config.node, &config.partitions, config.retention);
            let store = MemoryStore::new(node, partitions, retention, bytes_max, counts_max);
            let (store, arbiter) = (Arc::new(store), Arc::new(MemoryArbiter::default()));
            (store.clone(), sources(config, store, arbiter))
        }
        Store::Redis(settings) => {
            let store = Arc::new(redis_store(settings)?.alike_in(&config.alike));
            let arbiter = RedisArbiter::new(settings.redis.clone(), &settings.prefix)?;
            (store.clone(), sources(config, store, Arc::new(arbiter)))
        }
    })
}

fn sources(
    config: &Config,
    reading: Arc<dyn CountReader>,
    arbiter: Arc<dyn Arbiter>,
) -> QuerySources {
    let (partitions, retention) = (config.partitions.clone(), config.retention);
    QuerySources { reading, partitions, retention, arbiter }
}

fn redis_store(settings: &Settings) -> anyhow::Result<RedisStore> {
    RedisStore::new(settings).context(STORE_KEYS)
}

/// Returns the Redis store and its partitions for operator commands. Fails with [`Misused`] if the store is in memory.
pub(super) fn operated(config: &Config) -> anyhow::Result<(RedisStore, Partitions)> {
    match &config.store {
        Store::Redis(settings) => Ok((redis_store(settings)?, config.partitions.clone())),
        Store::Memory { .. } => {
            let http = config.http.listen.map_or_else(
                || "its log; http.listen is empty".to_owned(),
                |address| format!("http://{address}/api/v1/status and its log"),
            );
            Err(Misused(format!(
                "store.url is memory:, so only the node itself has this information (see {http}); use --store or \
                 --config to select the nodes' Redis"
            ))
            .into())
        }
    }
}

pub(super) fn outputs(config: &Config) -> anyhow::Result<Vec<Destination>> {
    let destination = |output: &config::Output| {
        let target: Arc<dyn Output> = match &output.target {
            Target::Stdout => Arc::new(Lines(Arc::new(Mutex::new(io::stdout())))),
            Target::Server(settings) => build(settings, &output.probe_measurement)?,
        };
        Ok(Destination {
            name: output.name.clone(),
            output: target,
            write_counts_max: output.write_counts_max,
        })
    };
    config.outputs.iter().map(destination).collect()
}

/// Returns the name and the destination of each output and, if there are rollups, of the claims to add minutes to windows.
pub(super) fn described(config: &Config, outputs: &[Destination]) -> Vec<(String, String)> {
    let described = |output: &Destination| (output.name.to_string(), output.output.describe());
    let names: Vec<_> = config.partitions.rollups().map(|(_, rollup)| &*rollup.name).collect();
    let windows = (!names.is_empty()).then(|| {
        (OutputName::rollup().to_string(), format!("the windows of {}", names.join(", ")))
    });
    outputs.iter().map(described).chain(windows).collect()
}

pub(super) fn expected(config: &Config, outputs: &[Destination]) -> Expected {
    Expected {
        grace: config.flush.grace,
        max_hold: config.flush.max_hold,
        linger: config.linger.most,
        retention: config.retention,
        outputs: described(config, outputs),
        partitions: usize::from(config.partitions.count()),
        rollups: config.partitions.rollups().map(|(at, rollup)| (at, rollup.clone())).collect(),
    }
}

pub(super) fn self_metrics(config: &Config) -> anyhow::Result<Vec<SelfMetrics>> {
    let mut writers = Vec::new();
    for output in &config.outputs {
        if let (Some(every), Target::Server(settings)) = (output.self_metrics, &output.target) {
            let writer = Writer::new(settings, "ns")?;
            writers.push(SelfMetrics { output: output.name.clone(), writer, every });
        }
    }
    Ok(writers)
}

/// A task that regularly writes the node's own metrics to an output. It uses a separate client, so that counts never wait
/// for metrics. Points that the output does not accept immediately are dropped.
#[derive(Debug)]
pub(super) struct SelfMetrics {
    output: OutputName,
    writer: Writer,
    every: Duration,
}

impl SelfMetrics {
    pub(super) async fn run(self, name: String, node: Arc<Node>, metrics: Arc<Metrics>) {
        let output = self.output.as_str();
        let dropped = metrics.self_metrics_dropped.get_or_create_owned(&of_output(output));
        let mut ticks = tokio::time::interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut is_failing = false;
        loop {
            ticks.tick().await;
            let Ok(text) = metrics.encode(Format::Classic) else {
                continue;
            };
            let points = points(&text, &name, SystemTime::now());
            if lock(&node.outputs_down).contains_key(output) {
                dropped.inc_by(points.len() as u64);
                continue;
            }
            let written = self.writer.write(points.concat().into_bytes()).await;
            if let Err(error) = &written {
                dropped.inc_by(points.len() as u64);
                if !is_failing {
                    tracing::warn!(
                        %output, %error,
                        "cannot write this node's metrics to the output; dropping them until a write succeeds. Counts are not \
                         affected"
                    );
                }
            }
            is_failing = written.is_err();
        }
    }
}

/// Returns how many HTTP connections leave enough file descriptors for all other parts. Logs a warning if the number is low.
pub(super) fn left_for_http(config: &Config) -> usize {
    let redis = match &config.store {
        Store::Memory { .. } => None,
        Store::Redis(settings) => Some(&settings.redis),
    };
    let spool = config.spool.as_ref().map_or(0, |_| SPOOL);
    let outputs = config.outputs.len().saturating_sub(1) * PER_OUTPUT;
    left(redis, &config.input, spool + outputs)
}

pub(super) fn left_for_http_of_relay(config: &RelayConfig) -> usize {
    let redis = config.store.as_ref().map(|(redis, _)| redis);
    left(redis, &config.input, config.relay.to.len() + PER_OUTPUT)
}

fn left(redis: Option<&redis_link::Settings>, input: &Input, others: usize) -> usize {
    let servers = match redis.map(|redis| &redis.address) {
        None => 0,
        Some(Address::Cluster(nodes)) => nodes.len() + UNNAMED_MASTERS,
        Some(Address::Sentinel(sentinels, _)) => sentinels.len() + 1,
        Some(Address::Server(_)) => 1,
    };
    let needed = BASE + servers * PER_SERVER + input.listen.len() * input.threads + others;
    let limit = open_files_max().map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
    let left = limit.saturating_sub(needed).clamp(CONNECTIONS_MIN, CONNECTIONS_MAX);
    if left < CONNECTIONS_ENOUGH {
        tracing::warn!(
            limit,
            needed,
            connections = left,
            "{} to at least {}",
            Cause::FewDescriptors,
            needed + CONNECTIONS_ENOUGH
        );
    }
    left
}
