//! The daemon: builds the parts of a node or a relay from the configuration, runs them, and drains them. Also the commands of
//! operators.
//!
//! The only place where every concrete type meets.

mod build;
mod connect;
mod demo;
mod first_start;
mod log;
mod operate;
mod parts;
mod relay;
mod relay_view;
mod run;
mod self_metrics;
mod service;
mod status;
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use self::connect::connect;
pub(crate) use self::demo::demo;
pub(crate) use self::log::write_error;
pub(crate) use self::operate::{loss, outputs, quarantine, settings};
use self::parts::Parts;
use self::relay::Relay;
pub(crate) use self::run::EventsLost;
use self::run::{Running, run_until_stopped};
use self::service::Service;
pub(crate) use self::status::{NoTerminal, OnlyTheNodeKnows, Shown, status};
use crate::config::{self, Config, Flags, RelayConfig, RelayFlags};
use crate::ingest::Inherited;
use crate::store::StoreError;

/// The time limit for the sockets to go unread at the start.
const UNREAD_MAX: Duration = Duration::from_millis(500);

/// A command that its arguments or the configuration do not permit.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misused(String);

type Environment = Vec<(OsString, OsString)>;

/// Runs a node until a signal stops it. `flags` and `environment` are read again for the log level on SIGHUP.
pub(crate) fn run(config: &Config, flags: Flags, environment: Environment) -> anyhow::Result<()> {
    let read_level = move || {
        let loaded = config::load(&flags, environment.iter().cloned());
        loaded.map(|(config, _)| config.log.level.into())
    };
    let start = async |inherited, stop: &CancellationToken| start(config, inherited, stop).await;
    run_until_stopped(&config.log, config.service.input.drain_timeout, read_level, start)
}

/// Runs a relay until a signal stops it.
pub(crate) fn relay(
    config: &RelayConfig,
    flags: RelayFlags,
    environment: Environment,
) -> anyhow::Result<()> {
    let read_level = move || {
        let loaded = config::load_relay(&flags, environment.iter().cloned());
        loaded.map(|(config, _)| config.log.level.into())
    };
    // Its start has no long waits to interrupt.
    let start = async |inherited: Vec<Inherited>, _: &CancellationToken| {
        let inherited_sockets = inherited.len();
        let relay = Relay::start(config, inherited).await?;
        tracing::info!(
            name = config.name,
            version = crate::VERSION,
            commit = crate::COMMIT,
            config = shown_path(config.file.as_deref()),
            listen = listen(&relay.parts),
            inherited = inherited_sockets,
            http = relay.parts.http.map(tracing::field::display),
            to = config.relay.to.join(", "),
            "started"
        );
        log_warnings(config.warnings());
        Ok(relay)
    };
    run_until_stopped(&config.log, config.input.drain_timeout, read_level, start)
}

async fn start(
    config: &Config,
    inherited: Vec<Inherited>,
    stop: &CancellationToken,
) -> anyhow::Result<Service> {
    let (store, sources) = build::store(config)?;
    let outputs = build::outputs(config)?;
    let mut described = build::described(&outputs);
    let described = match &mut described[..] {
        [(_, only)] => std::mem::take(only),
        all => all.iter().map(|(name, to)| format!("{name} = {to}")).collect::<Vec<_>>().join(", "),
    };
    let inherited_sockets = inherited.len();
    let parts = (store.clone(), sources);
    let mut service = Service::start(config, inherited, parts, outputs).await?;
    tracing::info!(
        node = config.node,
        version = crate::VERSION,
        commit = crate::COMMIT,
        config = shown_path(config.file.as_deref()),
        listen = listen(&service.parts),
        inherited = inherited_sockets,
        http = service.parts.http.map(tracing::field::display),
        store = store.describe(),
        output = described,
        "started"
    );
    log_warnings(config.warnings());
    first_start::explain(config, &service.parts);
    // While the store is checked the kernel holds arriving data: a node that the store refuses leaves it to the next process.
    // The wait is short, because the kernel's buffer is small.
    let mut check = std::pin::pin!(store.check());
    let checked = tokio::time::timeout(UNREAD_MAX, &mut check).await;
    if !matches!(checked, Ok(Err(StoreError::Refused(_)))) {
        service.listen();
    }
    let checked = match checked {
        Ok(checked) => Some(checked),
        Err(_takes_longer) => stop.run_until_cancelled(check).await,
    };
    match checked {
        None | Some(Ok(())) => {}
        Some(Err(error @ StoreError::Refused(_))) => {
            service.drain(Duration::ZERO, &CancellationToken::new()).await;
            return Err(error.into());
        }
        Some(Err(error)) => {
            tracing::warn!(%error, "the store is not there yet; events wait in this node");
        }
    }
    Ok(service)
}

fn listen(parts: &Parts) -> String {
    let addresses: Vec<_> = parts.addresses.iter().map(ToString::to_string).collect();
    addresses.join(", ")
}

fn log_warnings(warnings: Vec<String>) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

/// Returns the path of a configuration file for the log.
fn shown_path(file: Option<&Path>) -> String {
    file.map_or("none".to_owned(), |file| file.display().to_string())
}
