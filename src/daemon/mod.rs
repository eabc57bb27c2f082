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
use crate::config::{Config, ConfigErrors, RelayConfig, Requests};
use crate::node::lock;

/// Maximum time at startup before the sockets are read. Until then, the kernel buffers arriving data.
const UNREAD_MAX: Duration = Duration::from_millis(500);

/// An error for a command that cannot run with the given arguments or configuration. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misused(pub(crate) String);

/// Runs a node until a signal stops it. On SIGHUP, the node reloads the configuration, but changes only its log level and
/// the tokens and certificate of `input.http`.
pub(crate) fn run(
    load: impl Fn() -> Result<Config, ConfigErrors> + Send + 'static,
) -> anyhow::Result<()> {
    let config = load()?;
    let requests = config.requests.clone();
    let read_level = move || {
        let config = load()?;
        replace_access(requests.as_ref(), config.requests.as_ref());
        Ok(config.log.level.into())
    };
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
    let requests = config.requests.clone();
    let read_level = move || {
        let config = load()?;
        replace_access(requests.as_ref(), config.requests.as_ref());
        Ok(config.log.level.into())
    };
    // Ignore the cancellation token, because the startup of a relay has no long waits to interrupt.
    run_until_stopped(&config.log, config.input.drain_timeout, read_level, async |inherited, _| {
        Relay::start(&config, inherited).await
    })
}

/// Makes the running server use the tokens and the certificate that have been read again.
fn replace_access(running: Option<&Requests>, read: Option<&Requests>) {
    if let (Some(running), Some(read)) = (running, read) {
        *lock(&running.access) = lock(&read.access).clone();
    }
}

/// Returns a runtime with one thread, for a command.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
