//! [`Queue`]: lines that wait for the server of the rest, in the pieces in which they are written. Bounded.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// A piece of so many bytes takes no more lines. InfluxDB takes bodies of 25 MB.
pub(super) const PIECE_BYTES: usize = 512 * 1024;

/// Lines that are written by one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lines {
    /// Each with its end.
    pub(super) bytes: Vec<u8>,
    /// Where each ends.
    ends: Vec<usize>,
}

impl Lines {
    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.ends.len() as u64
    }

    fn add(&mut self, bytes: &[u8], ends: &[usize]) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.ends.extend(ends.iter().map(|end| begin + end));
    }

    /// The first line that is the same point whenever it is written: one with a timestamp.
    pub(super) fn repeatable(&self) -> Option<Self> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        let mut lines = begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end]);
        let line = lines.find(|line| {
            let words = line.trim_ascii_end().rsplit(|byte| *byte == b' ');
            let last = words.take(1).find_map(|word| str::from_utf8(word).ok());
            last.is_some_and(|word| word.parse::<i64>().is_ok())
        })?;
        Some(Self { bytes: line.to_vec(), ends: vec![line.len()] })
    }

    /// The first half and the second; `None` for a single line.
    pub(super) fn halves(&self) -> Option<[Self; 2]> {
        let (first, second) = self.ends.split_at(self.ends.len() / 2);
        let middle = *first.last()?;
        let (bytes, rest) = self.bytes.split_at(middle);
        let moved = second.iter().map(|end| end - middle).collect();
        Some(
            [(bytes, first.to_vec()), (rest, moved)]
                .map(|(bytes, ends)| Self { bytes: bytes.to_vec(), ends }),
        )
    }
}

/// The memory of lines, about: many are short.
const fn size(bytes: &[u8], ends: &[usize]) -> usize {
    bytes.len() + size_of_val(ends)
}

/// See the module.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    bytes_max: usize,
    filled: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    pieces: VecDeque<Lines>,
    bytes: usize,
}

impl Queue {
    /// A queue of lines that take so many bytes at most.
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self { waiting: Mutex::default(), bytes_max, filled: Notify::new() }
    }

    /// Adds lines, each with its end at one of these places. Answers whether there was room; where nothing waits there is.
    pub(super) fn add(&self, bytes: &[u8], ends: &[usize]) -> bool {
        let mut waiting = self.lock();
        let more = size(bytes, ends);
        if waiting.bytes > 0 && waiting.bytes + more > self.bytes_max {
            return false;
        }
        waiting.bytes += more;
        match waiting.pieces.back_mut() {
            Some(piece) if piece.bytes.len() < PIECE_BYTES => piece.add(bytes, ends),
            _ => {
                let mut piece = Lines::default();
                piece.add(bytes, ends);
                waiting.pieces.push_back(piece);
            }
        }
        drop(waiting);
        self.filled.notify_one();
        true
    }

    /// Puts lines back that were taken, behind all others.
    pub(super) fn put_back(&self, lines: Lines) {
        let mut waiting = self.lock();
        waiting.bytes += size(&lines.bytes, &lines.ends);
        waiting.pieces.push_back(lines);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Waits until there is a line.
    pub(super) async fn filled(&self) {
        while self.lock().pieces.is_empty() {
            self.filled.notified().await;
        }
    }

    /// Whether there is enough for a large write.
    pub(super) fn is_large(&self) -> bool {
        self.lock().bytes >= PIECE_BYTES
    }

    /// Takes the first piece out.
    pub(super) fn take(&self) -> Option<Lines> {
        let mut waiting = self.lock();
        let piece = waiting.pieces.pop_front()?;
        waiting.bytes -= size(&piece.bytes, &piece.ends);
        Some(piece)
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
        assert_eq!((piece.count(), &piece.bytes[..]), (3, &b"a\nbc\nd\n"[..]));
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
            let found = found.map(|line| (line.count(), line.bytes));
            assert_eq!(found, expected.map(|line| (1, line.as_bytes().to_vec())));
        }
    }

    #[test]
    fn halves_are_whole_lines() {
        let queue = Queue::new(100);
        // A line with a line end in a quoted field.
        queue.add(b"a=\"\n\"\nb\nc\n", &[6, 8, 10]);
        let [first, second] = queue.take().unwrap().halves().unwrap();
        assert_eq!((first.count(), &first.bytes[..]), (1, &b"a=\"\n\"\n"[..]));
        let [b, c] = second.halves().unwrap();
        assert_eq!((&b.bytes[..], &c.bytes[..]), (&b"b\n"[..], &b"c\n"[..]));
        assert_eq!(b.halves(), None);
    }
}
