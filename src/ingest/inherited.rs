//! The sockets that a service manager holds for the node and passes to it: `LISTEN_FDS`, `sd_listen_fds(3)`.
//!
//! Such a socket outlives the process. While the service restarts the kernel keeps what arrives in it, and the next
//! process reads that; so a node that stops leaves what it has not read.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

use super::address::ListenAddress;
use super::receive::{force_receive_buffer, passed};
use super::socket::BindSettings;
use crate::diagnosis::Cause;

/// A socket that the service manager passed, known to be one for datagrams.
#[derive(Debug)]
pub struct Inherited {
    socket: Socket,
    address: ListenAddress,
}

/// Why a socket that the service manager passed cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritError {
    /// The variables are not numbers, or name descriptors that are not open.
    #[error("cannot take the sockets of the service manager (LISTEN_PID, LISTEN_FDS): {0}")]
    Descriptors(io::Error),
    /// Not a socket at which events come in.
    #[error(
        "the service manager passes descriptor {descriptor}, which is {what}; eds takes sockets for datagrams only, which \
         ListenDatagram= of a .socket unit makes of an address with a port or of an absolute path"
    )]
    NotForEvents {
        /// Its number.
        descriptor: i32,
        /// What it is.
        what: &'static str,
    },
    /// The configuration has no such address.
    #[error(
        "the service manager passes a socket at {address}, which input.listen does not name; it has {listen:?}. \
         Nobody would read that socket: set ListenDatagram= of {unit}.socket to input.listen (systemctl edit {unit}.socket; \
         systemctl restart {unit}.socket), or do without it: systemctl disable --now {unit}.socket; systemctl start \
         {unit}.service"
    )]
    NotNamed {
        /// Where the socket is.
        address: ListenAddress,
        /// What the configuration has.
        listen: Vec<ListenAddress>,
        /// What the units are called.
        unit: &'static str,
    },
    /// The system refuses what a node does to its sockets.
    #[error("cannot use the socket at {address} that the service manager passes: {source}")]
    Unusable {
        /// Where the socket is.
        address: ListenAddress,
        /// Why.
        source: io::Error,
    },
}

/// Takes the sockets that the service manager passed to this process; none without such a manager. Call it before the
/// process opens anything, so that all that is open came from there. Later calls get none.
pub fn inherited() -> Result<Vec<Inherited>, InheritError> {
    let descriptors = passed().map_err(InheritError::Descriptors)?;
    descriptors
        .into_iter()
        .map(|(descriptor, owned)| {
            let socket = Socket::from(owned);
            let not_one = |what| InheritError::NotForEvents { descriptor, what };
            let address = address(&socket).map_err(not_one)?;
            Ok(Inherited { socket, address })
        })
        .collect()
}

/// The address where this socket receives, or what it is if events cannot come in there.
fn address(socket: &Socket) -> Result<ListenAddress, &'static str> {
    let Ok(domain) = socket.domain() else {
        return Err("no socket");
    };
    if ![Domain::IPV4, Domain::IPV6, Domain::UNIX].contains(&domain) {
        return Err("a socket, but neither of the internet nor a Unix one");
    }
    if !matches!(socket.r#type(), Ok(Type::DGRAM)) {
        return Err("a socket, but not for datagrams");
    }
    match ListenAddress::of(socket) {
        Some(ListenAddress::Udp(at)) if at.port() == 0 => None,
        // One with a name that is no path has none.
        address => address,
    }
    .ok_or("a socket without an address")
}

/// Whether every socket has its address in `listen`. `unit` is what the units of the service manager are called.
pub(super) fn check_all_named(
    inherited: &[Inherited],
    listen: &[ListenAddress],
    unit: &'static str,
) -> Result<(), InheritError> {
    let stray = inherited.iter().find(|it| !listen.contains(&it.address));
    stray.map_or(Ok(()), |stray| {
        Err(InheritError::NotNamed {
            address: stray.address.clone(),
            listen: listen.to_vec(),
            unit,
        })
    })
}

/// Takes those at this address out of `inherited`, ready to be read like sockets that the node has bound. There are
/// several where they share the address (`ReusePort=`).
pub(super) fn take_at(
    inherited: &mut Vec<Inherited>,
    address: &ListenAddress,
    settings: &BindSettings,
) -> Result<Vec<Socket>, InheritError> {
    inherited
        .extract_if(.., |it| it.address == *address)
        .map(|Inherited { socket, address }| {
            let prepared = prepare(&socket, &address, settings);
            prepared.map_err(|source| InheritError::Unusable { address, source })?;
            Ok(socket)
        })
        .collect()
}

fn prepare(socket: &Socket, address: &ListenAddress, settings: &BindSettings) -> io::Result<()> {
    // Its former owner may have polled it.
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(settings.read_timeout))?;
    let ListenAddress::Udp(address) = *address else {
        return Ok(());
    };
    if address.ip().is_unspecified() && address.is_ipv6() && socket.only_v6()? {
        tracing::info!(
            %address,
            "the socket of the service manager receives IPv6 only (BindIPv6Only=ipv6-only in its unit)"
        );
    }
    widen(socket, address, settings.receive_buffer)
}

/// Enlarges the receive buffer to the size that is asked for, and never shrinks it: the manager may have set one beyond
/// what this process may (`ReceiveBuffer=`), and it may be full.
fn widen(socket: &Socket, address: SocketAddr, asked: u64) -> io::Result<()> {
    let size = i32::try_from(asked).unwrap_or(i32::MAX / 2);
    let has = |socket: &Socket| Ok::<_, io::Error>(socket.recv_buffer_size()? as u64 / 2);
    if has(socket)? < asked && force_receive_buffer(socket, size).is_err() {
        // The kernel gives no more than net.core.rmem_max, which may be less than the socket has: try it on another.
        let size = usize::try_from(size).unwrap_or_default();
        let trial = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
        trial.set_recv_buffer_size(size)?;
        if has(&trial)? > has(socket)? {
            socket.set_recv_buffer_size(size)?;
        }
    }
    let got = has(socket)?;
    if got < asked {
        tracing::warn!(
            %address,
            asked_bytes = asked,
            got_bytes = got,
            "{}",
            Cause::SmallBuffer
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::time::Duration;

    use super::*;

    const SETTINGS: BindSettings = BindSettings {
        receive_buffer: 4096,
        socket_mode: 0o600,
        read_timeout: Duration::from_millis(5),
    };

    fn passed(socket: impl Into<Socket>) -> Inherited {
        let socket = socket.into();
        let address = address(&socket).unwrap();
        Inherited { socket, address }
    }

    fn udp() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn only_sockets_for_datagrams_with_an_address_are_taken() {
        let check = |socket: Socket, what: &str| {
            assert_eq!(address(&socket).unwrap_err(), what);
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        check(Socket::from(OwnedFd::from(file)), "no socket");
        check(TcpListener::bind("127.0.0.1:0").unwrap().into(), "a socket, but not for datagrams");
        check(UnixStream::pair().unwrap().0.into(), "a socket, but not for datagrams");
        check(UnixDatagram::unbound().unwrap().into(), "a socket without an address");
        check(Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap(), "a socket without an address");
        let good = udp();
        let at = ListenAddress::Udp(good.local_addr().unwrap());
        assert_eq!(address(&good.into()), Ok(at));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let good = UnixDatagram::bind(&path).unwrap();
        assert_eq!(address(&good.into()), Ok(ListenAddress::Unix(path)));
    }

    #[test]
    fn a_socket_that_no_key_names_is_an_error_with_its_address() {
        let (one, other) = (passed(udp()), passed(udp()));
        let (at, other_at) = (one.address.clone(), other.address.clone());
        let all = [one, other];
        check_all_named(&all, &[other_at.clone(), at.clone()], "eds").unwrap();
        let error = check_all_named(&all, &[at], "eds").unwrap_err().to_string();
        assert!(error.contains(&format!("a socket at {other_at}")), "{error}");
        assert!(error.contains("ListenDatagram="), "{error}");
    }

    #[test]
    fn sockets_are_taken_by_their_address() {
        let mut all = vec![passed(udp()), passed(udp())];
        let address = all[1].address.clone();
        let taken = take_at(&mut all, &address, &SETTINGS).unwrap();
        let at: Vec<_> = taken.iter().filter_map(ListenAddress::of).collect();
        assert_eq!(at, std::slice::from_ref(&address));
        assert_eq!(all.len(), 1);
        let again = take_at(&mut all, &address, &SETTINGS).unwrap();
        assert!(again.is_empty());
    }

    #[test]
    fn a_receive_buffer_only_grows() {
        let socket = udp();
        let address = socket.local_addr().unwrap();
        let socket = Socket::from(socket);
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        let size = || socket.recv_buffer_size().unwrap() / 2;
        widen(&socket, address, 16 * 1024).unwrap();
        assert_eq!(size(), 64 * 1024);
        widen(&socket, address, 96 * 1024).unwrap();
        assert_eq!(size(), 96 * 1024);
    }

    #[test]
    fn a_socket_that_was_polled_waits_again() {
        let socket = udp();
        socket.set_nonblocking(true).unwrap();
        let socket = passed(socket);
        let address = socket.address.clone();
        let taken = take_at(&mut vec![socket], &address, &SETTINGS).unwrap();
        assert!(!taken[0].nonblocking().unwrap());
        assert_eq!(taken[0].read_timeout().unwrap().map(|time| time > Duration::ZERO), Some(true));
    }
}
