//! The daemon: builds the parts of a node or a relay from the configuration, runs them, and drains them.
//!
//! The only place where every concrete type meets.

mod build;
mod connect;
mod control;
mod first_start;
mod log;
mod operate;
mod relay;
mod relay_view;
mod self_metrics;
mod service;
mod status;
mod watch;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

pub use self::connect::connect;
use self::control::Request;
pub use self::log::write_error;
pub(crate) use self::operate::quarantine;
pub use self::operate::{
    NothingShared, SettingsAction, UnknownOutput, WhichOutput, loss, outputs, settings,
};
use self::relay::Relay;
pub use self::service::{PartFailed, Service, StartError};
pub use self::status::{NoTerminal, OnlyTheNodeKnows, Shown, status};
use crate::config::{
    self, Config, ConfigErrors, Flags, Log, RelayConfig, RelayFlags, ServiceSettings,
};
use crate::ingest::{self, Inherited};
use crate::node::{LedgerTotals, Progress};
use crate::store::StoreError;
use crate::telemetry;

/// How long the sockets may go unread at the start.
const UNREAD_MAX: Duration = Duration::from_millis(500);

/// A node or relay ended in order, and not all that it had received outlives it, or is on its way.
#[derive(Debug, thiserror::Error)]
#[error("{0} events or lines that had been received are lost: the last line of the log says how")]
pub struct EventsLost(u64);

/// What runs until it is asked to stop.
trait Running {
    /// The heartbeats of its workers.
    fn progress(&self) -> Progress;

    /// How it is, in a line. It is asked again and again, with the time that has passed since.
    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static;

    /// Waits until a part ends by itself, which only happens when it fails.
    async fn failed(&mut self) -> PartFailed;

    /// Stops, within this time, or at once when that is cancelled. Logs what became of everything, and answers how many
    /// events or lines are lost.
    async fn drain(self, within: Duration, at_once: &CancellationToken) -> u64;
}

/// Runs a node until it is asked to stop. `flags` and `environment` are read again for the log level on SIGHUP.
pub fn run(
    config: &Config,
    flags: &Flags,
    environment: &[(OsString, OsString)],
) -> anyhow::Result<()> {
    let reload = || config::reload_log_level(flags, environment.iter().cloned());
    let start = async |inherited, stop: &CancellationToken| start(config, inherited, stop).await;
    run_until_stopped(&config.log, config.drain_timeout, reload, start)
}

/// The same for a relay.
pub fn relay(
    config: &RelayConfig,
    flags: &RelayFlags,
    environment: &[(OsString, OsString)],
) -> anyhow::Result<()> {
    let reload = || {
        let loaded = config::load_relay(flags, environment.iter().cloned());
        loaded.map(|(config, _)| config.log.level)
    };
    let start = async |inherited: Vec<Inherited>, _: &CancellationToken| {
        let held = inherited.len();
        // It waits for nobody for long.
        let relay = Relay::start(config, inherited).await?;
        let addresses: Vec<_> = relay.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(
            name = config.name,
            version = crate::VERSION,
            commit = crate::COMMIT,
            config = named(config.file.as_deref()),
            listen = addresses.join(", "),
            inherited = held,
            http = relay.http.map(tracing::field::display),
            to = config.settings.to.join(", "),
            "started"
        );
        for warning in config.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(relay)
    };
    run_until_stopped(&config.log, config.drain_timeout, reload, start)
}

/// Once the token is cancelled `start` waits for nobody else, and what it answers is drained.
fn run_until_stopped<R: Running>(
    log: &Log,
    drain_timeout: Duration,
    reload: impl Fn() -> Result<LevelFilter, ConfigErrors>,
    start: impl AsyncFnOnce(Vec<Inherited>, &CancellationToken) -> anyhow::Result<R>,
) -> anyhow::Result<()> {
    // First of all: nothing else may be open that could be taken for a socket of the service manager.
    let inherited = ingest::inherited()?;
    let log = log::start(log)?;
    let mut requests = control::listen().context("cannot listen for signals")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let reload = || match reload() {
            Ok(level) => log.set_level(level),
            Err(errors) => {
                let errors: Vec<_> = errors.problems().iter().map(ToString::to_string).collect();
                let errors = errors.join("; ");
                tracing::error!(errors, "the configuration has mistakes; nothing reloaded");
            }
        };
        let stop = CancellationToken::new();
        let mut starting = std::pin::pin!(start(inherited, &stop));
        let running = loop {
            tokio::select! {
                running = &mut starting => break running?,
                // What is asked after that is for those who drain.
                Some(request) = requests.recv(), if !stop.is_cancelled() => match request {
                    Request::Reload => reload(),
                    Request::Drain => stop.cancel(),
                },
            }
        };
        serve(running, &stop, &mut requests, reload, drain_timeout).await
    });
    // Whatever is left in there waits for somebody who is gone.
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

async fn start(
    config: &Config,
    inherited: Vec<Inherited>,
    stop: &CancellationToken,
) -> anyhow::Result<Service> {
    let (store, sources) = build::store(config)?;
    let outputs = build::outputs(config)?;
    let described = outputs.iter().map(|it| match &*outputs {
        [only] => only.output.describe(),
        _ => format!("{} = {}", it.name, it.output.describe()),
    });
    let described: Vec<_> = described.collect();
    let settings = ServiceSettings {
        http_connections: build::left_for_http(config),
        ..config.service.clone()
    };
    let held = inherited.len();
    let self_metrics = build::self_metrics(config)?;
    let mut service = Service::start(&settings, inherited, store.clone(), outputs, sources).await?;
    service.report(&config.node, self_metrics);
    let addresses: Vec<_> = service.addresses.iter().map(ToString::to_string).collect();
    tracing::info!(
        node = config.node,
        version = crate::VERSION,
        commit = crate::COMMIT,
        config = named(config.file.as_deref()),
        listen = addresses.join(", "),
        inherited = held,
        http = service.http.map(tracing::field::display),
        store = store.describe(),
        output = described.join(", "),
        "started"
    );
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    first_start::explain(config, &service);
    // While the store is looked at the kernel holds what arrives: a node that it refuses leaves that to the next. But
    // not for long, for the kernel's room is small.
    let check = store.check();
    tokio::pin!(check);
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
            let at_once = CancellationToken::new();
            Running::drain(service, Duration::ZERO, &at_once).await;
            return Err(error.into());
        }
        Some(Err(error)) => {
            tracing::warn!(%error, "the store is not there yet; events wait in this node");
        }
    }
    Ok(service)
}

/// The file that configures a program, for the log.
fn named(file: Option<&Path>) -> String {
    file.map_or("none".to_owned(), |file| file.display().to_string())
}

async fn serve<R: Running>(
    mut running: R,
    stop: &CancellationToken,
    requests: &mut tokio::sync::mpsc::UnboundedReceiver<Request>,
    reload: impl Fn(),
    drain_timeout: Duration,
) -> anyhow::Result<()> {
    let watchdog = tokio::spawn(control::feed_watchdog(running.progress()));
    control::notify(&[NotifyState::Ready]);
    let status = tokio::spawn(control::report_status(running.status_line()));
    let failure = loop {
        tokio::select! {
            biased;
            // What was asked after that cuts the draining short.
            () = stop.cancelled() => break None,
            request = requests.recv() => match request {
                Some(Request::Reload) => reload(),
                Some(Request::Drain) | None => break None,
            },
            failure = running.failed() => break Some(failure),
        }
    };
    status.abort();
    control::notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
    tracing::info!("draining");
    let at_once = CancellationToken::new();
    let drain = running.drain(drain_timeout, &at_once);
    let asked_again = async {
        loop {
            match requests.recv().await {
                Some(Request::Reload) => reload(),
                Some(Request::Drain) => {
                    tracing::warn!("asked again to stop; stopping at once");
                    at_once.cancel();
                }
                None => std::future::pending().await,
            }
        }
    };
    let lost = tokio::select! {
        lost = drain => lost,
        () = asked_again => unreachable!("it goes on for ever"),
    };
    watchdog.abort();
    match (failure, lost) {
        (Some(failure), _) => Err(failure.into()),
        (None, 0) => Ok(()),
        (None, events) => Err(EventsLost(events).into()),
    }
}

impl Running for Service {
    fn progress(&self) -> Progress {
        self.node.progress.clone()
    }

    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static {
        let (node, metrics) = (Arc::clone(&self.node), Arc::clone(&self.metrics));
        telemetry::status_line(node, metrics, self.outputs.clone())
    }

    async fn failed(&mut self) -> PartFailed {
        Self::failed(self).await
    }

    async fn drain(self, within: Duration, at_once: &CancellationToken) -> u64 {
        let totals = Self::drain(self, within, at_once).await;
        log_totals(&totals);
        totals.lost()
    }
}

/// The last line of the log: what became of every event.
fn log_totals(totals: &LedgerTotals) {
    let LedgerTotals { received, recorded, queued, unpublished, .. } = *totals;
    let rejected: u64 = totals.rejected.iter().sum();
    let dropped: u64 = totals.dropped.iter().sum();
    if totals.lost() == 0 {
        tracing::info!(received, recorded, rejected, dropped, queued, unpublished, "stopped");
    } else {
        tracing::warn!(
            received,
            recorded,
            rejected,
            dropped,
            queued,
            unpublished,
            "stopped, and events are lost: those dropped were not recorded; those unpublished were recorded in the memory \
             of this process only, in minutes that were not over or in counts that no output took (store.url names a store \
             that outlives it)"
        );
    }
}
