//! Builds, runs and drains the parts of nodes and relays; contains operator commands. Only `daemon` uses all concrete types.

mod build;
mod connect;
mod demo;
mod exporter;
mod first_start;
mod healthy;
mod log;
mod operate;
mod relay;
mod run;
mod service;
mod status;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;

pub(crate) use self::connect::connect;
pub(crate) use self::demo::demo;
pub(crate) use self::healthy::healthy;
pub(crate) use self::log::write_error;
pub(crate) use self::operate::{loss, outputs, quarantine, rollup_costs, settings, version};
use self::relay::Relay;
pub(crate) use self::run::EventsLost;
use self::run::run_until_stopped;
use self::service::Service;
pub(crate) use self::status::status;
use crate::config::{
    Config, ConfigErrors, Effective, Http, RelayConfig, Requests, Store, Target, Telemetry,
};
use crate::http::Access;
use crate::node::lock;
use crate::relay::PassthroughSettings;

/// Maximum time at startup before the sockets are read. Until then, the kernel buffers arriving data.
const UNREAD_MAX: Duration = Duration::from_millis(500);

/// An error for a command that cannot run with the given arguments or configuration. The exit code is 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misused(pub(crate) String);

/// Runs a node until a signal stops it. On SIGHUP, the node reloads the configuration, but changes only its log level, the
/// tokens and certificates of `http` and `input.http`, and the tokens and passwords of outputs and of Redis.
pub(crate) fn run(
    load: impl Fn() -> Result<(Config, Effective), ConfigErrors> + Send + 'static,
) -> anyhow::Result<()> {
    let (config, started_with) = load()?;
    let running = guarded(&config.http, &config.access, config.requests.as_ref());
    let (outputs, telemetry) = (config.outputs.clone(), config.telemetry.clone());
    let store = config.store.clone();
    let reload = move || {
        let (config, read) = load()?;
        if let (Store::Redis(store), Store::Redis(read)) = (&store, &config.store) {
            store.redis.replace_password(&read.redis);
        }
        replace_token(telemetry.as_ref(), config.telemetry.as_ref());
        for output in &outputs {
            let same = config.outputs.iter().find(|read| read.name == output.name);
            if let (Target::Server(settings), Some(Target::Server(read))) =
                (&output.target, same.map(|read| &read.target))
            {
                settings.replace_secret(read);
            }
        }
        replace(&running, &guarded(&config.http, &config.access, config.requests.as_ref()));
        Ok((config.log.level.into(), read.need_restart(&started_with)))
    };
    run_until_stopped(&config.log, config.input.drain_timeout, reload, async |inherited, stop| {
        Service::start(&config, inherited, stop).await
    })
}

pub(crate) fn relay(
    load: impl Fn() -> Result<(RelayConfig, Effective), ConfigErrors> + Send + 'static,
) -> anyhow::Result<()> {
    let (config, started_with) = load()?;
    let running = guarded(&config.http, &config.access, config.requests.as_ref());
    let (passthrough, telemetry) = (config.passthrough.clone(), config.telemetry.clone());
    let store = config.store.clone();
    let reload = move || {
        let (config, read) = load()?;
        if let (Some((store, _)), Some((read, _))) = (&store, &config.store) {
            store.replace_password(read);
        }
        replace_token(telemetry.as_ref(), config.telemetry.as_ref());
        if let (PassthroughSettings::Http(http), PassthroughSettings::Http(read)) =
            (&passthrough, &config.passthrough)
        {
            http.server.replace_secret(&read.server);
        }
        replace(&running, &guarded(&config.http, &config.access, config.requests.as_ref()));
        Ok((config.log.level.into(), read.need_restart(&started_with)))
    };
    // Ignore the cancellation token, because the startup of a relay has no long waits to interrupt.
    run_until_stopped(&config.log, config.input.drain_timeout, reload, async |inherited, _| {
        Relay::start(&config, inherited).await
    })
}

/// The address of a server, and who may use it.
type Guarded = (SocketAddr, Arc<Mutex<Access>>);

fn guarded(
    http: &Http,
    access: &Arc<Mutex<Access>>,
    requests: Option<&Requests>,
) -> [Option<Guarded>; 2] {
    let of_http = http.listen.map(|listen| (listen, Arc::clone(access)));
    let of_requests = requests.map(|requests| (requests.listen, Arc::clone(&requests.access)));
    [of_http, of_requests]
}

/// Makes the running servers use the tokens and the certificates that have been read again. A server whose address was
/// changed keeps the old ones, because the new ones were checked for the new address.
fn replace(running: &[Option<Guarded>; 2], read: &[Option<Guarded>; 2]) {
    for (running, read) in running.iter().zip(read) {
        if let (Some((old, access)), Some((new, read))) = (running, read)
            && old == new
        {
            *lock(access) = lock(read).clone();
        }
    }
}

/// Makes the exporter use the token that has been read again.
fn replace_token(running: Option<&Telemetry>, read: Option<&Telemetry>) {
    if let (Some(running), Some(read)) = (running, read) {
        // The settings for traces share the token.
        running.metrics.replace_secret(&read.metrics);
    }
}

/// Returns a runtime with one thread, for a command.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.context("cannot start the runtime")
}
