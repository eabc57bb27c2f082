//! What operators do to the store beside the nodes, with the configuration of a node.

use std::io;

use anyhow::Context;

use super::{build, log};
use crate::config::{Config, Log, LogFormat, LogLevel};
use crate::quarantine::{self, Action};

/// The store of this configuration keeps nothing that another process could see.
#[derive(Debug, thiserror::Error)]
#[error(
    "store.url is memory:, which is within the node's own process; what is set aside there stands in its log only. \
     Name the Redis of the nodes by --store or --config"
)]
pub struct NothingShared;

/// Carries out `eds quarantine`: the answer on standard output, notes on standard error.
pub fn quarantine(config: &Config, action: &Action) -> anyhow::Result<()> {
    let (store, partitions) = build::quarantine(config)?.ok_or(NothingShared)?;
    log::start(&Log {
        level: LogLevel::Warn,
        format: LogFormat::Text,
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let (mut out, mut notes) = (io::BufWriter::new(io::stdout()), io::stderr());
    let done = quarantine::run(&store, partitions, action, &mut out, &mut notes);
    Ok(runtime.block_on(done)?)
}
