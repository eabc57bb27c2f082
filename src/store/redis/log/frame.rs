//! Frames: what a process appends to a log at once. Part of what nodes share.
//!
//! A frame names series by numbers that its log gave them; the first frame with a series has its text. Then come, for each
//! series, the fingerprints of users that the log may not have yet and of events. A fingerprint is 64 bits of `SipHash` under a
//! key that all nodes share and no sender knows, so two are equal by chance alone.
//!
//! ```text
//! frame   = version entries entry… parts…
//! entry   = number length series           a series that the log has not named before
//! part    = number users events user… event…
//! version = %x01; entries, number, length, users, events: LEB128; user, event: 8 bytes, little-endian
//! ```

use siphasher::sip::SipHasher13;

/// The first byte of a frame.
const VERSION: u8 = 1;

/// What all nodes make fingerprints with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store::redis) struct Key(pub(in crate::store::redis) u128);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

impl Key {
    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0.to_le_bytes())
    }

    /// The fingerprint of a user.
    pub(super) fn user(self, user: &str) -> u64 {
        self.hasher().hash(user.as_bytes())
    }

    /// The fingerprint of an event: of its user, its timestamp, and the series that it came with where that is not the log's.
    /// `bytes` is only used again: a hash of one piece costs a fraction of one of several.
    pub(super) fn event(
        self,
        bytes: &mut Vec<u8>,
        user: &str,
        timestamp: i64,
        overflowed_from: Option<u128>,
    ) -> u64 {
        bytes.clear();
        bytes.extend_from_slice(user.as_bytes());
        // Behind a name of any length follow 8 or 24 bytes and which of these, so no two events give the same bytes.
        bytes.extend_from_slice(&timestamp.to_le_bytes());
        if let Some(series) = overflowed_from {
            bytes.extend_from_slice(&series.to_le_bytes());
        }
        bytes.push(u8::from(overflowed_from.is_some()));
        self.hasher().hash(bytes)
    }
}

/// A frame in the making.
#[derive(Debug, Default)]
pub(super) struct Frame {
    entries: u64,
    dictionary: Vec<u8>,
    parts: Vec<u8>,
}

impl Frame {
    /// Gives a series a number.
    pub(super) fn name(&mut self, number: u32, series: &str) {
        self.entries += 1;
        write_number(&mut self.dictionary, u64::from(number));
        write_number(&mut self.dictionary, series.len() as u64);
        self.dictionary.extend_from_slice(series.as_bytes());
    }

    /// Adds fingerprints of a series, exactly as many as are said.
    pub(super) fn add(
        &mut self,
        number: u32,
        (user_count, users): (usize, impl Iterator<Item = u64>),
        (event_count, events): (usize, impl Iterator<Item = u64>),
    ) {
        write_number(&mut self.parts, u64::from(number));
        write_number(&mut self.parts, user_count as u64);
        write_number(&mut self.parts, event_count as u64);
        self.parts.reserve(8 * (user_count + event_count));
        for fingerprint in users.chain(events) {
            self.parts.extend_from_slice(&fingerprint.to_le_bytes());
        }
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.dictionary.len() + self.parts.len() + 12);
        bytes.push(VERSION);
        write_number(&mut bytes, self.entries);
        bytes.extend_from_slice(&self.dictionary);
        bytes.extend_from_slice(&self.parts);
        bytes
    }
}

/// What a frame holds, one after the other.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// A series and its number.
    Entry(u64, &'a str),
    /// The number of a series, its users and its events.
    Part(u64, Fingerprints<'a>, Fingerprints<'a>),
}

/// Some fingerprints, as they lie in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprints<'a>(&'a [[u8; 8]]);

impl Fingerprints<'_> {
    pub(super) fn count(self) -> u64 {
        self.0.len() as u64
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u64> {
        self.0.iter().map(|bytes| u64::from_le_bytes(*bytes))
    }
}

/// Hands the pieces of a frame to `take`, and says whether it was one, up to its end.
pub(super) fn read<'a>(frame: &'a [u8], mut take: impl FnMut(Piece<'a>)) -> bool {
    let mut rest = frame;
    read_all(&mut rest, &mut take).is_some()
}

fn read_all<'a>(rest: &mut &'a [u8], take: &mut impl FnMut(Piece<'a>)) -> Option<()> {
    (rest.split_off_first()? == &VERSION).then_some(())?;
    for _ in 0..read_number(rest)? {
        let number = read_number(rest)?;
        let length = usize::try_from(read_number(rest)?).ok()?;
        let series = std::str::from_utf8(rest.split_off(..length)?).ok()?;
        take(Piece::Entry(number, series));
    }
    while !rest.is_empty() {
        let number = read_number(rest)?;
        let [users, events] = [read_number(rest)?, read_number(rest)?];
        let users = read_fingerprints(rest, users)?;
        let events = read_fingerprints(rest, events)?;
        take(Piece::Part(number, users, events));
    }
    Some(())
}

fn read_fingerprints<'a>(rest: &mut &'a [u8], count: u64) -> Option<Fingerprints<'a>> {
    let bytes = usize::try_from(count).ok()?.checked_mul(8)?;
    let (fingerprints, _) = rest.split_off(..bytes)?.as_chunks();
    Some(Fingerprints(fingerprints))
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

fn read_number(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Owned {
        Entry(u64, String),
        Part(u64, Vec<u64>, Vec<u64>),
    }

    fn pieces(frame: &[u8]) -> Option<Vec<Owned>> {
        let mut pieces = Vec::new();
        let is_whole = read(frame, |piece| {
            pieces.push(match piece {
                Piece::Entry(number, series) => Owned::Entry(number, series.to_owned()),
                Piece::Part(number, users, events) => {
                    Owned::Part(number, users.iter().collect(), events.iter().collect())
                }
            });
        });
        is_whole.then_some(pieces)
    }

    /// `format_tests` says what it means when this has to be changed.
    #[test]
    fn frames_never_change() {
        let key = Key(0x000f_0e0d_0c0b_0a09_0807_0605_0403_0201);
        let user = key.user("testusername1");
        let events = [None, Some(7)].map(|from| {
            key.event(
                &mut Vec::new(),
                "testusername1",
                1_480_876_707_352_348_928,
                from,
            )
        });
        let mut frame = Frame::default();
        frame.name(300, "a=b");
        frame.add(300, (1, [user].into_iter()), (2, events.into_iter()));
        let hexadecimal = frame.bytes().into_iter();
        let hexadecimal: Vec<_> = hexadecimal.map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hexadecimal.concat(),
            "0101ac0203613d62ac020102ab26201c6bd85999c30df94b54454a4638d82e8d8734f5c8"
        );
    }

    proptest! {
        #[test]
        fn a_frame_is_read_as_it_was_written(
            entries in prop::collection::vec((any::<u32>(), ".{0,200}"), 0..4),
            parts in prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u64>(), 0..200), prop::collection::vec(any::<u64>(), 0..200)), 0..4),
        ) {
            let mut frame = Frame::default();
            let mut expected = Vec::new();
            for (number, series) in entries {
                frame.name(number, &series);
                expected.push(Owned::Entry(number.into(), series));
            }
            for (number, users, events) in parts {
                frame.add(number, (users.len(), users.iter().copied()), (events.len(), events.iter().copied()));
                expected.push(Owned::Part(number.into(), users, events));
            }
            let bytes = frame.bytes();
            prop_assert_eq!(pieces(&bytes), Some(expected));
            // Whatever was cut off, what is left is not taken for a frame, unless it ends where a part ends.
            for end in 0..bytes.len() {
                pieces(&bytes[..end]);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            pieces(&bytes);
            bytes.insert(0, VERSION);
            pieces(&bytes);
        }
    }
}
