//! Runs a node or a relay until a signal stops it: log, signals and systemd.
//!
//! SIGTERM and SIGINT drain the process. A second one cuts the draining short, and a third ends the process at once. SIGHUP reloads
//! the log level. systemd is notified of start, stop and status, and its watchdog is fed while no worker is stalled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;

use super::log;
use super::parts::Parts;
use crate::config::{ConfigErrors, Log};
use crate::diagnosis::{Cause, Diagnosis};
use crate::http::STALLED_AFTER;
use crate::ingest::{self, Inherited};
use crate::node::Progress;

/// The interval of updates of the line that `systemctl status` shows.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// The process ended in order, and events or lines that it had received are lost.
#[derive(Debug, thiserror::Error)]
#[error("{0} events or lines that had been received are lost: the last line of the log says how")]
pub(crate) struct EventsLost(u64);

/// A node or relay.
pub(super) trait Running {
    /// Returns the heartbeats of its workers.
    fn progress(&self) -> Progress;

    /// Returns a function that describes its state in a line. It is called repeatedly, with the time since the last call.
    fn status_line(&self) -> impl FnMut(Duration) -> String + Send + 'static;

    /// Returns its tasks.
    fn parts(&mut self) -> &mut Parts;

    /// Stops within this time, or at once when that is cancelled. Logs the totals, and returns the number of lost events or
    /// lines.
    async fn drain(self, within: Duration, at_once: &CancellationToken) -> u64;
}

/// Runs a program until a signal stops it or it fails. `start` must not wait once its token is cancelled.
pub(super) fn run_until_stopped<R: Running>(
    log: &Log,
    drain_timeout: Duration,
    read_level: impl Fn() -> Result<LevelFilter, ConfigErrors> + Send + 'static,
    start: impl AsyncFnOnce(Vec<Inherited>, &CancellationToken) -> anyhow::Result<R>,
) -> anyhow::Result<()> {
    // First, so that no other open descriptor is mistaken for an inherited socket.
    let inherited = ingest::inherited()?;
    let log = log::start(log)?;
    let reload = move || match read_level() {
        Ok(level) => log.set_level(level),
        Err(errors) => {
            let errors: Vec<_> = errors.problems().iter().map(ToString::to_string).collect();
            let errors = errors.join("; ");
            tracing::error!(errors, "the configuration has mistakes; nothing reloaded");
        }
    };
    let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
    handle_signals(stop.clone(), at_once.clone(), reload).context("cannot listen for signals")?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let result = runtime.block_on(async {
        let mut running = start(inherited, &stop).await?;
        tokio::spawn(feed_watchdog(running.progress()));
        notify(&[NotifyState::Ready]);
        let status = tokio::spawn(report_status(running.status_line()));
        let failure = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            failure = running.parts().failed() => Some(failure),
        };
        // After a failure, too, the next signal cuts the draining short.
        stop.cancel();
        status.abort();
        notify(&[NotifyState::Stopping, NotifyState::Status("draining")]);
        tracing::info!("draining");
        let lost = running.drain(drain_timeout, &at_once).await;
        match failure {
            Some(failure) => Err(failure),
            None if lost > 0 => Err(EventsLost(lost).into()),
            None => Ok(()),
        }
    });
    // Tasks that are left must not delay the end.
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
        // Runs in the signal handler, so it works even if the process hangs.
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
                tracing::warn!("asked again to stop; stopping at once");
                at_once.cancel();
            } else {
                stop.cancel();
            }
        }
    })?;
    Ok(())
}

/// Notifies systemd, if it started this process.
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

/// Feeds the watchdog, if there is one, while no worker is stalled.
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
            tracing::error!("{stalled}; not feeding the watchdog");
        }
    }
}
