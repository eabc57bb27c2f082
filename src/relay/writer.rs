//! [`Queue`]: passthrough lines that wait for a server, and [`Writer`]: the task that writes them.
//!
//! The writer gathers lines for a moment, writes a piece, and tries again until the server accepts it, after growing pauses.
//! A line may be at fault, and must cost neither those in the same piece nor later ones, so a piece that is not accepted is
//! searched ([`Delivery`]). Lines that the server refuses, or fails at repeatedly, are dropped and counted. Lines whose fate is
//! unknown go behind the others in the queue. After `stop` is cancelled it writes the queue and ends when that is empty; a caller
//! that ends it before counts the queue as lost.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Ledger, Loss};
use crate::diagnosis::Cause;
use crate::ingest::beginning;
use crate::node::{Heartbeat, Throttle};
use crate::output::WriteError;
use crate::output::delivery::{Batch, Delivery, Refusal, Target};
use crate::output::influxdb::LineWriter;

/// A piece of this many bytes takes no more lines. InfluxDB takes bodies of 25 MB.
const PIECE_BYTES: usize = 512 * 1024;
/// How long lines are gathered before they are written.
const GATHERED_FOR: Duration = Duration::from_millis(100);
/// The first and the longest pause after a write that failed. It doubles until the server accepts one.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// The longest search for the lines at fault in a piece, which delays later pieces.
const SEARCH_MAX: Duration = Duration::from_secs(4);
/// A line is dropped after the server failed at it alone this many times, and accepted another line each time.
const FAILURES_MAX: u32 = 3;
/// The interval of log lines about failures, and about refusals.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Lines that are written by one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Each with its line end.
    pub(super) bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Lines {
    fn add(&mut self, bytes: &[u8], ends: &[usize]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.ends.extend(ends.iter().map(|end| begin + end));
    }
}

impl Batch for Lines {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn split_off(&mut self, at: usize) -> Self {
        let mut ends = self.ends.split_off(at);
        let begin = self.ends.last().copied().unwrap_or(0);
        for end in &mut ends {
            *end -= begin;
        }
        Self { bytes: self.bytes.split_off(begin), ends }
    }

    fn append(&mut self, other: Self) {
        self.add(&other.bytes, &other.ends);
    }

    /// A line with a timestamp is the same point whenever it is written.
    fn repeatable(&self) -> Option<Self> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let mut lines = begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end]);
        let line = lines.find(|line| {
            let last = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
            let last = last.and_then(|word| str::from_utf8(word).ok());
            last.is_some_and(|word| word.parse::<i64>().is_ok())
        })?;
        Some(Self { bytes: line.to_vec(), ends: vec![line.len()] })
    }
}

/// A bounded queue of lines, in the pieces in which they are written.
#[derive(Debug)]
pub struct Queue {
    pieces: Mutex<Pieces>,
    bytes_max: usize,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Pieces {
    pieces: VecDeque<Lines>,
    /// The approximate memory of all lines. Many are short, so their ends count.
    bytes: usize,
}

const fn memory(bytes: &[u8], ends: &[usize]) -> usize {
    bytes.len() + size_of_val(ends)
}

impl Queue {
    /// Returns a queue for lines of at most this many bytes.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { pieces: Mutex::default(), bytes_max, filled: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds lines, each with its line end at one of these places. Returns whether there was room; an empty queue has room.
    pub(super) fn add(&self, bytes: &[u8], ends: &[usize]) -> bool {
        let mut queue = self.lock();
        let more = memory(bytes, ends);
        if queue.bytes > 0 && queue.bytes + more > self.bytes_max {
            return false;
        }
        queue.bytes += more;
        match queue.pieces.back_mut() {
            Some(piece) if piece.bytes.len() < PIECE_BYTES => piece.add(bytes, ends),
            _ => queue.pieces.push_back(Lines { bytes: bytes.to_vec(), ends: ends.to_vec() }),
        }
        drop(queue);
        self.filled.notify_one();
        true
    }

    /// Puts lines back behind all others.
    fn put_back(&self, lines: Lines) {
        let mut queue = self.lock();
        queue.bytes += memory(&lines.bytes, &lines.ends);
        queue.pieces.push_back(lines);
        drop(queue);
        self.filled.notify_one();
    }

    async fn filled(&self) {
        while self.lock().pieces.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Takes the first piece.
    pub(super) fn take(&self) -> Option<Lines> {
        let mut queue = self.lock();
        let piece = queue.pieces.pop_front()?;
        queue.bytes -= memory(&piece.bytes, &piece.ends);
        Some(piece)
    }
}

/// A server of line protocol.
#[derive(Debug)]
struct Server {
    client: LineWriter,
    /// Whether it accepts lines.
    up: Gauge,
}

impl Target for Server {
    type Batch = Lines;

    async fn write(&self, batch: &Lines) -> Result<(), WriteError> {
        self.client.write(batch.bytes.clone()).await?;
        self.up.set(1);
        Ok(())
    }

    /// A relay has no measurement on the server; all are the senders'.
    async fn probe(&self) -> Option<Result<(), WriteError>> {
        None
    }
}

/// The task that writes the queue to a server.
#[derive(Debug)]
pub struct Writer {
    queue: Arc<Queue>,
    server: Server,
    ledger: Arc<Ledger>,
    heartbeat: Heartbeat,
    stop: CancellationToken,
    /// The line with a timestamp that the server accepted last.
    last: Option<Lines>,
    /// The pause after the next write that fails.
    pause: Duration,
    fails_logged: Throttle,
    refuses_logged: Throttle,
}

impl Writer {
    /// Writes the lines of the queue to the server, and counts them in the ledger; sets `up` to whether the server accepts any.
    #[must_use]
    pub fn new(
        queue: Arc<Queue>,
        server: LineWriter,
        ledger: Arc<Ledger>,
        up: Gauge,
        heartbeat: Heartbeat,
        stop: CancellationToken,
    ) -> Self {
        Self {
            queue,
            server: Server { client: server, up },
            ledger,
            heartbeat,
            stop,
            last: None,
            pause: PAUSES.0,
            fails_logged: Throttle::new(LOG_INTERVAL),
            refuses_logged: Throttle::new(LOG_INTERVAL),
        }
    }

    /// Writes until it is stopped and the queue is empty.
    pub async fn run(mut self) {
        loop {
            let filled = self.heartbeat.during(self.queue.filled());
            let filled = self.stop.run_until_cancelled(filled).await;
            if filled.is_some() && self.queue.lock().bytes < PIECE_BYTES {
                let gathered = tokio::time::sleep(GATHERED_FOR);
                self.stop.run_until_cancelled(gathered).await;
            }
            match self.queue.take() {
                Some(piece) => self.write(piece).await,
                None if self.stop.is_cancelled() => return,
                None => {}
            }
        }
    }

    /// Writes a piece, searches it if it is not accepted, and pauses if the server accepts nothing.
    async fn write(&mut self, piece: Lines) {
        let mut delivery = Delivery::new(&self.server, self.last.take());
        let result = self.heartbeat.during(deliver(&mut delivery, piece)).await;
        self.last = delivery.last.take();
        self.ledger.passthrough(|place| place.send(delivery.written.len() as u64));
        let mut failing = std::mem::take(&mut delivery.failing);
        if result.is_err() {
            failing.drain(..).for_each(|refusal| self.queue.put_back(refusal.item));
        }
        for Refusal { item, message } in delivery.refused().iter().chain(&failing) {
            self.ledger.passthrough(|place| place.lose(Loss::Refused, item.len() as u64));
            if self.refuses_logged.is_due() {
                let line = item.bytes.split(|byte| *byte == b'\n').next();
                tracing::error!(
                    server = self.server.client.describe(),
                    lines = item.len(),
                    line = %beginning(line.unwrap_or_default()),
                    message,
                    "the server of rest.url refuses lines that are no events; they are dropped, and counted"
                );
            }
        }
        if delivery.has_accepted {
            self.pause = PAUSES.0;
        }
        delivery.into_unsettled().for_each(|lines| self.queue.put_back(lines));
        if let Err(error) = result {
            self.wait(&error).await;
        }
    }

    /// Waits before the next write.
    async fn wait(&mut self, error: &WriteError) {
        self.server.up.set(0);
        let found = error.found();
        if self.fails_logged.is_due() {
            tracing::warn!(
                server = self.server.client.describe(),
                reason = found.why,
                "{} to the server of rest.url, which takes no lines: they wait, up to rest.queue_bytes, and are then dropped; {}",
                Cause::RelayRestDown.what(),
                found.remedy.replace("output.", "rest.")
            );
        }
        if let WriteError::Unavailable { retry_after: Some(wanted), .. } = error {
            self.pause = self.pause.max(*wanted);
        }
        self.heartbeat.during(tokio::time::sleep(self.pause)).await;
        self.pause = PAUSES.1.min(self.pause * 2);
    }
}

/// Writes a piece and searches it if it is not accepted. On `Ok` the server has failed repeatedly at the remaining failing lines.
async fn deliver(delivery: &mut Delivery<'_, Server>, piece: Lines) -> Result<(), WriteError> {
    if let Some(piece) = delivery.write(piece).await? {
        delivery.written = piece;
        return Ok(());
    }
    delivery.search(Instant::now() + SEARCH_MAX, rand::random()).await?;
    for _ in 1..FAILURES_MAX {
        for Refusal { item, .. } in std::mem::take(&mut delivery.failing) {
            if let Some(accepted) = delivery.write(item).await? {
                delivery.written.append(accepted);
            }
        }
    }
    // The server may accept nothing by now.
    if delivery.failing.is_empty() { Ok(()) } else { delivery.prove().await }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_gathered_in_order_and_what_has_no_room_is_refused() {
        // Seven bytes in three lines, each with eight for its end.
        let queue = Queue::new(7 + 3 * 8 + 14);
        assert!(queue.add(b"a\nbc\n", &[2, 5]) && queue.add(b"d\n", &[2]));
        assert!(!queue.add(b"efghij\n", &[7]), "it has 14 bytes of room");
        let piece = queue.take().unwrap();
        assert_eq!((piece.len(), &piece.bytes[..]), (3, &b"a\nbc\nd\n"[..]));
        assert_eq!(queue.take(), None);
        assert!(queue.add(&[b'x'; 60], &[60]), "nothing waits");
        assert!(!queue.add(b"a\n", &[2]));
    }

    #[test]
    fn a_line_with_a_timestamp_can_be_repeated() {
        for (text, ends, expected) in [
            ("a b=1\nc d=1 5\ne f=1 6\n", vec![6, 14, 22], Some("c d=1 5\n")),
            ("a b=1\n", vec![6], None),
            ("a b=\"x\n5\"\n", vec![10], None),
        ] {
            let queue = Queue::new(100);
            queue.add(text.as_bytes(), &ends);
            let found = queue.take().unwrap().repeatable();
            let found = found.map(|line| (line.len(), line.bytes));
            assert_eq!(found, expected.map(|line| (1, line.as_bytes().to_vec())));
        }
    }

    #[test]
    fn lines_are_split_at_their_ends() {
        let queue = Queue::new(100);
        // A line with a line end in a quoted field.
        queue.add(b"a=\"\n\"\nb\nc\n", &[6, 8, 10]);
        let mut first = queue.take().unwrap();
        let mut b = first.split_off(1);
        let c = b.split_off(1);
        assert_eq!((first.len(), &first.bytes[..]), (1, &b"a=\"\n\"\n"[..]));
        assert_eq!((&b.bytes[..], &c.bytes[..]), (&b"b\n"[..], &b"c\n"[..]));
        first.append(b);
        first.append(c);
        assert_eq!(first.take(1).bytes, b"b\n");
        assert_eq!((&first.bytes[..], &first.ends[..]), (&b"a=\"\n\"\nc\n"[..], &[6, 8][..]));
    }
}
