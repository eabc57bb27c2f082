//! [`Forwarder`]: splits datagrams into lines, and sends each kind where it belongs.
//!
//! Events go into the open [`Pack`], which goes to every node when it is full or [`Forwarder::flush`] is called. All other lines go
//! the way of [`Passthrough`]: a datagram without events as it came. A datagram that has passed too many relays goes no
//! further. A forwarder reads no clock and never waits.

use std::net::SocketAddr;
use std::sync::Arc;

use super::ledger::Intake;
use super::pack::{HOPS_MAX, hops};
use super::passthrough_line::{check_end, check_passthrough_line};
use super::passthrough_loop::PassthroughLoop;
use super::{Kind, Ledger, LedgerTotals, Loss, Outlet, Pack, Passthrough, Place, Sorter};
use crate::diagnosis::Cause;
use crate::event::datagram::{Piece, pieces};
use crate::event::{Precision, Rejection};
use crate::ingest::{ArrivalStamps, Received, beginning};
use crate::node::{Refusal, RefusedLine, Samples};

/// The number of relays, and of nanoseconds between two timestamps of a relay: one for each relay.
const NUMBERS: i64 = 1000;

/// Timestamps for lines that have none. No two of a relay are equal, unless its clock was set back, so that two events of a user
/// in one datagram stay two; nor are two of relays with different numbers.
#[derive(Debug)]
pub struct Stamps {
    arrivals: ArrivalStamps,
    number: i64,
    precision: Precision,
}

impl Stamps {
    /// Returns the stamps of the relay with this number, below 1000. In another unit than nanoseconds they repeat.
    #[must_use]
    pub fn new(number: u16, precision: Precision) -> Self {
        Self { arrivals: ArrivalStamps::default(), number: i64::from(number) % NUMBERS, precision }
    }

    /// Returns a timestamp close to this time, which is in nanoseconds since the epoch.
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
    /// No node or server can read it.
    Rejected(Rejection),
    /// It is no event, and `rest.url` is `none:`.
    Discarded,
    /// It has passed too many relays.
    Looped,
}

impl Unsent {
    /// Returns the number of lines that were sent nowhere for this reason.
    #[must_use]
    pub fn total(self, totals: &LedgerTotals) -> u64 {
        match self {
            Self::Rejected(reason) => totals.rejected[reason.index()],
            Self::Discarded => totals.passthrough.discarded(),
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

/// Forwards the lines of one reader.
#[derive(Debug)]
pub struct Forwarder {
    sorter: Sorter,
    stamps: Arc<Stamps>,
    nodes: Vec<Arc<Outlet>>,
    passthrough: Passthrough,
    passthrough_loop: PassthroughLoop,
    ledger: Arc<Ledger>,
    /// The open pack of events.
    pack: Pack,
    lines: PassthroughLines,
    /// The lines that were added since the last commit.
    intake: Intake,
    /// The first line of each reason since the last call of [`Self::take_samples`].
    samples: Samples<Unsent>,
    /// Kept for their capacity.
    outcomes: Vec<Place>,
    taken: Vec<bool>,
}

/// The passthrough lines of a datagram.
#[derive(Debug, Default)]
struct PassthroughLines {
    /// Each with its line end.
    bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
    /// The ends of those after which a server might read on.
    cuts: Vec<usize>,
}

impl Forwarder {
    /// Sends events to these nodes, packed into datagrams of at most `datagram_max` bytes, and all other lines through.
    #[must_use]
    pub fn new(
        sorter: Sorter,
        datagram_max: usize,
        stamps: Arc<Stamps>,
        nodes: Vec<Arc<Outlet>>,
        passthrough: Passthrough,
        ledger: Arc<Ledger>,
    ) -> Self {
        Self {
            sorter,
            stamps,
            nodes,
            passthrough,
            passthrough_loop: PassthroughLoop::default(),
            ledger,
            pack: Pack::new(datagram_max),
            lines: PassthroughLines::default(),
            intake: Intake::default(),
            samples: Samples::default(),
            outcomes: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Adds the lines of a datagram that arrived at this time, in nanoseconds since the epoch.
    pub fn add(&mut self, datagram: Received<'_>, now_nanos: i64) {
        let Received { bytes, truncated, source } = datagram;
        let source = source.address();
        let hops = hops(bytes);
        if hops >= HOPS_MAX {
            self.intake.looped += pieces(bytes, truncated).count() as u64;
            self.show(Unsent::Looped, source, bytes);
            return;
        }
        self.lines.bytes.clear();
        self.lines.ends.clear();
        self.lines.cuts.clear();
        let mut count = 0;
        for piece in pieces(bytes, truncated) {
            count += 1;
            let (line, kind) = match piece {
                Piece::Line(line) => (line, self.sort(line)),
                Piece::Truncated => (bytes, Kind::Rejected(Rejection::Truncated)),
            };
            match kind {
                Kind::Event { has_time } => {
                    let stamp = (!has_time).then(|| self.stamps.stamp(now_nanos));
                    if !self.pack.add(line, stamp, hops) {
                        self.flush();
                        self.pack.add(line, stamp, hops);
                    }
                    self.intake.events += 1;
                }
                Kind::Passthrough => {
                    let lines = &mut self.lines;
                    lines.bytes.extend_from_slice(line);
                    lines.bytes.push(b'\n');
                    lines.ends.push(lines.bytes.len());
                    match &self.passthrough {
                        Passthrough::Nowhere => self.show(Unsent::Discarded, source, line),
                        Passthrough::Udp(_) if check_end(line).is_err() => {
                            lines.cuts.push(lines.bytes.len());
                        }
                        Passthrough::Udp(_) | Passthrough::Server(_) => {}
                    }
                }
                Kind::Rejected(reason) => {
                    self.intake.rejected[reason.index()] += 1;
                    self.show(Unsent::Rejected(reason), source, line);
                }
            }
        }
        let is_whole = count == self.lines.ends.len();
        if !self.lines.ends.is_empty() || is_whole && !bytes.is_empty() {
            self.pass_through(is_whole.then_some(bytes));
        }
    }

    /// Sorts a line. A server gets no line that might take the next one along.
    fn sort(&mut self, line: &[u8]) -> Kind {
        match (self.sorter.sort(line), &self.passthrough) {
            (Kind::Passthrough, Passthrough::Server(_)) => match check_passthrough_line(line) {
                Ok(()) => Kind::Passthrough,
                Err(reason) => Kind::Rejected(reason),
            },
            (kind, _) => kind,
        }
    }

    fn show(&mut self, reason: Unsent, source: Option<SocketAddr>, line: &[u8]) {
        self.samples.add(reason, source, || beginning(line).to_string());
    }

    /// Sends the passthrough lines; `whole` is the datagram if it has no others.
    fn pass_through(&mut self, whole: Option<&[u8]>) {
        let PassthroughLines { bytes, ends, cuts } = &self.lines;
        let count = ends.len() as u64;
        let place = &mut self.intake.passthrough;
        match &self.passthrough {
            Passthrough::Nowhere => place.dropped[Loss::Discarded as usize] += count,
            Passthrough::Udp(outlet) => {
                if whole.is_some_and(|whole| self.passthrough_loop.is_probe(whole, outlet)) {
                    return;
                }
                let mut send = |datagram: &[u8], lines: u64| match outlet.send_one(datagram) {
                    Ok(()) => place.sent += lines,
                    Err(loss) => place.dropped[loss as usize] += lines,
                };
                if let Some(whole) = whole {
                    send(whole, count);
                    return;
                }
                // The line that stood between two of them may be gone: an event, or a line that was rejected.
                let mut begin = 0;
                for end in cuts.iter().copied().chain([bytes.len()]) {
                    let lines = ends.iter().filter(|at| (begin + 1..=end).contains(*at));
                    if end > begin {
                        send(&bytes[begin..end], lines.count() as u64);
                    }
                    begin = end;
                }
            }
            Passthrough::Server(_) if count == 0 => {}
            Passthrough::Server(queue) => {
                // The ledger has them before the writer has.
                place.queued += count;
                self.ledger.take_in(&std::mem::take(&mut self.intake));
                if !queue.add(bytes, ends) {
                    self.ledger.passthrough(|place| place.lose(Loss::QueueFull, count));
                }
            }
        }
    }

    /// Returns whether events wait for others.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.pack.is_empty()
    }

    /// Checks, once a second, whether passthrough lines come back.
    pub fn begin_second(&mut self) {
        if let Passthrough::Udp(outlet) = &self.passthrough {
            self.passthrough_loop.begin_second(outlet);
        }
    }

    /// Enters the lines that were added into the ledger.
    pub fn commit(&mut self) {
        self.ledger.take_in(&std::mem::take(&mut self.intake));
    }

    /// Sends the open pack to every node.
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

    /// Takes the samples of lines that were sent nowhere, each with the total of its reason.
    pub fn take_samples(&mut self) -> Vec<(RefusedLine<Unsent>, u64)> {
        let samples = self.samples.take();
        if samples.is_empty() {
            return Vec::new();
        }
        let totals = self.ledger.totals();
        let total = |sample: RefusedLine<Unsent>| {
            let total = sample.reason.total(&totals);
            (sample, total)
        };
        samples.into_iter().map(total).collect()
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
