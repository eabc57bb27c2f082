//! Reading the frames of a log, a bounded piece at a time.

use ::redis::cmd;
use redis_link::{Connection, Lane};

use super::LogKeys;
use crate::event::{Minute, Partition};
use crate::store::StoreError;
use crate::store::redis::RedisStore;

/// What is read at once, about. Redis serves nobody else meanwhile.
const READ_BYTES: u64 = 512 << 10;
/// The frames of the first reading, before it is known how large they are; and the most of any: 3.4 MB where all are large.
const FRAMES_FIRST: u64 = 4;
const FRAMES_MAX: u64 = 16;

/// A log, and how many frames of it count.
pub(super) type Length = (String, u64);

/// One or several logs of a minute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) partition: Partition,
    pub(super) minute: Minute,
    pub(super) lane: Lane,
    /// In which they are read; 0: in any.
    pub(super) generation: u64,
    /// Whether those are passed over that have gone, as they do when the minute is sealed.
    pub(super) may_go: bool,
    pub(super) logs: &'a [Length],
}

impl RedisStore {
    /// The next frames of a log, some at a time; `None`: there are no more.
    pub(super) async fn read(
        &self,
        place: Place<'_>,
        (name, length): &Length,
        position: &mut Position,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let left = length.saturating_sub(position.frames);
        if left == 0 {
            return Ok(None);
        }
        let keys = self.keys(place.partition);
        let log = LogKeys::new(keys, place.minute).log(name);
        let wanted = left.min(position.at_once);
        let mut range = cmd("LRANGE");
        range
            .arg(&log)
            .arg(position.frames)
            .arg(position.frames + wanted - 1);
        let ask = async move |connection: &mut Connection| {
            range.query_async::<Vec<Vec<u8>>>(connection).await
        };
        let (generation, lane) = (place.generation, place.lane);
        let run = self.gateway.repeat_in(generation, keys.slot, lane, ask);
        let frames = run.await?;
        let read = frames.len() as u64;
        position.advance(read, frames.iter().map(Vec::len).sum::<usize>() as u64);
        if read < wanted {
            if place.may_go {
                return Ok(None);
            }
            let message = format!("{log} has {} frames of {length}", position.frames);
            return Err(StoreError::Unavailable(message));
        }
        Ok(Some(frames))
    }
}

/// How far a log was read.
#[derive(Debug)]
pub(super) struct Position {
    pub(super) frames: u64,
    /// How many are read at once.
    at_once: u64,
}

impl Position {
    pub(super) const fn at(frames: u64) -> Self {
        let at_once = FRAMES_FIRST;
        Self { frames, at_once }
    }

    /// So many frames, of so many bytes, were read. Large ones may follow small ones: the next reading is twice this at most.
    fn advance(&mut self, frames: u64, bytes: u64) {
        self.frames += frames;
        let fitting = READ_BYTES * frames / bytes.max(1);
        self.at_once = fitting.clamp(1, FRAMES_MAX.min(2 * self.at_once));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_frames_after_small_ones_are_read_in_bounded_pieces() {
        const LARGE: u64 = 213 << 10;
        let mut position = Position::at(0);
        let mut at_once = Vec::new();
        for bytes in [60, 60, 60, LARGE, LARGE, 60] {
            at_once.push(position.at_once);
            position.advance(position.at_once, position.at_once * bytes);
        }
        assert_eq!(at_once, [4, 8, 16, 16, 2, 2]);
        assert_eq!((position.frames, position.at_once), (48, 4));
    }
}
