//! [`Listener`]: the thread that reads one socket.
//!
//! It reads datagrams into its [`LineBatcher`], and has the batches handed over that are due. It waits for datagrams, and where
//! senders wait for it for room, never for the store. When `stop` is cancelled it reads what the kernel still holds (unless
//! the socket outlives the process, which leaves it to the next), hands over every batch, and ends, which closes its side
//! of the channels.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::line_batcher::beginning;
use super::{LineBatcher, Linger, Receiver, SourceRates};
use crate::diagnosis::Cause;
use crate::event::datagram::pieces;
use crate::node::{Heartbeat, Node, Throttle};
use crate::telemetry::Metrics;

/// How often the listener asks the kernel what it dropped, and logs that and the lines that were rejected or dropped.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the socket is read after the stop. A full buffer takes a fraction of it.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the disk may take the last events at the end.
const DISK_MAX: Duration = Duration::from_secs(10);
/// The pause at the end for recorders and a disk that are busy.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How often it is logged that a socket is left unread, at most.
const UNREAD_INTERVAL: Duration = Duration::from_secs(60);

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
    pub linger: Linger,
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

impl Listener {
    /// Reads until it is stopped. Blocks.
    pub fn run(mut self) {
        let mut now = Instant::now();
        let (mut swept, mut reported) = (now, now);
        let interval = read_timeout(self.linger.least);
        let linger = Linger {
            least: self.linger.least.saturating_sub(2 * interval),
            most: self.linger.most.saturating_sub(2 * interval),
        };
        let mut waiting = Waiting { now: false, logged: Throttle::new(UNREAD_INTERVAL) };
        while !self.stop.is_cancelled() {
            if self.receiver.is_resting(now) || self.makes_senders_wait(&mut waiting) {
                std::thread::sleep(interval);
                now = Instant::now();
            } else {
                let read = self.receiver.gather();
                now = Instant::now();
                // One that fails does not beat: if that lasts the process is unhealthy, and a new one may fix it.
                if let Some(arrived) = self.receiver.note(read, &self.node.listeners_failing, now) {
                    self.heartbeat.beat();
                    if arrived {
                        self.add_datagrams(now);
                    }
                }
            }
            if now - swept >= interval {
                swept = now;
                let now_nanos = self.node.clock.now_nanos();
                self.batcher.hand_over_due(linger, now, now_nanos);
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
            self.metrics.listeners_full.inc_by(if wait { 1 } else { -1 });
        }
        if wait && waiting.logged.is_due() {
            tracing::warn!(
                address = self.receiver.address().map(tracing::field::display),
                "the queue is full: who sends to this socket waits until the store takes events; {}",
                Cause::QueueFills.remedy()
            );
        }
        wait
    }

    /// Adds what was read to the batches.
    fn add_datagrams(&mut self, now: Instant) {
        let now_nanos = self.node.clock.now_nanos();
        let mut datagrams = 0;
        for datagram in self.receiver.datagrams() {
            tracing::trace!(
                source = datagram.source.address().map(tracing::field::display),
                bytes = datagram.bytes.len(),
                begins = %beginning(datagram.bytes),
                "a datagram"
            );
            let rates = self.rates.as_ref();
            let lines_max = match rates.and_then(|it| Some((it, datagram.source.address()?))) {
                Some((rates, source)) => {
                    let lines = pieces(datagram.bytes, datagram.truncated).count();
                    rates.take(source.ip(), lines, now)
                }
                None => usize::MAX,
            };
            self.batcher.add(datagram, lines_max, now_nanos);
            datagrams += 1;
        }
        self.metrics.datagrams_received.inc_by(datagrams);
        self.batcher.commit();
    }

    /// Counts what the kernel dropped, and logs a rejected line of each reason: rarely, or more often at the level debug.
    fn report(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        let totals = self.node.ledger.totals();
        for sample in self.batcher.take_samples() {
            let rejected = totals.rejected[sample.reason.index()];
            self.node.notices.refused(sample, rejected);
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
