//! The addresses to which a copy of each datagram is sent, and their sockets. If no process is listening on a UDP address of
//! this host, the kernel reports this immediately. A refusal from a different host arrives later, after the copy has been
//! counted as sent. A Unix socket reports immediately if no process is listening; while it is full, the sender waits.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use super::SendError;
use super::source::LOOK_INTERVAL;

/// Maximum number of attempts to send a copy. The pause doubles each time, to an eighth of a second in total.
const TRIES_MAX: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// How long to wait for refusals from different hosts after the last datagram.
const REFUSAL_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Target {
    pub(super) name: String,
    socket: Socket,
    /// Copies refused because no process was listening. The network may not report all refusals.
    pub(super) refused: u64,
    pub(super) retries: u64,
    pub(super) has_taken: bool,
}

#[derive(Debug)]
enum Socket {
    Udp {
        socket: UdpSocket,
        is_local: bool,
    },
    /// An unconnected socket and the path to send to, because a different process may listen on the path later.
    Unix(UnixDatagram, PathBuf),
}

impl Target {
    pub(super) fn open(to: &str) -> Result<Self, SendError> {
        let (name, socket) = if let Some(path) = to.strip_prefix("unix:") {
            (to.to_owned(), unix(path.into()))
        } else {
            let address =
                resolve(to).map_err(|source| SendError::Resolve(to.to_owned(), source))?;
            (address.to_string(), udp(address))
        };
        match socket {
            Ok(socket) => Ok(Self { name, socket, refused: 0, retries: 0, has_taken: false }),
            Err(source) => Err(SendError::Socket(name, source)),
        }
    }

    /// Sends a copy of the datagram, and retries if a retry may succeed. Waits for a full Unix socket unless `is_stopped`.
    pub(super) fn send(
        &mut self,
        datagram: &[u8],
        is_stopped: impl Fn() -> bool,
    ) -> Result<(), Failed> {
        let mut pause = FIRST_PAUSE;
        let mut tries = 1;
        loop {
            let (sent, is_unix) = match &self.socket {
                Socket::Udp { socket, .. } => (socket.send(datagram), false),
                Socket::Unix(socket, path) => (socket.send_to(datagram, path), true),
            };
            let Err(source) = sent else {
                if let Socket::Udp { socket, is_local: true } = &self.socket
                    && let Some(source) = pending_refusal(socket)
                {
                    return Err(Failed { is_refused: true, source });
                }
                self.has_taken = true;
                return Ok(());
            };
            if is_unix && source.kind() == ErrorKind::WouldBlock && !is_stopped() {
                continue;
            }
            // The path does not exist, or the process is closing its socket.
            let is_closed = matches!(source.kind(), ErrorKind::NotFound | ErrorKind::BrokenPipe);
            let is_refused = is_refusal(&source) || is_unix && is_closed;
            // UDP is reporting that an earlier datagram was refused.
            self.refused += u64::from(is_refused && !is_unix);
            if tries == TRIES_MAX || !(is_refused || is_passing(&source)) {
                return Err(Failed { is_refused: is_refused && is_unix, source });
            }
            if is_unix || !is_refused {
                std::thread::sleep(pause);
                pause *= 2;
            }
            tries += 1;
            self.retries += 1;
        }
    }
}

#[derive(Debug)]
pub(super) struct Failed {
    pub(super) is_refused: bool,
    pub(super) source: io::Error,
}

fn resolve(to: &str) -> io::Result<SocketAddr> {
    // Prefer IPv4, because `localhost` often resolves to ::1 first, but the service listens on 127.0.0.1 by default.
    let address = to.to_socket_addrs()?.min_by_key(SocketAddr::is_ipv6);
    address.ok_or_else(|| ErrorKind::NotFound.into())
}

fn udp(address: SocketAddr) -> io::Result<Socket> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(Socket::Udp { socket, is_local: address.ip().is_loopback() })
}

fn unix(path: PathBuf) -> io::Result<Socket> {
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(LOOK_INTERVAL))?;
    Ok(Socket::Unix(socket, path))
}

pub(super) fn wait_for_refusals(targets: &mut [Target]) {
    let is_far = |target: &Target| matches!(target.socket, Socket::Udp { is_local: false, .. });
    if targets.iter().any(is_far) {
        std::thread::sleep(REFUSAL_WAIT);
    }
    for target in targets {
        if let Socket::Udp { socket, .. } = &target.socket {
            target.refused += u64::from(pending_refusal(socket).is_some());
        }
    }
}

/// Returns the refusal recorded for a UDP socket, if any. If the peer is on this host, it refused the last datagram.
fn pending_refusal(socket: &UdpSocket) -> Option<io::Error> {
    socket.take_error().ok().flatten().filter(is_refusal)
}

fn is_refusal(error: &io::Error) -> bool {
    error.kind() == ErrorKind::ConnectionRefused
}

/// Returns whether the error is temporary, such as a full device queue, so that a retry may succeed.
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
        assert_eq!(target.name, "127.0.0.1:9");
    }

    #[test]
    fn a_closed_port_of_this_host_refuses_each_copy_at_once() {
        // Bound and dropped, so that nothing is listening there.
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut target = Target::open(&closed.to_string()).unwrap();
        let failed = target.send(b"x", || false).unwrap_err();
        assert!(failed.is_refused && !target.has_taken);
        let _node = UdpSocket::bind(closed).unwrap();
        target.send(b"x", || false).unwrap();
        assert!(target.has_taken && target.retries == 0);
    }

    #[test]
    fn a_datagram_that_is_too_large_fails_at_once() {
        let mut target = Target::open("127.0.0.1:9").unwrap();
        let failed = target.send(&vec![b'x'; 65_536], || false).unwrap_err();
        assert_eq!((target.retries, failed.source.raw_os_error()), (0, Some(libc::EMSGSIZE)));
    }

    #[test]
    fn a_full_unix_socket_makes_the_sender_wait_until_it_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("full.sock");
        let node = UnixDatagram::bind(&path).unwrap();
        let mut target = Target::open(&format!("unix:{}", path.display())).unwrap();
        let (mut sent, looks) = (0, std::cell::Cell::new(0));
        // Let `send` wait twice. At its third check, it must stop and fail.
        let is_stopped = || looks.replace(looks.get() + 1) >= 2;
        let failed = loop {
            match target.send(b"x", is_stopped) {
                Ok(()) => sent += 1,
                Err(failed) => break failed,
            }
        };
        assert_eq!(failed.source.kind(), ErrorKind::WouldBlock);
        assert!(looks.get() > 2 && !failed.is_refused);
        node.set_nonblocking(true).unwrap();
        while node.recv(&mut [0; 8]).is_ok() {
            sent -= 1;
        }
        assert_eq!(sent, 0, "an accepted copy is missing");
    }

    #[test]
    fn a_unix_socket_without_a_process_refuses_and_may_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let mut target = Target::open(&format!("unix:{}", path.display())).unwrap();
        let mut refused = |kind, retries| {
            let failed = target.send(b"x", || false).unwrap_err();
            assert!(failed.is_refused);
            assert_eq!((failed.source.kind(), target.retries), (kind, retries));
        };
        refused(ErrorKind::NotFound, 7);
        drop(UnixDatagram::bind(&path).unwrap());
        refused(ErrorKind::ConnectionRefused, 14);
        std::fs::remove_file(&path).unwrap();
        let node = UnixDatagram::bind(&path).unwrap();
        target.send(b"y", || false).unwrap();
        let mut byte = [0];
        node.recv(&mut byte).unwrap();
        assert_eq!(byte, [b'y']);
    }
}
