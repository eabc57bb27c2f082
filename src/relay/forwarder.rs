//! [`Forwarder`]: the thread that reads a socket and forwards each line to the destination for its kind. Events of datagrams
//! that are read together are packed together. Datagrams that contain only passthrough lines are forwarded unchanged.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chrono::Utc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::pack::{HOPS_MAX, hops};
use super::passthrough_line::{check_end, check_passthrough_line};
use super::passthrough_loop::PassthroughLoop;
use super::writer::Lines;
use super::{Kind, Ledger, Loss, Pack, Passthrough, Routes, Sorter};
use crate::diagnosis::Cause;
use crate::event::datagram::{Piece, pieces};
use crate::event::{Precision, Rejection};
use crate::ingest::{ArrivalStamps, Received, Receiver};
use crate::node::{Example, Heartbeat, lock};

/// The timeout for reading from the socket. Also the pause between failing reads.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_millis(25);
/// Number of datagrams between two waits after which the waits are short, because the nodes get them all at once.
pub(crate) const GATHERED_MAX: usize = 256;
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time between flushes while all reads are full.
const FLUSH_INTERVAL: Duration = Duration::from_millis(16);
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// Number of distinct relay numbers, and the spacing of a relay's timestamps in ns, to leave room for other relays.
const NUMBERS: i64 = 1000;

/// Creates timestamps for lines that have none. At nanosecond precision, a relay's timestamps are distinct unless its clock
/// is set back, so two events by the same user count as two. Relays with different numbers never create the same timestamp.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    arrivals: ArrivalStamps,
    number: i64,
    precision: Precision,
}

impl Stamps {
    pub(crate) fn new(number: u16, precision: Precision) -> Self {
        Self { number: i64::from(number) % NUMBERS, precision, ..Self::default() }
    }

    fn stamp(&self, now_nanos: i64) -> i64 {
        match self.precision {
            Precision::Nanoseconds => {
                let arrival = self.arrivals.stamp(now_nanos, NUMBERS);
                (arrival / NUMBERS * NUMBERS).saturating_add(self.number)
            }
            unit => now_nanos / unit.nanos(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unsent {
    Rejected(Rejection),
    Discarded,
    Looped,
}

#[derive(Debug)]
pub(crate) struct Forwarder {
    routes: Arc<Routes>,
    sorter: Sorter,
    passthrough_loop: PassthroughLoop,
    pack: Pack,
    lines: Lines,
    counts: Ledger,
    samples: BTreeMap<Unsent, Example>,
}

impl Forwarder {
    pub(crate) fn new(routes: Arc<Routes>, sorter: Sorter, datagram_max: usize) -> Self {
        Self {
            counts: Ledger::new(routes.nodes.len()),
            routes,
            sorter,
            passthrough_loop: PassthroughLoop::default(),
            pack: Pack::new(datagram_max),
            lines: Lines::default(),
            samples: BTreeMap::new(),
        }
    }

    /// Forwards lines from a socket until `stop` is cancelled.
    pub(crate) fn run(
        mut self,
        mut receiver: Receiver,
        heartbeat: &Heartbeat,
        stop: &CancellationToken,
    ) {
        let mut now = Instant::now();
        let (mut reported, mut flushed) = (now, now);
        while !stop.is_cancelled() {
            if receiver.is_resting(now) {
                heartbeat.beat();
                std::thread::sleep(READ_TIMEOUT);
                now = Instant::now();
            } else {
                let may_wait = self.pack.is_empty() && !receiver.is_full();
                let read = if self.pack.is_empty() { receiver.gather() } else { receiver.poll() };
                now = Instant::now();
                if may_wait {
                    // Otherwise, a full read after a wait would be sent on its own.
                    flushed = now;
                }
                if read.is_err() && stop.is_cancelled() {
                    // Another thread has shut down the Unix socket.
                    break;
                }
                if let Some(arrived) = receiver.note(read, &self.routes.listeners_failing, now) {
                    heartbeat.beat();
                    if arrived {
                        self.add_all(&receiver);
                    }
                }
                // After a full read, more datagrams are probably waiting; but they may be no events.
                if !receiver.is_full() || now - flushed >= FLUSH_INTERVAL {
                    flushed = now;
                    self.flush();
                }
            }
            if now - reported >= REPORT_INTERVAL {
                reported = now;
                if let Passthrough::Udp(outlet) = &self.routes.passthrough {
                    self.passthrough_loop.begin_second(outlet);
                }
                self.report(receiver.take_kernel_drops());
            }
        }
        if !receiver.outlives {
            receiver.refuse_senders();
            let until = Instant::now() + DRAIN_MAX;
            while Instant::now() < until && receiver.poll().is_ok_and(|arrived| arrived) {
                heartbeat.beat();
                self.add_all(&receiver);
            }
        }
        self.flush();
        self.report(receiver.take_kernel_drops());
    }

    fn add_all(&mut self, receiver: &Receiver) {
        let now_nanos = Utc::now().timestamp_nanos_opt().unwrap_or(i64::MAX);
        for datagram in receiver.datagrams() {
            self.add(datagram, now_nanos);
        }
    }

    fn add(&mut self, datagram: Received<'_>, now_nanos: i64) {
        let Received { bytes, truncated, source } = datagram;
        let source = source.address();
        self.counts.datagrams += 1;
        let hops = hops(bytes);
        if hops >= HOPS_MAX {
            self.counts.looped += pieces(bytes, truncated).count() as u64;
            self.show(Unsent::Looped, source, bytes);
            return;
        }
        self.lines.clear();
        let mut is_whole = true;
        for piece in pieces(bytes, truncated) {
            let (line, kind) = match piece {
                Piece::Line(line) => self.sort(line),
                Piece::Truncated => (bytes.into(), Kind::Rejected(Rejection::Truncated)),
            };
            let line = &*line;
            is_whole &= kind == Kind::Passthrough;
            match kind {
                Kind::Event { has_time } => {
                    let stamp = (!has_time).then(|| self.routes.stamps.stamp(now_nanos));
                    if !self.pack.add(line, stamp, hops) {
                        self.flush();
                        self.pack.add(line, stamp, hops);
                    }
                    self.counts.events += 1;
                }
                Kind::Passthrough => {
                    self.lines.push(line);
                    self.counts.passthrough.lines += 1;
                }
                Kind::Rejected(reason) => {
                    self.counts.rejected[reason.index()] += 1;
                    self.show(Unsent::Rejected(reason), source, line);
                }
            }
        }
        self.pass_through(is_whole.then_some(bytes), source);
    }

    fn show(&mut self, reason: Unsent, source: Option<SocketAddr>, line: &[u8]) {
        self.samples.entry(reason).or_insert_with(|| Example::new(source, line));
    }

    /// Returns a line to send, and its kind. Rejects passthrough lines that a server would reject or might join with the next
    /// line.
    fn sort<'a>(&mut self, line: &'a [u8]) -> (Cow<'a, [u8]>, Kind) {
        let (line, mut kind) = self.sorter.sort_any(line);
        if let (Kind::Passthrough, Passthrough::Server(_)) = (kind, &self.routes.passthrough)
            && let Err(reason) = check_passthrough_line(&line)
        {
            kind = Kind::Rejected(reason);
        }
        (line, kind)
    }

    /// Sends or queues a datagram's passthrough lines. `whole` is the datagram if it contains only passthrough lines.
    fn pass_through(&mut self, whole: Option<&[u8]>, source: Option<SocketAddr>) {
        let count = self.lines.count();
        let passthrough = &mut self.counts.passthrough;
        match (&self.routes.passthrough, whole) {
            (Passthrough::Udp(outlet), Some(whole)) => {
                if !whole.is_empty() && !self.passthrough_loop.is_probe(whole, outlet) {
                    outlet.send_one(whole, count, passthrough);
                }
            }
            _ if count == 0 => {}
            (Passthrough::Udp(outlet), None) => {
                // An incomplete line ends its datagram, so that a server cannot join it with a line that did not follow it.
                let (mut datagram, mut lines) = (0..0, 0);
                for line in self.lines.iter() {
                    datagram.end += line.len() + 1;
                    lines += 1;
                    let is_last = datagram.end == self.lines.bytes.len();
                    if is_last || check_end(line).is_err() {
                        outlet.send_one(&self.lines.bytes[datagram.clone()], lines, passthrough);
                        (datagram.start, lines) = (datagram.end, 0);
                    }
                }
            }
            (Passthrough::Nowhere, _) => {
                passthrough.lose(Loss::Discarded, count);
                let line = self.lines.iter().next().unwrap_or_default();
                let example = || Example::new(source, line);
                self.samples.entry(Unsent::Discarded).or_insert_with(example);
            }
            (Passthrough::Server(queue), _) => {
                // The ledger must include the lines before the writer can count them as sent.
                lock(&self.routes.ledger).take_in(&mut self.counts);
                if !queue.add(&self.lines) {
                    self.counts.passthrough.lose(Loss::QueueFull, count);
                }
            }
        }
    }

    fn commit(&mut self) {
        lock(&self.routes.ledger).take_in(&mut self.counts);
    }

    fn flush(&mut self) {
        let mut taken = 0;
        if !self.pack.is_empty() {
            for (node, events) in self.routes.nodes.iter().zip(&mut self.counts.nodes) {
                taken |= node.send(&self.pack, events);
            }
            let lines = self.pack.datagrams().map(|(_, lines)| lines).enumerate();
            let nowhere = lines.filter(|(place, _)| (taken >> place) & 1 == 0);
            self.counts.nowhere += nowhere.map(|(_, lines)| lines).sum::<u64>();
            self.pack.clear();
        }
        self.commit();
    }

    fn report(&mut self, kernel_drops: u32) {
        self.counts.kernel_drops += u64::from(kernel_drops);
        self.commit();
        let samples = std::mem::take(&mut self.samples);
        if samples.is_empty() {
            return;
        }
        let totals = self.routes.totals();
        for (reason, example) in samples {
            let notices = &self.routes.notices;
            match reason {
                Unsent::Rejected(reason) => {
                    notices.rejected(reason, totals.rejected[reason.index()], example);
                }
                Unsent::Discarded => {
                    let (message, total) = (Cause::RelayDiscards, totals.passthrough.discarded());
                    notices.refused("discarded", &message.to_string(), total, example);
                }
                Unsent::Looped => {
                    let message = Cause::RelayLoop.to_string();
                    notices.refused("looped", &message, totals.looped, example);
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
