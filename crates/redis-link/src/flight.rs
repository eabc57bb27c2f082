//! [`Flight`] limits the bytes in flight on a connection, so that on a slow link, no command times out behind those sent
//! before it. The limit, called the room, is at most what a link as slow as [`SLOWEST_LINK`] carries in a
//! third of the timeout. A reply that takes longer than that halves the room, and fast replies enlarge it again. Commands of
//! at least [`SMALL`] bytes wait for room in order of arrival, without a timeout.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::RedisError;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// The throughput of the slowest supported network link, in bytes per second.
const SLOWEST_LINK: usize = 1_000_000;
/// Commands smaller than this number of bytes are sent without waiting for room.
const SMALL: usize = 4 << 10;
/// The room never becomes smaller than the maximum room divided by this number.
const ROOM_MIN_SHARE: usize = 16;

#[derive(Debug)]
pub(crate) struct Flight {
    /// The number of bytes that may be in flight. A new connection starts with the room that suited the previous one.
    room: Arc<AtomicUsize>,
    most: usize,
    slow: Duration,
    /// One permit for each byte of the maximum room. While the room is smaller, each byte takes proportionally more permits.
    permits: Semaphore,
}

impl Flight {
    pub(crate) fn new(response: Duration) -> Self {
        let slow = response / 3;
        let bytes = SLOWEST_LINK as u128 * slow.as_millis() / 1000;
        // `acquire_many` takes the number of permits as a u32.
        let most =
            usize::try_from(bytes).unwrap_or(usize::MAX).clamp(SMALL, u32::MAX as usize >> 4);
        Self { room: Arc::new(AtomicUsize::new(most)), most, slow, permits: Semaphore::new(most) }
    }

    pub(crate) fn next(&self) -> Self {
        let Self { most, slow, .. } = *self;
        Self { room: Arc::clone(&self.room), most, slow, permits: Semaphore::new(most) }
    }

    /// Halves the room after a slow reply, and enlarges it by a quarter after a fast one. `room` is the room when the
    /// command was sent. If the room has changed since, it stays as it is, so concurrent commands change it once.
    fn learn(&self, room: usize, bytes: usize, took: Duration) {
        let new = if took > self.slow {
            (room / 2).max(self.most / ROOM_MIN_SHARE)
        } else if took < self.slow / 2 && bytes >= room / 4 {
            (room + room / 4).min(self.most)
        } else {
            return;
        };
        let _ = self.room.compare_exchange(room, new, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(crate) fn close(&self) {
        self.permits.close();
    }

    /// Waits until there is room for a command of this size, and returns a [`Seat`] to hold until the command is answered.
    /// Returns None if the command is small and needs no room. Fails if the connection is lost before there is room.
    pub(crate) async fn enter(&self, bytes: usize) -> Result<Option<Seat<'_>>, RedisError> {
        if bytes < SMALL {
            return Ok(None);
        }
        let room = self.room.load(Ordering::Relaxed);
        let taken = bytes.saturating_mul(self.most) / room;
        // A command larger than the room takes all permits, so that no other large command is in flight with it.
        let taken = u32::try_from(taken.min(self.most)).unwrap_or(u32::MAX);
        let permit = self.permits.acquire_many(taken).await.map_err(|_closed| {
            let reason = "the connection was lost before the command was sent";
            io::Error::new(io::ErrorKind::BrokenPipe, reason)
        })?;
        Ok(Some(Seat { flight: self, room, bytes, sent: Instant::now(), _permit: permit }))
    }
}

/// The room taken by a command in flight.
pub(crate) struct Seat<'a> {
    flight: &'a Flight,
    room: usize,
    bytes: usize,
    sent: Instant,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Seat<'_> {
    /// Adjusts the room to the time that the command took. Called when the command has been answered or has timed out.
    fn drop(&mut self) {
        self.flight.learn(self.room, self.bytes, self.sent.elapsed());
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const AT_ONCE: Duration = Duration::ZERO;
    const RESPONSE: Duration = Duration::from_secs(3);

    #[test]
    fn slow_answers_halve_the_room_once_a_turn_and_fast_ones_restore_it() {
        let flight = Flight::new(RESPONSE);
        let room = || flight.next().room.load(Ordering::Relaxed);
        let most = room();
        assert_eq!(most, SLOWEST_LINK);
        // Two commands that were in flight at the same time halve the room only once.
        for _ in 0..2 {
            flight.learn(most, most / 2, RESPONSE / 2);
        }
        assert_eq!(room(), most / 2);
        for _ in 0..20 {
            flight.learn(room(), most / 2, RESPONSE);
        }
        assert_eq!(room(), most / ROOM_MIN_SHARE);
        // The time of a small command says little about the throughput of the link.
        flight.learn(room(), 1, Duration::ZERO);
        assert_eq!(room(), most / ROOM_MIN_SHARE);
        for _ in 0..20 {
            flight.learn(room(), most, Duration::ZERO);
        }
        assert_eq!(room(), most);
    }

    #[tokio::test]
    async fn large_command_waits_for_the_window_and_small_one_does_not() {
        let flight = Flight::new(RESPONSE);
        let first = flight.enter(usize::MAX).await.unwrap();
        assert!(first.is_some());
        assert!(flight.enter(SMALL - 1).await.unwrap().is_none());
        let mut waiting = std::pin::pin!(flight.enter(SMALL));
        assert!(timeout(AT_ONCE, &mut waiting).await.is_err());
        drop(first);
        assert!(waiting.await.unwrap().is_some());
    }

    #[tokio::test]
    async fn waiting_command_fails_when_the_connection_is_lost() {
        let flight = Flight::new(RESPONSE);
        let first = flight.enter(usize::MAX).await.unwrap();
        let mut waiting = std::pin::pin!(flight.enter(SMALL));
        assert!(timeout(AT_ONCE, &mut waiting).await.is_err());
        flight.close();
        let error = waiting.await.err().unwrap();
        assert!(crate::fault::ends_connection(&error) && !error.is_timeout());
        drop(first);
    }
}
