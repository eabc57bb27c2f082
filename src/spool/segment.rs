//! The format of a segment file: [`MAGIC`] and any number of frames. A frame consists of the payload's length (4 bytes), the
//! xxh3-64 hash of the length and the payload (8 bytes), both little-endian, and the payload (events by series, encoded with
//! postcard). The reader skips damaged frames and zeros left by a crash. Only a corrupt length hides later frames.

use crate::event::Batch;
use crate::node::files::{HEADER, header};

/// The header of a segment; the digit is the format version.
pub const MAGIC: &[u8] = b"eds spool 1\n";
/// Approximate size, in bytes, at which a payload is complete and the next frame is begun.
const PAYLOAD_BYTES: usize = 512 * 1024;
/// Maximum size of a payload in bytes: [`PAYLOAD_BYTES`] plus one event, whose series and user have at most 64 KiB each.
const PAYLOAD_MAX: usize = PAYLOAD_BYTES + 256 * 1024;
/// Approximate size of an event in bytes, excluding the user's name.
const EVENT_BYTES: usize = 12;

type Payload<'a> = Vec<(&'a str, Vec<(i64, &'a str)>)>;

/// A frame of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The header and the payload.
    pub bytes: Vec<u8>,
    /// The number of events in the payload.
    pub events: usize,
}

/// The result of reading a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contents {
    /// The number of events read.
    pub events: u64,
    /// The number of corrupt frames.
    pub damaged: u64,
    /// The number of bytes after the last complete frame.
    pub torn_bytes: u64,
}

/// The error for a file that is not a segment of this format version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the file does not start with this version's segment header")]
pub struct NotASegment;

/// Returns the frames of a batch, and the number of events that could not be encoded.
#[must_use]
pub fn frames(batch: &Batch) -> (Vec<Frame>, usize) {
    let (mut frames, mut encoded) = (Vec::new(), 0);
    let (mut payload, mut bytes) = (Payload::new(), 0);
    let mut close = |payload: &mut Payload<'_>| {
        let frame = frame(&std::mem::take(payload));
        encoded += frame.as_ref().map_or(0, |frame| frame.events);
        frames.extend(frame);
    };
    for group in batch.groups() {
        let series = &*group.series;
        payload.push((series, Vec::new()));
        bytes += series.len();
        for event in &group.occurrences {
            if bytes >= PAYLOAD_BYTES {
                close(&mut payload);
                payload.push((series, Vec::new()));
                bytes = series.len();
            }
            let user = batch.user(event);
            bytes += user.len() + EVENT_BYTES;
            if let Some((_, events)) = payload.last_mut() {
                events.push((event.timestamp, user));
            }
        }
    }
    if !payload.is_empty() {
        close(&mut payload);
    }
    (frames, batch.events() - encoded)
}

fn frame(payload: &Payload<'_>) -> Option<Frame> {
    let mut bytes = postcard::to_extend(payload, vec![0; HEADER]).ok()?;
    let (start, encoded) = bytes.split_first_chunk_mut::<HEADER>()?;
    *start = header(encoded).filter(|_| encoded.len() <= PAYLOAD_MAX)?;
    Some(Frame { bytes, events: payload.iter().map(|(_, events)| events.len()).sum() })
}

/// Calls `each` with the series, user and timestamp of every event in a segment. Fails if it does not start with [`MAGIC`].
pub fn read<'a>(
    segment: &'a [u8],
    mut each: impl FnMut(&'a str, &'a str, i64),
) -> Result<Contents, NotASegment> {
    let mut contents = Contents::default();
    let begun = segment.len() < MAGIC.len() && MAGIC.starts_with(segment);
    if begun || is_unwritten(segment) {
        contents.torn_bytes = segment.len() as u64;
        return Ok(contents);
    }
    let mut rest = segment.strip_prefix(MAGIC).ok_or(NotASegment)?;
    while let Some((start, after)) = rest.split_first_chunk::<HEADER>() {
        let &[a, b, c, d, ..] = start;
        let payload_len = u32::from_le_bytes([a, b, c, d]) as usize;
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
        let is_intact = header(payload) == Some(*start);
        let series = is_intact.then(|| postcard::from_bytes::<Payload<'a>>(payload).ok());
        let Some(all) = series.flatten() else {
            contents.damaged += 1;
            continue;
        };
        for (series, events) in all {
            contents.events += events.len() as u64;
            for (timestamp, user) in events {
                each(series, user, timestamp);
            }
        }
    }
    contents.torn_bytes = rest.len() as u64;
    Ok(contents)
}

/// Returns whether all bytes are zero, which happens if the machine crashes before allocated bytes are written.
fn is_unwritten(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
#[path = "segment_tests.rs"]
mod tests;
