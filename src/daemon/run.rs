//! Runs a node or a relay until a signal stops it. SIGTERM and SIGINT drain the process; a second signal cuts draining
//! short, and a third ends the process immediately. SIGHUP reloads the log level, secrets and certificates. systemd is
//! notified of startup, reloads, shutdown and the current status, and its watchdog is fed as long as no worker has stalled.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use super::log;
use crate::config::{ConfigErrors, Http, Input, Log, Requests};
use crate::diagnosis::{Cause, Diagnosis};
use crate::http::{self, Access, STALLED_AFTER, WriteServer};
use crate::ingest::{self, Inherited, ListenAddress, Opened, Sockets, Table, explained};
use crate::node::Progress;
use crate::telemetry::WriteMetrics;

const STATUS_INTERVAL: Duration = Duration::from_secs(2);
/// Time limit for open HTTP connections on shutdown.
const SIDE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
#[error("{0} received events or lines were lost; the last log line shows why")]
pub(crate) struct EventsLost(u64);

#[derive(Debug, Default)]
pub(super) struct Stage {
    pub(super) tasks: JoinSet<()>,
    pub(super) stop: CancellationToken,
}

impl Stage {
    /// Spawns a task that is cancelled when the stage stops.
    pub(super) fn spawn_cancelled(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Tells the tasks to stop, and waits until they have ended, until the deadline, or until `after` has passed since
    /// `at_once` was cancelled. Returns whether all tasks have ended.
    pub(super) async fn end(
        &mut self,
        deadline: Instant,
        at_once: &CancellationToken,
        after: Duration,
    ) -> bool {
        self.stop.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Err(error) = ended {
                    tracing::error!(%error, "a task failed");
                }
            }
        };
        let cut_short = async {
            at_once.cancelled().await;
            tokio::time::sleep(after).await;
        };
        tokio::select! {
            biased;
            () = all => true,
            () = tokio::time::sleep_until(deadline) => false,
            () = cut_short => false,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Parts {
    /// The addresses of the sockets, with the port that the system chose instead of port 0.
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) inherited: usize,
    pub(super) http: Option<SocketAddr>,
    /// The address of the server for events that arrive by HTTP.
    pub(super) requests: Option<SocketAddr>,
    pub(super) progress: Progress,
    /// A node's listeners and recorders, or a relay's readers. They end once all data has been recorded or sent.
    pub(super) intake: Stage,
    /// A node's worker and senders, or a relay's passthrough writer. They stop after the intake.
    pub(super) outlet: Stage,
    pub(super) side: Stage,
}

impl Parts {
    pub(super) fn open(
        &mut self,
        input: &Input,
        inherited: Vec<Inherited>,
        read_timeout: Duration,
        datagram_max: usize,
        unit: &'static str,
    ) -> anyhow::Result<Opened> {
        self.inherited = inherited.len();
        let sockets = Sockets {
            listen: &input.listen,
            receive_buffer: input.receive_buffer,
            socket_mode: input.socket_mode,
            read_timeout,
            threads: input.threads,
            datagram_max,
            unit,
        };
        let opened = sockets.open(inherited)?;
        self.addresses.clone_from(&opened.addresses);
        Ok(opened)
    }

    pub(super) fn bind_http(
        &mut self,
        settings: &Http,
        access: &Arc<Mutex<Access>>,
        connections: usize,
    ) -> anyhow::Result<Option<http::Server>> {
        let Some(address) = settings.listen else {
            return Ok(None);
        };
        let listener = listen(address, "http.listen")?;
        self.http = Some(listener.local_addr()?);
        let (hosts, stop) = (settings.hosts.clone(), self.side.stop.clone());
        let access = Arc::clone(access);
        Ok(Some(http::Server { listener, connections, hosts, access, stop }))
    }

    /// Binds the server for events that arrive by HTTP. It stops with the intake.
    pub(super) fn bind_requests(
        &mut self,
        settings: &Requests,
        connections: usize,
        metrics: &WriteMetrics,
    ) -> anyhow::Result<WriteServer> {
        let listener = listen(settings.listen, "input.http.listen")?;
        self.requests = Some(listener.local_addr()?);
        Ok(WriteServer {
            listener,
            connections,
            body_max: settings.body_max,
            access: Arc::clone(&settings.access),
            metrics: metrics.clone(),
            stop: self.intake.stop.clone(),
        })
    }

    pub(super) fn log_start(
        &self,
        name: &str,
        file: Option<&Path>,
        store: Option<&str>,
        to: &str,
        warnings: Vec<String>,
    ) {
        let listen: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        tracing::info!(
            name,
            version = crate::VERSION,
            commit = crate::COMMIT,
            config = file.map_or("none".to_owned(), |file| file.display().to_string()),
            listen = listen.join(", "),
            inherited = self.inherited,
            input_http = self.requests.map(tracing::field::display),
            http = self.http.map(tracing::field::display),
            store,
            to,
            "started"
        );
        for warning in warnings {
            tracing::warn!("{warning}");
        }
    }

    async fn failed(&mut self) -> anyhow::Error {
        loop {
            let ended = tokio::select! {
                Some(ended) = self.intake.tasks.join_next() => ended,
                Some(ended) = self.outlet.tasks.join_next() => ended,
                else => std::future::pending().await,
            };
            if let Err(error) = ended {
                return anyhow::Error::from(error).context("a task failed");
            }
        }
    }

    pub(super) async fn end(&mut self, deadline: Instant, at_once: &CancellationToken) {
        self.outlet.end(deadline, at_once, Duration::ZERO).await;
        self.outlet.tasks.abort_all();
        // A client that keeps its connection open must not delay the shutdown.
        self.side.end(Instant::now() + SIDE_MAX, at_once, Duration::ZERO).await;
    }
}

fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    let listener = http::listen(address).map_err(|error| explained(error, Table::Tcp, address));
    listener.with_context(|| format!("cannot listen on {address} ({key})"))
}

pub(super) trait Running {
    fn parts(&mut self) -> &mut Parts;

    /// Returns a function that describes the state in one line. It is called repeatedly with the time since the last call.
    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static;

    /// Shuts down within this time, or sooner once `at_once` is cancelled. Returns the number of lost events or lines.
    async fn drain(self, within: Duration, at_once: &CancellationToken) -> u64;
}

/// Starts a program, runs it until a signal arrives or a task fails, and then drains it. Returns [`EventsLost`] if events or
/// lines were lost. `start` must stop waiting once its token is cancelled.
pub(super) fn run_until_stopped<R: Running>(
    log: &Log,
    drain_timeout: Duration,
    reload: impl Fn() -> Result<(LevelFilter, BTreeSet<&'static str>), ConfigErrors> + Send + 'static,
    start: impl AsyncFnOnce(Vec<Inherited>, &CancellationToken) -> anyhow::Result<R>,
) -> anyhow::Result<()> {
    // Take inherited sockets before anything else is opened, so that no other descriptor is mistaken for one of them.
    let inherited = ingest::inherited()?;
    let log = log::start(log)?;
    let apply = move || match reload() {
        Ok((level, need_restart)) => {
            log.set_level(level);
            tracing::info!(%level, "reloaded the log level, tokens, passwords and certificates");
            if !need_restart.is_empty() {
                let keys = Vec::from_iter(need_restart).join(", ");
                tracing::warn!(
                    keys,
                    "some keys have changed that take effect only after a restart"
                );
            }
        }
        Err(errors) => {
            let errors: Vec<_> = errors.problems().iter().map(ToString::to_string).collect();
            let errors = errors.join("; ");
            tracing::error!(errors, "the configuration is invalid; nothing is reloaded");
        }
    };
    let is_ready = Arc::<AtomicBool>::default();
    let is_up = Arc::clone(&is_ready);
    let reload = move || match NotifyState::monotonic_usec_now() {
        // With Type=notify-reload, systemd waits until the service is ready again.
        Ok(now) if is_up.load(Ordering::SeqCst) => {
            notify(&[NotifyState::Reloading, now]);
            apply();
            notify(&[NotifyState::Ready]);
        }
        _ => apply(),
    };
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    handle_signals(stop.clone(), at_once.clone(), reload)
        .context("cannot install the signal handlers")?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let mut running = start(inherited, &stop).await?;
        tokio::spawn(feed_watchdog(running.parts().progress.clone()));
        notify(&[NotifyState::Ready]);
        is_ready.store(true, Ordering::SeqCst);
        let status = tokio::spawn(report_status(running.status_line()));
        let failure = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            failure = running.parts().failed() => Some(failure),
        };
        // Cancel the token after a failure as well, so that the next signal cuts draining short.
        stop.cancel();
        status.abort();
        is_ready.store(false, Ordering::SeqCst);
        notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
        tracing::info!("draining");
        let lost = running.drain(drain_timeout, &at_once).await;
        match failure {
            Some(failure) => Err(failure),
            None if lost > 0 => Err(EventsLost(lost).into()),
            None => Ok(()),
        }
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    result
}

fn handle_signals(
    stop: CancellationToken,
    at_once: CancellationToken,
    reload: impl Fn() + Send + 'static,
) -> io::Result<()> {
    let ends_process = Arc::<AtomicBool>::default();
    for signal in [SIGTERM, SIGINT] {
        // This check runs in the signal handler itself, so a third signal works even if the process hangs.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&ends_process))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    std::thread::Builder::new().name("eds-signals".to_owned()).spawn(move || {
        let mut is_repeated = false;
        for signal in signals.forever() {
            if signal == SIGHUP {
                reload();
                continue;
            }
            ends_process.store(is_repeated, Ordering::SeqCst);
            is_repeated = true;
            if stop.is_cancelled() {
                tracing::warn!("received another shutdown signal; exiting immediately");
                at_once.cancel();
            } else {
                stop.cancel();
            }
        }
    })?;
    Ok(())
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

async fn report_status(mut line: impl FnMut(Duration) -> String) {
    if std::env::var_os("NOTIFY_SOCKET").is_none() {
        return;
    }
    let mut ticks = tokio::time::interval(STATUS_INTERVAL);
    let mut last = ticks.tick().await;
    loop {
        let now = ticks.tick().await;
        notify(&[NotifyState::Status(&line(now - last))]);
        last = now;
    }
}

async fn feed_watchdog(progress: Progress) {
    let Some(limit) = sd_notify::watchdog_enabled() else {
        return;
    };
    let mut ticks = tokio::time::interval(limit / 3);
    let stalled_after = STALLED_AFTER.min(limit.max(Duration::from_secs(1)));
    loop {
        ticks.tick().await;
        let stalled = progress.stalled(stalled_after);
        if stalled.is_empty() {
            notify(&[NotifyState::Watchdog]);
        } else {
            let stalled = Diagnosis::new(Cause::Stalled, stalled.join(", "));
            tracing::error!("{stalled}; systemd will restart this process");
        }
    }
}
