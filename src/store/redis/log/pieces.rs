//! Reading the frames of a log, a bounded piece at a time.

use std::time::Duration;

use ::redis::cmd;
use redis_link::{Attempts, Connection, Lane};
use tokio::time::Instant;

use super::LogKeys;
use super::frame::FRAME_BYTES;
use crate::event::{Minute, Partition};
use crate::store::StoreError;
use crate::store::redis::RedisStore;

/// The most bytes that are read at once. Redis serves nobody else meanwhile.
const READ_BYTES: usize = 512 << 10;
/// The same as long as the answers were small, and say little about large ones.
const UNTRIED_BYTES: usize = 64 << 10;

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
    /// Returns the next frames of a log from this position on, which it moves; `None`: there are no more.
    pub(super) async fn read(
        &self,
        budget: &mut ReadBudget,
        place: Place<'_>,
        (name, length): &Length,
        position: &mut u64,
    ) -> Result<Option<Vec<Vec<u8>>>, StoreError> {
        let left = length.saturating_sub(*position);
        if left == 0 {
            return Ok(None);
        }
        let keys = self.keys(place.partition);
        let log = LogKeys::new(keys, place.minute).log(name);
        let wanted = left.min(budget.frames());
        let mut range = cmd("LRANGE");
        range.arg(&log).arg(*position).arg(*position + wanted - 1);
        let ask = async move |connection: &mut Connection| {
            range.query_async::<Vec<Vec<u8>>>(connection).await
        };
        let (generation, lane) = (place.generation, place.lane);
        let began = Instant::now();
        let run = self.gateway.run_in(generation, keys.slot, lane, Attempts::Two, ask);
        let frames = run.await?;
        budget.learn(frames.iter().map(Vec::len).sum(), began.elapsed());
        let read = frames.len() as u64;
        *position += read;
        if read < wanted {
            if place.may_go {
                return Ok(None);
            }
            let message = format!("{log} has {position} frames of {length}");
            return Err(StoreError::unavailable(message));
        }
        Ok(Some(frames))
    }
}

/// How much of logs is read at once: one frame at first, and more while answers are fast. The way to Redis may be slow, and an answer
/// that is not there in time ends the connection.
#[derive(Debug)]
pub(super) struct ReadBudget {
    bytes: usize,
    /// Answers that take longer are slow.
    slow: Duration,
}

impl ReadBudget {
    /// Returns the budget of the first reading, for a time-out of answers.
    pub(super) fn new(response: Duration) -> Self {
        Self { bytes: FRAME_BYTES, slow: response / 4 }
    }

    /// Returns how many frames are read at once.
    const fn frames(&self) -> u64 {
        (self.bytes / FRAME_BYTES) as u64
    }

    /// Notes how long an answer of so many bytes took.
    fn learn(&mut self, bytes: usize, took: Duration) {
        if took > self.slow {
            self.bytes = (self.bytes / 2).max(FRAME_BYTES);
        } else if took < self.slow / 2 {
            let is_large = bytes >= self.bytes / 2;
            let most = if is_large { READ_BYTES } else { UNTRIED_BYTES };
            self.bytes = self.bytes.max(most.min(2 * self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE: Duration = Duration::from_secs(4);
    const FAST: Duration = Duration::ZERO;

    #[test]
    fn more_is_read_at_once_while_answers_are_fast_and_much_only_after_large_ones() {
        let mut budget = ReadBudget::new(RESPONSE);
        assert_eq!(budget.frames(), 1);
        for _ in 0..9 {
            budget.learn(60, FAST);
        }
        assert_eq!(budget.bytes, UNTRIED_BYTES);
        for _ in 0..9 {
            budget.learn(budget.bytes, FAST);
        }
        assert_eq!(budget.bytes, READ_BYTES);
        budget.learn(60, FAST);
        assert_eq!(budget.bytes, READ_BYTES);
    }

    #[test]
    fn less_is_read_at_once_after_slow_answers() {
        let mut budget = ReadBudget::new(RESPONSE);
        budget.bytes = READ_BYTES;
        // Neither fast nor slow.
        budget.learn(READ_BYTES, RESPONSE / 5);
        assert_eq!(budget.bytes, READ_BYTES);
        budget.learn(READ_BYTES, RESPONSE / 3);
        assert_eq!(budget.bytes, READ_BYTES / 2);
        for _ in 0..9 {
            budget.learn(60, RESPONSE / 3);
        }
        assert_eq!(budget.frames(), 1);
    }
}
