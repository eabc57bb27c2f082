//! The UDP sockets that the node binds itself.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use super::receive::force_receive_buffer;

/// Why a socket cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} (input.listen): {source}")]
pub struct BindError {
    address: SocketAddr,
    source: io::Error,
}

/// Binds a socket to one of the addresses in `listen`, with a receive buffer of so many bytes, and warns when the kernel
/// gives less. Reads wait for `read_timeout` at most. `[::]` receives IPv4 as well, unless `listen` has an IPv4 address
/// with its port: the kernel does not allow both.
pub fn bind(
    address: SocketAddr,
    listen: &[SocketAddr],
    receive_buffer: u64,
    read_timeout: Duration,
) -> Result<Socket, BindError> {
    let bound = || {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if address.is_ipv6() {
            let mut others = listen.iter();
            socket.set_only_v6(others.any(|at| at.is_ipv4() && at.port() == address.port()))?;
        }
        socket.bind(&address.into())?;
        socket.set_read_timeout(Some(read_timeout))?;
        set_receive_buffer(&socket, address, receive_buffer)?;
        Ok(socket)
    };
    bound().map_err(|source| BindError { address, source })
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
            "the kernel gives a smaller receive buffer than input.receive_buffer asks for; raise the sysctl \
             net.core.rmem_max to that size"
        );
    }
    Ok(())
}
