//! Frames: the entries of a log. Their encoding is part of the format that nodes share.
//!
//! A frame refers to series by number within its log; the first frame with a series includes its name. Each series is
//! followed by its events: the fingerprint of the user, and the time within the minute. A fingerprint is a 64-bit `SipHash`
//! with a key that all nodes share and no sender knows, so two fingerprints are equal only by chance.
//!
//! A frame has at most [`FRAME_BYTES`], so that a reader can bound the size of a read by the number of frames.
//!
//! ```text
//! frame   = version entries entry… parts…
//! entry   = number length series           a series that the log has not named before
//! part    = number from events event…
//! from    = %x00 / %x01 fingerprint        of the original series of the events, if it is a different one
//! event   = user time                      time: nanoseconds since the start of the minute
//! version = %x01; entries, number, length, events: LEB128; fingerprint, user: 8 bytes, time: 5 bytes, little-endian
//! ```

use crate::store::leb128::{read_number, write_number};

/// The maximum size of a frame in bytes, unless one series name is longer. Two frames fit in a Redis list node (8 KiB).
pub(super) const FRAME_BYTES: usize = 4000;
/// The maximum total size of a frame's header, a part and its entry, excluding the name and the events, in bytes.
const OVERHEAD_BYTES: usize = 48;

/// The first byte of a frame.
const VERSION: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) user: u64,
    /// Nanoseconds since the start of the minute: less than 2³⁶.
    pub(super) time: u64,
}

const TIME_BYTES: usize = 5;
const EVENT_BYTES: usize = size_of::<u64>() + TIME_BYTES;

impl Event {
    /// Returns the fingerprint of the event within its series. `from` is the fingerprint of the event's original series (0:
    /// the same series). Different events of the same user and the same `from` always have different fingerprints.
    pub(super) const fn fingerprint(self, from: u64) -> u64 {
        self.user ^ from ^ self.time.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn to_bytes(self) -> [u8; EVENT_BYTES] {
        let mut bytes = [0; EVENT_BYTES];
        let (user, time) = bytes.split_at_mut(size_of::<u64>());
        user.copy_from_slice(&self.user.to_le_bytes());
        time.copy_from_slice(&self.time.to_le_bytes()[..TIME_BYTES]);
        bytes
    }

    #[expect(clippy::cast_possible_truncation, reason = "each is one half")]
    pub(super) fn of_bytes(bytes: &[u8; EVENT_BYTES]) -> Self {
        let mut both = [0; size_of::<u128>()];
        both[..EVENT_BYTES].copy_from_slice(bytes);
        let both = u128::from_le_bytes(both);
        Self { user: both as u64, time: (both >> u64::BITS) as u64 }
    }
}

/// A frame that is being written.
#[derive(Debug, Default)]
pub(super) struct Frame {
    entries: u64,
    dictionary: Vec<u8>,
    parts: Vec<u8>,
}

impl Frame {
    /// Returns how many events fit in the frame if they need a new part and a new name of this length; 0 if it is full.
    pub(super) const fn room(&self, name: usize) -> usize {
        let used = self.dictionary.len() + self.parts.len() + name + OVERHEAD_BYTES;
        let events = FRAME_BYTES.saturating_sub(used) / EVENT_BYTES;
        if events == 0 && self.is_empty() { 1 } else { events }
    }

    const fn is_empty(&self) -> bool {
        self.dictionary.is_empty() && self.parts.is_empty()
    }

    /// Adds an entry that assigns a number to a series.
    pub(super) fn name(&mut self, number: u32, series: &str) {
        self.entries += 1;
        write_number(&mut self.dictionary, u64::from(number));
        write_number(&mut self.dictionary, series.len() as u64);
        self.dictionary.extend_from_slice(series.as_bytes());
    }

    /// Adds events of the series with this number. `from` is the fingerprint of their original series, if different.
    pub(super) fn add(
        &mut self,
        number: u32,
        from: Option<u64>,
        events: impl ExactSizeIterator<Item = Event>,
    ) {
        write_number(&mut self.parts, u64::from(number));
        self.parts.push(u8::from(from.is_some()));
        if let Some(from) = from {
            self.parts.extend_from_slice(&from.to_le_bytes());
        }
        write_number(&mut self.parts, events.len() as u64);
        self.parts.reserve(EVENT_BYTES * events.len());
        for event in events {
            self.parts.extend_from_slice(&event.to_bytes());
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

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// The number of a series, and its name.
    Entry(u64, &'a str),
    /// The number of a series, the fingerprint of the events' original series (0: the same series), and the events.
    Part(u64, u64, Events<'a>),
}

pub(super) type Events<'a> = &'a [[u8; EVENT_BYTES]];

/// Passes the pieces of a frame to `take`. Returns None if the frame is malformed; some pieces may have been passed even so.
pub(super) fn read<'a>(frame: &'a [u8], mut take: impl FnMut(Piece<'a>)) -> Option<()> {
    let mut frame = frame;
    let rest = &mut frame;
    (rest.split_off_first()? == &VERSION).then_some(())?;
    for _ in 0..read_number(rest)? {
        let number = read_number(rest)?;
        let length = usize::try_from(read_number(rest)?).ok()?;
        let series = std::str::from_utf8(rest.split_off(..length)?).ok()?;
        take(Piece::Entry(number, series));
    }
    while !rest.is_empty() {
        let number = read_number(rest)?;
        let from = match rest.split_off_first()? {
            0 => 0,
            1 => u64::from_le_bytes(*rest.split_off(..size_of::<u64>())?.first_chunk()?),
            _ => return None,
        };
        let bytes = usize::try_from(read_number(rest)?).ok()?;
        let bytes = bytes.checked_mul(EVENT_BYTES)?;
        let (events, _) = rest.split_off(..bytes)?.as_chunks();
        take(Piece::Part(number, from, events));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::redis::settings::Key;

    #[derive(Debug, Clone, PartialEq, Eq)]
    enum Owned {
        Entry(u64, String),
        Part(u64, u64, Vec<Event>),
    }

    fn pieces(frame: &[u8]) -> Option<Vec<Owned>> {
        let mut pieces = Vec::new();
        let whole = read(frame, |piece| {
            pieces.push(match piece {
                Piece::Entry(number, series) => Owned::Entry(number, series.to_owned()),
                Piece::Part(number, from, events) => {
                    Owned::Part(number, from, events.iter().map(Event::of_bytes).collect())
                }
            });
        });
        whole.map(|()| pieces)
    }

    /// `format_tests` explains what a change means.
    #[test]
    fn frame_format_is_pinned() {
        let key = Key(0x000f_0e0d_0c0b_0a09_0807_0605_0403_0201);
        let event = Event { user: key.user("testusername1"), time: 47_352_348_928 };
        let mut frame = Frame::default();
        frame.name(300, "a=b");
        frame.add(300, None, [event].into_iter());
        frame.add(300, Some(key.series(7)), [event].into_iter());
        let hexadecimal = frame.bytes().into_iter();
        let hexadecimal: Vec<_> = hexadecimal.map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hexadecimal.concat(),
            "0101ac0203613d62ac020001ab26201c6bd8599900816b060bac0201e92404c7a2e915c401ab26201c6bd8599900816b060b"
        );
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = (any::<u64>(), 0..60_000_000_000_u64);
        prop::collection::vec(event.prop_map(|(user, time)| Event { user, time }), 0..200)
    }

    proptest! {
        #[test]
        fn frame_round_trips(
            entries in prop::collection::vec((any::<u32>(), ".{0,200}"), 0..4),
            parts in prop::collection::vec((any::<u32>(), prop::option::of(1..u64::MAX), events()), 0..4),
        ) {
            let mut frame = Frame::default();
            let mut expected = Vec::new();
            for (number, series) in entries {
                frame.name(number, &series);
                expected.push(Owned::Entry(number.into(), series));
            }
            for (number, from, events) in parts {
                frame.add(number, from, events.iter().copied());
                expected.push(Owned::Part(number.into(), from.unwrap_or(0), events));
            }
            let bytes = frame.bytes();
            prop_assert_eq!(pieces(&bytes), Some(expected));
            // A truncated frame does not cause a panic.
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
