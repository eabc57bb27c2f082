//! Makes the store and the output that the configuration names. Connects to nothing.

use std::sync::Arc;

use anyhow::Context;
use coordination::Arbiter;
use coordination::memory::MemoryArbiter;
use coordination::redis::RedisArbiter;

use crate::config::{self, Config};
use crate::event::Partitions;
use crate::http::QuerySources;
use crate::output::Output;
use crate::output::influxdb::InfluxDb;
use crate::output::stdout::Lines;
use crate::store::memory::{MemoryStore, system_clock};
use crate::store::redis::{RedisStore, Settings};
use crate::store::{CountReader, NodeStore};

/// The store, and what queries are answered from.
pub(super) fn store(config: &Config) -> anyhow::Result<(Arc<dyn NodeStore>, QuerySources)> {
    let sources = |reading: Arc<dyn CountReader>, arbiter: Arc<dyn Arbiter>| QuerySources {
        reading,
        partitions: config.partitions.clone(),
        retention: config.retention,
        arbiter,
    };
    match &config.store {
        config::Store::Memory {
            bytes_max,
            counts_max,
        } => {
            let store = MemoryStore::new(
                &config.node,
                &config.partitions,
                config.retention,
                *bytes_max,
                system_clock(),
            );
            let store = Arc::new(store.keeping(*counts_max));
            let arbiter = Arc::new(MemoryArbiter::default());
            Ok((store.clone(), sources(store, arbiter)))
        }
        config::Store::Redis(settings) => {
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
        config::Store::Memory { .. } => Ok(None),
        config::Store::Redis(settings) => {
            Ok(Some((redis_store(settings)?, config.partitions.clone())))
        }
    }
}

/// The output.
pub(super) fn output(config: &Config) -> anyhow::Result<Arc<dyn Output>> {
    Ok(match &config.output {
        config::Output::Stdout => Arc::new(Lines::stdout()),
        config::Output::InfluxDb(settings) => Arc::new(InfluxDb::new(settings)?),
    })
}
