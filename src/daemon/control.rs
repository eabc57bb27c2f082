//! How the process is controlled. Signals: SIGTERM and SIGINT drain, a second one cuts that short, a third ends the process
//! whatever it is doing, SIGHUP reloads the log level. systemd: it is notified that the node is ready and that it stops,
//! and its watchdog is fed while no worker is stalled.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

use crate::diagnosis::{Cause, Diagnosis};
use crate::http::STALLED_AFTER;
use crate::node::Progress;

/// How often the line of `systemctl status` is renewed.
const STATUS_INTERVAL: Duration = Duration::from_secs(2);

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// End, and lose nothing; asked again: end at once.
    Drain,
    /// Read the log level again.
    Reload,
}

/// Listens for signals from now on.
pub(super) fn listen() -> io::Result<mpsc::UnboundedReceiver<Request>> {
    let ending = Arc::<AtomicBool>::default();
    for signal in [SIGTERM, SIGINT] {
        // Works in the handler itself, also where nothing else does any more.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&ending))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    // At most a few: they are sent by people.
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("eds-signals".to_owned()).spawn(move || {
        let mut draining = false;
        for signal in signals.forever() {
            let request = if signal == SIGHUP {
                Request::Reload
            } else {
                ending.store(draining, Ordering::SeqCst);
                draining = true;
                Request::Drain
            };
            if sender.send(request).is_err() {
                return;
            }
        }
    })?;
    Ok(receiver)
}

/// Notifies systemd, if it started this process.
pub(super) fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

/// Shows systemd how the process is, again and again, if it started this process.
pub(super) async fn report_status(mut line: impl FnMut(Duration) -> String) {
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

/// Feeds the watchdog while no worker is stalled. Returns at once where there is none.
pub(super) async fn feed_watchdog(progress: Progress) {
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
            let stalled = Diagnosis::new(Cause::NodeStalled, stalled.join(", "));
            tracing::error!("{stalled}; not feeding the watchdog");
        }
    }
}
