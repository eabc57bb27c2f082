//! Signals: SIGTERM and SIGINT drain, a second one cuts that short, a third ends the process whatever it is doing, SIGHUP
//! reloads the log level.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Signals;
use tokio::sync::mpsc;

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
    std::thread::Builder::new()
        .name("eds-signals".to_owned())
        .spawn(move || {
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
