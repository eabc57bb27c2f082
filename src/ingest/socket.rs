//! The sockets that the node binds itself.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::address::ListenAddress;
use super::holder::{Table, explained};
use super::receive::force_receive_buffer;
use super::unix::{self, SocketFile};
use crate::diagnosis::Cause;

/// How sockets are bound.
#[derive(Debug, Clone, Copy)]
pub struct BindSettings {
    /// The receive buffer of a UDP socket, in bytes.
    pub receive_buffer: u64,
    /// The permissions of the file of a Unix socket: who may write to it may send.
    pub socket_mode: u32,
    /// Reads wait no longer.
    pub read_timeout: Duration,
}

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (input.listen): {source}")]
pub struct BindError {
    address: ListenAddress,
    source: io::Error,
}

/// Binds a socket to one of the addresses in `listen`, and warns when the kernel gives a smaller receive buffer than asked
/// for. With a Unix socket comes its file. `[::]` receives IPv4 as well, unless `listen` has an IPv4 address with its port:
/// the kernel does not allow both.
pub fn bind(
    address: &ListenAddress,
    listen: &[ListenAddress],
    settings: &BindSettings,
) -> Result<(Socket, Option<SocketFile>), BindError> {
    let bound = match address {
        ListenAddress::Udp(address) => udp(*address, listen, settings).map(|it| (it, None)),
        ListenAddress::Unix(path) => {
            unix::bind(path, settings.socket_mode).map(|(socket, file)| (socket, Some(file)))
        }
    };
    let bound = bound.and_then(|(socket, file)| {
        socket.set_read_timeout(Some(settings.read_timeout))?;
        Ok((socket, file))
    });
    bound.map_err(|source| BindError { address: address.clone(), source })
}

fn udp(
    address: SocketAddr,
    listen: &[ListenAddress],
    settings: &BindSettings,
) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        let is_ipv4 = |at: &ListenAddress| match at {
            ListenAddress::Udp(at) => at.is_ipv4() && at.port() == address.port(),
            ListenAddress::Unix(_) => false,
        };
        socket.set_only_v6(listen.iter().any(is_ipv4))?;
    }
    let bound = socket.bind(&address.into());
    bound.map_err(|error| explained(error, Table::Udp, address))?;
    set_receive_buffer(&socket, address, settings.receive_buffer)?;
    Ok(socket)
}

fn set_receive_buffer(socket: &Socket, address: SocketAddr, asked: u64) -> io::Result<()> {
    let size = i32::try_from(asked).unwrap_or(i32::MAX / 2);
    if force_receive_buffer(socket, size).is_err() {
        socket.set_recv_buffer_size(usize::try_from(size).unwrap_or_default())?;
    }
    // The kernel doubles the size for its own records, and reports the double.
    let got = socket.recv_buffer_size()? as u64 / 2;
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
