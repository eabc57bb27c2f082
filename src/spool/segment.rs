//! The format of a segment file. Pure: from batches to bytes and back.
//!
//! A segment begins with [`MAGIC`]; frames follow. A frame is the length of its payload (4 bytes), the xxh3-64 of
//! that length and the payload (8 bytes), both little-endian, and the payload: groups of events of one series,
//! encoded by postcard. A process that dies while it writes leaves a truncated frame; a crash of the machine leaves zeros or a
//! truncated header. The reader skips these, and frames with a wrong checksum; only a corrupt length hides the frames behind it.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::event::Batch;

/// The header of a segment; the digit is the version of the format.
pub const MAGIC: &[u8] = b"eds spool 1\n";
const HEADER: usize = 12;
/// The approximate size at which a payload is closed.
const PAYLOAD_BYTES: usize = 512 * 1024;
/// The maximum size of a payload: one event more than [`PAYLOAD_BYTES`], whose names have at most 64 KiB each.
const PAYLOAD_MAX: usize = PAYLOAD_BYTES + 256 * 1024;
/// The approximate size of an event without its user's name.
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

/// A frame of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The header and the payload.
    pub bytes: Vec<u8>,
    /// The number of its events.
    pub events: usize,
}

/// An event of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept<'a> {
    /// The canonical series.
    pub series: &'a str,
    /// The user.
    pub user: &'a str,
    /// Nanoseconds since the epoch.
    pub timestamp: i64,
}

/// The result of reading a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// The number of events that were read.
    pub events: u64,
    /// The number of corrupt frames.
    pub damaged: u64,
    /// The number of bytes after the last frame.
    pub torn_bytes: u64,
}

/// The file is not a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not begin as a segment of this version does")]
pub struct NotASegment;

/// A frame that is not full yet.
#[derive(Debug, Default)]
struct Filling<'a> {
    groups: Vec<Group<'a>>,
    bytes: usize,
    events: usize,
}

/// Returns the frames of a batch, and the number of events that could not be encoded.
#[must_use]
pub fn frames(batch: &Batch) -> (Vec<Frame>, usize) {
    let mut frames = Vec::new();
    let mut unwritten = 0;
    let mut close = |filling: Filling<'_>| match filling.frame() {
        Some(frame) => frames.push(frame),
        None => unwritten += filling.events,
    };
    let mut filling = Filling::default();
    for group in batch.groups() {
        for occurrence in &group.occurrences {
            if filling.bytes >= PAYLOAD_BYTES {
                close(std::mem::take(&mut filling));
            }
            let (timestamp, user) = (occurrence.timestamp, batch.user(occurrence));
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
                self.groups.push(Group { series, events: vec![event] });
            }
        }
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
        Some(Frame { bytes, events: self.events })
    }
}

fn checksum(len: [u8; 4], payload: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&len);
    hash.update(payload);
    hash.digest()
}

/// Reads a segment and calls `each` for every event. Accepts any bytes.
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
            // The length is corrupt, so the next frame cannot be found.
            contents.damaged += 1;
            break;
        }
        let Some((payload, next)) = after.split_at_checked(payload_len) else {
            break;
        };
        rest = next;
        let is_intact = checksum(len, payload) == sum;
        let groups = is_intact.then(|| postcard::from_bytes::<Vec<Group<'a>>>(payload).ok());
        let Some(groups) = groups.flatten() else {
            contents.damaged += 1;
            continue;
        };
        for Group { series, events } in groups {
            contents.events += events.len() as u64;
            for Event { timestamp, user } in events {
                each(Kept { series, user, timestamp });
            }
        }
    }
    contents.torn_bytes = rest.len() as u64;
    Ok(contents)
}

/// Returns whether all bytes are zero: the file system allocated them before the machine crashed.
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
