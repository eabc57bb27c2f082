//! The addresses that get a copy of each datagram.
//!
//! Each has a socket of its own. One for UDP is connected, so that the kernel reports a port at which nobody listens. On this
//! host it does so at once, of the datagram just sent: such a copy is refused, not sent. A refusal by another host comes back
//! later, with the next datagram, of one that already counts as sent: UDP promises no more than that.
//!
//! A Unix socket takes what its node will read, or says at once that nobody listens; while it is full the sender waits.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use super::SendError;
use super::stop::LOOK_INTERVAL;

/// With a pause that doubles, eight tries wait a quarter of a second: longer than a busy device needs to drain.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(1);

/// How long a refusal may be under way.
const REFUSAL_WAIT: Duration = Duration::from_millis(100);

/// What the name of a Unix socket begins with.
const UNIX: &str = "unix:";

/// An address to send to.
#[derive(Debug)]
pub(super) struct Target {
    name: String,
    socket: Socket,
    /// Copies that came back because nobody listens; the network may not report all.
    pub(super) refused: u64,
    /// Whether it took a copy.
    pub(super) has_taken: bool,
}

#[derive(Debug)]
enum Socket {
    Udp(UdpSocket, SocketAddr),
    /// With the path to send to: who listens there may change.
    Unix(UnixDatagram, PathBuf),
}

impl Target {
    /// Finds the address that a `HOST:PORT` names, and opens a socket of its family; or one for `unix:/path`.
    pub(super) fn open(to: &str) -> Result<Self, SendError> {
        let (name, socket) = if let Some(path) = to.strip_prefix(UNIX) {
            (to.to_owned(), unix(path.into()))
        } else {
            let address = resolve(to)?;
            (address.to_string(), udp(address))
        };
        match socket {
            Ok(socket) => Ok(Self { name, socket, refused: 0, has_taken: false }),
            Err(source) => Err(SendError::Socket { address: name, source }),
        }
    }

    /// Where it is, with the address that its name stood for.
    pub(super) fn address(&self) -> &str {
        &self.name
    }

    /// Sends one copy. Waits for room in a Unix socket, but for a moment only once it `is_stopped`. Returns the number of tries
    /// beyond the first.
    pub(super) fn send(
        &mut self,
        datagram: &[u8],
        is_stopped: impl Fn() -> bool,
    ) -> Result<u32, Failed> {
        let mut pause = FIRST_PAUSE;
        let mut retries = 0;
        loop {
            let (sent, is_unix) = match &self.socket {
                Socket::Udp(socket, _) => (socket.send(datagram), false),
                Socket::Unix(socket, path) => (socket.send_to(datagram, path), true),
            };
            let Err(source) = sent else {
                if let Some(source) = self.refusal_on_this_host() {
                    return Err(Failed { is_refused: true, retries, source });
                }
                self.has_taken = true;
                return Ok(retries);
            };
            if is_unix && source.kind() == ErrorKind::WouldBlock && !is_stopped() {
                continue;
            }
            // Of a datagram before this one by UDP, and of this one at a Unix socket.
            let refused = is_refusal(&source, is_unix);
            let is_last = retries + 1 == TRIES_MAX || !(refused || is_passing(&source));
            self.refused += u64::from(refused && !is_unix);
            if is_last {
                return Err(Failed { is_refused: refused && is_unix, retries, source });
            }
            if is_unix || !refused {
                std::thread::sleep(pause);
                pause *= 2;
            }
            retries += 1;
        }
    }
}

impl Target {
    /// Returns the refusal of the UDP datagram just sent, which the kernel reports at once where it stays on this host.
    fn refusal_on_this_host(&self) -> Option<io::Error> {
        match &self.socket {
            Socket::Udp(socket, address) if address.ip().is_loopback() => {
                let error = socket.take_error().ok().flatten();
                error.filter(|error| is_refusal(error, false))
            }
            Socket::Udp(..) | Socket::Unix(..) => None,
        }
    }
}

fn resolve(to: &str) -> Result<SocketAddr, SendError> {
    let resolve_error = |source| SendError::Resolve { to: to.to_owned(), source };
    let mut addresses: Vec<SocketAddr> = to.to_socket_addrs().map_err(resolve_error)?.collect();
    // `localhost` often names ::1 first, while the service listens on 127.0.0.1.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let first = addresses.first().copied();
    first.ok_or_else(|| resolve_error(io::Error::from(ErrorKind::NotFound)))
}

fn udp(address: SocketAddr) -> io::Result<Socket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(Socket::Udp(socket, address))
}

fn unix(path: PathBuf) -> io::Result<Socket> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(LOOK_INTERVAL))?;
    Ok(Socket::Unix(socket, path))
}

/// Waits until refusals of what was sent last have come back, if they do.
pub(super) fn wait_for_refusals(targets: &mut [Target]) {
    let is_far = |target: &Target| matches!(&target.socket, Socket::Udp(_, address) if !address.ip().is_loopback());
    if targets.iter().any(is_far) {
        std::thread::sleep(REFUSAL_WAIT);
    }
    for target in targets {
        if let Socket::Udp(socket, _) = &target.socket {
            let error = socket.take_error().ok().flatten();
            let refused = error.is_some_and(|error| is_refusal(&error, false));
            target.refused += u64::from(refused);
        }
    }
}

/// Whether nobody listens: no socket has the path, or the one that has it is closed or about to be.
fn is_refusal(error: &io::Error, is_unix: bool) -> bool {
    let of_unix = || matches!(error.kind(), ErrorKind::NotFound | ErrorKind::BrokenPipe);
    error.kind() == ErrorKind::ConnectionRefused || is_unix && of_unix()
}

/// A copy that the kernel did not take, however often it was tried, or that nobody took.
#[derive(Debug)]
pub(super) struct Failed {
    /// Whether nobody listens.
    pub(super) is_refused: bool,
    pub(super) retries: u32,
    pub(super) source: io::Error,
}

/// Whether the same datagram may pass when it is tried again: the device's queue is full.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
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
        let target = Target::open("localhost:9").unwrap();
        assert_eq!(target.address(), "127.0.0.1:9");
    }

    #[test]
    fn a_closed_port_of_this_host_refuses_each_copy_at_once() {
        // Bound and dropped, so that nobody listens there.
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut target = Target::open(&closed.to_string()).unwrap();
        let failed = target.send(b"x", || false).unwrap_err();
        assert!(failed.is_refused && !target.has_taken);
        let _node = UdpSocket::bind(closed).unwrap();
        assert_eq!(target.send(b"x", || false).unwrap(), 0);
        assert!(target.has_taken);
    }

    #[test]
    fn a_datagram_that_is_too_large_fails_at_once() {
        let mut target = Target::open("127.0.0.1:9").unwrap();
        let failed = target.send(&vec![b'x'; 65_536], || false).unwrap_err();
        assert_eq!((failed.retries, failed.source.raw_os_error()), (0, Some(libc::EMSGSIZE)));
    }

    #[test]
    fn a_full_unix_socket_makes_the_sender_wait_until_it_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.sock");
        let node = UnixDatagram::bind(&path).unwrap();
        let mut target = Target::open(&format!("unix:{}", path.display())).unwrap();
        let (mut sent, looks) = (0, std::cell::Cell::new(0));
        // It waits for two looks, and then gives up.
        let is_stopped = || looks.replace(looks.get() + 1) >= 2;
        let failed = loop {
            match target.send(b"x", is_stopped) {
                Ok(_) => sent += 1,
                Err(failed) => break failed,
            }
        };
        assert_eq!(failed.source.kind(), ErrorKind::WouldBlock);
        assert!(looks.get() > 2 && !failed.is_refused);
        node.set_nonblocking(true).unwrap();
        while node.recv(&mut [0; 8]).is_ok() {
            sent -= 1;
        }
        assert_eq!(sent, 0, "each that was taken is there");
    }

    #[test]
    fn a_unix_socket_at_which_nobody_listens_refuses_and_may_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let mut target = Target::open(&format!("unix:{}", path.display())).unwrap();
        let mut refused = |kind| {
            let failed = target.send(b"x", || false).unwrap_err();
            assert!(failed.is_refused);
            assert_eq!((failed.source.kind(), failed.retries), (kind, 7));
        };
        refused(ErrorKind::NotFound);
        drop(UnixDatagram::bind(&path).unwrap());
        refused(ErrorKind::ConnectionRefused);
        std::fs::remove_file(&path).unwrap();
        let node = UnixDatagram::bind(&path).unwrap();
        assert_eq!(target.send(b"y", || false).unwrap(), 0);
        let mut byte = [0];
        node.recv(&mut byte).unwrap();
        assert_eq!(byte, [b'y']);
    }
}
