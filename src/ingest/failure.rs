//! [`Failure`]: how a socket fails, and when it is read again.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::Receiver;
use crate::diagnosis::Cause;
use crate::node::Throttle;

/// The pause before a socket that failed is read again: first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a socket that fails is logged, at most.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct Failure {
    /// When the socket is read again, and the pause before that; `None` while it does not fail.
    retry: Option<(Instant, Duration)>,
    logged: Throttle,
}

impl Default for Failure {
    fn default() -> Self {
        Self { retry: None, logged: Throttle::new(LOG_INTERVAL) }
    }
}

impl Failure {
    /// Whether it is too early to read the socket again.
    #[must_use]
    pub fn is_resting(&self, now: Instant) -> bool {
        self.retry.is_some_and(|(at, _)| now < at)
    }

    /// Takes note of how a read went; `failing` is the number of sockets that cannot be read. Answers whether something
    /// arrived, or `None` where the read failed.
    pub fn note(
        &mut self,
        read: io::Result<bool>,
        receiver: &Receiver,
        failing: &AtomicUsize,
        now: Instant,
    ) -> Option<bool> {
        match read {
            Ok(arrived) => {
                if self.retry.take().is_some() {
                    failing.fetch_sub(1, Ordering::Relaxed);
                    tracing::info!(
                        address = receiver.address().map(tracing::field::display),
                        "the socket can be read again"
                    );
                }
                Some(arrived)
            }
            Err(error) => {
                self.goes_on(&error, receiver, failing, now);
                None
            }
        }
    }

    fn goes_on(
        &mut self,
        error: &io::Error,
        receiver: &Receiver,
        failing: &AtomicUsize,
        now: Instant,
    ) {
        let (first, longest) = PAUSES;
        let pause = if let Some((_, pause)) = self.retry {
            longest.min(pause * 2)
        } else {
            failing.fetch_add(1, Ordering::Relaxed);
            first
        };
        self.retry = Some((now + pause, pause));
        if self.logged.is_due() {
            tracing::error!(
                address = receiver.address().map(tracing::field::display),
                %error,
                "cannot read the socket: {}",
                Cause::SocketFails
            );
        }
    }
}
