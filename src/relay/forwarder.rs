//! [`Forwarder`]: splits datagrams into lines, and sends each kind where it belongs.
//!
//! Events go into the open [`Pack`], which goes to every node when it is full or [`Forwarder::flush`] says so. What is no
//! event goes to the [`Rest`]: a datagram with nothing else in it as it came. A datagram that has passed too many relays goes no
//! further. It reads no clock and waits for nothing.

use std::net::SocketAddr;
use std::sync::Arc;

use super::ledger::Intake;
use super::pack::{HOPS_MAX, hops};
use super::rest_line::{check_end, check_rest_line};
use super::rest_loop::RestLoop;
use super::{Kind, Ledger, LedgerTotals, Loss, Outlet, Pack, Place, Rest, Sorter};
use crate::diagnosis::Cause;
use crate::event::datagram::{Piece, pieces};
use crate::event::{Precision, Rejection};
use crate::ingest::{ArrivalStamps, Received, beginning};
use crate::node::{Refusal, RefusedLine, Samples};

/// Between two timestamps of a relay there is one for each number that a relay may have.
const NUMBERS: i64 = 1000;

/// Timestamps for lines that have none. No two of a relay are equal, unless its clock was set back, so that two events of a user in one datagram stay two;
/// nor are two of relays with different numbers.
#[derive(Debug)]
pub struct Stamps {
    arrivals: ArrivalStamps,
    number: i64,
    precision: Precision,
}

impl Stamps {
    /// Those of the relay with this number, below 1000. In another unit than nanoseconds they repeat.
    #[must_use]
    pub fn new(number: u16, precision: Precision) -> Self {
        Self { arrivals: ArrivalStamps::default(), number: i64::from(number) % NUMBERS, precision }
    }

    /// A timestamp of about now, which is in nanoseconds since the epoch.
    #[must_use]
    pub fn stamp(&self, now_nanos: i64) -> i64 {
        match self.precision {
            Precision::Nanoseconds => {
                let arrival = self.arrivals.stamp(now_nanos, NUMBERS);
                (arrival / NUMBERS * NUMBERS).saturating_add(self.number)
            }
            unit => now_nanos / unit.nanos(),
        }
    }
}

/// Why a line is sent nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// Nobody can read it.
    Rejected(Rejection),
    /// It is no event, and `rest.url` is `none:`.
    Discarded,
    /// It has passed too many relays.
    Looped,
}

impl Unsent {
    /// Returns how many lines were sent nowhere for this reason.
    #[must_use]
    pub fn total(self, totals: &LedgerTotals) -> u64 {
        match self {
            Self::Rejected(reason) => totals.rejected[reason.index()],
            Self::Discarded => totals.rest.discarded(),
            Self::Looped => totals.looped,
        }
    }
}

impl Refusal for Unsent {
    fn label(self) -> &'static str {
        match self {
            Self::Rejected(reason) => reason.label(),
            Self::Discarded => Loss::Discarded.label(),
            Self::Looped => "looped",
        }
    }

    fn message(self) -> String {
        match self {
            Self::Rejected(reason) => reason.message(),
            Self::Discarded => Cause::RelayDiscards.to_string(),
            Self::Looped => Cause::RelayLoop.to_string(),
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Forwarder {
    sorter: Sorter,
    stamps: Arc<Stamps>,
    nodes: Vec<Arc<Outlet>>,
    rest: Rest,
    rest_loop: RestLoop,
    ledger: Arc<Ledger>,
    /// The events that wait for others.
    pack: Pack,
    /// The lines of a datagram that are no events, with their ends; and where each ends.
    others: Vec<u8>,
    ends: Vec<usize>,
    /// The ends of those from which a reader might read on.
    cuts: Vec<usize>,
    /// What was added since the last commit.
    intake: Intake,
    /// The first line of each reason since they were taken.
    samples: Samples<Unsent>,
    /// Kept for their capacity.
    outcomes: Vec<Place>,
    taken: Vec<bool>,
}

impl Forwarder {
    /// Sends events to these nodes, packed into datagrams of at most so many bytes, and all else to the rest.
    #[must_use]
    pub fn new(
        sorter: Sorter,
        datagram_max: usize,
        stamps: Arc<Stamps>,
        nodes: Vec<Arc<Outlet>>,
        rest: Rest,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            sorter,
            stamps,
            nodes,
            rest,
            rest_loop: RestLoop::default(),
            ledger,
            pack: Pack::new(datagram_max),
            others: Vec::new(),
            ends: Vec::new(),
            cuts: Vec::new(),
            intake: Intake::default(),
            samples: Samples::default(),
            outcomes: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Adds the lines of a datagram that arrived at this time, in nanoseconds since the epoch.
    pub fn add(&mut self, datagram: Received<'_>, now_nanos: i64) {
        let Received { bytes, truncated, source } = datagram;
        self.others.clear();
        self.ends.clear();
        self.cuts.clear();
        let source = source.address();
        let hops = hops(bytes);
        if hops >= HOPS_MAX {
            self.intake.looped += pieces(bytes, truncated).count() as u64;
            self.show(Unsent::Looped, source, bytes);
            return;
        }
        let mut lines = 0;
        for piece in pieces(bytes, truncated) {
            lines += 1;
            let (line, kind) = match piece {
                Piece::Line(line) => (line, self.sorter.sort(line)),
                Piece::Truncated => (bytes, Kind::Rejected(Rejection::Truncated)),
            };
            match self.for_rest(line, kind) {
                Kind::Event { has_time } => {
                    let stamp = (!has_time).then(|| self.stamps.stamp(now_nanos));
                    self.pack(line, stamp, hops);
                }
                Kind::Rest => {
                    self.others.extend_from_slice(line);
                    self.others.push(b'\n');
                    self.ends.push(self.others.len());
                    match &self.rest {
                        Rest::Nowhere => self.show(Unsent::Discarded, source, line),
                        Rest::Udp(_) if check_end(line).is_err() => {
                            self.cuts.push(self.others.len());
                        }
                        Rest::Udp(_) | Rest::Server(_) => {}
                    }
                }
                Kind::Rejected(reason) => {
                    self.intake.rejected[reason.index()] += 1;
                    self.show(Unsent::Rejected(reason), source, line);
                }
            }
        }
        let is_whole = lines == self.ends.len();
        if !self.ends.is_empty() || is_whole && !bytes.is_empty() {
            self.pass_on(is_whole.then_some(bytes));
        }
    }

    /// A server gets no line that might take the line behind it along.
    fn for_rest(&self, line: &[u8], kind: Kind) -> Kind {
        if kind == Kind::Rest
            && let Rest::Server(_) = self.rest
            && let Err(reason) = check_rest_line(line)
        {
            return Kind::Rejected(reason);
        }
        kind
    }

    fn show(&mut self, reason: Unsent, source: Option<SocketAddr>, line: &[u8]) {
        let line = || beginning(line).to_string();
        self.samples.add(reason, source, line);
    }

    fn pack(&mut self, line: &[u8], stamp: Option<i64>, hops: u8) {
        if !self.pack.add(line, stamp, hops) {
            self.flush();
            self.pack.add(line, stamp, hops);
        }
        self.intake.events += 1;
    }

    /// Gives the other lines to the rest; `whole` is the datagram if it has nothing else in it.
    fn pass_on(&mut self, whole: Option<&[u8]>) {
        let lines = self.ends.len() as u64;
        let place = &mut self.intake.rest;
        match &self.rest {
            Rest::Nowhere => place.dropped[Loss::Discarded as usize] += lines,
            Rest::Udp(outlet) => {
                if whole.is_some_and(|whole| self.rest_loop.is_probe(whole, outlet)) {
                    return;
                }
                let mut send = |datagram: &[u8], lines: u64| match outlet.send_one(datagram) {
                    Ok(()) => place.sent += lines,
                    Err(loss) => place.dropped[loss as usize] += lines,
                };
                if let Some(whole) = whole {
                    send(whole, lines);
                    return;
                }
                // What stood between them may be gone: an event, or a line that was rejected.
                let mut begin = 0;
                for end in self.cuts.iter().copied().chain([self.others.len()]) {
                    let lines = self.ends.iter().filter(|it| (begin + 1..=end).contains(*it));
                    if end > begin {
                        send(&self.others[begin..end], lines.count() as u64);
                    }
                    begin = end;
                }
            }
            Rest::Server(_) if lines == 0 => {}
            Rest::Server(queue) => {
                // The ledger has them before the task that writes them has.
                place.queued += lines;
                self.ledger.take_in(&std::mem::take(&mut self.intake));
                if !queue.add(&self.others, &self.ends) {
                    self.ledger.rest(|rest| rest.lose(Loss::QueueFull, lines));
                }
            }
        }
    }

    /// Whether events wait.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.pack.is_empty()
    }

    /// Looks, once a second, whether lines of the rest come back.
    pub fn begin_second(&mut self) {
        if let Rest::Udp(outlet) = &self.rest {
            self.rest_loop.begin_second(outlet);
        }
    }

    /// Returns how many lines are where.
    #[must_use]
    pub fn totals(&self) -> LedgerTotals {
        self.ledger.totals()
    }

    /// Enters what was added into the ledger.
    pub fn commit(&mut self) {
        self.ledger.take_in(&std::mem::take(&mut self.intake));
    }

    /// Sends the events that wait to every node.
    pub fn flush(&mut self) {
        self.commit();
        let lines = self.pack.lines();
        if lines == 0 {
            return;
        }
        self.taken.clear();
        self.taken.extend(self.pack.datagrams().map(|_| false));
        self.outcomes.clear();
        for node in &self.nodes {
            self.outcomes.push(node.send(&self.pack, &mut self.taken));
        }
        let datagrams = self.pack.datagrams().zip(&self.taken);
        let nowhere = datagrams.filter(|(_, taken)| !**taken);
        let nowhere = nowhere.map(|((_, lines), _)| lines).sum();
        self.ledger.flushed(lines, &self.outcomes, nowhere);
        self.pack.clear();
    }

    /// Takes the first line of each reason that was sent nowhere since the last call.
    pub fn take_samples(&mut self) -> Vec<RefusedLine<Unsent>> {
        self.samples.take()
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
