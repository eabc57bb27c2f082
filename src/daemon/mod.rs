//! Builds, runs and drains the parts of nodes and relays; contains operator commands. Only `daemon` uses all concrete types.

mod build;
mod connect;
mod demo;
mod first_start;
mod log;
mod operate;
mod relay;
mod run;
mod service;
mod status;

use std::time::Duration;

use anyhow::Context as _;

pub(crate) use self::connect::connect;
pub(crate) use self::demo::demo;
pub(crate) use self::log::write_error;
pub(crate) use self::operate::{loss, outputs, quarantine, rollup_costs, settings};
use self::relay::Relay;
pub(crate) use self::run::EventsLost;
use self::run::run_until_stopped;
use self::service::Service;
pub(crate) use self::status::status;
use crate::config::{Config, ConfigErrors, RelayConfig};

/// Maximum time at startup before the sockets are read. Until then, the kernel buffers arriving data.
const UNREAD_MAX: Duration = Duration::from_millis(500);

/// An error for a command that cannot run with the given arguments or configuration. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misused(String);

/// Runs a node until a signal stops it. On SIGHUP, the node reloads the configuration, but changes only its log level.
pub(crate) fn run(
    load: impl Fn() -> Result<Config, ConfigErrors> + Send + 'static,
) -> anyhow::Result<()> {
    let config = load()?;
    let read_level = move || load().map(|config| config.log.level.into());
    run_until_stopped(
        &config.log,
        config.input.drain_timeout,
        read_level,
        async |inherited, stop| Service::start(&config, inherited, stop).await,
    )
}

pub(crate) fn relay(
    load: impl Fn() -> Result<RelayConfig, ConfigErrors> + Send + 'static,
) -> anyhow::Result<()> {
    let config = load()?;
    let read_level = move || load().map(|config| config.log.level.into());
    // Ignore the cancellation token, because the startup of a relay has no long waits to interrupt.
    run_until_stopped(&config.log, config.input.drain_timeout, read_level, async |inherited, _| {
        Relay::start(&config, inherited).await
    })
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
