//! The form of a segment file. Pure: from batches to bytes and back.
//!
//! A segment begins with [`MAGIC`]; frames follow. A frame is the length of its payload (4 bytes), the xxh3-64 of
//! that length and the payload (8 bytes), both little-endian, and the payload: groups of events of one series,
//! in the encoding of postcard. A process that dies while it writes leaves a frame that ends too early, and a machine
//! that does, zeros or not even the beginning; these are passed over, as is a frame whose bytes are not what was
//! written; only a length that changed hides what is behind it.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::event::Batch;

/// What a segment begins with; the digit is the version of the form.
pub const MAGIC: &[u8] = b"eds spool 1\n";
/// The bytes before a payload.
const HEADER: usize = 12;
/// A payload is closed when it has so many bytes, roughly.
const PAYLOAD_BYTES: usize = 512 * 1024;
/// A longer payload was not written by us: one event more than [`PAYLOAD_BYTES`], whose names are 64 KiB each at
/// most.
const PAYLOAD_MAX: usize = PAYLOAD_BYTES + 256 * 1024;
/// What an event takes beside its user's name, roughly.
const EVENT_BYTES: usize = 12;

#[derive(Debug, Serialize, Deserialize)]
struct Group<'a> {
    #[serde(borrow)]
    series: &'a str,
    events: Vec<Event<'a>>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Event<'a> {
    timestamp: i64,
    #[serde(borrow)]
    user: &'a str,
}

/// The bytes of some events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// How many events they hold.
    pub events: usize,
}

/// An event that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The canonical series.
    pub series: &'a str,
    /// The user.
    pub user: &'a str,
    /// Nanoseconds since the epoch.
    pub timestamp: i64,
}

/// What a segment held.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// Events that were read.
    pub events: u64,
    /// Frames that are not what was written.
    pub damaged: u64,
    /// Bytes after the last frame that was found.
    pub torn_bytes: u64,
}

/// A file that is no segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not begin as a segment of this version does")]
pub struct NotASegment;

/// A frame that is being filled.
#[derive(Debug, Default)]
struct Filling<'a> {
    groups: Vec<Group<'a>>,
    bytes: usize,
    events: usize,
}

/// The frames of a batch, and how many events there was no way to write down.
#[must_use]
pub fn frames(batch: &Batch) -> (Vec<Frame>, usize) {
    let mut frames = Vec::new();
    let mut unwritten = 0;
    let mut close = |filling: Filling<'_>| match filling.close() {
        Ok(frame) => frames.push(frame),
        Err(events) => unwritten += events,
    };
    let mut filling = Filling::default();
    for group in batch.groups() {
        for occurrence in &group.occurrences {
            if filling.bytes >= PAYLOAD_BYTES {
                close(std::mem::take(&mut filling));
            }
            let user = batch.user(occurrence);
            let timestamp = occurrence.timestamp;
            filling.push(&group.series, Event { timestamp, user });
        }
    }
    if filling.events > 0 {
        close(filling);
    }
    (frames, unwritten)
}

impl<'a> Filling<'a> {
    fn push(&mut self, series: &'a str, event: Event<'a>) {
        self.bytes += event.user.len() + EVENT_BYTES;
        self.events += 1;
        match self.groups.last_mut() {
            Some(last) if std::ptr::eq(last.series, series) => last.events.push(event),
            _ => {
                self.bytes += series.len();
                let events = vec![event];
                self.groups.push(Group { series, events });
            }
        }
    }

    /// The frame; where that cannot be had, how many events it would have held.
    fn close(self) -> Result<Frame, usize> {
        self.frame().ok_or(self.events)
    }

    fn frame(&self) -> Option<Frame> {
        let mut bytes = postcard::to_extend(&self.groups, vec![0; HEADER]).ok()?;
        let payload = bytes.get(HEADER..)?;
        if payload.len() > PAYLOAD_MAX {
            return None;
        }
        let len = u32::try_from(payload.len()).ok()?.to_le_bytes();
        let sum = checksum(len, payload).to_le_bytes();
        bytes.get_mut(..4)?.copy_from_slice(&len);
        bytes.get_mut(4..HEADER)?.copy_from_slice(&sum);
        let events = self.events;
        Some(Frame { bytes, events })
    }
}

fn checksum(len: [u8; 4], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&len);
    hash.update(payload);
    hash.digest()
}

/// Reads a segment, event by event. Takes any bytes.
pub fn read<'a>(
    segment: &'a [u8],
    mut each: impl FnMut(Kept<'a>),
) -> Result<Contents, NotASegment> {
    let mut contents = Contents::default();
    let begun = segment.len() < MAGIC.len() && MAGIC.starts_with(segment);
    if begun || is_unwritten(segment) {
        contents.torn_bytes = segment.len() as u64;
        return Ok(contents);
    }
    let mut rest = segment.strip_prefix(MAGIC).ok_or(NotASegment)?;
    while let Some((len, sum, after)) = header(rest) {
        let payload_len = u32::from_le_bytes(len) as usize;
        if is_unwritten(rest) {
            break;
        }
        if payload_len == 0 || payload_len > PAYLOAD_MAX {
            // Never written, so it was changed; where the next frame begins nobody knows.
            contents.damaged += 1;
            break;
        }
        let Some((payload, next)) = after.split_at_checked(payload_len) else {
            break;
        };
        rest = next;
        let groups = if checksum(len, payload) == sum {
            postcard::from_bytes::<Vec<Group<'a>>>(payload).ok()
        } else {
            None
        };
        let Some(groups) = groups else {
            contents.damaged += 1;
            continue;
        };
        for group in groups {
            for event in group.events {
                contents.events += 1;
                each(Kept { series: group.series, user: event.user, timestamp: event.timestamp });
            }
        }
    }
    contents.torn_bytes = rest.len() as u64;
    Ok(contents)
}

/// Whether a file system made room for these bytes, and then the machine died: they are all zero.
fn is_unwritten(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

fn header(bytes: &[u8]) -> Option<([u8; 4], u64, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<8>()?;
    Some((*len, u64::from_le_bytes(*sum), rest))
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
