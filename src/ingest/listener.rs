//! [`Listener`]: the thread that reads one socket.
//!
//! It owns the socket and its open batches, waits for datagrams (never for the store), and hands a batch to the
//! recorder of its partition when the batch is old enough. It stops when `stop` is cancelled: then it reads
//! what the kernel still holds (unless the socket outlives the process, which leaves it to the next), hands over
//! every batch, and ends, which closes its side of the channels.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;

use super::sieve::beginning;
use super::{Delivery, Receiver, Sample, Sieve, SourceRates};
use crate::event::datagram::pieces;
use crate::event::{Partition, Partitions};
use crate::node::{DropReason, Heartbeat, Node, Throttle};
use crate::telemetry::Metrics;

/// A batch of so many events is handed over although it is young.
const BATCH_EVENTS: usize = 16_384;
/// A batch for the disk of so many bytes is handed over although it is young.
const OVERFLOW_BYTES: usize = 1024 * 1024;
/// How often the kernel is asked what it dropped, and it is looked which lines the log should show.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);
/// How long the socket is read after the stop. A full buffer takes a fraction of it.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// How long the disk may take the last events at the end.
const KEEP_MAX: Duration = Duration::from_secs(10);
/// How long to wait at the end for recorders and a disk that are busy.
const BUSY_PAUSE: Duration = Duration::from_millis(2);
/// How long to wait before a socket that failed is read again: first, and at most.
const FAILED_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a socket that fails is told in the log, at most.
const FAILURE_INTERVAL: Duration = Duration::from_secs(60);

/// How a listener behaves.
#[derive(Debug, Clone)]
pub struct ListenerSettings {
    /// The longest that an event waits here while the store keeps up.
    pub linger: Duration,
    /// How the series are spread.
    pub partitions: Partitions,
}

impl ListenerSettings {
    /// How long a read may wait, so that no batch gets older than `linger`.
    #[must_use]
    pub fn read_timeout(&self) -> Duration {
        (self.linger / 4).clamp(Duration::from_millis(1), Duration::from_millis(25))
    }
}

/// The thread that reads one socket.
#[derive(Debug)]
pub struct Listener {
    /// The socket.
    pub receiver: Receiver,
    /// What sorts the datagrams.
    pub sieve: Sieve,
    /// What each source may send, if that is limited; the receiver then tells the sources.
    pub rates: Option<Arc<SourceRates>>,
    /// How it behaves.
    pub settings: ListenerSettings,
    /// The recorders, one a partition.
    pub recorders: Vec<mpsc::Sender<Delivery>>,
    /// Where it counts events.
    pub node: Arc<Node>,
    /// Where it counts datagrams.
    pub metrics: Arc<Metrics>,
    /// Its sign of life.
    pub heartbeat: Heartbeat,
    /// When cancelled, it stops.
    pub stop: CancellationToken,
}

/// Which open batches have events, and since when.
struct Ages {
    partitions: Vec<Option<Instant>>,
    overflow: Option<Instant>,
}

/// How a socket fails.
struct Failure {
    /// When it is read again, and how long that was waited for; `None` while it does not fail.
    retry: Option<(Instant, Duration)>,
    told: Throttle,
}

impl Listener {
    /// Reads until it is stopped. Blocks.
    pub fn run(mut self) {
        let mut ages = Ages {
            partitions: vec![None; self.recorders.len()],
            overflow: None,
        };
        let mut swept = Instant::now();
        let mut drops_asked = Instant::now();
        let sweep_interval = self.settings.read_timeout();
        let due = self.settings.linger.saturating_sub(2 * sweep_interval);
        let mut failure = Failure {
            retry: None,
            told: Throttle::new(FAILURE_INTERVAL),
        };
        while !self.stop.is_cancelled() {
            if failure.retry.is_some_and(|(at, _)| Instant::now() < at) {
                std::thread::sleep(sweep_interval);
            } else {
                match self.receiver.wait() {
                    Ok(came) => self.reads(&mut failure, came),
                    Err(error) => self.fails(&mut failure, &error),
                }
            }
            let now = Instant::now();
            if now - swept >= sweep_interval {
                swept = now;
                self.sweep(&mut ages, now, due);
            }
            if now - drops_asked >= DROPS_INTERVAL {
                drops_asked = now;
                self.count_drops();
                self.show_samples();
            }
        }
        self.drain();
    }

    fn reads(&mut self, failure: &mut Failure, came: bool) {
        self.heartbeat.beat();
        if failure.retry.take().is_some() {
            self.node.listeners_failing.fetch_sub(1, Ordering::Relaxed);
            tracing::info!(
                address = self.receiver.address().map(tracing::field::display),
                "the UDP socket can be read again"
            );
        }
        if came {
            self.take_in();
        }
    }

    /// Gives no sign of life: a socket that fails for long makes the process unhealthy, and a new one may mend it.
    fn fails(&self, failure: &mut Failure, error: &io::Error) {
        let now = Instant::now();
        let (first, longest) = FAILED_PAUSES;
        let pause = if let Some((_, pause)) = failure.retry {
            longest.min(pause * 2)
        } else {
            self.node.listeners_failing.fetch_add(1, Ordering::Relaxed);
            first
        };
        failure.retry = Some((now + pause, pause));
        if failure.told.is_due() {
            tracing::error!(
                address = self.receiver.address().map(tracing::field::display),
                %error,
                "cannot read the UDP socket: what is sent to it is not counted here; trying again, and /readyz says so \
                 meanwhile; if it goes on restart the node, and eds.socket where that holds the socket"
            );
        }
    }

    /// Sorts what was read, and tells the ledger before anything of it can reach a recorder.
    fn take_in(&mut self) {
        let now = chrono::Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
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
                    rates.take(source.ip(), lines, Instant::now())
                }
                _ => usize::MAX,
            };
            self.sieve.datagram_within(lines_max, datagram, now);
            datagrams += 1;
        }
        self.metrics.datagrams_received.inc_by(datagrams);
        let totals = self.node.ledger.take_in(&self.sieve.take_intake());
        self.sieve.told(totals);
    }

    /// Hands over the batches that are old or large enough. One whose recorder is busy goes on growing.
    fn sweep(&mut self, ages: &mut Ages, now: Instant, due: Duration) {
        for partition in self.settings.partitions.iter() {
            let batch = self.sieve.open(partition);
            let age = &mut ages.partitions[partition.index()];
            if batch.is_empty() {
                *age = None;
                continue;
            }
            let since = *age.get_or_insert(now);
            if now - since < due && batch.events() < BATCH_EVENTS {
                continue;
            }
            if self.hand_over(partition) {
                ages.partitions[partition.index()] = None;
            }
        }
        self.sweep_overflow(&mut ages.overflow, now, due);
        // The ledger's totals also tell how much room the recorders have made.
        self.sieve.told(self.node.ledger.totals());
    }

    /// Hands over the batch of a partition, unless its recorder is busy.
    fn hand_over(&mut self, partition: Partition) -> bool {
        let batch = self.sieve.open(partition);
        match self.recorders[partition.index()].try_reserve() {
            Ok(permit) => permit.send(std::mem::take(batch).into()),
            Err(TrySendError::Full(())) => return false,
            Err(TrySendError::Closed(())) => {
                // A recorder ends before its listeners only when the node may not wait any longer.
                let batch = std::mem::take(batch);
                self.node
                    .ledger
                    .dropped(DropReason::Shutdown, batch.events());
                self.node.ledger.released(batch.bytes());
            }
        }
        true
    }

    /// The same as a sweep for what goes to the disk.
    fn sweep_overflow(&mut self, age: &mut Option<Instant>, now: Instant, due: Duration) {
        let Some((_, batch)) = self.sieve.overflow() else {
            return;
        };
        if batch.is_empty() {
            *age = None;
            return;
        }
        let since = *age.get_or_insert(now);
        if now - since < due && batch.bytes() < OVERFLOW_BYTES {
            return;
        }
        if self.keep_overflow() {
            *age = None;
        }
    }

    fn count_drops(&mut self) {
        let drops = self.receiver.take_kernel_drops();
        // Asked in any case, for what other sockets had before is none of these drops.
        let wrong = self.receiver.take_wrong_checksums();
        if drops == 0 {
            return;
        }
        self.metrics.kernel_drops.inc_by(u64::from(drops));
        let address = self.receiver.address().map(tracing::field::display);
        if wrong >= u64::from(drops) {
            tracing::error!(
                address,
                datagrams = drops,
                wrong_checksums_of_host = wrong,
                "the kernel dropped datagrams, and as many came to this host with wrong checksums: those are damaged on the \
                 way or sent wrongly, and no receive buffer helps; look at the senders and at the network's hardware"
            );
        } else {
            tracing::error!(
                address,
                datagrams = drops,
                wrong_checksums_at_most = wrong,
                "the kernel dropped datagrams: the receive buffer was full; raise input.receive_buffer"
            );
        }
    }

    /// Shows a rejected line of each reason: not often, but more often to who wants details.
    fn show_samples(&mut self) {
        for Sample {
            reason,
            source,
            line,
        } in self.sieve.take_samples()
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

    /// Reads what the kernel holds, but not for ever what goes on arriving, and hands everything over.
    fn drain(mut self) {
        let until = Instant::now() + DRAIN_MAX;
        let mut overflow_age = None;
        while !self.receiver.outlives() && Instant::now() < until {
            self.heartbeat.beat();
            match self.receiver.poll() {
                Ok(true) => {
                    self.take_in();
                    self.sweep_overflow(&mut overflow_age, Instant::now(), Duration::MAX);
                }
                Ok(false) | Err(_) => break,
            }
        }
        self.count_drops();
        self.show_samples();
        // A recorder that waits for its server, or a disk that hangs, must not keep the others from what is theirs.
        let keep_until = Instant::now() + KEEP_MAX;
        let mut left: Vec<Partition> = self.settings.partitions.iter().collect();
        loop {
            self.heartbeat.beat();
            left.retain(|&at| !self.sieve.open(at).is_empty() && !self.hand_over(at));
            let kept = self.keep_overflow() || Instant::now() >= keep_until;
            if left.is_empty() && kept {
                break;
            }
            std::thread::sleep(BUSY_PAUSE);
        }
        if let Some((_, batch)) = self.sieve.overflow() {
            let lost = batch.events();
            self.node
                .ledger
                .refused_by_spool(DropReason::SpoolFailed, lost);
        }
    }

    /// Gives the disk what is on its way there, if it is not busy. Answers whether nothing is left.
    fn keep_overflow(&mut self) -> bool {
        let Some((spool, batch)) = self.sieve.overflow() else {
            return true;
        };
        if !batch.is_empty()
            && let Err(back) = spool.try_keep(std::mem::take(batch))
        {
            *batch = back;
        }
        batch.is_empty()
    }
}

#[cfg(test)]
#[path = "listener_tests.rs"]
mod tests;
