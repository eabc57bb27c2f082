//! Reads request bodies, plain or compressed with gzip, within limits on their size, their duration and all their memory.

use std::io::Read as _;
use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use flate2::read::MultiGzDecoder;
use http_body_util::BodyExt as _;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::node::lock;
use crate::store::off_runtime;

/// The maximum time between two parts of a body.
const PART_WITHIN: Duration = Duration::from_secs(10);
/// The maximum time for a whole body.
const BODY_WITHIN: Duration = Duration::from_secs(60);
/// The unit in which memory is reserved, in bytes.
const UNIT: usize = 1 << 10;
/// The size of the parts in which a body is decompressed, in bytes.
const PART_BYTES: usize = 64 << 10;
/// The time after which an incomplete body is rejected if memory is short.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(2);
/// The maximum time for a body to wait for memory.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// How many bodies of the maximum size fit in the memory for all bodies.
const BODIES: usize = 8;
/// How many buffers are kept for further bodies, which saves the kernel from clearing new pages for each body.
const SPARE_MAX: usize = 8;
/// The maximum size of a buffer that is kept, in bytes.
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Why a body was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unread {
    TooLarge,
    NoMemory,
    TooSlow,
    Incomplete,
    NotGzip,
    UnknownEncoding,
}

/// A body, and the memory that is reserved for it.
#[derive(Debug)]
struct Held {
    bytes: Vec<u8>,
    reserved: OwnedSemaphorePermit,
    /// The maximum size, in bytes.
    bytes_max: usize,
    /// Where the buffer comes from, and goes after use.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// The limits on bodies.
#[derive(Debug)]
pub(super) struct Bodies {
    bytes_max: usize,
    memory: Arc<Semaphore>,
    /// Notifies bodies that are arriving that memory is short.
    is_short: Notify,
    /// Empty buffers for further bodies.
    spare: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Bodies {
    pub(super) fn new(bytes_max: usize) -> Self {
        let units = BODIES * bytes_max.div_ceil(UNIT);
        let memory = Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)));
        Self { bytes_max, memory, is_short: Notify::new(), spare: Arc::default() }
    }

    /// Reads a body, and decompresses it. Its memory is reserved until the bytes are dropped.
    pub(super) async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Bytes, Unread> {
        let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok());
        if length
            .and_then(|length| length.parse().ok())
            .is_some_and(|length: usize| length > self.bytes_max)
        {
            return Err(Unread::TooLarge);
        }
        let encoding = headers.get(header::CONTENT_ENCODING).map_or(Ok(""), |value| value.to_str());
        let is_gzip = match encoding.map(str::trim) {
            Ok("" | "identity") => false,
            Ok(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
            _ => return Err(Unread::UnknownEncoding),
        };
        let read = timeout(BODY_WITHIN, self.read_parts(body)).await;
        let held = read.map_err(|_| Unread::TooSlow)??;
        if !is_gzip {
            return Ok(Bytes::from_owner(held));
        }
        let mut plain = self.hold()?;
        off_runtime(move || {
            let mut decoder = MultiGzDecoder::new(&*held.bytes);
            let mut part = vec![0; PART_BYTES];
            loop {
                match decoder.read(&mut part).map_err(|_| Unread::NotGzip)? {
                    0 => return Ok(Bytes::from_owner(plain)),
                    read => plain.append(&part[..read])?,
                }
            }
        })
        .await
    }

    /// Returns an empty body, for which no memory is reserved yet.
    fn hold(&self) -> Result<Held, Unread> {
        let nothing = Arc::clone(&self.memory).try_acquire_many_owned(0);
        let reserved = nothing.map_err(|_| Unread::NoMemory)?;
        let (bytes_max, spare) = (self.bytes_max, Arc::clone(&self.spare));
        Ok(Held { bytes: Vec::new(), reserved, bytes_max, spare })
    }

    async fn read_parts(&self, mut body: Body) -> Result<Held, Unread> {
        let began = Instant::now();
        let mut held = self.hold()?;
        loop {
            let part = tokio::select! {
                part = timeout(PART_WITHIN, body.frame()) => part.map_err(|_| Unread::TooSlow)?,
                () = self.is_short.notified() => {
                    if began.elapsed() >= GIVEN_UP_AFTER {
                        return Err(Unread::TooSlow);
                    }
                    continue;
                }
            };
            let Some(part) = part else {
                return Ok(held);
            };
            let part = part.map_err(|_| Unread::Incomplete)?;
            let Some(part) = part.data_ref() else {
                continue;
            };
            match held.append(part) {
                Err(Unread::NoMemory) => {
                    self.is_short.notify_waiters();
                    let room = timeout(ROOM_WITHIN, held.make_room(part.len())).await;
                    room.map_err(|_| Unread::NoMemory)??;
                    held.append(part)?;
                }
                appended => appended?,
            }
        }
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut buffer = mem::take(&mut self.bytes);
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE_MAX && (1..=SPARE_BYTES_MAX).contains(&buffer.capacity()) {
            buffer.clear();
            spare.push(buffer);
        }
    }
}

impl Held {
    /// Returns the number of units that are missing for this number of additional bytes.
    fn missing(&self, more: usize) -> Result<u32, Unread> {
        // A buffer that was used before has its memory already.
        let kept = self.bytes.capacity().min(self.bytes_max);
        let units = (self.bytes.len() + more).max(kept).div_ceil(UNIT);
        let missing = units.saturating_sub(self.reserved.num_permits());
        u32::try_from(missing).map_err(|_| Unread::NoMemory)
    }

    /// Waits until memory for this number of additional bytes is reserved.
    async fn make_room(&mut self, more: usize) -> Result<(), Unread> {
        let missing = self.missing(more)?;
        let room = Arc::clone(self.reserved.semaphore()).acquire_many_owned(missing).await;
        self.reserved.merge(room.map_err(|_| Unread::NoMemory)?);
        Ok(())
    }

    fn append(&mut self, part: &[u8]) -> Result<(), Unread> {
        if self.bytes.len() + part.len() > self.bytes_max {
            return Err(Unread::TooLarge);
        }
        if self.bytes.capacity() == 0 {
            self.bytes = lock(&self.spare).pop().unwrap_or_default();
        }
        let missing = self.missing(part.len())?;
        let more = Arc::clone(self.reserved.semaphore()).try_acquire_many_owned(missing);
        self.reserved.merge(more.map_err(|_| Unread::NoMemory)?);
        self.bytes.extend_from_slice(part);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use futures_util::StreamExt as _;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn encoding(value: &str) -> HeaderMap {
        [(header::CONTENT_ENCODING, value.parse().unwrap())].into_iter().collect()
    }

    #[tokio::test]
    async fn bodies_are_bounded_in_size_and_together() {
        let bodies = Bodies::new(64 * UNIT);
        let (plain, compressed) = (HeaderMap::new(), encoding("gzip"));
        let all = bodies.memory.available_permits();
        let text = b"a=1 value=u 1\n".repeat(4600);
        for (headers, bytes) in [
            (&plain, text.clone()),
            (&compressed, gzip(&text)),
            (&compressed, [gzip(&text[..14]), gzip(&text[14..])].concat()),
        ] {
            assert_eq!(bodies.read(headers, bytes.into()).await.unwrap(), text);
            assert_eq!(bodies.memory.available_permits(), all);
        }
        for (headers, bytes, expected) in [
            (&plain, vec![b'a'; 64 * UNIT + 1], Unread::TooLarge),
            (&compressed, gzip(&vec![b'a'; 6400 * UNIT]), Unread::TooLarge),
            (&compressed, text.clone(), Unread::NotGzip),
            (&compressed, gzip(&text)[..30].to_vec(), Unread::NotGzip),
            (&encoding("br"), text.clone(), Unread::UnknownEncoding),
        ] {
            assert_eq!(bodies.read(headers, bytes.into()).await.unwrap_err(), expected);
            assert_eq!(bodies.memory.available_permits(), all);
        }
        let mut held = Vec::new();
        for _ in 0..BODIES {
            held.push(bodies.read(&plain, text.clone().into()).await.unwrap());
        }
        let refused = bodies.read(&plain, text.clone().into()).await;
        assert_eq!(refused.unwrap_err(), Unread::NoMemory);
        held.pop();
        bodies.read(&plain, text.into()).await.unwrap();
    }

    #[tokio::test]
    async fn a_buffer_that_was_used_before_counts_as_memory() {
        let bodies = Bodies::new(64 * UNIT);
        let all = bodies.memory.available_permits();
        drop(bodies.read(&HeaderMap::new(), vec![b'a'; 32 * UNIT].into()).await.unwrap());
        assert_eq!(bodies.memory.available_permits(), all);
        let _small = bodies.read(&HeaderMap::new(), vec![b'a'].into()).await.unwrap();
        assert_eq!(bodies.memory.available_permits(), all - 32);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bodies_make_room_for_others() {
        let bodies = Arc::new(Bodies::new(UNIT));
        let slow = || {
            let parts = futures_util::stream::iter([Ok::<_, std::io::Error>(vec![b'a'; UNIT])]);
            Body::from_stream(parts.chain(futures_util::stream::pending()))
        };
        let read = |body| {
            let bodies = Arc::clone(&bodies);
            tokio::spawn(async move { bodies.read(&HeaderMap::new(), body).await })
        };
        let slow: Vec<_> = (0..BODIES).map(|_| read(slow())).collect();
        let others = || read(vec![b'a'; UNIT].into());
        assert_eq!(others().await.unwrap().unwrap_err(), Unread::NoMemory);
        tokio::time::sleep(GIVEN_UP_AFTER).await;
        others().await.unwrap().unwrap();
        for slow in slow {
            assert_eq!(slow.await.unwrap().unwrap_err(), Unread::TooSlow);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let bodies = Bodies::new(UNIT);
        let never =
            Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
        assert_eq!(bodies.read(&HeaderMap::new(), never).await.unwrap_err(), Unread::TooSlow);
        let slowly = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(PART_WITHIN / 2).await;
            Some((Ok::<_, std::io::Error>(vec![b'a']), ()))
        });
        let slowly = bodies.read(&HeaderMap::new(), Body::from_stream(slowly)).await;
        assert_eq!(slowly.unwrap_err(), Unread::TooSlow);
    }
}
