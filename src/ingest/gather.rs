//! [`Gather`]: lets datagrams that come close behind each other be read together, since to wake up costs more than to read one.

use std::time::{Duration, Instant};

use socket2::Socket;

/// The longest that datagrams wait for others.
const MOST: Duration = Duration::from_millis(1);
/// A receive buffer is filled to a quarter in no less than a nanosecond for so many bytes of it: by a million datagrams a second,
/// for each of which Linux reckons 768 bytes or more.
const BYTES_PER_NANO: u64 = 3;

/// See the module.
#[derive(Debug)]
pub(super) struct Gather {
    most: Duration,
    read: Instant,
}

impl Gather {
    /// For this socket. A Unix socket has room for few datagrams, and who sends them waits.
    pub(super) fn new(socket: &Socket, is_unix: bool) -> Self {
        let buffer = socket.recv_buffer_size().ok().filter(|_| !is_unix);
        let most = Duration::from_nanos(buffer.unwrap_or_default() as u64 / BYTES_PER_NANO);
        Self { most: most.min(MOST), read: Instant::now() }
    }

    #[cfg(test)]
    pub(super) fn resting(most: Duration) -> Self {
        let read = Instant::now();
        Self { most, read }
    }

    /// Rests if datagrams were read just now: where they come at longer intervals, each is read at once. Not for who reads one at a
    /// time: all behind it would wait, too.
    pub(super) fn rest(&self) {
        if self.read.elapsed() < self.most {
            std::thread::sleep(self.most);
        }
    }

    /// Notes whether datagrams were read.
    pub(super) fn note(&mut self, read: bool) {
        if read {
            self.read = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    #[test]
    fn what_comes_close_behind_waits_as_long_as_a_quarter_of_the_buffer_allows() {
        let of = |domain, bytes| {
            let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
            socket.set_recv_buffer_size(bytes).unwrap();
            Gather::new(&socket, domain == Domain::UNIX)
        };
        assert_eq!(of(Domain::UNIX, 1 << 17).most, Duration::ZERO);
        // Linux doubles what is asked for.
        let mut small = of(Domain::IPV4, 1 << 16);
        assert_eq!(small.most, Duration::from_nanos((1 << 17) / 3));
        small.most = MOST;
        let rest = |gather: &Gather| {
            let began = Instant::now();
            gather.rest();
            began.elapsed()
        };
        small.note(true);
        assert!(rest(&small) >= MOST);
        // So long after the last, it was not close behind.
        small.note(false);
        assert!(small.read.elapsed() >= MOST);
    }
}
