//! [`Listener`]: the thread that reads one socket.
//!
//! It reads datagrams into its [`LineBatcher`], and has the batches handed over that are due. It waits for datagrams, and where
//! senders wait for it for room, never for the store. When `stop` is cancelled it reads what the kernel still holds (unless
//! the socket outlives the process, which leaves it to the next), hands over every batch, and ends, which closes its side
//! of the channels.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::line_batcher::beginning;
use super::{LineBatcher, Receiver, Sample, SourceRates};
use crate::event::datagram::pieces;
use crate::node::{Heartbeat, Node, Throttle};
use crate::telemetry::Metrics;

/// How often the listener asks the kernel what it dropped, and logs rejected lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the socket is read after the stop. A full buffer takes a fraction of it.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the disk may take the last events at the end.
const DISK_MAX: Duration = Duration::from_secs(10);
/// The pause at the end for recorders and a disk that are busy.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// The pause before a socket that failed is read again: first, and at most.
const FAILED_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a socket that fails, or is left unread, is logged, at most.
const FAILURE_INTERVAL: Duration = Duration::from_secs(60);

/// How long a read of a socket may wait, so that no batch gets older than `linger`.
#[must_use]
pub fn read_timeout(linger: Duration) -> Duration {
    (linger / 4).clamp(Duration::from_millis(1), Duration::from_millis(25))
}

/// The thread that reads one socket.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub receiver: Receiver,
    /// What each source may send, if that is limited; the receiver then knows the sources.
    pub rates: Option<Arc<SourceRates>>,
    /// What makes batches of the datagrams.
    pub batcher: LineBatcher,
    /// The longest that an event waits for its batch while the store keeps up.
    pub linger: Duration,
    /// Whose clock it reads, and where it reports that its socket fails.
    pub node: Arc<Node>,
    /// Where it counts datagrams.
    pub metrics: Arc<Metrics>,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

/// Whether the senders of a socket wait.
struct Waiting {
    now: bool,
    logged: Throttle,
}

/// How a socket fails.
struct Failure {
    /// When it is read again, and the pause before that; `None` while it does not fail.
    retry: Option<(Instant, Duration)>,
    logged: Throttle,
}

impl Listener {
    /// Reads until it is stopped. Blocks.
    pub fn run(mut self) {
        let mut now = Instant::now();
        let (mut swept, mut reported) = (now, now);
        let interval = read_timeout(self.linger);
        let age = self.linger.saturating_sub(2 * interval);
        let mut failure = Failure {
            retry: None,
            logged: Throttle::new(FAILURE_INTERVAL),
        };
        let mut waiting = Waiting {
            now: false,
            logged: Throttle::new(FAILURE_INTERVAL),
        };
        while !self.stop.is_cancelled() {
            let fails = failure.retry.is_some_and(|(at, _)| now < at);
            if fails || self.makes_senders_wait(&mut waiting) {
                std::thread::sleep(interval);
                now = Instant::now();
            } else {
                let read = self.receiver.wait();
                now = Instant::now();
                match read {
                    Ok(arrived) => self.reads(&mut failure, arrived, now),
                    Err(error) => self.fails(&mut failure, &error, now),
                }
            }
            if now - swept >= interval {
                swept = now;
                self.batcher.hand_over(age, now);
            }
            if now - reported >= REPORT_INTERVAL {
                reported = now;
                self.report();
            }
        }
        self.drain();
    }

    /// Whether what arrives stays where it is, since there is no room for it and whoever sends it waits.
    fn makes_senders_wait(&mut self, waiting: &mut Waiting) -> bool {
        let wait = self.receiver.makes_senders_wait() && !self.batcher.has_room();
        if wait {
            self.heartbeat.beat();
        }
        if wait != waiting.now {
            waiting.now = wait;
            self.metrics
                .listeners_full
                .inc_by(if wait { 1 } else { -1 });
        }
        if wait && waiting.logged.is_due() {
            tracing::warn!(
                address = self.receiver.address().map(tracing::field::display),
                "the queue is full (input.queue_events, input.queue_bytes): who sends to this socket waits until the store \
                 takes events"
            );
        }
        wait
    }

    fn reads(&mut self, failure: &mut Failure, arrived: bool, now: Instant) {
        self.heartbeat.beat();
        if failure.retry.take().is_some() {
            self.node.listeners_failing.fetch_sub(1, Ordering::Relaxed);
            tracing::info!(
                address = self.receiver.address().map(tracing::field::display),
                "the socket can be read again"
            );
        }
        if arrived {
            self.add_datagrams(now);
        }
    }

    /// Does not beat: a socket that fails for long makes the process unhealthy, and a new process may fix it.
    fn fails(&self, failure: &mut Failure, error: &io::Error, now: Instant) {
        let (first, longest) = FAILED_PAUSES;
        let pause = if let Some((_, pause)) = failure.retry {
            longest.min(pause * 2)
        } else {
            self.node.listeners_failing.fetch_add(1, Ordering::Relaxed);
            first
        };
        failure.retry = Some((now + pause, pause));
        if failure.logged.is_due() {
            tracing::error!(
                address = self.receiver.address().map(tracing::field::display),
                %error,
                "cannot read the socket: what is sent to it is not counted here; trying again, and /readyz reports it \
                 meanwhile; if this goes on restart the node, and eds.socket if that holds the socket"
            );
        }
    }

    /// Adds what was read to the batches.
    fn add_datagrams(&mut self, now: Instant) {
        let now_nanos = self.node.clock.now_nanos();
        let mut datagrams = 0;
        for datagram in self.receiver.datagrams() {
            tracing::trace!(
                source = datagram.source.map(tracing::field::display),
                bytes = datagram.bytes.len(),
                begins = %beginning(datagram.bytes),
                "a datagram"
            );
            let lines_max = match (&self.rates, datagram.source) {
                (Some(rates), Some(source)) => {
                    let lines = pieces(datagram.bytes, datagram.truncated).count();
                    rates.take(source.ip(), lines, now)
                }
                _ => usize::MAX,
            };
            self.batcher.add(datagram, lines_max, now_nanos);
            datagrams += 1;
        }
        self.metrics.datagrams_received.inc_by(datagrams);
        self.batcher.commit();
    }

    /// Logs what the kernel dropped, and a rejected line of each reason: rarely, or more often at the level debug.
    fn report(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        for Sample {
            reason,
            source,
            line,
        } in self.batcher.take_samples()
        {
            let source = source.map(tracing::field::display);
            let label = reason.label();
            if let Some(lines) = self.node.ledger.is_time_to_show(reason) {
                tracing::warn!(
                    reason = label,
                    lines,
                    source,
                    line,
                    "rejected lines: {reason}"
                );
            } else {
                tracing::debug!(reason = label, source, line, "rejected a line: {reason}");
            }
        }
    }

    /// Reads what the kernel holds, though not for ever what goes on arriving, and hands everything over.
    fn drain(mut self) {
        if !self.receiver.outlives() {
            self.receiver.refuse_senders();
        }
        let mut now = Instant::now();
        let until = now + DRAIN_MAX;
        while !self.receiver.outlives() && now < until {
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
        // A recorder that waits for its server, or a disk that hangs, does not hold up the others.
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
