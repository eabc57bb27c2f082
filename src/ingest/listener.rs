//! [`Listener`]: the thread that reads one socket. It may wait for room in memory if the senders can wait, but never for the
//! store. On shutdown, it reads the remaining datagrams, unless the socket outlives the process, and sends all batches.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{LineBatcher, Linger, Receiver, SourceRates};
use crate::diagnosis::Cause;
use crate::event::datagram::pieces;
use crate::node::{Heartbeat, Node, Throttle, beginning};
use crate::telemetry::Metrics;

const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Time limit for reading the remaining datagrams on shutdown. Reading a full receive buffer takes only a fraction of this.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Time limit on shutdown for sending the last events to the disk.
const DISK_MAX: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// The longest wait for a datagram while no events wait to be sent to the recorders.
const IDLE_WAIT: Duration = Duration::from_millis(100);

/// Returns the timeout for reading from a socket, which is short enough that events wait no longer than `linger`.
#[must_use]
pub fn read_timeout(linger: Duration) -> Duration {
    (linger / 2).clamp(Duration::from_millis(1), Duration::from_millis(50))
}

/// The thread that reads one socket.
#[derive(Debug)]
#[expect(missing_docs, reason = "fields are named after their types")]
pub struct Listener {
    pub receiver: Receiver,
    pub rates: Option<Arc<SourceRates>>,
    pub batcher: LineBatcher,
    /// The time a batch waits for more events while the store keeps up.
    pub linger: Linger,
    pub node: Arc<Node>,
    pub metrics: Arc<Metrics>,
    pub heartbeat: Heartbeat,
    pub stop: CancellationToken,
}

#[derive(Default)]
struct Waiting {
    now: bool,
    logged: Throttle,
}

impl Listener {
    /// Reads the socket until `stop` is cancelled, and then sends all remaining events. Blocks the calling thread.
    pub fn run(mut self) {
        let mut now = Instant::now();
        let (mut swept, mut reported) = (now, now);
        let timeout = read_timeout(self.linger.least);
        let interval = 2 * timeout;
        self.receiver = self.receiver.resting_at_most(interval.min(self.linger.least));
        // Events are read and first swept up to an interval after they arrive, and the sweeps are up to an interval apart.
        let linger = Linger {
            least: self.linger.least.saturating_sub(2 * interval),
            most: self.linger.most.saturating_sub(2 * interval),
        };
        let mut waiting = Waiting::default();
        let mut is_idle = false;
        let mut rest = None;
        while !self.stop.is_cancelled() {
            if self.receiver.is_resting(now) || self.makes_senders_wait(&mut waiting) {
                std::thread::sleep(timeout);
                now = Instant::now();
            } else {
                let read = if is_idle {
                    self.receiver.wait_within(IDLE_WAIT)
                } else {
                    self.receiver.read_after(rest)
                };
                now = Instant::now();
                if read.is_err() && self.stop.is_cancelled() {
                    // Another thread has shut down the Unix socket.
                    break;
                }
                // There is no heartbeat after a failed read: if a socket keeps failing, a restart may fix it.
                if let Some(arrived) = self.receiver.note(read, &self.node.listeners_failing, now) {
                    self.heartbeat.beat();
                    if arrived {
                        self.add_datagrams(now);
                    }
                    is_idle = !arrived && self.batcher.open_events() == (0, 0);
                }
            }
            rest = self.receiver.next_rest();
            // A sweep after the last read of a burst covers all of its datagrams.
            if now - swept + rest.unwrap_or(timeout) >= interval {
                swept = now;
                self.batcher.hand_over_due(linger, now, self.node.clock.now_nanos());
            }
            if now - reported >= REPORT_INTERVAL {
                reported = now;
                self.report();
            }
        }
        self.drain();
    }

    fn makes_senders_wait(&mut self, waiting: &mut Waiting) -> bool {
        let wait = self.receiver.makes_senders_wait() && !self.batcher.has_room();
        if wait {
            self.heartbeat.beat();
        }
        if wait != waiting.now {
            waiting.now = wait;
            self.metrics.listeners_full.inc_by(if wait { 1 } else { -1 });
        }
        if wait && waiting.logged.is_due() {
            tracing::warn!(
                address = self.receiver.address().map(tracing::field::display),
                "the queue is full; senders to this socket are blocked until the store accepts events again; {}",
                Cause::QueueFills.remedy()
            );
        }
        wait
    }

    fn add_datagrams(&mut self, now: Instant) {
        let now_nanos = self.node.clock.now_nanos();
        let mut datagrams = 0;
        for datagram in self.receiver.datagrams() {
            tracing::trace!(
                source = datagram.source.address().map(tracing::field::display),
                bytes = datagram.bytes.len(),
                begins = %beginning(datagram.bytes),
                "received a datagram"
            );
            let lines_max = if let Some(rates) = &self.rates
                && let Some(source) = datagram.source.address()
            {
                let lines = pieces(datagram.bytes, datagram.truncated).count();
                rates.take(source.ip(), lines, now)
            } else {
                usize::MAX
            };
            self.batcher.add(datagram, lines_max, now_nanos);
            datagrams += 1;
        }
        self.metrics.datagrams_received.inc_by(datagrams);
        self.batcher.commit();
    }

    fn report(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        let totals = self.node.ledger.totals();
        for (reason, example) in self.batcher.take_samples() {
            self.node.notices.rejected(reason, totals.rejected[reason.index()], example);
        }
    }

    fn drain(mut self) {
        if !self.receiver.outlives {
            self.receiver.refuse_senders();
        }
        let mut now = Instant::now();
        let until = now + DRAIN_MAX;
        while !self.receiver.outlives && now < until {
            self.heartbeat.beat();
            match self.receiver.poll() {
                Ok(true) => {
                    self.add_datagrams(now);
                    self.batcher.hand_over(Duration::MAX, now);
                }
                Ok(false) | Err(_) => break,
            }
            now = Instant::now();
        }
        self.report();
        // Sends the batches in a loop, so that a busy recorder or a hanging disk does not delay the other batches.
        let disk_until = now + DISK_MAX;
        loop {
            self.heartbeat.beat();
            self.batcher.hand_over(Duration::ZERO, now);
            let (to_recorders, to_disk) = self.batcher.open_events();
            if to_recorders == 0 && (to_disk == 0 || now >= disk_until) {
                break;
            }
            std::thread::sleep(BUSY_PAUSE);
            now = Instant::now();
        }
        self.batcher.drop_overflow();
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
