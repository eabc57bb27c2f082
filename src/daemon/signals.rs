//! Signals: SIGTERM and SIGINT drain, a second one ends the process at once, SIGHUP reloads the log level.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

/// What an operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// End, and lose nothing.
    Drain,
    /// Read the log level again.
    Reload,
}

/// Listens for signals from now on.
pub(super) fn listen() -> io::Result<mpsc::UnboundedReceiver<Request>> {
    let draining = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        // In this order: the first signal finds the flag down and raises it, the second finds it up.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&draining))?;
        flag::register(signal, Arc::clone(&draining))?;
    }
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
    // At most a few: they are sent by people.
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::Builder::new()
        .name("eds-signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                let request = if signal == SIGHUP {
                    Request::Reload
                } else {
                    Request::Drain
                };
                if sender.send(request).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}
