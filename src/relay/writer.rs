//! [`Queue`]: the passthrough lines for a server, and [`write_queue`]: the task that writes them. If the server does not
//! accept a piece, [`Delivery`] searches the piece for the lines at fault: rejected lines are dropped, and lines whose
//! outcome is unknown return to the end of the queue. A caller that aborts the task must count the queued lines as lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Loss, Routes};
use crate::diagnosis::Cause;
use crate::node::{Throttle, beginning, lock};
use crate::output::WriteError;
use crate::output::delivery::{Batch, Delivery, Refusal, Target};
use crate::output::server::Writer;

/// Size in bytes at which no more lines are added to a piece, i.e. a request. InfluxDB accepts up to 25 MB.
const PIECE_BYTES: usize = 512 * 1024;
const COLLECTED_FOR: Duration = Duration::from_millis(100);
/// The first and the longest pause after a failed write. The pause doubles with each failure until a write succeeds.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));
/// Maximum time to search a piece for the lines at fault. The search delays all later pieces.
const SEARCH_MAX: Duration = Duration::from_secs(4);
/// A line is dropped once writing it on its own has failed this many times while the server accepted another line each time.
const FAILURES_MAX: u32 = 3;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    /// The lines, including their line endings.
    pub(super) bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Lines {
    pub(super) fn push(&mut self, line: &[u8]) {
        self.bytes.extend_from_slice(line);
        self.bytes.push(b'\n');
        self.ends.push(self.bytes.len());
    }

    fn extend(&mut self, more: &Self) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&more.bytes);
        self.ends.extend(more.ends.iter().map(|end| begin + end));
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub(super) fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..end - 1])
    }

    /// Returns the approximate memory used, in bytes, including the positions of line endings: they matter for short lines.
    fn memory(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.ends)
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
        self.extend(&other);
    }

    /// Returns the first line with a timestamp, if any. Writing it again is harmless, because it is the same point.
    fn repeatable(&self) -> Option<Self> {
        let line = self.iter().find(|line| {
            let last = line.trim_ascii_end().rsplit(|byte| *byte == b' ').next();
            let last = last.and_then(|word| str::from_utf8(word).ok());
            last.is_some_and(|word| word.parse::<i64>().is_ok())
        })?;
        let mut lines = Self::default();
        lines.push(line);
        Some(lines)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pieces: Mutex<Pieces>,
    bytes_max: usize,
    filled: Notify,
    is_down: AtomicBool,
}

#[derive(Debug, Default)]
struct Pieces {
    pieces: VecDeque<Lines>,
    bytes: usize,
}

impl Queue {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self { bytes_max, ..Self::default() }
    }

    pub(super) fn is_up(&self) -> bool {
        !self.is_down.load(Ordering::Relaxed)
    }

    /// Adds lines if there is room for them, and returns whether there was. An empty queue always has room.
    pub(super) fn add(&self, lines: &Lines) -> bool {
        let mut queue = lock(&self.pieces);
        let more = lines.memory();
        if queue.bytes > 0 && queue.bytes + more > self.bytes_max {
            return false;
        }
        queue.bytes += more;
        match queue.pieces.back_mut() {
            Some(piece) if piece.bytes.len() < PIECE_BYTES => piece.extend(lines),
            _ => queue.pieces.push_back(lines.clone()),
        }
        drop(queue);
        self.filled.notify_one();
        true
    }

    fn put_back(&self, lines: Lines) {
        let mut queue = lock(&self.pieces);
        queue.bytes += lines.memory();
        queue.pieces.push_back(lines);
    }

    async fn filled(&self) {
        while lock(&self.pieces).pieces.is_empty() {
            self.filled.notified().await;
        }
    }

    pub(super) fn take(&self) -> Option<Lines> {
        let mut queue = lock(&self.pieces);
        let piece = queue.pieces.pop_front()?;
        queue.bytes -= piece.memory();
        Some(piece)
    }
}

impl Target for Writer {
    type Batch = Lines;

    async fn write(&self, batch: &Lines) -> Result<(), WriteError> {
        self.write(batch.bytes.clone()).await
    }

    /// Returns `None`, because a relay has no measurement to write a probe to.
    async fn probe(&self) -> Option<Result<(), WriteError>> {
        None
    }
}

pub(crate) async fn write_queue(
    queue: Arc<Queue>,
    server: Writer,
    routes: Arc<Routes>,
    stop: CancellationToken,
) {
    let heartbeat = routes.progress.watch("the passthrough writer");
    let [mut failure_due, mut refusal_due] = [(); 2].map(|()| Throttle::default());
    // The last line with a timestamp that the server has accepted. It can be written again to test the server.
    let mut last = None;
    let mut pause = PAUSES.0;
    loop {
        let filled = stop.run_until_cancelled(heartbeat.during(queue.filled())).await;
        if filled.is_some() && lock(&queue.pieces).bytes < PIECE_BYTES {
            stop.run_until_cancelled(tokio::time::sleep(COLLECTED_FOR)).await;
        }
        let Some(piece) = queue.take() else {
            if stop.is_cancelled() {
                return;
            }
            continue;
        };
        let mut delivery = Delivery::new(&server, last.take());
        let result = heartbeat.during(deliver(&mut delivery, piece)).await;
        last = delivery.last.take();
        lock(&routes.ledger).passthrough.sent += delivery.written.count();
        let mut failing = std::mem::take(&mut delivery.failing);
        if result.is_err() {
            failing.drain(..).for_each(|refusal| queue.put_back(refusal.item));
        }
        for Refusal { item, message } in delivery.refused().iter().chain(&failing) {
            lock(&routes.ledger).passthrough.lose(Loss::Refused, item.count());
            if refusal_due.is_due() {
                tracing::error!(
                    server = server.describe(),
                    lines = item.len(),
                    line = %beginning(item.iter().next().unwrap_or_default()),
                    message,
                    "the server in passthrough.url rejected passthrough lines, which are dropped and counted"
                );
            }
        }
        if delivery.has_accepted {
            pause = PAUSES.0;
        }
        delivery.into_unsettled().for_each(|lines| queue.put_back(lines));
        queue.is_down.store(result.is_err(), Ordering::Relaxed);
        let Err(error) = result else {
            continue;
        };
        if failure_due.is_due() {
            let found = error.found();
            tracing::warn!(
                server = server.describe(),
                reason = found.why,
                "{} to the server in passthrough.url; lines are queued up to passthrough.queue_bytes, and then dropped; {}",
                Cause::RelayPassthroughDown.what(),
                found.remedy.replace("output.", "passthrough.")
            );
        }
        if let WriteError::Unavailable { retry_after: Some(wanted), .. } = error {
            pause = pause.max(wanted);
        }
        heartbeat.during(tokio::time::sleep(pause)).await;
        pause = PAUSES.1.min(pause * 2);
    }
}

/// Writes a piece. If the server does not accept it, finds the lines at fault and leaves them in `delivery.failing`.
async fn deliver(delivery: &mut Delivery<'_, Writer>, piece: Lines) -> Result<(), WriteError> {
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
    // The server may have gone down since the search, in which case the lines are not at fault.
    if delivery.failing.is_empty() { Ok(()) } else { delivery.prove().await }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[&str]) -> Lines {
        let mut all = Lines::default();
        for line in lines {
            all.push(line.as_bytes());
        }
        all
    }

    #[test]
    fn queue_collects_lines_in_order_and_refuses_those_without_room() {
        // Seven bytes in three lines, eight bytes per line for the position of its end, and room for 14 more bytes.
        let queue = Queue::new(7 + 3 * 8 + 14);
        assert!(queue.add(&lines(&["a", "bc"])) && queue.add(&lines(&["d"])));
        assert!(!queue.add(&lines(&["efghij"])), "it has 14 bytes of room");
        assert_eq!(queue.take(), Some(lines(&["a", "bc", "d"])));
        assert_eq!(queue.take(), None);
        assert!(queue.add(&lines(&[&"x".repeat(60)])), "an empty queue has room");
        assert!(!queue.add(&lines(&["a"])));
    }

    #[test]
    fn a_line_with_a_timestamp_can_be_repeated() {
        for (all, expected) in [
            (lines(&["a b=1", "c d=1 5", "e f=1 6"]), Some(lines(&["c d=1 5"]))),
            (lines(&["a b=1"]), None),
            (lines(&["a b=\"x\n5\""]), None),
        ] {
            assert_eq!(all.repeatable(), expected);
        }
    }

    #[test]
    fn lines_are_split_at_their_ends() {
        // A line with a line ending inside a quoted field.
        let mut first = lines(&["a=\"\n\"", "b", "c"]);
        let mut b = first.split_off(1);
        let c = b.split_off(1);
        assert_eq!((first.len(), &first.bytes[..]), (1, &b"a=\"\n\"\n"[..]));
        assert_eq!((&b.bytes[..], &c.bytes[..]), (&b"b\n"[..], &b"c\n"[..]));
        first.append(b);
        first.append(c);
        assert_eq!(Batch::take(&mut first, 1).bytes, b"b\n");
        assert_eq!(first, lines(&["a=\"\n\"", "c"]));
    }
}
