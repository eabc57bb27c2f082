//! Packs lines into datagrams.

use std::num::NonZeroUsize;

/// Maximum length of a datagram with several lines, in bytes. With all headers, it fits in the 1500-byte Ethernet MTU.
pub(super) const BYTES_MAX: usize = 1_400;
/// Maximum length of a line that fits in a datagram, in bytes (UDP over IPv4).
pub(super) const LINE_BYTES_MAX: usize = 65_507;

#[derive(Debug)]
pub(super) struct Datagram {
    pub(super) bytes: Vec<u8>,
    pub(super) lines: usize,
    lines_max: usize,
    bytes_max: usize,
}

impl Datagram {
    pub(super) fn new(lines_max: NonZeroUsize, bytes_max: usize) -> Self {
        let bytes = Vec::with_capacity(BYTES_MAX);
        Self { bytes, lines: 0, lines_max: lines_max.get(), bytes_max }
    }

    pub(super) const fn has_room_for(&self, line_bytes: usize) -> bool {
        self.lines == 0
            || (self.lines < self.lines_max && self.bytes.len() + 1 + line_bytes <= self.bytes_max)
    }

    pub(super) const fn is_full(&self) -> bool {
        !self.has_room_for(1)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.lines == 0
    }

    pub(super) fn push(&mut self, line: &[u8]) {
        if self.lines > 0 {
            self.bytes.push(b'\n');
        }
        self.bytes.extend_from_slice(line);
        self.lines += 1;
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.lines = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(lines: &[Vec<u8>], lines_max: usize) -> Vec<Vec<u8>> {
        let mut datagram = Datagram::new(NonZeroUsize::new(lines_max).unwrap(), BYTES_MAX);
        let mut packed = Vec::new();
        for line in lines {
            if !datagram.has_room_for(line.len()) {
                packed.push(datagram.bytes.clone());
                datagram.clear();
            }
            datagram.push(line);
        }
        if !datagram.is_empty() {
            packed.push(datagram.bytes.clone());
        }
        packed
    }

    #[test]
    fn long_line_is_sent_alone() {
        let lines = [b"a".to_vec(), vec![b'x'; 1_401], b"b".to_vec()];
        assert_eq!(packed(&lines, 15), lines);
    }

    #[test]
    fn a_datagram_is_filled_to_the_last_byte() {
        let lines = [vec![b'x'; 700], vec![b'y'; 699]];
        assert_eq!(packed(&lines, 15), [lines.join(&b'\n')]);
        let lines = [vec![b'x'; 700], vec![b'y'; 700]];
        assert_eq!(packed(&lines, 15), lines);
    }

    proptest! {
        #[test]
        fn lines_are_complete_and_bounded(
            lines in prop::collection::vec(prop::collection::vec(b'a'..=b'z', 1..900), 0..60),
            lines_max in 1..20_usize,
        ) {
            let datagrams = packed(&lines, lines_max);
            for datagram in &datagrams {
                prop_assert!(datagram.len() <= BYTES_MAX);
                prop_assert!(datagram.split(|&byte| byte == b'\n').count() <= lines_max);
            }
            let unpacked: Vec<Vec<u8>> = datagrams
                .iter()
                .flat_map(|datagram| datagram.split(|&byte| byte == b'\n').map(<[u8]>::to_vec))
                .collect();
            prop_assert_eq!(unpacked, lines);
        }
    }
}
