//! [`Forwarder`]: splits datagrams into lines, and sends each kind where it belongs.
//!
//! Events go into the open [`Pack`], which goes to every node when it is full or [`Forwarder::flush`] says so. What is no
//! event goes to the [`Rest`]: a datagram with nothing else in it as it came. It reads no clock and waits for nothing.

use std::sync::Arc;

use super::ledger::Intake;
use super::{Kind, Ledger, Loss, Outlet, Pack, Place, Rest, Sorter};
use crate::event::datagram::{Piece, pieces};
use crate::event::{Precision, Rejection};
use crate::ingest::{ArrivalStamps, Received, Sample, beginning};

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
        Self {
            arrivals: ArrivalStamps::default(),
            number: i64::from(number) % NUMBERS,
            precision,
        }
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

/// See the module.
#[derive(Debug)]
pub struct Forwarder {
    sorter: Sorter,
    stamps: Arc<Stamps>,
    nodes: Vec<Arc<Outlet>>,
    rest: Rest,
    is_for_server: bool,
    ledger: Arc<Ledger>,
    /// The events that wait for others.
    pack: Pack,
    /// The lines of a datagram that are no events, with their ends; and where each ends.
    others: Vec<u8>,
    ends: Vec<usize>,
    /// What was added since the last commit.
    intake: Intake,
    sample: Option<Sample>,
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
            is_for_server: matches!(rest, Rest::Server(_)),
            rest,
            ledger,
            pack: Pack::new(datagram_max),
            others: Vec::new(),
            ends: Vec::new(),
            intake: Intake::default(),
            sample: None,
            outcomes: Vec::new(),
            taken: Vec::new(),
        }
    }

    /// Adds the lines of a datagram that arrived at this time, in nanoseconds since the epoch.
    pub fn add(&mut self, datagram: Received<'_>, now_nanos: i64) {
        let Received {
            bytes,
            truncated,
            source,
        } = datagram;
        self.others.clear();
        self.ends.clear();
        let mut lines = 0;
        for piece in pieces(bytes, truncated) {
            lines += 1;
            let (line, kind) = match piece {
                Piece::Line(line) => (line, self.sorter.sort(line)),
                Piece::Truncated => (bytes, Kind::Rejected(Rejection::Truncated)),
            };
            match kind {
                Kind::Event { has_time } => {
                    let stamp = (!has_time).then(|| self.stamps.stamp(now_nanos));
                    self.pack(line, stamp);
                }
                // Line protocol is UTF-8, and InfluxDB 1 fails at anything else.
                Kind::Rest if self.is_for_server && str::from_utf8(line).is_err() => {
                    self.intake.rest.dropped[Loss::Refused as usize] += 1;
                }
                Kind::Rest => {
                    self.others.extend_from_slice(line);
                    self.others.push(b'\n');
                    self.ends.push(self.others.len());
                }
                Kind::Rejected(reason) => {
                    self.intake.rejected[reason.index()] += 1;
                    self.sample.get_or_insert_with(|| Sample {
                        reason,
                        source: source.address(),
                        line: beginning(line).to_string(),
                    });
                }
            }
        }
        let is_whole = lines == self.ends.len();
        if !self.ends.is_empty() || is_whole && !bytes.is_empty() {
            self.pass_on(is_whole.then_some(bytes));
        }
    }

    fn pack(&mut self, line: &[u8], stamp: Option<i64>) {
        if !self.pack.add(line, stamp) {
            self.flush();
            self.pack.add(line, stamp);
        }
        self.intake.events += 1;
    }

    /// Gives the other lines to the rest; `whole` is the datagram if it has nothing else in it.
    fn pass_on(&mut self, whole: Option<&[u8]>) {
        let lines = self.ends.len() as u64;
        let place = &mut self.intake.rest;
        match &self.rest {
            Rest::Nowhere => place.sent += lines,
            Rest::Udp(outlet) => match outlet.send_one(whole.unwrap_or(&self.others)) {
                Ok(()) => place.sent += lines,
                Err(loss) => place.dropped[loss as usize] += lines,
            },
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

    /// The first rejected line since the last call.
    pub fn take_sample(&mut self) -> Option<Sample> {
        self.sample.take()
    }
}

#[cfg(test)]
#[path = "forwarder_tests.rs"]
mod tests;
