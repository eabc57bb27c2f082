//! [`Reader`]: the thread that reads one socket into its [`Forwarder`].
//!
//! While events wait for others it does not wait for datagrams: it reads the arrived ones, and sleeps until the linger is
//! over, so that the next read finds many. When `stop` is cancelled it reads the datagrams in the kernel (unless
//! the socket outlives the process, and the next one reads them), sends the open pack, and ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Forwarder, Metrics};
use crate::ingest::Receiver;
use crate::node::{Clock, Heartbeat};

/// The timeout of a read of the socket, and the pause while it fails.
pub const READ_TIMEOUT: Duration = Duration::from_millis(25);
/// How often dropped datagrams are counted and returning passthrough lines are detected.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The longest time of reading after the stop.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// The thread of one socket.
#[derive(Debug)]
pub struct Reader {
    /// The socket.
    pub receiver: Receiver,
    /// The forwarder of its datagrams.
    pub forwarder: Forwarder,
    /// The longest time that an event waits for others.
    pub linger: Duration,
    /// The wall clock.
    pub clock: Arc<Clock>,
    /// The metrics of the relay.
    pub metrics: Arc<Metrics>,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

impl Reader {
    /// Reads until it is stopped. Blocks.
    pub fn run(mut self) {
        let mut now = Instant::now();
        let mut reported = now;
        // When the first event of the open pack arrived.
        let mut since = None;
        while !self.stop.is_cancelled() {
            let mut arrived = Some(false);
            if !self.receiver.is_resting(now) {
                let read =
                    if since.is_none() { self.receiver.wait() } else { self.receiver.poll() };
                now = Instant::now();
                arrived = self.receiver.note(read, &self.metrics.listeners_failing, now);
            }
            if arrived.is_some() {
                self.heartbeat.beat();
            }
            if arrived == Some(true) {
                self.take_datagrams();
                // An event may be younger after a full pack was sent, which does no harm.
                since = self.forwarder.has_events().then(|| since.unwrap_or(now));
            }
            let due = since.map(|since| since + self.linger);
            match due {
                Some(due) if now >= due => {
                    self.forwarder.flush();
                    since = None;
                }
                Some(due) if arrived != Some(true) => {
                    std::thread::sleep(due - now);
                    now = Instant::now();
                }
                None if self.receiver.is_resting(now) => {
                    std::thread::sleep(READ_TIMEOUT);
                    now = Instant::now();
                }
                _ => {}
            }
            if now - reported >= REPORT_INTERVAL {
                reported = now;
                self.forwarder.begin_second();
                self.report();
            }
        }
        self.drain();
    }

    /// Hands over the datagrams of the last read.
    fn take_datagrams(&mut self) {
        let now_nanos = self.clock.now_nanos();
        let mut datagrams = 0;
        for datagram in self.receiver.datagrams() {
            self.forwarder.add(datagram, now_nanos);
            datagrams += 1;
        }
        self.metrics.datagrams_received.inc_by(datagrams);
        self.forwarder.commit();
    }

    /// Counts the datagrams that the kernel dropped, and shows a sample of the lines that are sent nowhere.
    fn report(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        for (sample, total) in self.forwarder.take_samples() {
            self.metrics.notices.refused(sample, total);
        }
    }

    /// Reads and sends the datagrams in the kernel, for a limited time, because more may arrive.
    fn drain(mut self) {
        if !self.receiver.outlives() {
            self.receiver.refuse_senders();
        }
        let until = Instant::now() + DRAIN_MAX;
        while !self.receiver.outlives() && Instant::now() < until {
            self.heartbeat.beat();
            match self.receiver.poll() {
                Ok(true) => self.take_datagrams(),
                Ok(false) | Err(_) => break,
            }
        }
        self.forwarder.flush();
        self.report();
    }
}
