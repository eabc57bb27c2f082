//! [`Reader`]: the thread that reads one socket into its [`Forwarder`].
//!
//! While events wait for others it does not wait for datagrams: it reads what is there, and sleeps until the events have
//! waited long enough, so that the next read finds many. When `stop` is cancelled it reads what the kernel still holds (unless
//! the socket outlives the process, which leaves it to the next), sends what waits, and ends.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Forwarder, Metrics};
use crate::ingest::{Failure, Receiver};
use crate::node::{Clock, Heartbeat};

/// How long a read of the socket waits, and the pause while it fails.
pub const READ_TIMEOUT: Duration = Duration::from_millis(25);
/// How often the kernel is asked what it dropped, and whether lines of the rest come back is looked for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long the socket is read after the stop.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub struct Reader {
    /// The socket.
    pub receiver: Receiver,
    /// Where its datagrams go.
    pub forwarder: Forwarder,
    /// The longest that an event waits for others.
    pub linger: Duration,
    /// The wall clock.
    pub clock: Arc<Clock>,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Its heartbeat.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

impl Reader {
    /// Reads until it is stopped. Blocks.
    pub fn run(mut self) {
        let mut failure = Failure::default();
        let mut now = Instant::now();
        let mut reported = now;
        // When the first of the events came that wait.
        let mut since = None;
        while !self.stop.is_cancelled() {
            let mut arrived = Some(false);
            if !failure.is_resting(now) {
                let read =
                    if since.is_none() { self.receiver.wait() } else { self.receiver.poll() };
                now = Instant::now();
                arrived = failure.note(read, &self.receiver, &self.metrics.listeners_failing, now);
            }
            if arrived.is_some() {
                self.heartbeat.beat();
            }
            if arrived == Some(true) {
                self.take_datagrams();
                // Younger than that if a full pack went meanwhile, which does no harm.
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
                None if failure.is_resting(now) => {
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

    /// Hands over what was read last.
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

    /// Counts what the kernel dropped, and shows a line of each reason that is sent nowhere.
    fn report(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        let samples = self.forwarder.take_samples();
        if samples.is_empty() {
            return;
        }
        let totals = self.forwarder.totals();
        for sample in samples {
            let total = sample.reason.total(&totals);
            self.metrics.notices.refused(sample, total);
        }
    }

    /// Reads what the kernel holds, though not for ever what goes on arriving, and sends all of it.
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
