//! [`Pack`]: lines of many datagrams in few.
//!
//! All datagrams of a pack but the last have one length, padded by line ends, which make empty lines: so the kernel can cut
//! them from one buffer (`UDP_SEGMENT`). A line that is longer than a datagram has a pack of its own, as it is.

use std::io::Write;

/// The most bytes that the kernel cuts at a time, less the headers of IPv6.
const BYTES_MAX: usize = 65_535 - 48;
/// The most datagrams that every kernel with `UDP_SEGMENT` cuts at a time.
const DATAGRAMS_MAX: usize = 64;
/// A node leaves out one at the beginning of a line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// See the module.
#[derive(Debug)]
pub struct Pack {
    bytes: Vec<u8>,
    datagram_max: usize,
    count_max: usize,
    /// How many lines are in each datagram.
    lines: Vec<u64>,
    /// The timestamp of the line that is added, with a space before it.
    stamp: Vec<u8>,
}

impl Pack {
    /// A pack of no lines, for datagrams of at most so many bytes.
    #[must_use]
    pub fn new(datagram_max: usize) -> Self {
        let count_max = (BYTES_MAX / datagram_max.max(1)).clamp(1, DATAGRAMS_MAX);
        Self {
            bytes: Vec::with_capacity(count_max * datagram_max),
            datagram_max,
            count_max,
            lines: Vec::with_capacity(count_max),
            stamp: Vec::new(),
        }
    }

    /// Adds a line, with this timestamp behind it. Answers whether there was room; in an empty pack there is.
    pub fn add(&mut self, line: &[u8], stamp: Option<i64>) -> bool {
        self.stamp.clear();
        if let Some(stamp) = stamp {
            // Writing to a vector does not fail.
            let _ = write!(self.stamp, " {stamp}");
        }
        let mark = if line.starts_with(BYTE_ORDER_MARK) {
            BYTE_ORDER_MARK
        } else {
            b""
        };
        let length = mark.len() + line.len() + self.stamp.len();
        let end = self.lines.len() * self.datagram_max;
        let is_whole = self.bytes.len() <= end;
        if let Some(lines) = self.lines.last_mut()
            && self.bytes.len() + 1 + length <= end
        {
            *lines += 1;
            self.bytes.push(b'\n');
        } else if self.is_empty()
            || (length <= self.datagram_max && self.lines.len() < self.count_max && is_whole)
        {
            // One that is too long for a datagram is alone in its pack.
            self.bytes.resize(end, b'\n');
            self.lines.push(1);
        } else {
            return false;
        }
        for part in [mark, line, &self.stamp] {
            self.bytes.extend_from_slice(part);
        }
        true
    }

    /// Whether there is no line in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The number of lines.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.iter().sum()
    }

    /// All of it, and the length of each datagram but the last.
    pub(super) fn whole(&self) -> (&[u8], usize) {
        let is_one = self.lines.len() <= 1;
        let length = if is_one {
            self.bytes.len()
        } else {
            self.datagram_max
        };
        (&self.bytes, length)
    }

    /// The datagrams, each with the number of its lines.
    pub fn datagrams(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let (bytes, length) = self.whole();
        let datagrams = bytes.chunks(length.max(1));
        datagrams.zip(self.lines.iter().copied())
    }

    /// Takes all lines out.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pack: &Pack, expected: &[(&str, u64)]) {
        let found: Vec<_> = pack.datagrams().collect();
        let expected: Vec<_> = expected
            .iter()
            .map(|(text, n)| (text.as_bytes(), *n))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_joined_up_to_the_length_and_padded_to_it() {
        let mut pack = Pack::new(10);
        assert!(pack.is_empty());
        for line in ["a=1", "b=22", "c=3", "d"] {
            assert!(pack.add(line.as_bytes(), None));
        }
        check(&pack, &[("a=1\nb=22\n\n", 2), ("c=3\nd", 2)]);
        assert_eq!(pack.lines(), 4);
        pack.clear();
        assert!(pack.add(b"0123456789", None) && pack.add(b"x", Some(-5)));
        check(&pack, &[("0123456789", 1), ("x -5", 1)]);
    }

    #[test]
    fn a_line_that_is_too_long_for_a_datagram_goes_alone() {
        let mut pack = Pack::new(8);
        assert!(pack.add(b"a", None));
        assert!(!pack.add(b"much too long", None));
        check(&pack, &[("a", 1)]);
        pack.clear();
        assert!(pack.add(b"too long", Some(7)), "with its timestamp");
        check(&pack, &[("too long 7", 1)]);
        assert!(!pack.add(b"a", None));
    }

    #[test]
    fn a_full_pack_takes_no_more_than_the_kernel_cuts_at_once() {
        for (length, most) in [(1432, 45), (65_536, 1), (64, 64)] {
            let mut pack = Pack::new(length);
            let line = vec![b'x'; length - 1];
            let added = std::iter::repeat_with(|| pack.add(&line, None)).take_while(|added| *added);
            assert_eq!(added.count(), most, "{length}");
            assert!(pack.whole().0.len() <= 65_536);
        }
    }

    /// A node leaves out one mark, so the line must come with another.
    #[test]
    fn a_line_that_begins_with_a_byte_order_mark_keeps_it() {
        let mut pack = Pack::new(100);
        pack.add("\u{feff}a=b value=u 5".as_bytes(), None);
        check(&pack, &[("\u{feff}\u{feff}a=b value=u 5", 1)]);
    }
}
