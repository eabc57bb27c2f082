//! [`Pack`]: joins lines into datagrams of equal length, padded with line feeds, so that the kernel can split a buffer into
//! them (`UDP_SEGMENT`). To detect loops, each starts with a comment: the number of relays its lines have passed through.

/// Maximum size of a buffer that the kernel splits: 65,535 bytes minus the IPv6 and UDP headers.
const BYTES_MAX: usize = 65_535 - 48;
/// Maximum number of datagrams that every kernel with `UDP_SEGMENT` can split from one buffer.
const DATAGRAMS_MAX: usize = 64;
/// The UTF-8 byte order mark, which nodes skip at the start of a line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();
/// The start of every datagram sent by a relay, followed by a digit and a line feed.
const PASSED: &[u8] = b"#eds-relay ";
const HEAD: usize = PASSED.len() + 2;
/// A datagram that has passed through this many relays is not forwarded.
pub(super) const HOPS_MAX: u8 = 4;
/// Lines that have passed through at most this many relays may share a datagram. Other lines only share one with lines that
/// have passed through the same number, so that new lines are not dropped together with lines that have been looping.
const HOPS_MIXED_MAX: u8 = 1;

/// Returns the number of relays that the lines in a datagram have passed through; 0 if it does not come from a relay.
#[must_use]
pub fn hops(datagram: &[u8]) -> u8 {
    match datagram.strip_prefix(PASSED) {
        Some([digit @ b'1'..=b'9', b'\n', ..]) => digit - b'0',
        _ => 0,
    }
}

/// Lines joined into datagrams that are sent together.
#[derive(Debug)]
pub struct Pack {
    bytes: Vec<u8>,
    datagram_max: usize,
    count_max: usize,
    lines: Vec<u64>,
    /// The largest number of relays that any of the lines has passed through.
    hops: u8,
    /// The control message that makes the kernel split the bytes into datagrams.
    pub(super) control: Vec<u8>,
}

fn control(datagram_max: usize) -> Vec<u8> {
    const UDP_SEGMENT: i32 = 103;
    let data = u16::try_from(datagram_max).unwrap_or(u16::MAX).to_ne_bytes();
    let length = size_of::<usize>() + 2 * size_of::<i32>() + data.len();
    let level = libc::IPPROTO_UDP.to_ne_bytes();
    [&length.to_ne_bytes()[..], &level, &UDP_SEGMENT.to_ne_bytes(), &data].concat()
}

impl Pack {
    /// Creates an empty pack whose datagrams have at most `datagram_max` bytes, unless a single line is longer.
    #[must_use]
    pub fn new(datagram_max: usize) -> Self {
        let count_max = (BYTES_MAX / datagram_max.max(1)).clamp(1, DATAGRAMS_MAX);
        Self {
            bytes: Vec::with_capacity(count_max * datagram_max),
            datagram_max,
            count_max,
            lines: Vec::with_capacity(count_max),
            hops: 0,
            control: control(datagram_max),
        }
    }

    /// Adds a line that passed through `hops` (up to 8) relays, and its `stamp`. Returns false if a non-empty pack is full.
    pub fn add(&mut self, line: &[u8], stamp: Option<i64>, hops: u8) -> bool {
        if hops != self.hops && !self.is_empty() {
            if hops.max(self.hops) > HOPS_MIXED_MAX {
                return false;
            }
            self.hops = self.hops.max(hops);
            for datagram in 0..self.lines.len() {
                self.bytes[datagram * self.datagram_max + PASSED.len()] = b'1' + self.hops;
            }
        }
        let mark = if line.starts_with(BYTE_ORDER_MARK) { BYTE_ORDER_MARK } else { b"" };
        let mut digits = itoa::Buffer::new();
        let (space, stamp) = stamp.map_or(("", ""), |stamp| (" ", digits.format(stamp)));
        let parts = [mark, line, space.as_bytes(), stamp.as_bytes()];
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let end = self.lines.len() * self.datagram_max;
        let is_whole = self.bytes.len() <= end;
        if let Some(lines) = self.lines.last_mut()
            && self.bytes.len() + 1 + length <= end
        {
            *lines += 1;
            self.bytes.push(b'\n');
        } else if self.is_empty()
            || (HEAD + length <= self.datagram_max && self.lines.len() < self.count_max && is_whole)
        {
            self.bytes.resize(end, b'\n');
            if self.is_empty() {
                self.hops = hops;
            }
            self.bytes.extend_from_slice(PASSED);
            self.bytes.extend_from_slice(&[b'1' + self.hops, b'\n']);
            self.lines.push(1);
        } else {
            return false;
        }
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        true
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    pub(super) fn lines(&self) -> u64 {
        self.lines.iter().sum()
    }

    /// Returns the bytes of all datagrams, and the length of each datagram except the last, which may be shorter.
    pub(super) fn whole(&self) -> (&[u8], usize) {
        let is_one = self.lines.len() <= 1;
        let length = if is_one { self.bytes.len() } else { self.datagram_max };
        (&self.bytes, length)
    }

    /// Returns the datagrams, each with the number of lines in it.
    pub fn datagrams(&self) -> impl Iterator<Item = (&[u8], u64)> {
        let (bytes, length) = self.whole();
        let datagrams = bytes.chunks(length.max(1));
        datagrams.zip(self.lines.iter().copied())
    }

    /// Removes all lines.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.lines.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pack: &Pack, hops: u8, expected: &[(&str, u64)]) {
        let found: Vec<_> = pack.datagrams().collect();
        let head = format!("#eds-relay {hops}\n");
        let expected: Vec<_> = expected.iter().map(|(text, n)| (head.clone() + text, *n)).collect();
        let expected: Vec<_> = expected.iter().map(|(text, n)| (text.as_bytes(), *n)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn lines_are_joined_up_to_the_length_and_padded_to_it() {
        let mut pack = Pack::new(HEAD + 10);
        assert!(pack.is_empty());
        for line in ["a=1", "b=22", "c=3", "d"] {
            assert!(pack.add(line.as_bytes(), None, 0));
        }
        check(&pack, 1, &[("a=1\nb=22\n\n", 2), ("c=3\nd", 2)]);
        assert_eq!(pack.lines(), 4);
        pack.clear();
        assert!(pack.add(b"0123456789", None, 0) && pack.add(b"x", Some(-5), 0));
        check(&pack, 1, &[("0123456789", 1), ("x -5", 1)]);
    }

    #[test]
    fn long_line_is_packed_alone() {
        let mut pack = Pack::new(HEAD + 8);
        assert!(pack.add(b"a", None, 0));
        assert!(!pack.add(b"much too long", None, 0));
        check(&pack, 1, &[("a", 1)]);
        pack.clear();
        assert!(pack.add(b"too long", Some(7), 0), "with its timestamp");
        check(&pack, 1, &[("too long 7", 1)]);
        assert!(!pack.add(b"a", None, 0));
    }

    #[test]
    fn pack_is_limited_to_the_segments_of_the_kernel() {
        for (length, most) in [(1432, 45), (65_536, 1), (64, 64)] {
            let mut pack = Pack::new(length);
            let line = vec![b'x'; length - HEAD];
            let added =
                std::iter::repeat_with(|| pack.add(&line, None, 0)).take_while(|added| *added);
            assert_eq!(added.count(), most, "{length}");
            assert!(pack.whole().0.len() <= 65_536);
        }
    }

    /// A node skips one byte order mark, so the line must be sent with an additional one.
    #[test]
    fn a_line_that_begins_with_a_byte_order_mark_keeps_it() {
        let mut pack = Pack::new(100);
        pack.add("\u{feff}a=b value=u 5".as_bytes(), None, 0);
        check(&pack, 1, &[("\u{feff}\u{feff}a=b value=u 5", 1)]);
    }

    #[test]
    fn datagram_says_how_many_relays_its_lines_have_passed() {
        let mut pack = Pack::new(HEAD + 3);
        assert!(
            pack.add(b"a=1", None, 0) && pack.add(b"b=2", None, 1) && pack.add(b"c=3", None, 0)
        );
        check(&pack, 2, &[("a=1", 1), ("b=2", 1), ("c=3", 1)]);
        assert!(!pack.add(b"d=4", None, 2), "the line may be circulating between relays");
        pack.clear();
        assert!(pack.add(b"d=4", None, 2) && !pack.add(b"e=5", None, 0));
        check(&pack, 3, &[("d=4", 1)]);
        let counted = pack.datagrams().map(|(datagram, _)| hops(datagram));
        assert_eq!(counted.collect::<Vec<_>>(), [3]);
        for datagram in ["", "#eds-relay ", "#eds-relay x\n", "#eds-relay 12\n", "a=b value=u"] {
            assert_eq!(hops(datagram.as_bytes()), 0, "{datagram:?}");
        }
    }
}
