//! The addresses that get a copy of each datagram.
//!
//! Each has a socket of its own, connected, so that the kernel reports a port at which nobody listens: when the next
//! datagram is sent, of one that was sent before. A copy counts as sent when the kernel took it, whether or not anybody
//! listened: UDP promises no more than that, and a node that is down is what several addresses are for. Those that are
//! known to be refused are counted beside.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::time::Duration;

use super::SendError;

/// With a pause that doubles, eight tries wait a quarter of a second: longer than a busy device needs to drain.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// How long a refusal may be under way.
const REFUSAL_WAIT: Duration = Duration::from_millis(100);

/// An address to send to.
#[derive(Debug)]
pub(super) struct Target {
    address: SocketAddr,
    socket: UdpSocket,
    /// Copies that came back because nobody listens; the network may not report all.
    pub(super) refused: u64,
}

impl Target {
    /// Finds the address that a `HOST:PORT` names, and opens a socket of its family.
    pub(super) fn open(to: &str) -> Result<Self, SendError> {
        let resolve_error = |source| SendError::Resolve {
            to: to.to_owned(),
            source,
        };
        let mut addresses: Vec<SocketAddr> = to.to_socket_addrs().map_err(resolve_error)?.collect();
        // `localhost` often names ::1 first, while the service listens on 127.0.0.1.
        addresses.sort_by_key(SocketAddr::is_ipv6);
        let address = addresses
            .first()
            .copied()
            .ok_or_else(|| resolve_error(io::Error::from(ErrorKind::NotFound)))?;
        let any: SocketAddr = match address {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket_error = |source| SendError::Socket { address, source };
        let socket = UdpSocket::bind(any).map_err(socket_error)?;
        socket.connect(address).map_err(socket_error)?;
        Ok(Self {
            address,
            socket,
            refused: 0,
        })
    }

    pub(super) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends one copy. Answers how many tries it took beyond the first.
    pub(super) fn send(&mut self, datagram: &[u8]) -> Result<u32, Failed> {
        let mut pause = FIRST_PAUSE;
        let mut retries = 0;
        loop {
            let Err(source) = self.socket.send(datagram) else {
                return Ok(retries);
            };
            let refused = source.kind() == ErrorKind::ConnectionRefused;
            self.refused += u64::from(refused);
            if retries + 1 == TRIES_MAX || !is_passing(&source) {
                return Err(Failed { retries, source });
            }
            if !refused {
                std::thread::sleep(pause);
                pause *= 2;
            }
            retries += 1;
        }
    }
}

/// Waits until refusals of what was sent last have come back, if they do.
pub(super) fn wait_for_refusals(targets: &mut [Target]) {
    if targets
        .iter()
        .any(|target| !target.address.ip().is_loopback())
    {
        std::thread::sleep(REFUSAL_WAIT);
    }
    for target in targets {
        let error = target.socket.take_error().ok().flatten();
        let refused = error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        target.refused += u64::from(refused);
    }
}

/// A copy that the kernel did not take, however often it was tried.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) retries: u32,
    pub(super) source: io::Error,
}

/// Whether the same datagram may pass when it is tried again: the device's queue is full, or the error is about
/// a datagram before this one.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionRefused
    ) || error.raw_os_error() == Some(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_does_not_resolve_is_named() {
        for to in ["127.0.0.1", "127.0.0.1:notaport", ""] {
            let error = Target::open(to).unwrap_err();
            assert!(error.to_string().contains(to), "{error}");
        }
    }

    #[test]
    fn localhost_is_reached_over_ipv4() {
        assert_eq!(
            Target::open("localhost:9").unwrap().address(),
            ([127, 0, 0, 1], 9).into()
        );
    }

    #[test]
    fn a_closed_port_does_not_stop_the_sender_and_is_counted() {
        // Bound and dropped, so that nobody listens there.
        let closed = UdpSocket::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        let mut targets = [Target::open(&closed.to_string()).unwrap()];
        for _ in 0..10 {
            assert!(targets[0].send(b"x").is_ok());
        }
        assert_eq!(targets[0].refused, 9, "the next send reports it");
        wait_for_refusals(&mut targets);
        assert_eq!(targets[0].refused, 10);
    }

    #[test]
    fn a_datagram_that_is_too_large_fails_at_once() {
        let mut target = Target::open("127.0.0.1:9").unwrap();
        let failed = target.send(&vec![b'x'; 65_536]).unwrap_err();
        assert_eq!(
            (failed.retries, failed.source.raw_os_error()),
            (0, Some(libc::EMSGSIZE))
        );
    }
}
