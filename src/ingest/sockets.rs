//! [`Sockets`]: opens all sockets that receive events. Sockets passed by a service manager (`sd_listen_fds(3)`) outlive the
//! process: the next process reads the remaining datagrams, so a node does not read them on shutdown.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, Socket, Type};

use super::address::{ListenAddress, SocketFile, bind_unix};
use super::holder::{Table, explained};
use super::receive::{Receiver, passed};
use crate::diagnosis::Cause;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Sockets<'a> {
    pub(crate) listen: &'a [ListenAddress],
    /// The requested size of each UDP socket's receive buffer, in bytes.
    pub(crate) receive_buffer: u64,
    pub(crate) socket_mode: u32,
    pub(crate) read_timeout: Duration,
    /// How many threads share each socket. With one socket per thread, all datagrams from a sender would go to one thread.
    pub(crate) threads: usize,
    /// Maximum length of a datagram that is read in full, in bytes.
    pub(crate) datagram_max: usize,
    /// The name of the systemd units without their suffix, such as `eds` for `eds.socket`.
    pub(crate) unit: &'static str,
}

#[derive(Debug, Default)]
pub(crate) struct Opened {
    /// The receivers, one per thread per socket.
    pub(crate) receivers: Vec<Receiver>,
    /// The addresses of the sockets, with the ports that the system chose in place of port 0.
    pub(crate) addresses: Vec<ListenAddress>,
    /// The total size of the receive buffers of all UDP sockets.
    pub(crate) buffer_bytes: u64,
    /// How many datagrams the kernel dropped from the inherited sockets before this process started reading them.
    pub(crate) drops_before: u64,
}

/// A datagram socket passed by the service manager.
#[derive(Debug)]
pub(crate) struct Inherited {
    socket: Socket,
    address: ListenAddress,
}

/// Takes over the sockets that the service manager passed to this process, if any. Must be called before the process opens
/// any file or socket, so that all open descriptors come from the service manager. Later calls return no sockets.
pub(crate) fn inherited() -> anyhow::Result<Vec<Inherited>> {
    let descriptors = passed().map_err(|error| {
        anyhow!(
            "cannot use the sockets passed by the service manager (LISTEN_PID, LISTEN_FDS): {error}"
        )
    })?;
    let inherited = descriptors.into_iter().map(|(descriptor, owned)| {
        let socket = Socket::from(owned);
        let address = address_for_events(&socket).map_err(|kind| {
            anyhow!(
                "the service manager passed descriptor {descriptor}, which is {kind}; eds accepts only datagram sockets: in \
                 the .socket unit, set ListenDatagram= to an address with a port, or to an absolute path"
            )
        })?;
        Ok(Inherited { socket, address })
    });
    inherited.collect()
}

fn address_for_events(socket: &Socket) -> Result<ListenAddress, &'static str> {
    let Ok(domain) = socket.domain() else {
        return Err("not a socket");
    };
    if ![Domain::IPV4, Domain::IPV6, Domain::UNIX].contains(&domain) {
        return Err("neither an internet socket nor a Unix socket");
    }
    if !matches!(socket.r#type(), Ok(Type::DGRAM)) {
        return Err("not a datagram socket");
    }
    match ListenAddress::of(socket) {
        Some(ListenAddress::Udp(at)) if at.port() == 0 => None,
        // A Unix socket whose name is not a path has no usable address.
        address => address,
    }
    .ok_or("a socket without an address")
}

impl Sockets<'_> {
    pub(crate) fn open(&self, mut inherited: Vec<Inherited>) -> anyhow::Result<Opened> {
        if let Some(stray) = inherited.iter().find(|socket| !self.listen.contains(&socket.address))
        {
            let (unit, address, listen) = (self.unit, &stray.address, self.listen);
            bail!(
                "the service manager passed a socket at {address}, which is not in input.listen ({listen:?}), so no process \
                 would read it: set ListenDatagram= in {unit}.socket to input.listen (systemctl edit {unit}.socket; systemctl \
                 restart {unit}.socket), or disable the socket unit: systemctl disable --now {unit}.socket; systemctl start \
                 {unit}.service"
            );
        }
        let mut opened = Opened::default();
        for address in self.listen {
            // The service manager may have passed several sockets with this address (`ReusePort=`).
            let passed: Vec<_> =
                inherited.extract_if(.., |passed| passed.address == *address).collect();
            if passed.is_empty() {
                let (socket, file) = self.bind(address)?;
                self.add_receivers(&socket, file, false, &mut opened)?;
            }
            for Inherited { socket, .. } in passed {
                self.prepare(&socket, address).map_err(|error| {
                    anyhow!("cannot use the socket at {address} that the service manager passed: {error}")
                })?;
                let drops = self.add_receivers(&socket, None, true, &mut opened)?;
                opened.drops_before += u64::from(drops);
                if drops > 0 {
                    tracing::warn!(
                        %address,
                        datagrams = drops,
                        "the kernel had dropped datagrams from this socket before this process started reading it; drops while an earlier \
                         process was running have already been counted by that process"
                    );
                }
            }
        }
        Ok(opened)
    }

    /// Adds one receiver per thread for a socket. Returns how many of its datagrams the kernel has already dropped.
    fn add_receivers(
        &self,
        socket: &Socket,
        file: Option<SocketFile>,
        outlives: bool,
        opened: &mut Opened,
    ) -> anyhow::Result<u32> {
        let file = file.map(Arc::new);
        let mut drops = None;
        for thread in 0..self.threads {
            let clone = socket.try_clone().context("cannot duplicate a socket")?;
            let mut receiver = Receiver::new(clone, self.datagram_max);
            (receiver.outlives, receiver.file) = (outlives, file.clone());
            if thread == 0 {
                drops = receiver.drops_seen;
                opened.addresses.extend(receiver.address());
                if !receiver.makes_senders_wait() {
                    opened.buffer_bytes += buffer_bytes(socket)?;
                }
            } else {
                receiver.drops_seen = None;
            }
            opened.receivers.push(receiver);
        }
        Ok(drops.unwrap_or_default())
    }

    /// Binds a new socket to an address. `[::]` also receives IPv4, unless `listen` has an IPv4 address with the same port.
    fn bind(&self, address: &ListenAddress) -> anyhow::Result<(Socket, Option<SocketFile>)> {
        let bound = match address {
            ListenAddress::Udp(address) => self.bind_udp(*address).map(|socket| (socket, None)),
            ListenAddress::Unix(path) => {
                bind_unix(path, self.socket_mode).map(|(socket, file)| (socket, Some(file)))
            }
        };
        let bound = bound.and_then(|(socket, file)| {
            socket.set_read_timeout(Some(self.read_timeout))?;
            Ok((socket, file))
        });
        bound.map_err(|error| anyhow!("cannot listen on {address} (input.listen): {error}"))
    }

    fn bind_udp(&self, address: SocketAddr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            let is_ipv4 = |other: &ListenAddress| match other {
                ListenAddress::Udp(other) => other.is_ipv4() && other.port() == address.port(),
                ListenAddress::Unix(_) => false,
            };
            socket.set_only_v6(self.listen.iter().any(is_ipv4))?;
        }
        let bound = socket.bind(&address.into());
        bound.map_err(|error| explained(error, Table::Udp, address))?;
        self.set_receive_buffer(&socket, address, false)?;
        Ok(socket)
    }

    fn prepare(&self, socket: &Socket, address: &ListenAddress) -> io::Result<()> {
        // The previous owner of the socket may have made it non-blocking.
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(self.read_timeout))?;
        let ListenAddress::Udp(address) = *address else {
            return Ok(());
        };
        if address.ip().is_unspecified() && address.is_ipv6() && socket.only_v6()? {
            tracing::info!(
                %address,
                "the socket passed by the service manager receives only IPv6 (BindIPv6Only=ipv6-only in its unit)"
            );
        }
        self.set_receive_buffer(socket, address, true)
    }

    /// Sets the size of the receive buffer, and logs a warning if it ends up smaller than requested. Never shrinks the
    /// buffer of a passed socket: the service manager may have made it larger than this process can (`ReceiveBuffer=`).
    fn set_receive_buffer(
        &self,
        socket: &Socket,
        address: SocketAddr,
        is_passed: bool,
    ) -> io::Result<()> {
        let asked = self.receive_buffer;
        let size = i32::try_from(asked).unwrap_or(i32::MAX / 2);
        let is_enough = is_passed && buffer_bytes(socket)? >= asked;
        let size = usize::try_from(size).unwrap_or_default();
        // Tries to exceed the system's limit first, which requires CAP_NET_ADMIN.
        if !is_enough && set_socket_recv_buffer_size_force(socket, size).is_err() {
            // Without that capability, a trial socket shows what the kernel grants. The socket may already have more.
            let trial = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
            trial.set_recv_buffer_size(size)?;
            if !is_passed || buffer_bytes(&trial)? > buffer_bytes(socket)? {
                socket.set_recv_buffer_size(size)?;
            }
        }
        let actual = buffer_bytes(socket)?;
        if actual < asked {
            tracing::warn!(
                %address,
                asked_bytes = asked,
                got_bytes = actual,
                "{}",
                Cause::SmallBuffer
            );
        }
        Ok(())
    }
}

/// Returns the size of the receive buffer in bytes: half of what the kernel reports, because it doubles the requested size.
fn buffer_bytes(socket: &Socket) -> io::Result<u64> {
    Ok(socket.recv_buffer_size()? as u64 / 2)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use super::*;

    fn sockets(listen: &[ListenAddress]) -> Sockets<'_> {
        Sockets {
            listen,
            receive_buffer: 4096,
            socket_mode: 0o600,
            read_timeout: Duration::from_millis(5),
            threads: 1,
            datagram_max: 100,
            unit: "eds",
        }
    }

    fn passed(socket: impl Into<Socket>) -> Inherited {
        let socket = socket.into();
        let address = address_for_events(&socket).unwrap();
        Inherited { socket, address }
    }

    fn udp() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").unwrap()
    }

    #[test]
    fn only_datagram_sockets_with_an_address_are_used() {
        let check = |socket: Socket, kind: &str| {
            assert_eq!(address_for_events(&socket).unwrap_err(), kind);
        };
        let file = std::fs::File::open("/dev/null").unwrap();
        check(Socket::from(OwnedFd::from(file)), "not a socket");
        check(TcpListener::bind("127.0.0.1:0").unwrap().into(), "not a datagram socket");
        check(UnixStream::pair().unwrap().0.into(), "not a datagram socket");
        check(UnixDatagram::unbound().unwrap().into(), "a socket without an address");
        check(Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap(), "a socket without an address");
        let good = udp();
        let at = ListenAddress::Udp(good.local_addr().unwrap());
        assert_eq!(address_for_events(&good.into()), Ok(at));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eds.sock");
        let good = UnixDatagram::bind(&path).unwrap();
        assert_eq!(address_for_events(&good.into()), Ok(ListenAddress::Unix(path)));
    }

    #[test]
    fn unknown_inherited_socket_is_an_error_with_its_address() {
        let (known, unknown) = (passed(udp()), passed(udp()));
        let (listen, unknown_at) = ([known.address.clone()], unknown.address.clone());
        let error = sockets(&listen).open(vec![known, unknown]).unwrap_err().to_string();
        assert!(error.contains(&format!("a socket at {unknown_at}")), "{error}");
        assert!(error.contains("ListenDatagram="), "{error}");
    }

    #[test]
    fn inherited_sockets_are_matched_by_address() {
        let all = vec![passed(udp()), passed(udp())];
        let listen = [1, 0].map(|at: usize| all[at].address.clone());
        let opened = sockets(&listen).open(all).unwrap();
        assert_eq!(opened.addresses, listen);
        assert!(opened.receivers.iter().all(|receiver| receiver.outlives));
        assert_eq!(opened.receivers.len(), 2);
    }

    #[test]
    fn receive_buffer_of_an_inherited_socket_only_grows() {
        let socket = udp();
        let address = socket.local_addr().unwrap();
        let socket = Socket::from(socket);
        socket.set_recv_buffer_size(64 * 1024).unwrap();
        for (asked, is_passed, expected) in [(16, true, 64), (96, true, 96), (16, false, 16)] {
            let sockets = Sockets { receive_buffer: asked * 1024, ..sockets(&[]) };
            sockets.set_receive_buffer(&socket, address, is_passed).unwrap();
            assert_eq!(buffer_bytes(&socket).unwrap(), expected * 1024);
        }
    }

    #[test]
    fn polled_socket_blocks_again() {
        let socket = udp();
        socket.set_nonblocking(true).unwrap();
        let Inherited { socket, address } = passed(socket);
        sockets(&[]).prepare(&socket, &address).unwrap();
        assert!(!socket.nonblocking().unwrap());
        assert_eq!(socket.read_timeout().unwrap().map(|time| time > Duration::ZERO), Some(true));
    }
}
